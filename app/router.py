"""The request router of the replica deployment: Ray Serve asks it where each request goes.

Mechanism alone: the choice is `app.routing_policy`'s.

Runs in every process that holds a handle to the replicas, on its event loop; nothing here waits for anything. Serve's
base class owns sending, retries and the set of replicas: one that drains, has died or was found unhealthy is not in it.
What it takes of Serve beyond the public hooks, held by tests: `_choose_replica_for_request`,
`_fulfill_next_pending_request`, `_insert_pending_request_sorted`, and the two queues of pending requests.

Serve pickles this module by value, and what it imports by name.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from app.departed import Departed
from app.routing_load import ReplicaLoad
from app.routing_policy import CallView, Reason, RoutingRules, choose_replica
from app.routing_prefixes import PrefixBook
from app.routing_prompt import Prompt, read_prompt
from app.routing_queue import ClassQueue, call_of
from slo.priority import PriorityClass
from slo.routing import num_sequences

logger = logging.getLogger("expresslane.router")

ROUTER_ID_ARGUMENT = "router_id"
"""Of the replica's `generate`: who sent the request."""
QUESTION = CallView(PriorityClass.P0, num_sequences=0)
"""A call that asks for no generation, as it is counted."""


@dataclass(slots=True)
class Asked:
    """A pending request, as it was read once, and what was chosen for it last.

    Attributes:
        call: None for one that asks for no generation.
        best: the replica; None: none is known to have room.
    """

    call: CallView | None
    prompt: Prompt = field(default_factory=Prompt)
    reason: Reason | None = None
    best: RunningReplica | None = None


class ClassAwareRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # Ray's types are not looked at
    """Chooses by class and load, and lets the more urgent pending request go first."""

    def initialize_state(
        self,
        rules: Mapping[str, Any],
        stale_after_s: float,
        prefix_entries: int,
        chars_per_token: float,
        base_names: Sequence[str],
    ) -> None:
        """Called by Serve once, with `app.routing_config`'s arguments, before any request."""
        self._rules = RoutingRules(**rules)
        self._stale_after_s = stale_after_s
        self._chars_per_token = chars_per_token
        self._base_names = frozenset(base_names)
        self._prefixes = PrefixBook(prefix_entries)
        self._router_id = uuid.uuid4().hex[:12]
        self._clock = time.monotonic
        self._lots = random.Random()
        self._loads: dict[ReplicaID, ReplicaLoad] = {}
        self._seated: list[RunningReplica] = []
        self._by_id: dict[str, RunningReplica] = {}
        self._seats: list[ReplicaLoad] = []
        self._asked: dict[int, Asked] = {}
        self._departed = Departed()
        self._pending_requests_to_fulfill = ClassQueue()
        self._pending_requests_to_route = ClassQueue()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve when the set of replicas, or what one of them tells, has changed."""
        now_s = self._clock()
        there = {replica.replica_id for replica in replicas}
        self._loads = {i: load for i, load in self._loads.items() if i in there or not load.is_idle}
        for replica in replicas:
            load = self._load_of(replica.replica_id)
            if load.told(replica.routing_stats, now_s):
                self._spare_a_probe(replica.replica_id, load, now_s)
        for replica_id in self.curr_replicas.keys() - there:
            self._departed.taken_out(self.curr_replicas[replica_id])
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called by Serve when Ray has said so of it."""
        super().on_replica_actor_died(replica_id)
        self._departed.has_died(replica_id)

    def on_request_routed(
        self,
        pending_request: PendingRequest,  # noqa: ARG002  # Serve's signature
        replica_id: ReplicaID,
        result: Any,
    ) -> None:
        """Called by Serve when a replica has taken a request."""
        self._departed.answering(replica_id, result)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Called by Serve's routing tasks, each for a request of its own. What it finds goes to whichever is first by
        then, see `_fulfill_next_pending_request`."""
        asked = Asked(None)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            asked = self._asked_by(pending_request)
        self._seat(candidate_replicas)
        if asked.call is None:
            return [self._any_two()]
        ranked = self._rank(asked, asked.call)
        return [[asked.best] if asked.best is not None else list(ranked)]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Serve when a request has ended at a replica, or was refused there."""
        if (load := self._loads.get(replica_id)) is not None:
            load.ended(internal_request_id)

    @property
    def max_num_routing_tasks(self) -> int:
        """Serve's limit, and one more for each pending request more urgent than P2: those that have a task may all be
        P2s that wait out a pause between attempts."""
        most: int = super().max_num_routing_tasks
        return min(self.max_num_routing_tasks_cap, most + self._pending_requests_to_fulfill.num_urgent()) if most else 0

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """What Serve calls for each request, and again after a refusal."""
        self._asked[id(pending_request)] = self._read(pending_request)
        try:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        except asyncio.CancelledError:
            future = pending_request.future
            if future.done() and not future.cancelled():  # it has a replica, and will not be sent to it
                self.on_request_completed(future.result().replica_id, pending_request.metadata.internal_request_id)
            raise
        finally:
            del self._asked[id(pending_request)]

    def _fulfill_next_pending_request(self, replica: RunningReplica, request_metadata: Any = None) -> None:
        """Gives the first pending request its replica: `replica`, if that was chosen for it. Else Serve had to ask who
        has room, and now knows; or another request has come first meanwhile. Counted here, before it is sent: the next
        choice sees it."""
        first = self._first_pending()
        asked = Asked(None) if first is None else self._asked_by(first)
        if asked.call is not None and asked.best is not replica:
            self._seat(self._replicas_list)
            self._rank(asked, asked.call)
            replica = asked.best or replica
        super()._fulfill_next_pending_request(replica, request_metadata)
        if first is not None:
            self._count(first, asked, replica)
            if asked.call is not None:
                self._note(first, asked, asked.call, replica)

    def _count(self, pending: PendingRequest, asked: Asked, replica: RunningReplica) -> None:
        """A question counts nothing; but it ends under the id of the HTTP request it serves, as a generation may."""
        load, request_id = self._load_of(replica.replica_id), pending.metadata.internal_request_id
        read = self._prefixes.match(asked.prompt).get(load.replica_id, 0)
        load.sent(request_id, asked.call or QUESTION, self._clock(), self._tokens(read))

    def _note(self, first: PendingRequest, asked: Asked, call: CallView, replica: RunningReplica) -> None:
        unique_id = replica.replica_id.unique_id
        self._prefixes.note(asked.prompt, unique_id)
        first.kwargs[ROUTER_ID_ARGUMENT] = self._router_id
        reason = asked.reason.value if asked.reason else None
        logger.info(
            "request_id=%s class=%s replica=%s reason=%s",
            first.metadata.request_id,
            call.priority.name,
            unique_id,
            reason,
        )

    def _insert_pending_request_sorted(self, queue: ClassQueue, pending_request: PendingRequest) -> None:
        """A request that was refused takes its old place."""
        queue.append(pending_request)

    def _first_pending(self) -> PendingRequest | None:
        queue = self._pending_requests_to_fulfill
        while queue and queue[0].future.done():
            queue.popleft()
        return queue[0] if queue else None

    def _asked_by(self, pending: PendingRequest) -> Asked:
        return self._asked.get(id(pending)) or self._read(pending)

    def _read(self, pending: PendingRequest) -> Asked:
        call = call_of(pending)
        if call is None:
            return Asked(None)
        prompt = read_prompt(call.body, self._base_names)
        return Asked(CallView(call.counts_as, num_sequences(call.body), self._tokens(prompt.num_chars)), prompt)

    def _tokens(self, num_chars: int) -> int:
        return round(num_chars / self._chars_per_token)

    def _load_of(self, replica_id: ReplicaID) -> ReplicaLoad:
        load = self._loads.get(replica_id)
        if load is None:
            load = self._loads[replica_id] = ReplicaLoad(replica_id.unique_id, self._router_id, self._stale_after_s)
        return load

    def _seat(self, candidates: list[RunningReplica]) -> None:
        """Serve gives the same list until a replica comes or goes, and looking each one up takes longer than the
        choice."""
        if candidates is not self._seated:
            self._seated = candidates
            self._by_id = {replica.replica_id.unique_id: replica for replica in candidates}
            self._seats = [self._load_of(replica.replica_id) for replica in candidates]

    def _rank(self, asked: Asked, call: CallView) -> Iterator[RunningReplica]:
        """All that serve, the best first. The best that Serve knows to have room is noted: one that is full, or that
        says nothing, would hold the request up. Where it knows of none, it asks all at once."""
        now_s = self._clock()
        views = [load.view(now_s) for load in self._seats]
        read = self._prefixes.match(asked.prompt)
        choice = choose_replica(call, views, self._rules, read, self._lots.random)
        asked.reason = choice.reason
        asked.best = next(filter(self._has_room, map(self._by_id.__getitem__, choice.ranked)), None)
        return map(self._by_id.__getitem__, choice.ranked)

    def _any_two(self) -> list[RunningReplica]:
        """As Serve's own router does: it takes the less busy one."""
        now_s = self._clock()
        views = [load.view(now_s) for load in self._seats]
        serving = [self._by_id[view.replica_id] for view in views if view.told is None or view.told.is_serving]
        return self._lots.sample(serving, min(2, len(serving)))

    def _has_room(self, replica: RunningReplica) -> bool:
        num_ongoing = self.replica_queue_len_cache.get(replica.replica_id)
        return num_ongoing is not None and num_ongoing < replica.max_ongoing_requests

    def _spare_a_probe(self, replica_id: ReplicaID, load: ReplicaLoad, now_s: float) -> None:
        """Serve forgets a replica's queue length when nothing was sent there for 10 s, and asks for it before the next
        request; what the replica has just told will do."""
        if self.replica_queue_len_cache.get(replica_id) is None and (num := load.num_told(now_s)) is not None:
            self.on_new_queue_len_info(replica_id, num)

"""Serve's own router, real from the handle's call on, over replicas that are plain objects: what they are sent, they
accept, refuse or die of, as the test says. As Serve's own tests do it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

import ray
from ray.exceptions import ActorDiedError
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    ReplicaQueueLengthInfo,
    RequestMetadata,
)
from ray.serve._private.router import AsyncioRouter

from app.departed import Departed
from app.router import ROUTER_ID_ARGUMENT, ClassAwareRouter
from app.routing_config import request_router_config
from slo.messages import Endpoint, GenerateCall
from slo.priority import PriorityClass
from slo.routing import NOTHING, ByClass, RoutingStats
from slo.settings import Settings, parse_settings

DEPLOYMENT = DeploymentID("Replica", "expresslane")
LIMIT_S = 120.0
FOREVER_S = 1e6


class FakeResult:
    """What a replica answers with."""

    def __init__(self, replica: FakeReplica, request_id: str, accepted: bool) -> None:
        self.request_id, self.accepted = request_id, accepted
        self._replica = replica
        self._callbacks: list[Callable[[Any], None]] = []
        self.is_over = False
        self.is_cancelled = False

    async def get_rejection_response(self) -> ReplicaQueueLengthInfo:
        return ReplicaQueueLengthInfo(self.accepted, self._replica.num_ongoing)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.is_over:
            callback(None)
        else:
            self._callbacks.append(callback)

    def end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._replica.num_ongoing -= self.accepted
        for callback in self._callbacks:
            callback(None)

    def cancel(self) -> None:
        self.is_cancelled = not self.is_over
        self.end()


class FakeReplica:
    """As much of Serve's `RunningReplica` as its routers use."""

    def __init__(self, name: str, max_ongoing_requests: int) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.actor_id = ray.ActorID.from_random()
        self.max_ongoing_requests = max_ongoing_requests
        self.routing_stats: dict[str, Any] = {}
        self.is_cross_language = False
        self.multiplexed_model_ids: set[str] = set()
        self.num_ongoing = 0
        self.num_probes = 0
        self.has_died = False
        self.results: list[FakeResult] = []
        self.router_ids: list[str | None] = []

    async def get_queue_len(self, *, deadline_s: float) -> int:  # noqa: ARG002  # Serve's signature
        self.num_probes += 1
        if self.has_died:
            raise ActorDiedError
        return self.num_ongoing

    def try_send_request(self, pending: Any, with_rejection: bool) -> FakeResult:
        assert with_rejection
        if self.has_died:
            raise ActorDiedError
        self.router_ids.append(pending.kwargs.get(ROUTER_ID_ARGUMENT))
        accepted = self.num_ongoing < self.max_ongoing_requests
        self.num_ongoing += accepted
        result = FakeResult(self, pending.metadata.request_id, accepted)
        self.results.append(result)
        return result

    def end_one(self) -> None:
        """The oldest request that it took and has not answered ends."""
        next(result for result in self.results if result.accepted and not result.is_over).end()

    @property
    def accepted(self) -> list[str]:
        """The ids of the requests that it took, in order."""
        return [result.request_id for result in self.results if result.accepted]


class ServeScene:
    """One handle to a fleet. Clocks stand still until they are set. Make it on a running event loop.

    Args:
        max_ongoing: requests that a replica takes.
        pause_s: between two attempts to find room.
    """

    def __init__(
        self, *names: str, slots: int = 4, max_ongoing: int = 100, pause_s: float = 0.001, **routing: Any
    ) -> None:
        self.now_s = 1000.0
        self.settings: Settings = parse_settings({"engine": {"max_num_seqs": slots}, "routing": routing})
        self.replicas = {name: FakeReplica(name, max_ongoing) for name in names}
        self.router = ClassAwareRouter(
            deployment_id=DEPLOYMENT,
            handle_source=DeploymentHandleSource.REPLICA,
            use_replica_queue_len_cache=True,
            get_curr_time_s=lambda: self.now_s,
            initial_backoff_s=pause_s,
            max_backoff_s=pause_s,
        )
        self.router.initialize_state(**request_router_config(self.settings).request_router_kwargs)
        self.router._clock = lambda: self.now_s
        self.router._lots.seed(1)
        self.router._departed = Departed(look_s=0.01)
        with mock.patch("ray.serve._private.router.SharedRouterLongPollClient"):
            self._serve = AsyncioRouter(
                controller_handle=mock.MagicMock(),
                deployment_id=DEPLOYMENT,
                handle_id="handle",
                self_actor_id="actor",
                handle_source=DeploymentHandleSource.REPLICA,
                event_loop=asyncio.get_running_loop(),
                enable_strict_max_ongoing_requests=True,
                node_id="node",
                availability_zone=None,
                prefer_local_node_routing=False,
                request_router=self.router,
                _request_router_initialized_event=asyncio.Event(),
            )
        self._number = 0
        self.tasks: list[asyncio.Task[FakeResult]] = []
        self.update()

    def update(self) -> None:
        """The controller tells of the replicas that there are, and what they told."""
        self.router.update_replicas(list(self.replicas.values()))

    def tell(self, name: str, others: ByClass = NOTHING, **more: Any) -> None:
        """The replica tells, and the controller passes it on."""
        self._number += 1
        values = {"free_kv_tokens": 100_000, "unread_tokens": NOTHING, "step_s": None, **more}
        stats = RoutingStats(number=self._number, ongoing={"another-router": others}, **values)
        self.replicas[name].routing_stats = stats.as_dict()
        self.update()

    def send(
        self,
        request_id: str,
        priority: PriorityClass | None = PriorityClass.P1,
        prompt: str = "a",
        internal_id: str | None = None,
    ) -> asyncio.Task[FakeResult]:
        """Calls over the handle. `priority` None: asks for the models."""
        arguments: list[Any] = []
        if priority is not None:
            arguments = [GenerateCall(Endpoint.COMPLETION, {"prompt": prompt}, priority, request_id)]
        internal_id = internal_id or uuid.uuid4().hex
        metadata = RequestMetadata(request_id, internal_id, call_method="generate", is_streaming=True)
        task = asyncio.create_task(self._serve.assign_request(metadata, *arguments))
        self.tasks.append(task)
        return task

    async def sent(self, *sent: tuple[str, PriorityClass | None]) -> None:
        """Sends these at once, and waits until each has a replica."""
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(self.send(request_id, priority) for request_id, priority in sent))

    def where(self, request_id: str) -> str:
        """The replica that took that request."""
        (name,) = (name for name, replica in self.replicas.items() if request_id in replica.accepted)
        return name

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(0.001)

    async def settled(self) -> None:
        """Lets everything happen that is about to."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def over(self) -> None:
        """Everything has ended; nothing is counted any more."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for replica in self.replicas.values():
            for result in replica.results:
                result.end()
        await self.settled()
        for load in self.router._loads.values():
            load.check_invariants()
            assert load.is_idle, load.replica_id
        assert not self.router._asked
        for task in list(self.router._routing_tasks):
            task.cancel()
        if (pusher := self._serve._metrics_manager._cached_metrics_task) is not None:
            pusher.cancel()
        await self.settled()

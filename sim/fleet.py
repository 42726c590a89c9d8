"""A fleet on a virtual clock: replicas' engines and what happens to them, in order of time.

Owns time and who is where. What is decided (routing, scheduling, scaling) is decided by the product's own policies.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from itertools import count

from sim.gate import SimGate
from sim.replica import Replica
from sim.request import Arrival, Track
from sim.router import Router
from sim.token_log import TokenLog
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import Settings

PATIENCE_S = 3600.0
"""Who is without a replica so long after the last arrival is lost."""


class Fleet:
    """One run. `router` and `log` are told what happens to each request. `gate`: the settings of one; None: all that
    arrives is given to a replica at once."""

    def __init__(
        self, replicas: Iterable[Replica], router: Router, log: TokenLog, gate: Settings | None = None
    ) -> None:
        self.replicas: list[Replica] = []
        self.now_s = 0.0
        self.log = log
        self._router = router
        self._due: list[tuple[float, int, int]] = []
        self._versions: list[int] = []
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._without_replica: list[Track] = []
        self._gate: SimGate | None = None
        for replica in replicas:
            self.add_replica(replica)
        if gate is not None:
            self._gate = SimGate(gate, self._num_serving(), self._place, self._refuse, self._plan_settling)

    @property
    def num_without_replica(self) -> int:
        """Requests that no replica serves yet."""
        num_at_gate = self._gate.num_waiting if self._gate is not None and not self._num_serving() else 0
        return len(self._without_replica) + num_at_gate

    def num_queued(self, priority: PriorityClass) -> int:
        """Requests of a class that wait at the gate: no engine knows them."""
        return 0 if self._gate is None else self._gate.num_queued(priority)

    def run(self, arrivals: Iterable[Arrival], progress: Callable[[float], None] = lambda _: None) -> None:
        """Everything that arrives, and on until all of it has ended."""
        for arrival in arrivals:
            self.run_until(arrival.arrived_s)
            self._arrive(self.log.begin(arrival))
            progress(arrival.arrived_s)
        give_up_s = self.now_s + PATIENCE_S
        while self.log.num_open and (next_s := min(self._next_s, self._next_planned_s)) < math.inf:
            if self._without_replica and next_s > give_up_s:
                break
            self.run_until(next_s)
        for track in self._without_replica:
            self.log.end(track, self.now_s, Outcome.REPLICA_LOST)

    def run_until(self, at_s: float) -> None:
        """What happens by itself, and what was planned, up to `at_s`."""
        while (next_s := min(self._next_s, self._next_planned_s)) <= at_s and next_s < math.inf:
            if self._next_planned_s <= self._next_s:
                self.now_s, _, action = heapq.heappop(self._planned)
                action()
                continue
            due_s, number, version = heapq.heappop(self._due)
            if version == self._versions[number]:
                self.now_s = due_s
                self._advance(self.replicas[number])
        self.now_s = max(self.now_s, at_s)

    def plan(self, at_s: float, action: Callable[[], None]) -> None:
        """`action` is done at `at_s`."""
        heapq.heappush(self._planned, (at_s, next(self._numbers), action))

    def add_replica(self, replica: Replica) -> None:
        """A replica is asked for; it serves from its `ready_s` on. `replica.number` counts them."""
        assert replica.number == len(self.replicas)
        self.replicas.append(replica)
        self._versions.append(0)
        if replica.ready_s > self.now_s:
            self.plan(replica.ready_s, self._count_serving)

    def drain(self, replica: Replica) -> None:
        """It is given nothing more, and goes when what it has is done; one that has not come up goes at once."""
        replica.is_draining = True
        self._let_go(replica)
        self._count_serving()

    def crash(self, replica: Replica, found_after_s: float, resumes: bool) -> None:
        """It is gone, with all KV. Its streams are found broken `found_after_s` later; then each goes on elsewhere from
        the tokens that came, or is lost."""
        if replica.gone_s is not None:
            return
        replica.gone_s = self.now_s
        lost = replica.engine.stop(self.now_s)
        self._versions[replica.number] += 1
        self._count_serving()
        self.plan(self.now_s + found_after_s, lambda: self._after_crash(lost, replica, resumes))

    def catch_up(self) -> None:
        """Whatever has come of engines that run by themselves is in the log."""
        for replica in self.replicas:
            if replica.gone_s is None:
                replica.engine.catch_up(self.now_s)

    @property
    def _next_s(self) -> float:
        return self._due[0][0] if self._due else math.inf

    @property
    def _next_planned_s(self) -> float:
        return self._planned[0][0] if self._planned else math.inf

    def _after_crash(self, lost: list[Track], replica: Replica, resumes: bool) -> None:
        for track in lost:
            self._router.ended(track.arrival, replica)
            if resumes:
                self._place(track)
            else:
                self._end(track, self.now_s, Outcome.REPLICA_LOST)

    def _count_serving(self) -> None:
        """Replicas have come or gone: who waits for one is placed, and the gate is told."""
        waiting, self._without_replica = self._without_replica, []
        for track in waiting:
            self._place(track)
        if self._gate is not None:
            self._gate.set_num_replicas(self._num_serving(), self.now_s)

    def _num_serving(self) -> int:
        return sum(replica.is_serving(self.now_s) for replica in self.replicas)

    def _arrive(self, track: Track) -> None:
        if self._gate is None:
            self._place(track)
        else:
            self._gate.arrive(track, self.now_s)

    def _refuse(self, track: Track, outcome: Outcome) -> None:
        self.log.end(track, self.now_s, outcome)

    def _plan_settling(self, at_s: float) -> None:
        gate = self._gate
        if gate is not None:
            self.plan(at_s, lambda: gate.settle(self.now_s))

    def _place(self, track: Track) -> None:
        serving = [replica for replica in self.replicas if replica.is_serving(self.now_s)]
        if not serving:
            self._without_replica.append(track)
            return
        replica = self._router.choose(track.arrival, serving, self.now_s)
        replica.engine.add(track, self.now_s)
        self._watch(replica)

    def _advance(self, replica: Replica) -> None:
        ended = replica.engine.advance()
        self._watch(replica)
        for track in ended:
            self._router.ended(track.arrival, replica)
            self._end(track, replica.engine.now_s, Outcome.COMPLETED)
        self._let_go(replica)

    def _end(self, track: Track, at_s: float, outcome: Outcome) -> None:
        """Of one that was given to a replica."""
        self.log.end(track, at_s, outcome)
        if self._gate is not None:
            self._gate.release(track, self.now_s)

    def _let_go(self, replica: Replica) -> None:
        if replica.is_draining and not replica.num_ongoing and replica.gone_s is None:
            replica.gone_s = self.now_s

    def _watch(self, replica: Replica) -> None:
        """Only the latest word of a replica counts."""
        self._versions[replica.number] += 1
        if replica.engine.next_event_s < math.inf:
            entry = (replica.engine.next_event_s, replica.number, self._versions[replica.number])
            heapq.heappush(self._due, entry)

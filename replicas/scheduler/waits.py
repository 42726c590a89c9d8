"""The book of fairness: who waits since when, and who is lifted. One writer; the rules are in `fairness`.

A step costs O(log n) for each request that begins to wait or is lifted, and O(1) for those that merely wait.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TypeAlias

from replicas.scheduler.fairness import Lift, Wait, grain_of, has_had_its_grain, lifted, may_lift, next_lift_s
from slo.priority import PriorityClass
from slo.settings.scheduling import FairnessSettings

_Entry: TypeAlias = tuple[float, int, str, Wait]
"""When it is due, a running number (which breaks ties: first come, first lifted), request id, wait."""
_BY_URGENCY = sorted(PriorityClass, key=lambda c: c.level)
_SPARE_ENTRIES = 64


class WaitBook:
    """Waits ordered by when they are due: for each class, those of suspended prefills apart from the others."""

    def __init__(self, settings: FairnessSettings) -> None:
        self._settings = settings
        self._waits: dict[str, Wait] = {}
        self._lifts: dict[str, Lift] = {}
        self._numbers = itertools.count()
        self._due: dict[tuple[PriorityClass, bool], list[_Entry]] = {
            (c, is_suspended): [] for c in PriorityClass for is_suspended in (False, True)
        }

    def begin(self, request_id: str, wait: Wait) -> None:
        """A request waits from now on. One that is known to wait is counted on from when it began to."""
        if request_id not in self._waits:
            self._put(request_id, wait)

    def is_any_due(self, now_s: float) -> bool:
        """Whether `lift_due` may have somebody to lift; False is certain."""
        due = (counts_as for (counts_as, _), heap in self._due.items() if heap and heap[0][0] <= now_s)
        return any(self._num_lifted(counts_as.promoted()) < self._settings.max_lifted for counts_as in due)

    def lift_due(self, now_s: float, lowest_running: PriorityClass | None) -> list[tuple[str, PriorityClass]]:
        """Lift those that are due, each by one class; their ids, and what they count as now."""
        changes: list[tuple[str, PriorityClass]] = []
        for counts_as in _BY_URGENCY:
            while (found := self._find_due(counts_as, now_s, lowest_running)) is not None:
                request_id, wait = found
                own = self.own_class(request_id, wait.counts_as)
                wait = lifted(wait, self._settings)
                self._lifts[request_id] = Lift(own, wait.counts_as)
                self._put(request_id, wait)
                changes.append((request_id, wait.counts_as))
        return changes

    def end(self, request_id: str) -> None:
        """It runs: it waits no more."""
        if self._waits.pop(request_id, None) is not None:
            self._tidy()

    def note_run(self, request_id: str, num_tokens: int, num_tokens_left: int) -> PriorityClass | None:
        """A lifted request computes `num_tokens`, and has `num_tokens_left` after them; its own class, if it is of that
        again."""
        lift = self._lifts[request_id]
        if lift.grain_tokens is None:
            grain = grain_of(num_tokens + num_tokens_left, self._settings)
            lift = Lift(lift.own, lift.counts_as, grain)
        lift = self._lifts[request_id] = lift.after(num_tokens)
        if not has_had_its_grain(lift):
            return None
        del self._lifts[request_id]
        return lift.own

    def forget(self, request_id: str) -> None:
        self._lifts.pop(request_id, None)
        self.end(request_id)

    def own_class(self, request_id: str, counts_as: PriorityClass) -> PriorityClass:
        lift = self._lifts.get(request_id)
        return counts_as if lift is None else lift.own

    @property
    def lifted_ids(self) -> tuple[str, ...]:
        return tuple(self._lifts)

    @property
    def waiting_ids(self) -> set[str]:
        return set(self._waits)

    def __len__(self) -> int:
        return len(self._waits.keys() | self._lifts.keys())

    def check_invariants(self) -> None:
        """For tests: what is due is due once, lifts go up and are few, and the dead do not pile up."""
        entries = [entry for heap in self._due.values() for entry in heap]
        alive = [request_id for _, _, request_id, wait in entries if self._waits.get(request_id) is wait]
        assert len(alive) == len(set(alive)), "a wait is due twice"
        assert set(alive) == {i for i, w in self._waits.items() if next_lift_s(w, self._settings) is not None}
        assert all(lift.counts_as.outranks(lift.own) for lift in self._lifts.values())
        assert all(self._num_lifted(c) <= self._settings.max_lifted for c in PriorityClass)
        assert all(self._waits[i].counts_as is lift.counts_as for i, lift in self._lifts.items() if i in self._waits)
        assert all(len(heap) <= 2 * len(self._waits) + _SPARE_ENTRIES for heap in self._due.values())

    def _find_due(
        self, counts_as: PriorityClass, now_s: float, lowest_running: PriorityClass | None
    ) -> tuple[str, Wait] | None:
        heads = [self._head((counts_as, is_suspended)) for is_suspended in (False, True)]
        num_lifted = self._num_lifted(counts_as.promoted())
        for due_s, _, request_id, wait in sorted(h for h in heads if h is not None):
            if now_s < due_s:
                return None
            if may_lift(wait, now_s, num_lifted, lowest_running, self._settings):
                return request_id, wait
        return None

    def _head(self, key: tuple[PriorityClass, bool]) -> _Entry | None:
        heap = self._due[key]
        while heap and self._waits.get(heap[0][2]) is not heap[0][3]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _num_lifted(self, counts_as: PriorityClass) -> int:
        return sum(lift.counts_as is counts_as for lift in self._lifts.values())

    def _put(self, request_id: str, wait: Wait) -> None:
        self._waits[request_id] = wait
        due_s = next_lift_s(wait, self._settings)
        if due_s is None:
            return
        key = (wait.counts_as, wait.is_suspended_prefill)
        heapq.heappush(self._due[key], (due_s, next(self._numbers), request_id, wait))
        self._tidy()

    def _tidy(self) -> None:
        for key, heap in self._due.items():
            if len(heap) > 2 * len(self._waits) + _SPARE_ENTRIES:
                self._due[key] = [entry for entry in heap if self._waits.get(entry[2]) is entry[3]]
                heapq.heapify(self._due[key])

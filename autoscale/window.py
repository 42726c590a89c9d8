"""What the fleet told in the latest periods, added up: totals that never fall, and what was added in the window.

One writer, the control loop, which brings each period's snapshots. A source that goes leaves its totals behind; one
that restarts (another `source_id`) is another source; one that is silent adds nothing, and its states count no more
once they are stale. Knows neither Ray nor thresholds, and reads no clock.

Totals are counted from the controller's start. Of a source that was there before it (it answers in the first collection
in which nobody is silent, or earlier) only what comes later is counted: nobody knows when the rest was, and a counter
that starts with a history looks like a burst to Prometheus and to the rules alike. Of one that comes later, all is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

from autoscale.series import Totals, nothing_yet, totals_of_batches, totals_of_engine, totals_of_ingress
from slo.snapshots import BatchSnapshot, EngineSnapshot, IngressSnapshot

Snapshot = TypeVar("Snapshot", IngressSnapshot, EngineSnapshot, BatchSnapshot)

MAX_GONE_SOURCES = 256
"""Sources whose totals are remembered after they went, so that one that comes back is not counted twice."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[Snapshot]):
    """A snapshot, stamped by the controller's monotonic clock: when it was received, less the age that it told."""

    snapshot: Snapshot
    taken_s: float


@dataclass(frozen=True, slots=True)
class Collection:
    """What one period brought. The silent ones were asked and did not answer in time, or failed."""

    ingresses: tuple[Answer[IngressSnapshot], ...] = ()
    engines: tuple[Answer[EngineSnapshot], ...] = ()
    num_silent_ingresses: int = 0
    num_silent_engines: int = 0
    batches: tuple[Answer[BatchSnapshot], ...] = ()
    num_silent_batches: int = 0


@dataclass(frozen=True, slots=True)
class Recent:
    """The fleet at `now_s`: what it has counted so far, what of it fell into the window, and who is fresh.

    Attributes:
        totals: counted since the controller's start.
        grown: what of them fell into the window.
        span_s: how much time that is; None while there is but one period, and nothing has grown.
        ingresses: the fresh ones, the latest first; `engines` and `batches` likewise.
        num_silent: ingresses and engines that were asked in this period and gave no answer. The owner of the batches is
            not among them: the fleet's size does not hang on it.
    """

    now_s: float
    span_s: float | None
    totals: Totals
    grown: Totals
    ingresses: tuple[Answer[IngressSnapshot], ...]
    engines: tuple[Answer[EngineSnapshot], ...]
    num_silent: int
    batches: tuple[Answer[BatchSnapshot], ...] = ()


@dataclass(slots=True)
class _Sources(Generic[Snapshot]):
    """The sources of one kind, by id."""

    totals_of: Callable[[Snapshot], Totals]
    latest: dict[str, Answer[Snapshot]] = field(default_factory=dict)
    newcomers_are_new: bool = False
    """Everyone who was there at the start has been heard, so who is heard now for the first time came later."""

    def take(self, answers: Iterable[Answer[Snapshot]], num_silent: int) -> Totals:
        """Takes the answers of a period; returns what they add."""
        added = Totals()
        for answer in answers:
            added += self._take(answer)
        self.newcomers_are_new |= num_silent == 0
        return added

    def _take(self, answer: Answer[Snapshot]) -> Totals:
        source_id = answer.snapshot.source_id
        former = self.latest.get(source_id)
        totals = self.totals_of(answer.snapshot)
        before = Totals() if former is None else self.totals_of(former.snapshot)
        try:
            added = totals.grown_since(before)
        except ValueError:
            return Totals()  # older than the former answer: it adds nothing, and does not make the source fresh
        self.latest[source_id] = answer
        return added if former is not None or self.newcomers_are_new else Totals()

    def fresh(self, now_s: float, stale_after_s: float) -> tuple[Answer[Snapshot], ...]:
        """Those whose answer is fresh, the latest first."""
        fresh = [a for a in self.latest.values() if now_s - a.taken_s <= stale_after_s]
        return tuple(sorted(fresh, key=lambda a: a.taken_s, reverse=True))

    def forget(self, now_s: float, stale_after_s: float) -> None:
        """Forgets the longest gone, beyond the number that is remembered."""
        gone = sorted((a.taken_s, i) for i, a in self.latest.items() if now_s - a.taken_s > stale_after_s)
        for _, source_id in gone[: max(0, len(gone) - MAX_GONE_SOURCES)]:
            del self.latest[source_id]


@dataclass(frozen=True, slots=True)
class _Mark:
    """The totals at one time."""

    at_s: float
    totals: Totals


class Window:
    """The latest periods of the fleet.

    Args:
        window_s: how far back the window reaches; half a period more is allowed for, as periods are never exact.
        stale_after_s: a snapshot older than this says nothing any more of its source's state.
    """

    def __init__(self, window_s: float, period_s: float, stale_after_s: float) -> None:
        self._reach_s = window_s + period_s / 2
        self._stale_after_s = stale_after_s
        self._ingresses = _Sources(totals_of_ingress)
        self._engines = _Sources(totals_of_engine)
        self._batches = _Sources(totals_of_batches)
        self._marks: deque[_Mark] = deque()

    def add(self, collection: Collection, now_s: float) -> Recent:
        """Takes what a period brought, and gives the fleet as it is then. `now_s` does not fall from call to call."""
        totals = self._marks[-1].totals if self._marks else nothing_yet()
        totals += self._ingresses.take(collection.ingresses, collection.num_silent_ingresses)
        totals += self._engines.take(collection.engines, collection.num_silent_engines)
        totals += self._batches.take(collection.batches, collection.num_silent_batches)
        for sources in (self._ingresses, self._engines, self._batches):
            sources.forget(now_s, self._stale_after_s)
        self._marks.append(_Mark(now_s, totals))
        while now_s - self._marks[0].at_s > self._reach_s:
            self._marks.popleft()
        first = self._marks[0]
        return Recent(
            now_s=now_s,
            span_s=now_s - first.at_s or None,
            totals=totals,
            grown=totals.grown_since(first.totals),
            ingresses=self._ingresses.fresh(now_s, self._stale_after_s),
            engines=self._engines.fresh(now_s, self._stale_after_s),
            num_silent=collection.num_silent_ingresses + collection.num_silent_engines,
            batches=self._batches.fresh(now_s, self._stale_after_s),
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the books do not add up."""
        times_s = [m.at_s for m in self._marks]
        assert times_s == sorted(times_s)
        assert not times_s or times_s[-1] - times_s[0] <= self._reach_s, "a mark beyond the window's reach"
        for earlier, later in pairwise(self._marks):
            later.totals.grown_since(earlier.totals)  # raises when a total has fallen
        for sources in (self._ingresses, self._engines, self._batches):
            assert all(i == a.snapshot.source_id for i, a in sources.latest.items()), "a source under another's id"

"""What the requests of this ingress process have felt: latencies by class, how they ended, and whether promises held.

Owns the totals and the rule that judges a request. One writer: each request has one `RequestMeter`, which its
`RequestRecord` tells of its tokens and its end. Refuses to average: whoever reads the histograms makes percentiles.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from slo.histogram import Histogram
from slo.messages import Recovery
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import ClassTargets, LatencyTargets
from slo.snapshots import ClassTraffic, IngressSnapshot

_NOT_JUDGED = (Outcome.REJECTED, Outcome.CANCELLED)
_MAX_LATE_SHARE_PERCENT = 1
"""P99: so many of a hundred gaps may exceed the target."""


@dataclass(slots=True)
class TokenTimes:
    """When the tokens of one streamed answer left. Times are of a monotonic clock, seconds.

    A gap is between two events that carry tokens: an event with several tokens reaches the user as one.
    """

    tbt_target_s: float | None
    first_s: float | None = None
    last_s: float | None = None
    num_gaps: int = 0
    num_late_gaps: int = 0
    """Gaps above the target."""
    max_gap_s: float | None = None

    def note(self, now_s: float) -> float | None:
        """Tokens leave now; the gap before them, None for the first ones."""
        last_s, self.last_s = self.last_s, now_s
        if last_s is None:
            self.first_s = now_s
            return None
        gap_s = now_s - last_s
        self.num_gaps += 1
        if self.tbt_target_s is not None and gap_s > self.tbt_target_s:
            self.num_late_gaps += 1
        if self.max_gap_s is None or gap_s > self.max_gap_s:
            self.max_gap_s = gap_s
        return gap_s


def has_held(outcome: Outcome, ttft_s: float | None, times: TokenTimes, targets: LatencyTargets) -> bool | None:
    """Whether an ended request held its class's promise; None where there is nothing to judge.

    Held: answered in full, its TTFT within the target, and the P99 of its own gaps within the TBT target (at most one
    gap in a hundred above it, so none of fewer than a hundred). A target that does not apply cannot be missed: an
    answer that is not streamed has neither TTFT nor gaps. Shed, expired, failed and lost requests missed. Rejected and
    cancelled ones are not judged, nor is a class without a promise.

    Args:
        ttft_s: arrival to the first token out; None when none was streamed.
    """
    is_promised = targets.promised and not (targets.ttft_p99_ms is None and targets.tbt_p99_ms is None)
    if not is_promised or outcome in _NOT_JUDGED:
        return None
    if outcome is not Outcome.COMPLETED:
        return False
    if ttft_s is not None and targets.ttft_p99_ms is not None and ttft_s > targets.ttft_p99_ms / 1e3:
        return False
    return times.num_late_gaps * 100 <= _MAX_LATE_SHARE_PERCENT * times.num_gaps


@dataclass(slots=True)
class _Traffic:
    """One class, growing."""

    targets: LatencyTargets
    ttft: Histogram = field(default_factory=Histogram)
    tbt: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    num_held: int = 0
    num_missed: int = 0
    num_arrived: int = 0

    @property
    def num_in_flight(self) -> int:
        return self.num_arrived - sum(self.outcomes.values())

    def snapshot(self, num_queued: int) -> ClassTraffic:
        return ClassTraffic(
            ttft=self.ttft.counts(),
            tbt=self.tbt.counts(),
            e2e=self.e2e.counts(),
            outcomes={outcome: n for outcome, n in self.outcomes.items() if n},
            num_held=self.num_held,
            num_missed=self.num_missed,
            num_in_flight=self.num_in_flight,
            num_queued=num_queued,
        )


class RequestMeter:
    """One request of a class, from arrival to end. Made by `IngressMetrics.begin`; times as there, seconds."""

    __slots__ = ("_arrived_s", "_traffic", "times")

    def __init__(self, traffic: _Traffic, arrived_s: float) -> None:
        target_ms = traffic.targets.tbt_p99_ms
        self._traffic = traffic
        self._arrived_s = arrived_s
        self.times = TokenTimes(None if target_ms is None else target_ms / 1e3)

    @property
    def ttft_s(self) -> float | None:
        """Arrival to the first token out; None when none was streamed."""
        return None if self.times.first_s is None else self.times.first_s - self._arrived_s

    def tokens_out(self, now_s: float) -> None:
        """An event that carries tokens leaves now. TTFT and TBT are counted as they happen: a long stream is seen
        while it runs."""
        gap_s = self.times.note(now_s)
        if gap_s is None:
            self._traffic.ttft.observe(now_s - self._arrived_s)
        else:
            self._traffic.tbt.observe(gap_s)

    def end(self, outcome: Outcome, now_s: float) -> None:
        """The request ended. E2E is of requests that were answered in full. Called once."""
        traffic = self._traffic
        traffic.outcomes[outcome] += 1
        if outcome is Outcome.COMPLETED:
            traffic.e2e.observe(now_s - self._arrived_s)
        held = has_held(outcome, self.ttft_s, self.times, traffic.targets)
        if held is not None:
            traffic.num_held += held
            traffic.num_missed += not held


class IngressMetrics:
    """The totals of one ingress process. Used on its event loop only."""

    def __init__(self, targets: ClassTargets) -> None:
        self._source_id = uuid.uuid4().hex
        self._classes = {c: _Traffic(targets.of(c)) for c in PriorityClass}
        self._unclassified = dict.fromkeys(Outcome, 0)
        self._recoveries = dict.fromkeys(Recovery, 0)

    def begin(self, priority: PriorityClass, arrived_s: float) -> RequestMeter:
        """A request that arrived at `arrived_s` (of the clock that all its times are of) is of class `priority`."""
        traffic = self._classes[priority]
        traffic.num_arrived += 1
        return RequestMeter(traffic, arrived_s)

    def end_unclassified(self, outcome: Outcome) -> None:
        """A request ended before it had a class."""
        self._unclassified[outcome] += 1

    def recovered(self, recovery: Recovery) -> None:
        """A request lost its replica, and this became of it; once for each loss."""
        self._recoveries[recovery] += 1

    def snapshot(self, num_queued: Mapping[PriorityClass, int]) -> IngressSnapshot:
        """The totals as they are now; `num_queued`: requests that wait at this process's gate."""
        return IngressSnapshot(
            source_id=self._source_id,
            age_s=0.0,
            classes={c: traffic.snapshot(num_queued.get(c, 0)) for c, traffic in self._classes.items()},
            num_unclassified={outcome: n for outcome, n in self._unclassified.items() if n},
            recoveries={recovery: n for recovery, n in self._recoveries.items() if n},
        )

    def check_invariants(self) -> None:
        """For tests: nothing is counted twice."""
        for priority, traffic in self._classes.items():
            ended = traffic.outcomes
            judged = sum(n for outcome, n in ended.items() if outcome not in _NOT_JUDGED)
            assert traffic.num_in_flight >= 0, f"{priority}: more ends than arrivals"
            assert traffic.e2e.counts().count == ended[Outcome.COMPLETED]
            assert traffic.ttft.counts().count <= traffic.num_arrived
            assert traffic.num_held <= ended[Outcome.COMPLETED]
            assert traffic.num_held + traffic.num_missed in (0, judged)

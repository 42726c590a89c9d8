"""Histograms that can be merged: what percentiles are computed from, and what Prometheus is given.

Percentiles of several sources come from the sum of their counts, never from an average of their percentiles. All
histograms of one kind share their bounds, so that counts can be added, and subtracted to get what fell into a window.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

_STEPS = (
    1.0,
    1.1,
    1.2,
    1.35,
    1.5,
    1.65,
    1.8,
    2.0,
    2.2,
    2.5,
    2.8,
    3.0,
    3.3,
    3.6,
    4.0,
    4.5,
    5.0,
    5.5,
    6.0,
    7.0,
    8.0,
    9.0,
)

LATENCY_BOUNDS_S: tuple[float, ...] = tuple(
    round(step * 10.0**decade, 6) for decade in range(-3, 3) for step in _STEPS if step * 10.0**decade <= 600
)
"""Upper bounds of latency buckets, seconds: 1 ms to 10 min, at most 17 % apart, 12.5 % around the default targets,
which are bounds themselves (20, 40, 100, 200, 500 ms, 1 s)."""

BATCH_BOUNDS: tuple[float, ...] = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Upper bounds of the running requests in a step."""


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """Counts by bucket, one more than bounds: the last is for what lies above all of them. `sum` is of the values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.counts)} counts for {len(self.bounds)} bounds")

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> HistogramCounts:
        return cls(bounds, (0,) * (len(bounds) + 1), 0.0)

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean value; None when there is none."""
        return self.sum / self.count if self.count else None

    def __add__(self, other: HistogramCounts) -> HistogramCounts:
        self._check_same_kind(other)
        return HistogramCounts(
            self.bounds, tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)), self.sum + other.sum
        )

    def __sub__(self, earlier: HistogramCounts) -> HistogramCounts:
        """What was added since `earlier`, a former state of the same histogram."""
        self._check_same_kind(earlier)
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        if any(n < 0 for n in counts):
            raise ValueError("the other histogram is not an earlier state of this one")
        return HistogramCounts(self.bounds, counts, self.sum - earlier.sum)

    def quantile(self, q: float) -> float | None:
        """The value that a share `q` in (0, 1] does not exceed, interpolated inside its bucket as Prometheus does.

        None when there is no value; the highest bound when it lies above all of them.
        """
        total = self.count
        if not total:
            return None
        rank = q * total
        below = 0
        for index, count in enumerate(self.counts[:-1]):
            if count and below + count >= rank:
                low = self.bounds[index - 1] if index else 0.0
                return low + (self.bounds[index] - low) * (rank - below) / count
            below += count
        return self.bounds[-1]

    def num_within(self, bound: float) -> int:
        """How many values are at most `bound`. Exact when `bound` is one of the bounds; else of the next lower one."""
        index = bisect_left(self.bounds, bound)
        is_bound = index < len(self.bounds) and self.bounds[index] == bound
        return sum(self.counts[: index + is_bound])

    def _check_same_kind(self, other: HistogramCounts) -> None:
        if self.bounds != other.bounds:
            raise ValueError("histograms of different bounds cannot be combined")


@dataclass(slots=True)
class Histogram:
    """A histogram that grows. One writer."""

    bounds: tuple[float, ...] = LATENCY_BOUNDS_S
    _counts: list[int] = field(init=False)
    _sum: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Adds a value, of the unit of the bounds; a bound's own value counts below it."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def counts(self) -> HistogramCounts:
        return HistogramCounts(self.bounds, tuple(self._counts), self._sum)


def merged(histograms: Sequence[HistogramCounts], bounds: tuple[float, ...]) -> HistogramCounts:
    """The sum of `histograms`, all of `bounds`; an empty one for none."""
    total = HistogramCounts.empty(bounds)
    for histogram in histograms:
        total = total + histogram
    return total

"""When every token came: each request's, and the gaps between tokens by class.

Runs of equal steps are noted as a whole, an array of gaps and how many requests had them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.request import Arrival, Track
from slo.outcome import Outcome
from slo.priority import PriorityClass

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Mark:
    """How much of a class had been noted at a moment."""

    num_arrived: int = 0
    num_completed: int = 0
    num_first: int = 0
    num_single: int = 0
    num_runs: int = 0


@dataclass(slots=True)
class _OfClass:
    """Of one class. `first`: the TTFT of each that had its first token, in that order."""

    late_s: float
    num_arrived: int = 0
    num_ended: int = 0
    num_completed: int = 0
    first: list[float] = field(default_factory=list)
    single: list[float] = field(default_factory=list)
    runs: list[tuple[Floats, int]] = field(default_factory=list)


class TokenLog:
    """Of one simulated fleet.

    `late_s`: the TBT target of each class, seconds; a longer gap is late. `front_s`: what lies between client and
    engine; it comes on top of when a request's first token came and when it ended.
    """

    def __init__(self, late_s: Mapping[PriorityClass, float | None], front_s: float = 0.0) -> None:
        self._front_s = front_s
        self._classes = {c: _OfClass(math.inf if (late := late_s[c]) is None else late) for c in PriorityClass}
        self.tracks: list[Track] = []

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return sum(has.num_arrived - has.num_ended for has in self._classes.values())

    def begin(self, arrival: Arrival) -> Track:
        """A request has arrived."""
        track = Track(arrival)
        self.tracks.append(track)
        self._classes[arrival.priority].num_arrived += 1
        return track

    def token(self, track: Track, at_s: float) -> None:
        """One token came."""
        if track.first_s is None:
            track.first_s = at_s + self._front_s
            self._classes[track.arrival.priority].first.append(track.first_s - track.arrival.arrived_s)
        else:
            gap_s = at_s - track.last_s
            of_class = self._classes[track.arrival.priority]
            of_class.single.append(gap_s)
            track.num_late_gaps += gap_s > of_class.late_s
        track.last_s = at_s
        track.num_tokens += 1

    def run(self, tracks: Iterable[Track], times_s: Floats) -> None:
        """Each of `tracks` got a token at each of the times."""
        first_s, last_s, num_more = float(times_s[0]), float(times_s[-1]), len(times_s) - 1
        counts: Counter[PriorityClass] = Counter()
        gaps_s = np.diff(times_s)
        late = {c: int(np.count_nonzero(gaps_s > has.late_s)) for c, has in self._classes.items()}
        for track in tracks:
            self.token(track, first_s)
            track.last_s = last_s
            track.num_tokens += num_more
            track.num_late_gaps += late[track.arrival.priority]
            counts[track.arrival.priority] += 1
        if num_more:
            for priority, count in counts.items():
                self._classes[priority].runs.append((gaps_s, count))

    def end(self, track: Track, at_s: float, outcome: Outcome) -> None:
        """A request has ended."""
        assert track.outcome is None, f"{track.arrival.request_id} ends twice"
        track.ended_s, track.outcome = at_s + self._front_s, outcome
        has = self._classes[track.arrival.priority]
        has.num_ended += 1
        has.num_completed += outcome is Outcome.COMPLETED

    def mark(self, priority: PriorityClass) -> Mark:
        """How much there is now of a class."""
        has = self._classes[priority]
        return Mark(has.num_arrived, has.num_completed, len(has.first), len(has.single), len(has.runs))

    def ttfts_s(self, priority: PriorityClass, since: Mark = Mark()) -> list[float]:
        """Of those of a class whose first token came after `since`."""
        return self._classes[priority].first[since.num_first :]

    def gaps_s(self, priority: PriorityClass, since: Mark = Mark()) -> tuple[Floats, Floats]:
        """Gaps between tokens of a class, noted after `since`, seconds, and how often each was."""
        has = self._classes[priority]
        single, runs = has.single[since.num_single :], has.runs[since.num_runs :]
        values = [np.asarray(single, dtype=float), *(run for run, _ in runs)]
        weights = [np.ones(len(single)), *(np.full(len(run), times, dtype=float) for run, times in runs)]
        return np.concatenate(values), np.concatenate(weights)


def weighted_percentiles(values: Floats, weights: Floats, percents: Sequence[float]) -> list[float]:
    """The smallest values below or at which at least so many percent of the weight lie. Of at least one value."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    indices = np.searchsorted(cumulative, np.asarray(percents) / 100 * cumulative[-1] * (1 - 1e-12))
    return [float(values[order[min(i, len(order) - 1)]]) for i in indices]

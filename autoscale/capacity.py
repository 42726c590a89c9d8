"""What one replica can carry, learned while the fleet runs. Pure.

Learned of each class: at which load per replica its targets held and broke, in both measures of `autoscale.demand`, and
how short its latencies are when little is going on. Nothing is assumed of the model or the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, exp

from autoscale.demand import demand_of
from autoscale.pressure import is_over, is_ttft_over, predicts_miss, starts_per_s
from autoscale.view import ClassView
from slo.priority import PriorityClass
from slo.settings import AutoscaleSettings, ClassTargets, LatencyTargets

LOAD_MEMORY_WINDOWS = 2
"""The smoothed load follows a change to 63 % in so many windows: latencies of a window lag behind a burst as much."""
LEAST_BROKEN_IN_FLIGHT = 1.0
"""A target that breaks with less than one request in flight a replica, on average, broke for one request."""
FORGOTTEN_LOAD = 1e6
"""A broken load that has aged beyond this says nothing any more."""
LEAST_LATE_STARTS = 100
"""A P99 of fewer requests is their slowest one, which may have been late by chance."""


@dataclass(frozen=True, slots=True)
class Band:
    """Loads per replica: the highest at which the targets held, the lowest at which one broke. held <= broke.

    The newer evidence wins where two contradict. Both lose their weight with time: held falls, broke rises.
    """

    held: float = 0.0
    broke: float | None = None

    def aged(self, share: float) -> Band:
        """`share` of its weight is left."""
        broke = None if self.broke is None or self.broke / share > FORGOTTEN_LOAD else self.broke / share
        return Band(self.held * share, broke)

    def having_held(self, load: float) -> Band:
        """A load that broke a target once and holds now broke it for another reason."""
        broke = None if self.broke is not None and load >= self.broke else self.broke
        return Band(max(self.held, load), broke)

    def having_broken(self, load: float) -> Band:
        broke = load if self.broke is None else min(load, self.broke)
        return Band(min(self.held, broke), broke)

    def num_needed(self, load: float, headroom_ratio: float) -> int | None:
        """Replicas for a load of the whole fleet, with headroom; None: not known."""
        return None if self.broke is None else ceil(load / (headroom_ratio * self.broke))

    def check_invariants(self) -> None:
        """Raises AssertionError unless the band holds together."""
        assert self.held >= 0, self
        assert self.broke is None or 0 < self.broke >= self.held, self


@dataclass(frozen=True, slots=True)
class LoadTrack:
    """A load in one measure, of the whole fleet, smoothed, and what a replica was seen to carry of it."""

    smoothed: float | None = None
    """None before the first look."""
    band: Band = field(default_factory=Band)

    def watched(self, load: float, weight: float, share: float) -> LoadTrack:
        """After a look, which counts for `weight` of the smoothed load; `share` of what was learned is left."""
        before = load if self.smoothed is None else self.smoothed
        return LoadTrack(before + weight * (load - before), self.band.aged(share))

    def sustained(self, load: float) -> float:
        """Of this moment's load and the smoothed one the lower: there for as long as the latencies of a window."""
        return load if self.smoothed is None else min(load, self.smoothed)

    def to_expect(self, load: float) -> float:
        """Of the two the higher."""
        return load if self.smoothed is None else max(load, self.smoothed)


@dataclass(frozen=True, slots=True)
class ClassRecord:
    """What is remembered of one class."""

    priority: PriorityClass
    in_flight: LoadTrack = field(default_factory=LoadTrack)
    arrivals: LoadTrack = field(default_factory=LoadTrack)
    """A second. What broke is what was served of them then: more may have arrived."""
    ttft_floor_s: float | None = None
    """The lowest P99 seen, of which no load takes anything."""
    tbt_floor_s: float | None = None
    num_over: int = 0
    """Periods in a row in which a P99 was above its target."""
    num_missing: int = 0
    """Periods in a row in which the queue predicted a miss."""
    num_late_starts: float = 0.0
    """Requests that have started since TTFT P99 rose above its target and stayed there."""

    def watched(
        self,
        classes: Mapping[PriorityClass, ClassView],
        targets: ClassTargets,
        settings: AutoscaleSettings,
        elapsed_s: float,
    ) -> ClassRecord:
        """The record after a look; what was seen of the load is not yet evidence of what a replica carries."""
        view, demand = classes.get(self.priority, ClassView()), demand_of(self.priority, classes)
        target = targets.of(self.priority)
        weight = 1 - exp(-elapsed_s / (LOAD_MEMORY_WINDOWS * settings.window_s))
        share = 0.5 ** (elapsed_s / settings.capacity_half_life_s)
        return ClassRecord(
            self.priority,
            self.in_flight.watched(demand.in_flight, weight, share),
            self.arrivals.watched(demand.arrivals_per_s, weight, share),
            _lower(self.ttft_floor_s, view.ttft_p99_s, share),
            _lower(self.tbt_floor_s, view.tbt_p99_s, share),
            self.num_over + 1 if is_over(view, target) else 0,
            self.num_missing + 1 if predicts_miss(self.priority, classes, targets, settings.settle_s) else 0,
            self.num_late_starts + elapsed_s * starts_per_s(view) if is_ttft_over(view, target) else 0.0,
        )

    def is_broken(self, settings: AutoscaleSettings) -> bool:
        """A target has been missed for long enough to be no accident."""
        return max(self.num_over, self.num_missing) >= settings.queue_periods

    def is_ttft_broken(self, target: LatencyTargets, settings: AutoscaleSettings) -> bool:
        """TTFT P99 has been above its target for long enough to be no accident, and fewer requests a replica were seen
        to keep it: it is not the prompts alone that take so long."""
        if target.ttft_p99_ms is None or self.ttft_floor_s is None:
            return False
        has_lasted = self.num_over >= settings.queue_periods and self.num_late_starts >= LEAST_LATE_STARTS
        return has_lasted and self.ttft_floor_s <= target.ttft_p99_ms / 1000

    def learned(
        self, classes: Mapping[PriorityClass, ClassView], num_replicas: int, settings: AutoscaleSettings
    ) -> ClassRecord:
        """Takes a look at a fleet at rest as evidence."""
        demand, view = demand_of(self.priority, classes), classes.get(self.priority, ClassView())
        in_flight = self.in_flight.sustained(demand.in_flight) / num_replicas
        served = self.arrivals.sustained(demand.served_per_s) / num_replicas
        if self.is_broken(settings):
            if demand.is_receding:  # what is late still is so of a load that has gone
                return self
            return self._with_bands(
                self.in_flight.band.having_broken(max(in_flight, LEAST_BROKEN_IN_FLIGHT)),
                self.arrivals.band.having_broken(served) if served else self.arrivals.band,
            )
        is_silent = view.ttft_p99_s is None and view.tbt_p99_s is None
        if is_silent or self.num_over or self.num_missing:
            return self
        return self._with_bands(self.in_flight.band.having_held(in_flight), self.arrivals.band.having_held(served))

    def num_needed(self, classes: Mapping[PriorityClass, ClassView], headroom_ratio: float) -> int | None:
        """Replicas that would carry the demand of this moment, with headroom; None: not known.

        The lower of two estimates that can only be too high: a backlog inflates the one, answers that had not ended
        when the load broke the other.
        """
        demand = demand_of(self.priority, classes)
        needs = (
            self.in_flight.band.num_needed(demand.in_flight, headroom_ratio),
            self.arrivals.band.num_needed(demand.arrivals_per_s, headroom_ratio),
        )
        return min((need for need in needs if need is not None), default=None)

    def _with_bands(self, in_flight: Band, arrivals: Band) -> ClassRecord:
        return replace(
            self,
            in_flight=replace(self.in_flight, band=in_flight),
            arrivals=replace(self.arrivals, band=arrivals),
        )

    def check_invariants(self) -> None:
        """Raises AssertionError unless the record holds together."""
        assert min(self.num_over, self.num_missing, self.num_late_starts) >= 0, self
        self.in_flight.band.check_invariants()
        self.arrivals.band.check_invariants()


def _lower(floor_s: float | None, p99_s: float | None, share: float) -> float | None:
    """The floor after a look: it rises with time, lest one lucky window count for ever."""
    known = [value for value in (None if floor_s is None else floor_s / share, p99_s) if value is not None]
    return min(known, default=None)

"""What a simulated run showed, by class. Percentiles are of every sample. Pure.

The words and rules are those of the load generator: a request's TBT target holds when at least 99 % of its own gaps are
within it, and a request that was not answered in full is a miss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.request import Track
from sim.token_log import Floats, TokenLog, weighted_percentiles
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings.targets import ClassTargets, LatencyTargets

TBT_SHARE_OF_REQUEST = 0.99
PROMISED_PERCENT = 99.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles, milliseconds."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class. None: no sample, or nothing promised.

    Attributes:
        attainment: of requests with every target held, of all.
        ttft_attainment, tbt_attainment: of requests within the one, of gaps within the other.
        holds: whether each promised target holds at P99, and as many requests were answered.
        goodput_per_s: requests a second with every target held.
        num_preempted: preemptions of its requests, by the scheduler.
        output_tokens_per_s: over the time of arrivals.
    """

    priority: PriorityClass
    outcomes: Mapping[Outcome, int]
    ttft: Latency | None
    tbt: Latency | None
    e2e: Latency | None
    ttft_attainment: float | None
    tbt_attainment: float | None
    attainment: float | None
    holds: bool | None
    goodput_per_s: float | None
    num_preempted: int
    output_tokens_per_s: float

    @property
    def num_requests(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A whole run.

    Attributes:
        duration_s: of arrivals; rates are over it.
        end_s: when the last request ended.
        tokens_per_s: prompts and answers, of requests that were answered in full, while requests arrived.
        busy_ratio: of the replicas' time, until `end_s`, in which a step ran.
        replica_hours: of replicas that ran or started.
        num_steps: engine steps of all replicas.
    """

    classes: tuple[ClassFigures, ...]
    duration_s: float
    end_s: float
    tokens_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float
    busy_ratio: float
    replica_hours: float
    num_steps: int

    def of(self, priority: PriorityClass) -> ClassFigures | None:
        """Those of a class; None where nothing of it arrived."""
        return next((c for c in self.classes if c.priority is priority), None)

    @property
    def holds(self) -> bool:
        """Whether every promise is kept."""
        return all(c.holds is not False for c in self.classes)


def figures_of(
    log: TokenLog, targets: ClassTargets, duration_s: float, busy_s: float, replica_s: float, num_steps: int
) -> RunFigures:
    """The figures of a run that has ended."""
    by_class: dict[PriorityClass, list[Track]] = {c: [] for c in PriorityClass}
    for track in log.tracks:
        by_class[track.arrival.priority].append(track)
    classes = tuple(
        _of_class(c, tracks, log.gaps_s(c), targets.of(c), duration_s) for c, tracks in by_class.items() if tracks
    )
    completed = [t for t in log.tracks if t.outcome is Outcome.COMPLETED]
    end_s = max((t.ended_s or 0.0 for t in log.tracks), default=duration_s)
    in_time = [t for t in completed if t.ended_s is not None and t.ended_s <= duration_s]
    return RunFigures(
        classes,
        duration_s,
        end_s,
        sum(t.arrival.prompt_tokens + t.arrival.output_tokens for t in in_time) / duration_s,
        sum(t.arrival.output_tokens for t in in_time) / duration_s,
        sum(c.goodput_per_s or 0.0 for c in classes),
        busy_s / replica_s if replica_s else 0.0,
        replica_s / 3600,
        num_steps,
    )


def is_good(track: Track, targets: LatencyTargets) -> bool:
    """Whether it was answered in full, and each of its targets held."""
    if track.outcome is not Outcome.COMPLETED:
        return False
    num_gaps = track.num_tokens - 1
    is_steady = targets.tbt_p99_ms is None or track.num_late_gaps <= (1 - TBT_SHARE_OF_REQUEST) * num_gaps
    return is_steady and _is_early(track, targets)


def latency_of(values: Floats, weights: Floats | None = None) -> Latency | None:
    """Percentiles of seconds; None of none."""
    if not values.size:
        return None
    weights = np.ones(values.size) if weights is None else weights
    p50, p90, p99 = weighted_percentiles(values, weights, (50, 90, PROMISED_PERCENT))
    mean = float(np.average(values, weights=weights))
    return Latency(*(1e3 * value for value in (mean, p50, p90, p99, float(values.max()))))


def _of_class(
    priority: PriorityClass,
    tracks: Sequence[Track],
    gaps: tuple[Floats, Floats],
    targets: LatencyTargets,
    duration_s: float,
) -> ClassFigures:
    completed = [t for t in tracks if t.outcome is Outcome.COMPLETED]
    ttft = latency_of(np.array([t.ttft_s for t in completed if t.ttft_s is not None]))
    tbt = latency_of(*gaps)
    num_good = sum(is_good(t, targets) for t in tracks)
    ttft_attainment = sum(_is_early(t, targets) for t in completed) / len(tracks)
    tbt_attainment = _share_within(gaps, targets.tbt_p99_ms)
    shares = [len(completed) / len(tracks), ttft_attainment, 1.0 if tbt_attainment is None else tbt_attainment]
    return ClassFigures(
        priority=priority,
        outcomes=Counter(t.outcome or Outcome.FAILED for t in tracks),
        ttft=ttft,
        tbt=tbt,
        e2e=latency_of(np.array([t.ended_s - t.arrival.arrived_s for t in completed if t.ended_s is not None])),
        ttft_attainment=ttft_attainment if targets.promised and targets.ttft_p99_ms is not None else None,
        tbt_attainment=tbt_attainment if targets.promised else None,
        attainment=num_good / len(tracks) if targets.promised else None,
        holds=min(shares) >= PROMISED_PERCENT / 100 if targets.promised else None,
        goodput_per_s=num_good / duration_s if targets.promised else None,
        num_preempted=sum(t.num_preempted for t in tracks),
        output_tokens_per_s=sum(t.num_tokens for t in tracks) / duration_s,
    )


def _is_early(track: Track, targets: LatencyTargets) -> bool:
    ttft_s = track.ttft_s
    return ttft_s is not None and (targets.ttft_p99_ms is None or ttft_s * 1e3 <= targets.ttft_p99_ms)


def _share_within(gaps: tuple[Floats, Floats], target_ms: float | None) -> float | None:
    values, weights = gaps
    if target_ms is None or not values.size:
        return None
    return float(weights[values * 1e3 <= target_ms].sum() / weights.sum())

"""Whether a class's promises are being broken, or will be: the signs that the scaling policy reads off a view. Pure.

Only promised targets count. What is not known is no sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from autoscale.view import ClassView
from slo.priority import PriorityClass
from slo.settings import ClassTargets, LatencyTargets


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """What becomes of the requests of a class that wait now; seconds, `inf` when nothing starts or nothing drains."""

    num_waiting: int
    starts_per_s: float
    wait_s: float
    """Until the last of them starts, at the rate at which such requests have started lately."""
    drain_s: float
    """Until nobody waits, if requests go on to arrive as they did."""


def latencies_and_targets(view: ClassView, targets: LatencyTargets) -> tuple[tuple[float | None, float], ...]:
    """Each P99 and its promised target, seconds: TTFT, then TBT; without those that there is no promise for."""
    if not targets.promised:
        return ()
    pairs = ((view.ttft_p99_s, targets.ttft_p99_ms), (view.tbt_p99_s, targets.tbt_p99_ms))
    return tuple((p99_s, target_ms / 1000) for p99_s, target_ms in pairs if target_ms is not None)


def is_over(view: ClassView | None, targets: LatencyTargets) -> bool:
    """A P99 is known, and above its promised target."""
    if view is None:
        return False
    return any(p99_s is not None and p99_s > target_s for p99_s, target_s in latencies_and_targets(view, targets))


def is_tbt_over(view: ClassView | None, targets: LatencyTargets) -> bool:
    """The P99 of TBT is known, and above its promised target."""
    if view is None or view.tbt_p99_s is None or targets.tbt_p99_ms is None:
        return False
    return targets.promised and view.tbt_p99_s > targets.tbt_p99_ms / 1000


def is_ttft_over(view: ClassView | None, targets: LatencyTargets) -> bool:
    """The P99 of TTFT is known, and above its promised target."""
    if view is None or view.ttft_p99_s is None or targets.ttft_p99_ms is None:
        return False
    return targets.promised and view.ttft_p99_s > targets.ttft_p99_ms / 1000


def forecast_queue(priority: PriorityClass, classes: Mapping[PriorityClass, ClassView]) -> QueueForecast:
    """The queue in front of, and of, `priority`: more urgent requests start first, less urgent ones later."""
    ahead = [view for p, view in classes.items() if not priority.outranks(p)]
    num_waiting = sum(view.num_waiting for view in ahead)
    starts = sum(starts_per_s(view) for view in ahead)
    surplus = starts - sum(view.arrivals_per_s for view in ahead)
    return QueueForecast(num_waiting, starts, _time_s(num_waiting, starts), _time_s(num_waiting, surplus))


def starts_per_s(view: ClassView) -> float:
    """How many requests of a class start; as many as end, where that is not known."""
    return view.completions_per_s if view.starts_per_s is None else view.starts_per_s


def predicts_miss(
    priority: PriorityClass, classes: Mapping[PriorityClass, ClassView], targets: ClassTargets, patience_s: float
) -> bool:
    """Requests of `priority` wait, will not start within its promised TTFT target, and the queue will not drain by
    itself within `patience_s`."""
    target = targets.of(priority)
    view = classes.get(priority)
    if not target.promised or target.ttft_p99_ms is None or view is None or not view.num_waiting:
        return False
    forecast = forecast_queue(priority, classes)
    return forecast.wait_s > target.ttft_p99_ms / 1000 and forecast.drain_s > patience_s


def _time_s(num: int, per_s: float) -> float:
    if not num:
        return 0.0
    return num / per_s if per_s > 0 else inf

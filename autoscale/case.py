"""What the scaling rules are asked about: a look at the fleet, taken into what is remembered. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from autoscale.capacity import LEAST_BROKEN_IN_FLIGHT, ClassRecord
from autoscale.decision import ScalingDecision, ScalingReason, ScalingRules
from autoscale.demand import demand_of
from autoscale.pressure import forecast_queue, is_tbt_over
from autoscale.room import Room, is_known, room_without
from autoscale.scaling_state import ScalingState
from autoscale.view import FleetView, ReplicaCounts
from slo.priority import PriorityClass
from slo.settings import AutoscaleSettings, ClassTargets


@dataclass(frozen=True, slots=True)
class Trouble:
    """A promise of a class that is broken, or will be.

    Attributes:
        calls_for_more: False: it passes by itself. The alert has yet to clear, and the P99 is known to hold again, or
            not known at all; or the load recedes in the time that a new replica would be given.
    """

    priority: PriorityClass
    reason: ScalingReason
    detail: str
    calls_for_more: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """All that a rule may ask.

    Attributes:
        target: what holds: the target decided, or Serve's own where that is higher.
        room: whether one replica fewer would do.
        state: what is remembered, this look included.
        elapsed_s: watched time since the look before.
    """

    view: FleetView
    replicas: ReplicaCounts
    target: int
    troubles: tuple[Trouble, ...]
    room: Room
    state: ScalingState
    rules: ScalingRules
    elapsed_s: float

    @property
    def settings(self) -> AutoscaleSettings:
        return self.rules.settings

    @property
    def num_missing(self) -> int:
        """Replicas that were asked for and do not run."""
        return max(0, self.replicas.target - self.replicas.running)

    @property
    def is_given_up(self) -> bool:
        return self.state.starts.is_given_up(self.settings)

    @property
    def someone_waits_for_a_replica(self) -> bool:
        return self.view.num_without_replica > 0 or any(c.arrivals_per_s for c in self.view.classes.values())

    def keep(self, reason: ScalingReason, detail: str) -> ScalingDecision:
        return ScalingDecision(self.target, reason, detail)


def look(
    view: FleetView,
    replicas: ReplicaCounts,
    breaches: Set[PriorityClass],
    state: ScalingState,
    rules: ScalingRules,
    now_s: float,
) -> Case:
    """Takes the view into what is remembered.

    A clock that jumps, a machine that slept or a controller that was away adds no more than `stale_after_s`.
    """
    settings = rules.settings
    elapsed_s = 0.0 if state.last_s is None else min(max(0.0, now_s - state.last_s), settings.stale_after_s)
    target = _target_in_force(replicas, state, settings)
    starts = state.starts.watched(replicas, target, elapsed_s, settings)
    records = tuple(record.watched(view.classes, rules.targets, settings, elapsed_s) for record in state.records)
    if is_known(view) and starts.is_at_rest(settings):
        records = tuple(record.learned(view.classes, replicas.running, settings) for record in records)
    troubles = tuple(_troubles(view, breaches, records, rules))
    room = _room(target, troubles, view, records, rules)
    state = replace(
        state,
        last_s=now_s,
        records=records,
        starts=starts,
        quiet=state.quiet.watched(room.has_room, bool(troubles), elapsed_s, settings),
        promised_gone_s=_gone_s(view, state.promised_gone_s, rules.targets, elapsed_s),
    )
    return Case(view, replicas, target, troubles, room, state, rules, elapsed_s)


def _target_in_force(replicas: ReplicaCounts, state: ScalingState, settings: AutoscaleSettings) -> int:
    """Serve's, unless more were decided: lowering is for the rules alone. In a dry run no decision holds."""
    if settings.mode != "on" or state.target is None:
        return replicas.target
    return max(replicas.target, state.target)


def _troubles(
    view: FleetView, breaches: Set[PriorityClass], records: Sequence[ClassRecord], rules: ScalingRules
) -> Iterator[Trouble]:
    """The most urgent class first; for each a breach of TBT before a queue, and that before late first tokens."""
    for record in records:
        if record.priority in breaches and rules.targets.of(record.priority).promised:
            yield _breach(record, view, rules)
        if record.num_missing >= rules.settings.queue_periods:
            yield _miss(record.priority, view)
        if _is_ttft_broken(record, view, rules):
            yield _late(record, view, rules)


def _breach(record: ClassRecord, view: FleetView, rules: ScalingRules) -> Trouble:
    priority, target, of_class = record.priority, rules.targets.of(record.priority), view.classes.get(record.priority)
    p99_s = None if of_class is None else of_class.tbt_p99_s
    p99 = "not known now" if p99_s is None else f"{p99_s * 1000:.3g} ms"
    detail = f"{priority.name}: TBT P99 {p99}, target {target.tbt_p99_ms or 0:g} ms"
    is_over = is_tbt_over(of_class, target)
    return Trouble(priority, ScalingReason.TBT_BREACH, detail, is_over and not _recedes(record, view, rules.settings))


def _recedes(record: ClassRecord, view: FleetView, settings: AutoscaleSettings) -> bool:
    """The load falls, with headroom, below what broke, before a new replica could show what it does."""
    broke = record.in_flight.band.broke
    if broke is None or view.replicas is None:
        return False
    enough = settings.headroom_ratio * broke * view.replicas.running
    return demand_of(record.priority, view.classes).recedes_to_in_s(enough) <= settings.settle_s


def _miss(priority: PriorityClass, view: FleetView) -> Trouble:
    forecast = forecast_queue(priority, view.classes)
    detail = (
        f"{priority.name}: {forecast.num_waiting} wait and {forecast.starts_per_s:.3g} start a second, "
        f"so that the last starts in {forecast.wait_s:.3g} s"
    )
    return Trouble(priority, ScalingReason.QUEUE_GROWTH, detail)


def _is_ttft_broken(record: ClassRecord, view: FleetView, rules: ScalingRules) -> bool:
    """First tokens are late, and more replicas would change that: each has more than one request to serve."""
    if view.replicas is None or not record.is_ttft_broken(rules.targets.of(record.priority), rules.settings):
        return False
    return demand_of(record.priority, view.classes).in_flight > LEAST_BROKEN_IN_FLIGHT * view.replicas.running


def _late(record: ClassRecord, view: FleetView, rules: ScalingRules) -> Trouble:
    """The engines keep TBT by reading prompts more slowly, so that a fleet that is too small shows in TTFT."""
    priority, target_ms = record.priority, rules.targets.of(record.priority).ttft_p99_ms or 0
    p99_s = view.classes[priority].ttft_p99_s or 0.0
    detail = f"{priority.name}: TTFT P99 {p99_s * 1000:.3g} ms, target {target_ms:g} ms"
    return Trouble(priority, ScalingReason.TTFT_BREACH, detail, not _recedes(record, view, rules.settings))


def _room(
    target: int,
    troubles: Sequence[Trouble],
    view: FleetView,
    records: tuple[ClassRecord, ...],
    rules: ScalingRules,
) -> Room:
    if troubles:
        return Room(False, troubles[0].detail)
    if target < 1:
        return Room(False, "there is none")
    return room_without(target - 1, view, records, rules.targets, rules.settings)


def _gone_s(view: FleetView, gone_s: float, targets: ClassTargets, elapsed_s: float) -> float:
    """For how long no class with promises has asked; a look at a part of the fleet cannot tell."""
    promised = [c for priority, c in view.classes.items() if targets.of(priority).promised]
    if any(c.num_unfinished or c.arrivals_per_s for c in promised):
        return 0.0
    return gone_s + elapsed_s if is_known(view) else gone_s

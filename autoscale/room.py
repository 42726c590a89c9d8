"""Whether one replica fewer would still keep the promises. Pure.

For each class with promises, in both measures of its load: one that once broke a target is not gone near again, by the
headroom; one that was seen to hold is fine. Between the two, a latency is estimated: what it has above the lowest ever
seen grows with the square of the load's growth, since more requests share a replica and each stays for longer. Requests
in flight must find run slots, whatever is estimated. What is not known is None, never yes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoscale.capacity import Band, ClassRecord
from autoscale.demand import demand_of
from autoscale.pressure import latencies_and_targets
from autoscale.view import ClassView, FleetView
from slo.priority import PriorityClass
from slo.settings import AutoscaleSettings, ClassTargets, LatencyTargets


@dataclass(frozen=True, slots=True)
class Room:
    """Whether there is room for a scale-in, and what speaks against it. None: not known."""

    has_room: bool | None
    detail: str = ""


def room_without(
    num_left: int, view: FleetView, records: tuple[ClassRecord, ...], targets: ClassTargets, settings: AutoscaleSettings
) -> Room:
    """Whether `num_left` replicas would do, fewer than the target, for the load of `view`."""
    if not is_known(view):
        return Room(None, "not every replica and ingress process has answered")
    if not num_left:
        return _room_for_none(view)
    rooms = list(_rooms(num_left, view, records, targets, settings))
    for answer in (False, None):
        if refused := next((room for room in rooms if room.has_room is answer), None):
            return refused
    return Room(True)


def is_known(view: FleetView) -> bool:
    """Everyone has answered, and there is someone who could."""
    replicas = view.replicas
    return view.is_complete and replicas is not None and 0 < replicas.running <= replicas.fresh


def _room_for_none(view: FleetView) -> Room:
    if view.num_without_replica or any(c.num_unfinished or c.arrivals_per_s for c in view.classes.values()):
        return Room(False, "the last replica has work")
    return Room(True)


def _rooms(
    num_left: int, view: FleetView, records: tuple[ClassRecord, ...], targets: ClassTargets, settings: AutoscaleSettings
) -> Iterator[Room]:
    running = view.replicas.running if view.replicas else 0
    growth = running / min(num_left, running)
    promised = [record for record in records if targets.of(record.priority).promised]
    for record in promised:
        if record.num_over or record.num_missing:
            yield Room(False, f"{record.priority.name}: a target is missed, or will be")
    yield _slots_room(num_left, view, promised, settings)
    for record in promised:
        loads = _loads(record, view.classes, growth / running)
        yield from _broken_rooms(loads, settings.headroom_ratio)
        if any(load.per_replica > load.band.held for load in loads):
            yield from _latency_rooms(record, view.classes, targets.of(record.priority), growth, settings)


@dataclass(frozen=True, slots=True)
class _Load:
    """One measure of a class's load, as it would be for each replica that is left."""

    what: str
    per_replica: float
    band: Band


def _loads(record: ClassRecord, classes: Mapping[PriorityClass, ClassView], share: float) -> tuple[_Load, _Load]:
    demand, name = demand_of(record.priority, classes), record.priority.name
    in_flight = record.in_flight.to_expect(demand.in_flight) * share
    arrivals = record.arrivals.to_expect(demand.arrivals_per_s) * share
    return (
        _Load(f"{name}: {in_flight:.3g} in flight a replica", in_flight, record.in_flight.band),
        _Load(f"{name}: {arrivals:.3g} arrivals a second a replica", arrivals, record.arrivals.band),
    )


def _broken_rooms(loads: Sequence[_Load], headroom_ratio: float) -> Iterator[Room]:
    for load in loads:
        broke = load.band.broke
        if broke is not None and load.per_replica > headroom_ratio * broke:
            yield Room(False, f"{load.what}; it broke at {broke:.3g}")


def _slots_room(num_left: int, view: FleetView, promised: Sequence[ClassRecord], settings: AutoscaleSettings) -> Room:
    """Requests of promised classes, and more urgent ones, must find a run slot at once."""
    in_flight = max(
        (r.in_flight.to_expect(demand_of(r.priority, view.classes).in_flight) for r in promised), default=0.0
    )
    if not in_flight:
        return Room(True)
    if view.slots_per_replica is None:
        return Room(None, "the replicas' run slots are not known")
    num_slots = settings.headroom_ratio * view.slots_per_replica * num_left
    return Room(in_flight <= num_slots, f"{in_flight:.3g} in flight of promised classes; {num_slots:.3g} slots remain")


def _latency_rooms(
    record: ClassRecord,
    classes: Mapping[PriorityClass, ClassView],
    target: LatencyTargets,
    growth: float,
    settings: AutoscaleSettings,
) -> Iterator[Room]:
    view, name = classes.get(record.priority, ClassView()), record.priority.name
    if _is_silent(view, target):
        yield Room(None, f"{name}: requests in flight, and nothing is heard of them")
    for p99_s, floor_s, target_ms in (
        (view.ttft_p99_s, record.ttft_floor_s, target.ttft_p99_ms),
        (view.tbt_p99_s, record.tbt_floor_s, target.tbt_p99_ms),
    ):
        if p99_s is None or floor_s is None or target_ms is None:
            continue
        grown_s, target_s = floor_s + (p99_s - floor_s) * growth**2, target_ms / 1000
        if grown_s > settings.headroom_ratio * target_s:
            yield Room(False, f"{name}: P99 {p99_s:.3g} s would grow to {grown_s:.3g} s, target {target_s:.3g} s")


def _is_silent(view: ClassView, targets: LatencyTargets) -> bool:
    """In flight, and in the whole window neither a token nor an end: stuck, or of a kind that tells at its end only."""
    latencies = latencies_and_targets(view, targets)
    return bool(view.num_unfinished) and not view.completions_per_s and all(p99_s is None for p99_s, _ in latencies)

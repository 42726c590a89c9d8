"""The gate's limits as numbers of one ingress process: what the settings say, and what they leave to be derived. Pure.

In flight, a limit belongs to a replica, so it grows with those that run and is divided among the ingress processes. In
the queue, it belongs to the ingress process, whose memory it guards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.gate.ask import Ask
from app.gate.load import Load, Room
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.settings.gate import ClassAdmission

DERIVED_CONTEXT_TOKENS: Final = 32_768
"""Tokens that a sequence in flight may have, where the engine's context is not set."""
DERIVED_QUEUED_TOKENS: Final = 8_192
"""Tokens that a queued sequence may have on average."""
QUEUE_SHARES: Final[Mapping[PriorityClass, float]] = {
    PriorityClass.P0: 1 / 16,
    PriorityClass.P1: 1 / 8,
    PriorityClass.P2: 1 / 4,
}
"""Shares of `ingress.max_ongoing_requests` that may queue; another half may be in flight, the rest is being read."""
TOTAL_SHARES: Final[Mapping[PriorityClass, float]] = {
    PriorityClass.P0: 1.0,
    PriorityClass.P1: 0.75,
    PriorityClass.P2: 0.5,
}
"""A class is admitted while all classes together hold less than this share of what the replicas take. So a quarter is
P0's alone, a quarter P0's and P1's, and Serve's own queue, which knows no class, is never reached. At half, P2 alone
still fills every run slot, as `replicas.max_ongoing_requests` is at least twice `engine.max_num_seqs`; where an ingress
process has more run slots than a quarter of its own `max_ongoing_requests`, that takes more ingress processes."""


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """The limits of one class in one ingress process.

    Attributes:
        in_flight: of this class, within its tenants' shares.
        in_flight_at_most: of this class, surplus with the rest.
        in_flight_with_surplus: of this class, surplus with the rest, while surplus is admitted. Of what is handed over
            beyond the run slots only half as much: here it may come to be within its share, in an engine it stays
            surplus. Of a limit that is set, no more than leaves room for another tenant.
        in_flight_of_all: sequences of all classes, up to which what counts as this one is admitted.
        slots: run slots that tenants share: those of the engines, or as many as may be in flight.
        unshared: sequences of this class up to which nothing is surplus. Infinite for P2, which yields to all others.
        unshared_of_one: the same while no other tenant asks for this class; more, as nobody would have the rest.
        queue: of this class. A more urgent class may take it too.
        queue_timeout_s: the longest wait.
        max_wait_s: the longest estimated wait with which a request is let in.
    """

    in_flight: Room
    in_flight_at_most: Room
    in_flight_with_surplus: Room
    in_flight_of_all: int
    slots: int
    unshared: float
    unshared_of_one: float
    queue: Room
    queue_timeout_s: float
    max_wait_s: float


@dataclass(frozen=True, slots=True)
class GateLimits:
    """All limits of one ingress process. `num_replicas` are those that run; with none, nothing is admitted."""

    num_replicas: int
    classes: Mapping[PriorityClass, ClassLimits]
    max_held_bytes: int

    def queue_room(self, priority: PriorityClass) -> Room:
        """What `priority` and the less urgent classes may have in the queue together."""
        own = self.classes[priority].queue
        return sum((self.classes[c].queue for c in PriorityClass if priority.outranks(c)), own)

    def queue_charge(self, ask: Ask) -> Load:
        """What `ask` takes of the queue."""
        return self.queue_room(ask.priority).clamp(ask.load)


def derive_limits(settings: Settings, num_replicas: int) -> GateLimits:
    """The limits with `num_replicas` running. What is set is taken; null is derived (see each setting)."""
    classes = {priority: _class_limits(settings, priority, num_replicas) for priority in PriorityClass}
    return GateLimits(num_replicas, classes, settings.admission.max_held_bytes)


def _class_limits(settings: Settings, priority: PriorityClass, num_replicas: int) -> ClassLimits:
    slots = _share(settings.engine.max_num_seqs, num_replicas, settings)
    own, in_flight = settings.admission.of(priority), _in_flight(settings, priority, slots, num_replicas)
    taken_by_replicas = settings.replicas.max_ongoing_requests * num_replicas / settings.ingress.num_replicas
    of_all = min(taken_by_replicas, settings.ingress.max_ongoing_requests / 2) * TOTAL_SHARES[priority]
    ratio = settings.admission.unshared_ratio
    is_shared = ratio < 1 and priority is not PriorityClass.P2
    with_surplus = math.ceil(slots * (1 + settings.admission.ahead_ratio / 2))
    shared_slots = min(slots, in_flight.sequences)
    unshared = math.ceil(shared_slots * ratio)
    return ClassLimits(
        in_flight=in_flight,
        in_flight_at_most=_at_most(own, in_flight),
        in_flight_with_surplus=_with_surplus(own, in_flight, with_surplus, ratio),
        in_flight_of_all=max(math.floor(of_all), min(num_replicas, 1)),
        slots=shared_slots,
        unshared=unshared if is_shared else math.inf,
        unshared_of_one=max(unshared, _part_of_one(shared_slots, ratio)) if is_shared else math.inf,
        queue=_queue(settings, priority),
        queue_timeout_s=own.queue_timeout_s,
        max_wait_s=own.queue_timeout_s * settings.admission.max_wait_ratio,
    )


def _in_flight(settings: Settings, priority: PriorityClass, slots: int, num_replicas: int) -> Room:
    own = settings.admission.of(priority)
    sequences = math.ceil(slots * (1 + settings.admission.ahead_ratio))
    if own.max_in_flight is not None:
        sequences = _share(own.max_in_flight, num_replicas, settings)
    tokens = sequences * (settings.engine.max_model_len or DERIVED_CONTEXT_TOKENS)
    if own.max_in_flight_tokens is not None:
        tokens = _share(own.max_in_flight_tokens, num_replicas, settings)
    return Room(sequences, tokens)


def _at_most(own: ClassAdmission, in_flight: Room) -> Room:
    """What is set is never exceeded; where nothing is, surplus may be there as well as what it yields to."""
    return Room(
        in_flight.sequences * (2 if own.max_in_flight is None else 1),
        in_flight.tokens * (2 if own.max_in_flight_tokens is None else 1),
    )


def _with_surplus(own: ClassAdmission, in_flight: Room, sequences: int, ratio: float) -> Room:
    return Room(
        min(sequences, in_flight.sequences if own.max_in_flight is None else _part_of_one(in_flight.sequences, ratio)),
        in_flight.tokens if own.max_in_flight_tokens is None else _part_of_one(in_flight.tokens, ratio),
    )


def _part_of_one(limit: int, ratio: float) -> int:
    """What one tenant that asks alone may have of `limit`: `ratio` of it, and half of the rest."""
    return min(limit, max(1, math.floor(limit * (1 + ratio) / 2)))


def _queue(settings: Settings, priority: PriorityClass) -> Room:
    own = settings.admission.of(priority)
    sequences = own.max_queued
    if sequences is None:
        sequences = math.ceil(settings.ingress.max_ongoing_requests * QUEUE_SHARES[priority])
    tokens = own.max_queued_tokens
    return Room(sequences, sequences * DERIVED_QUEUED_TOKENS if tokens is None else tokens)


def _share(of_replica: int, num_replicas: int, settings: Settings) -> int:
    """This process's part of what all replicas have; rounded up, so that none is left without."""
    return math.ceil(of_replica * num_replicas / settings.ingress.num_replicas)

"""How a request ended. Every request ends in exactly one of these, told by its owner."""

from __future__ import annotations

from enum import Enum

from slo.errors import Expired, OverQuota, Rejected, ReplicaLost, Shed


class Outcome(Enum):
    """The end of a request, as a metric label."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    SHED = "shed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REPLICA_LOST = "replica_lost"
    FAILED = "failed"


def outcome_of(error: BaseException | None) -> Outcome:
    """The outcome of a request that ended with `error`; None means that it was answered in full.

    Cancellation (the client left) reaches the owner as an exception that is no `Exception`.
    """
    match error:
        case None:
            return Outcome.COMPLETED
        case Rejected() | OverQuota():
            return Outcome.REJECTED
        case Shed():
            return Outcome.SHED
        case Expired():
            return Outcome.EXPIRED
        case ReplicaLost():
            return Outcome.REPLICA_LOST
        case Exception():
            return Outcome.FAILED
        case _:
            return Outcome.CANCELLED

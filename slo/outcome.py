"""How a request ended, and how a line of a batch did. Each ends in exactly one of these, told by its owner."""

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


class LineOutcome(Enum):
    """How a line of a batch ended; a metric label."""

    COMPLETED = "completed"
    """Answered; in the output file."""
    FAILED = "failed"
    """In the error file, with what was wrong."""
    EXPIRED = "expired"
    """The batch's completion window was over; in the error file."""
    CANCELLED = "cancelled"
    """The batch was cancelled before it had run; in neither file."""


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

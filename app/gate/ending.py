"""How a request left the gate, and what its client is told. Pure."""

from __future__ import annotations

from enum import Enum

from app.gate.ask import Ask
from slo.errors import Expired, NotAdmitted, ServingError, Shed


class Ending(Enum):
    """How a request left the gate: admitted, or why not; a label."""

    ADMITTED = "admitted"
    NO_REPLICA = "no_replica"
    WAIT_TOO_LONG = "wait_too_long"
    NO_ROOM = "no_room"
    DISPLACED = "displaced"
    EXPIRED = "expired"
    LEFT = "left"
    CLOSED = "closed"


def error_of(ending: Ending, ask: Ask, timeout_s: float, retry_after_s: int) -> ServingError:
    """What the client of `ask` is told. Nobody is told of `ADMITTED` and `LEFT`.

    Args:
        timeout_s: its class's longest wait.
        retry_after_s: an estimate, for those that are shed.
    """
    name, again = ask.priority.name, f"try again in {retry_after_s} s"
    match ending:
        case Ending.NO_REPLICA:
            return NotAdmitted("no replica is running")
        case Ending.CLOSED:
            return NotAdmitted("this server is shutting down")
        case Ending.EXPIRED:
            return Expired(f"the request waited {timeout_s:g} s, as long as one of class {name} may")
        case Ending.WAIT_TOO_LONG:
            return Shed(
                f"the wait would come too near the {timeout_s:g} s that class {name} may wait; {again}", retry_after_s
            )
        case Ending.NO_ROOM:
            return Shed(f"the queue has no room for another request of class {name}; {again}", retry_after_s)
        case Ending.DISPLACED:
            return Shed(f"the request, of class {name}, gave way to others in a full queue; {again}", retry_after_s)
        case _:
            raise AssertionError(f"{ending} is no error")

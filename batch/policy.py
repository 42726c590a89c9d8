"""Which line runs next, and what follows from an answer. Pure.

Lines are few in flight, so that they fill idle room: order and fairness among tenants are decided here, and once more
at the gate, where lines meet the requests that came over HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from slo.batch import LineAnswer
from slo.errors import EngineFailed, Expired, NotAdmitted, OverQuota, ReplicaLost, Shed
from slo.outcome import LineOutcome

AGAIN_S: Final = 1.0
"""Before a line is tried again that was lost with a process, or found none."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """An open batch whose lines run. Times are of a monotonic clock, seconds.

    Attributes:
        number: orders batches by age.
        has_lines: some are neither in flight nor ended, as far as is known.
        ready_s: none is started before.
        last_turn: when its tenant last started a line, counted in lines that the owner has started; 0: never.
    """

    number: int
    tenant: str
    num_in_flight: int
    has_lines: bool
    ready_s: float
    last_turn: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The line has ended."""

    outcome: LineOutcome


@dataclass(frozen=True, slots=True)
class Again:
    """The line is tried again. `is_attempt`: an engine may have been at fault, and this counts."""

    after_s: float
    is_attempt: bool


def choose_batch(batches: Iterable[BatchView], now_s: float) -> int | None:
    """The batch whose line runs next: of the tenant with the fewest lines in flight, its oldest. None: none can.

    Of tenants that have equally many in flight, none very often where few may be, the one whose turn is longest ago.
    """
    views = tuple(batches)
    of_tenant: Counter[str] = Counter()
    for view in views:
        of_tenant[view.tenant] += view.num_in_flight
    ready = [view for view in views if view.has_lines and view.ready_s <= now_s]
    first = min(ready, key=lambda view: (of_tenant[view.tenant], view.last_turn, view.number), default=None)
    return None if first is None else first.number


def decide(answer: LineAnswer, num_attempts: int, max_attempts: int) -> Settle | Again:
    """What follows from the answer to a line.

    Load is no fault of the line's, so a refusal is tried again as often as it takes; so is a loss before any engine has
    seen it. A line that an engine was lost with, or failed, may be what broke it: it is tried `max_attempts` times.

    Args:
        num_attempts: that counted so far, this one not among them.
    """
    match answer.error:
        case None:
            return Settle(LineOutcome.COMPLETED)
        case Shed(retry_after_s=after_s) | OverQuota(retry_after_s=after_s):
            return Again(max(after_s, AGAIN_S), is_attempt=False)
        case Expired() | NotAdmitted():
            return Again(AGAIN_S, is_attempt=False)
        case ReplicaLost() | EngineFailed() if num_attempts + 1 < max_attempts:
            return Again(AGAIN_S, is_attempt=True)
        case _:
            return Settle(LineOutcome.FAILED)

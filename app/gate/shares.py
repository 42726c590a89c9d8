"""Which of a tenant's requests are within its share of its class's run slots, and which are surplus. Pure.

Engines do not preempt equals: a request of another tenant finds a slot at once if one is left, or held by a less urgent
class. So what one of several tenants has beyond its share counts as one class less for the engines: it runs wherever a
slot is idle, and yields to whoever is within a share, as batch work yields to urgent requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from app.gate.ask import Ask
from app.gate.limits import ClassLimits
from slo.messages import MAX_DELAY_S

_ROUNDING: Final = 1e-9
"""Equal parts of a number of slots must not lose one to a sum of weights."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Those of one class, as one request finds them.

    Attributes:
        part: its tenant's weight, as a part of the weights of all tenants that ask for the class now, its own among
            them; 1 while it asks alone.
        within: sequences in flight within their tenants' shares.
        of_tenant: those of its own tenant among them.
        is_idle: its tenant has nothing in flight in the class, surplus neither.
    """

    part: float = 1.0
    within: int = 0
    of_tenant: int = 0
    is_idle: bool = False


def is_within_share(limits: ClassLimits, ask: Ask, shares: Shares) -> bool:
    """Whether the engines get `ask` as its own class now.

    While the class leaves slots, all is: a share matters where there is little to share. While one tenant asks alone it
    may fill more of them: nobody else wants the rest, and one that comes takes what is left.
    """
    unshared = limits.unshared if shares.part < 1 else limits.unshared_of_one
    if ask.is_alone or shares.within + ask.load.sequences <= unshared:
        return True
    return shares.of_tenant + ask.load.sequences <= share_of(limits, shares.part)


def has_turn(limits: ClassLimits, ask: Ask, shares: Shares) -> bool:
    """Whether `ask` waits in the order of its class, and holds up who comes after it.

    What is within a share does, and the next one of a tenant that has nothing in flight, even if it is more than a
    share. Other surplus takes what is left.
    """
    return shares.is_idle or is_within_share(limits, ask, shares)


def share_of(limits: ClassLimits, part: float) -> int:
    """Sequences of a tenant with this part of the weights: as much of the slots, at least one, and never more than
    `unshared_of_one`, as one that has not asked lately may ask now."""
    share = math.floor(limits.slots * part + _ROUNDING)
    return max(1, share if share < limits.unshared_of_one else math.floor(limits.unshared_of_one))


def delay_s_of(limits: ClassLimits, ask: Ask, shares: Shares, is_surplus: bool) -> float:
    """How much later `ask`, admitted now, counts as having come, among equals that wait in an engine: the part of its
    share that its tenant has in use, of `MAX_DELAY_S`. No more, so that it is passed for so long only."""
    if ask.is_alone or math.isinf(limits.unshared):
        return 0.0
    used = 1.0 if is_surplus else shares.of_tenant / share_of(limits, shares.part)
    return MAX_DELAY_S * min(1.0, used)

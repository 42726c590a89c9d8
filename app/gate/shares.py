"""Which of a tenant's requests are within its share of its class's run slots, and which are surplus. Pure.

Engines do not preempt equals: a request of another tenant finds a slot at once if one is left, or held by a less urgent
class. So what one of several tenants has beyond its share counts as one class less for the engines: it runs wherever a
slot is idle, and yields to whoever is within a share, as batch work yields to urgent requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.gate.ask import Ask
from app.gate.limits import ClassLimits
from slo.messages import MAX_DELAY_S


@dataclass(frozen=True, slots=True)
class Shares:
    """Those of one class, as one request finds them.

    Attributes:
        weight_of_all: of the tenants that ask for the class now, its own among them.
        within: sequences in flight within their tenants' shares.
        of_tenant: those of its own tenant among them.
    """

    weight_of_all: float = 0.0
    within: int = 0
    of_tenant: int = 0


def is_within_share(limits: ClassLimits, ask: Ask, shares: Shares) -> bool:
    """Whether the engines get `ask` as its own class now.

    While the class leaves slots, all is: a share matters where there is little to share. One that asks alone has more
    so, as nobody wants the rest: what another may take, when it comes, is what is left.
    """
    unshared = limits.unshared if shares.weight_of_all > ask.weight else limits.unshared_of_one
    if ask.is_alone or shares.within + ask.load.sequences <= unshared:
        return True
    return shares.of_tenant + ask.load.sequences <= share_of(limits, ask.weight, shares.weight_of_all)


def share_of(limits: ClassLimits, weight: float, weight_of_all: float) -> int:
    """Sequences of a tenant of `weight`: its part of the slots, at least one, and never more than `unshared_of_one`,
    as one that has not asked lately may ask now."""
    part = math.floor(limits.slots * weight / max(weight, weight_of_all))
    return max(1, part if part < limits.unshared_of_one else math.floor(limits.unshared_of_one))


def delay_s_of(limits: ClassLimits, ask: Ask, shares: Shares, is_surplus: bool) -> float:
    """How much later `ask`, admitted now, counts as having come, among equals that wait in an engine: the part of its
    share that its tenant has in use, of `MAX_DELAY_S`. No more, so that it is passed for so long only."""
    if ask.is_alone or math.isinf(limits.unshared):
        return 0.0
    part = 1.0 if is_surplus else shares.of_tenant / share_of(limits, ask.weight, shares.weight_of_all)
    return MAX_DELAY_S * min(1.0, part)

"""Who may ask for what. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from slo.priority import PriorityClass

AboveClass = Literal["lower", "refuse"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """One user of the fleet.

    Attributes:
        highest_class: the most urgent class that it may ask for.
        above_class: what happens when it asks for a more urgent one; None: as the settings say.
        requests_per_minute: None: no limit; so with `tokens_per_minute`.
        weight: of its share within a class; twice the weight, twice the tokens.
        is_alone: there is no other tenant.
    """

    name: str
    highest_class: PriorityClass = PriorityClass.P0
    above_class: AboveClass | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    weight: float = 1.0
    is_alone: bool = False


ANONYMOUS: Final = Tenant("anonymous", is_alone=True)
"""Everyone, where no keys are configured."""

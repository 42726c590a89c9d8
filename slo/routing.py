"""What a replica tells the request routers about itself, and how both count a request.

It passes through Ray Serve's controller, which has none of this code: plain values only (`as_dict`). Who sent what is
told apart, so that a router can put its own count, which is exact, in the place of what was told of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from slo.priority import PriorityClass

ByClass = tuple[int, int, int]
"""A count for each class, by level."""
NOTHING: Final[ByClass] = (0, 0, 0)
MAX_COUNT: Final = 1_000_000
"""No count above this is taken at its word: an engine refuses the request anyway."""


@dataclass(frozen=True, slots=True)
class RoutingStats:
    """One replica, as it tells every `routing.stats_period_s`.

    Attributes:
        number: counts the tellings of this replica: the same number is the same telling, delivered again.
        ongoing: sequences under way, running or waiting, by the router that sent them.
        free_kv_tokens: room in the KV cache, tokens; cached prefixes that nobody holds are room.
        unread_tokens: of prompts, not computed yet, by class.
        step_s: a recent engine step, seconds; None where the engine is idle.
        is_serving: False: its engine is dead, and Serve has not noticed yet.
    """

    number: int
    ongoing: Mapping[str, ByClass]
    free_kv_tokens: int
    unread_tokens: ByClass
    step_s: float | None
    is_serving: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For Serve's `record_routing_stats`."""
        return asdict(self)

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Self | None:
        """What was told; None where it was nothing, or comes from another version of this code."""
        try:
            return cls(**told)
        except TypeError:
            return None


def count_of(value: object, default: int) -> int:
    """A positive integer that a client sent, or `default`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return default
    return min(value, MAX_COUNT)


def num_sequences(body: Mapping[str, Any]) -> int:
    """How many answers an engine generates for `body`: prompts times `n`. A list is several prompts, unless it is one
    of token ids."""
    prompt = body.get("prompt")
    is_several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return min((len(prompt) if is_several else 1) * count_of(body.get("n"), 1), MAX_COUNT)  # type: ignore[arg-type]


def plus(counts: ByClass, priority: PriorityClass, num: int) -> ByClass:
    """`counts` with `num` more of one class."""
    changed = list(counts)
    changed[priority.level] += num
    return (changed[0], changed[1], changed[2])


def total_of(counts: Mapping[str, ByClass], without: str) -> ByClass:
    """The sum over all routers but one."""
    first = second = third = 0
    for router_id, (p0, p1, p2) in counts.items():
        if router_id != without:
            first, second, third = first + p0, second + p1, third + p2
    return (first, second, third)

"""Priority classes, and the only place where they are compared.

A smaller level is more urgent, as in vLLM. Everything outside this file asks `a.outranks(b)` or sorts by `.level`.
"""

from __future__ import annotations

from enum import Enum


class PriorityClass(Enum):
    """How urgent a request is. The value is the integer that vLLM's engine gets as `priority`."""

    P0 = 0
    P1 = 1
    P2 = 2

    @property
    def level(self) -> int:
        """0 for the most urgent class; the sort key, and the engine's `priority`."""
        return self.value

    @property
    def long_name(self) -> str:
        """The class by what it is for: realtime, standard or batch."""
        return _LONG_NAMES[self]

    def outranks(self, other: PriorityClass) -> bool:
        """Whether this class is strictly more urgent than `other`."""
        return self.value < other.value

    def promoted(self) -> PriorityClass:
        """The next more urgent class; P0 stays P0."""
        return PriorityClass(max(0, self.value - 1))

    def demoted(self) -> PriorityClass:
        """The next less urgent class; P2 stays P2."""
        return PriorityClass(min(len(PriorityClass) - 1, self.value + 1))

    @classmethod
    def from_level(cls, level: int) -> PriorityClass:
        """The class of an engine's integer priority, which has no bounds: clamped to P0 and P2."""
        return cls(min(max(level, 0), len(cls) - 1))

    @classmethod
    def parse(cls, text: str) -> PriorityClass | None:
        """The class that `text` names (`P0` or `realtime`, any case), or None."""
        return _BY_NAME.get(text.strip().lower())

    @classmethod
    def allowed_names(cls) -> tuple[str, ...]:
        """Every name that `parse` takes, for error messages."""
        return tuple(c.name for c in cls) + tuple(c.long_name for c in cls)


_LONG_NAMES = {PriorityClass.P0: "realtime", PriorityClass.P1: "standard", PriorityClass.P2: "batch"}
_BY_NAME = {c.name.lower(): c for c in PriorityClass} | {name: c for c, name in _LONG_NAMES.items()}

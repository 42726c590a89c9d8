"""What requests take of the gate's limits, and whether that fits. Pure values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What one request, or several, take.

    Attributes:
        sequences: answers that an engine generates.
        tokens: of prompt and answer, by estimate.
        num_bytes: of the bodies as sent.
    """

    sequences: int = 0
    tokens: int = 0
    num_bytes: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.sequences + other.sequences, self.tokens + other.tokens, self.num_bytes + other.num_bytes)

    def __sub__(self, other: Load) -> Load:
        return Load(self.sequences - other.sequences, self.tokens - other.tokens, self.num_bytes - other.num_bytes)


def total(loads: Iterable[Load]) -> Load:
    """The sum of `loads`."""
    return sum(loads, Load())


@dataclass(frozen=True, slots=True)
class Room:
    """A limit of sequences and of tokens."""

    sequences: int
    tokens: int

    def __add__(self, other: Room) -> Room:
        return Room(self.sequences + other.sequences, self.tokens + other.tokens)

    def clamp(self, asked: Load) -> Load:
        """`asked` as it is charged: a request larger than the whole room takes all of it, so that it can be served."""
        return Load(charged(asked.sequences, self.sequences), charged(asked.tokens, self.tokens), asked.num_bytes)

    def fits(self, held: Load, asked: Load) -> bool:
        """Whether `asked` still fits beside `held`. Nothing fits into no room."""
        charge = self.clamp(asked)
        return held.sequences + charge.sequences <= self.sequences and held.tokens + charge.tokens <= self.tokens


def charged(asked: int, room: int) -> int:
    """What a request for `asked` is charged where there is `room` in all: never nothing, and no more than all of it."""
    return max(1, min(asked, room))

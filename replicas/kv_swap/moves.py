"""What a move of KV blocks is, in the words that the scheduler's side and the worker's side share.

Plain values that cross processes. Nothing here knows torch or vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Direction(StrEnum):
    """Which way KV goes, seen from the device."""

    OUT = "out"
    IN = "in"


class Tier(StrEnum):
    """Where swapped KV lies."""

    MEMORY = "memory"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class MoveDone:
    """A move that has ended in one worker.

    Attributes:
        move_id: as given when the move was started.
        num_bytes: of KV, in this worker.
        seconds: the copy itself took, without its wait in the queue; 0.0 when it failed before it began.
        error: why it failed; None when every byte is where it belongs. After an error the destination's bytes are
            undefined, and its KV must be recomputed.
    """

    move_id: int
    tier: Tier
    direction: Direction
    num_bytes: int
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """What one worker moves, bytes a second, by direction."""

    out_bytes_per_s: float
    in_bytes_per_s: float

    def of(self, direction: Direction) -> float:
        """Bytes a second in `direction`."""
        return self.out_bytes_per_s if direction is Direction.OUT else self.in_bytes_per_s

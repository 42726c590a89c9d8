"""A clock for deadlines that does not run while the process could not: a jump is no wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_STEP_S: Final = 5.0
"""The most that time advances between two readings, while it is read every `BEAT_S`. Source: own choice: a stall of an
event loop beyond this is a frozen process or a clock that was set, in which nobody could be served."""
BEAT_S: Final = 1.0
"""How often it must be read while anybody waits, seconds."""


class SteadyClock:
    """Reads `clock` (seconds, monotonic by intention), never goes back, and leaves out jumps while it is watched."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = clock()
        self._now_s = 0.0

    def read(self, is_watched: bool) -> float:
        """Seconds since it was made.

        Args:
            is_watched: it has been read at least every `BEAT_S` since its last reading, so a longer step is a jump.
        """
        raw_s = self._clock()
        step_s = max(0.0, raw_s - self._last_s)
        self._last_s = raw_s
        self._now_s += min(step_s, MAX_STEP_S) if is_watched else step_s
        return self._now_s

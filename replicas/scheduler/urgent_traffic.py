"""Whether an urgent request is to be expected soon, from when the last ones came."""

from __future__ import annotations

from typing import Literal

Expectation = Literal["lately", "always", "never"]
GAPS = 3.0
"""Urgent traffic has ended when none has come for so many times the usual gap between two."""
WEIGHT = 0.2
"""Of the newest gap in the usual one."""


class UrgentTraffic:
    """Notes arrivals. `expectation`: `lately` goes by them; `always` and `never` do not.

    `min_s` and `max_s` bound how long after the last arrival more are expected, seconds.
    """

    def __init__(self, expectation: Expectation, min_s: float, max_s: float) -> None:
        self._expectation = expectation
        self._min_s = min_s
        self._max_s = max_s
        self._last_s: float | None = None
        self._usual_gap_s: float | None = None

    def note(self, now_s: float) -> None:
        """An urgent request has come."""
        if self._last_s is not None:
            gap_s = min(max(0.0, now_s - self._last_s), self._max_s)
            usual = self._usual_gap_s
            self._usual_gap_s = gap_s if usual is None else usual + WEIGHT * (gap_s - usual)
        self._last_s = now_s

    def is_expected(self, now_s: float) -> bool:
        """Whether another one is to be expected at `now_s`."""
        if self._expectation != "lately" or self._last_s is None:
            return self._expectation == "always"
        usual = self._max_s if self._usual_gap_s is None else GAPS * self._usual_gap_s
        return now_s - self._last_s <= min(max(usual, self._min_s), self._max_s)

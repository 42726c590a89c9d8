"""How fast a class is served, measured as it happens, for estimates of a wait. A pure value, handed on.

Counts only the time in which the class waits and is first in line: what passes while nobody waits says nothing about
how fast it could go, and while a more urgent class is first, its own rate is the one that counts. Old work counts less
with every second of that time. Before there is enough to tell, and long after, there is none, rather than a wrong one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

MIN_ENDED: Final = 3
"""Requests that must have ended before there is a rate. Source: own choice."""
MIN_MEASURED_S: Final = 1.0
"""Seconds that must have been measured before there is one. Source: own choice, half of P0's queue time-out."""
STALE_WINDOWS: Final = 4
"""A rate not measured for so many windows is told no more, and forgotten: the load then was another."""


@dataclass(frozen=True, slots=True)
class ServiceRate:
    """Tokens a second that a class's ended requests were charged, by a clock in seconds.

    Attributes:
        window_s: after so much measured time, what was measured counts 1/e.
        now_s: up to when time has passed.
        is_first: whether the class waits and is first in line, so that time is measured from `now_s` on.
        measured_s: seconds measured, old ones counting less; so with `tokens`.
        num_ended: requests that have ended in them.
        last_measured_s: when time was measured last; None: not yet, or forgotten.
    """

    window_s: float
    now_s: float
    is_first: bool = False
    measured_s: float = 0.0
    tokens: float = 0.0
    num_ended: int = 0
    last_measured_s: float | None = None

    def at(self, now_s: float, is_first: bool) -> ServiceRate:
        """The rate as time has passed; `is_first` holds from `now_s` on."""
        if self._is_stale(now_s):
            return ServiceRate(self.window_s, now_s, is_first)
        passed_s = max(0.0, now_s - self.now_s)
        if not self.is_first:
            return replace(self, now_s=self.now_s + passed_s, is_first=is_first)
        kept = math.exp(-passed_s / self.window_s)
        return replace(
            self,
            now_s=self.now_s + passed_s,
            is_first=is_first,
            measured_s=self.measured_s * kept + self.window_s * (1 - kept),
            tokens=self.tokens * kept,
            last_measured_s=self.now_s + passed_s,
        )

    def ended(self, tokens: int) -> ServiceRate:
        """A request of the class ended that was charged `tokens`. Counts only while the class is first in line."""
        if not self.is_first:
            return self
        return replace(self, tokens=self.tokens + tokens, num_ended=self.num_ended + 1)

    def scaled(self, ratio: float) -> ServiceRate:
        """The rate with `ratio` times the replicas: each is taken to serve as much as before."""
        return replace(self, tokens=self.tokens * ratio)

    def tokens_per_s(self, now_s: float) -> float | None:
        """The rate, above 0; None where too little was measured, or too long ago."""
        is_enough = self.num_ended >= MIN_ENDED and self.measured_s >= MIN_MEASURED_S and self.tokens > 0
        return self.tokens / self.measured_s if is_enough and not self._is_stale(now_s) else None

    def _is_stale(self, now_s: float) -> bool:
        last_s = self.last_measured_s
        return not self.is_first and last_s is not None and now_s - last_s > STALE_WINDOWS * self.window_s

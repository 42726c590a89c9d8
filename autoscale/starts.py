"""How the replicas that were asked for come up: whether some are missing, for how long, and when to ask again. Pure.

Missing ones count as on their way for `start_timeout_s`, then they are given up: nobody waits for them any more, and
more are asked for only after a back-off. Serve itself goes on trying to start them as long as they are in the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoscale.view import ReplicaCounts
from slo.settings import AutoscaleSettings

MAX_DOUBLINGS = 30
"""Of the back-off: far beyond any cap, and still a number."""


@dataclass(frozen=True, slots=True)
class StartWatch:
    """Times are of watched time."""

    short_s: float = 0.0
    """For how long replicas were missing, since the fleet was last whole and settled: one that comes up and falls down
    again and again is missing, too."""
    settling_s: float = 0.0
    """How long the newest replica still has for showing what it does."""
    running: int | None = None
    """At the last look."""
    unchanged_s: float = 0.0
    """For how long so many have run: what a window tells is of this fleet only after that window."""
    reached: int | None = None
    """The highest target, up to the present one, at which all replicas ran: what is missing below it once worked."""
    failed_target: int | None = None
    """The target that was last given up, until it is reached."""
    num_failed: int = 0
    """Given up in a row."""
    retry_in_s: float = 0.0

    def watched(self, counts: ReplicaCounts, target: int, elapsed_s: float, settings: AutoscaleSettings) -> StartWatch:
        """After a look at the replicas. `target` is the one decided: Serve's own may have been reset by a redeploy."""
        is_short = counts.running < counts.target
        has_risen = self.running is not None and counts.running > self.running
        settling_s = settings.settle_s if has_risen else max(0.0, self.settling_s - elapsed_s)
        reached = target if self.reached is None else min(max(self.reached, counts.running), target)
        after = replace(
            self,
            short_s=self.short_s + elapsed_s if is_short else self.short_s if settling_s else 0.0,
            settling_s=settling_s,
            running=counts.running,
            unchanged_s=self.unchanged_s + elapsed_s if counts.running == self.running else 0.0,
            reached=reached,
            retry_in_s=max(0.0, self.retry_in_s - elapsed_s),
        )
        if after.is_given_up(settings) and not self.is_given_up(settings):
            return after._given_up(counts.target, settings)
        if not after.short_s and self.failed_target is not None and counts.running >= self.failed_target:
            return replace(after, failed_target=None, num_failed=0, retry_in_s=0.0)
        return after

    def is_given_up(self, settings: AutoscaleSettings) -> bool:
        """What is missing has had its time."""
        return self.short_s >= settings.start_timeout_s

    def is_at_rest(self, settings: AutoscaleSettings) -> bool:
        """What is seen is of as many replicas as run now, and none is missing."""
        return not self.short_s and self.unchanged_s >= settings.settle_s

    def asked(self) -> StartWatch:
        """More were asked for just now, and have their whole time."""
        return replace(self, short_s=0.0)

    def _given_up(self, target: int, settings: AutoscaleSettings) -> StartWatch:
        retry_in_s = min(settings.start_retry_s * 2 ** min(self.num_failed, MAX_DOUBLINGS), settings.start_retry_max_s)
        return replace(self, failed_target=target, num_failed=self.num_failed + 1, retry_in_s=retry_in_s)

    def check_invariants(self) -> None:
        """Raises AssertionError unless the watch holds together."""
        assert min(self.short_s, self.settling_s, self.unchanged_s, self.retry_in_s) >= 0, self
        assert (self.num_failed > 0) == (self.failed_target is not None), self
        assert self.num_failed or not self.retry_in_s, self

"""How long spare capacity must have been seen before a replica goes, and how mistakes make that longer. Pure.

What cannot be seen stops the time; what speaks against a scale-in sets it back to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slo.settings import AutoscaleSettings


@dataclass(frozen=True, slots=True)
class QuietTime:
    """Times are of watched time."""

    seen_s: float = 0.0
    """For how long there has been spare capacity."""
    num_doublings: int = 0
    """Mistakes that are not forgotten."""
    since_scale_in_s: float | None = None
    """None: there was none, or a breach now has nothing to do with it."""
    calm_s: float = 0.0
    """Since the last mistake was made, or forgotten."""

    def needed_s(self, settings: AutoscaleSettings) -> float:
        """The quiet time of the next scale-in."""
        needed_s = settings.scale_in_quiet_s
        for _ in range(self.num_doublings):
            needed_s = min(2 * needed_s, settings.scale_in_quiet_max_s)
        return needed_s

    def is_over(self, settings: AutoscaleSettings) -> bool:
        return self.seen_s >= self.needed_s(settings)

    def watched(
        self, has_room: bool | None, is_breach: bool, elapsed_s: float, settings: AutoscaleSettings
    ) -> QuietTime:
        """After a look. `has_room`: whether one replica fewer would do; None: not known."""
        after = self._aged(elapsed_s, settings)
        after = after._regretted(settings) if is_breach and after.since_scale_in_s is not None else after
        if has_room is None:
            return after
        return replace(after, seen_s=after.seen_s + elapsed_s if has_room else 0.0)

    def scaled_in(self) -> QuietTime:
        return replace(self, seen_s=0.0, since_scale_in_s=0.0)

    def restarted(self) -> QuietTime:
        """The target has changed: what was seen was of another fleet."""
        return replace(self, seen_s=0.0)

    def _aged(self, elapsed_s: float, settings: AutoscaleSettings) -> QuietTime:
        since_s = None if self.since_scale_in_s is None else self.since_scale_in_s + elapsed_s
        after = replace(
            self,
            since_scale_in_s=None if since_s is None or since_s > settings.scale_in_regret_s else since_s,
            calm_s=self.calm_s + elapsed_s if self.num_doublings else 0.0,
        )
        if after.calm_s < settings.quiet_half_life_s:
            return after
        return replace(after, num_doublings=max(0, self.num_doublings - 1), calm_s=0.0)

    def _regretted(self, settings: AutoscaleSettings) -> QuietTime:
        is_at_most = self.needed_s(settings) >= settings.scale_in_quiet_max_s
        return replace(self, num_doublings=self.num_doublings + (not is_at_most), since_scale_in_s=None, calm_s=0.0)

    def check_invariants(self) -> None:
        """Raises AssertionError unless the times hold together."""
        assert min(self.seen_s, self.calm_s, self.num_doublings) >= 0, self
        assert self.num_doublings or not self.calm_s, self

"""When the number of replicas changes. The rules are in `autoscale.policy`; each number here is one of theirs."""

from __future__ import annotations

from math import isclose
from typing import Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from slo.settings.base import SettingsGroup


class ReplicaBounds(NamedTuple):
    """The fewest and the most replicas, whatever a rule says."""

    min_replicas: int
    max_replicas: int

    def clamp(self, num_replicas: int) -> int:
        return min(max(num_replicas, self.min_replicas), self.max_replicas)


class AutoscaleSettings(SettingsGroup):
    """The controller's period, the bounds, and the patience of each rule.

    Only classes with `promised` targets (scheduler.targets) scale anything. A fleet that shall grow for batch work
    promises P2 a TTFT target, such as 600,000 ms: it is the deadline by which a batch request has to start.
    """

    mode: Literal["on", "dry_run", "off"] = Field(
        "on", description="dry_run: decisions are told, and nothing is changed. off: metrics and alerts only."
    )
    period_s: float = Field(
        10, gt=0, description="Between two looks at the fleet, seconds: a period of every rule. Source: own choice."
    )
    window_s: float = Field(
        30,
        gt=0,
        description="Rates and percentiles are of the last so many seconds, a multiple of period_s. Source: own "
        "choice, three periods: enough tokens for a P99. One bad period then counts in three evaluations; alerts that "
        "shall need three bad ones have hold_periods: 5.",
    )
    stale_after_s: float = Field(
        25,
        gt=0,
        description="What was told longer ago than this counts as absent, seconds; above period_s. Also the longest "
        "gap between two looks that counts as time that was watched. Source: two periods and a half.",
    )
    min_replicas: int | None = Field(
        None,
        ge=0,
        description="Replicas, at least. 0: a fleet without work has none (see zero_after_s). Null: 1, or "
        "replicas.num_replicas as long as max_replicas is null too.",
    )
    max_replicas: int | None = Field(
        None,
        ge=1,
        description="Replicas, at most. Null: replicas.num_replicas, so that nothing scales until it is asked for.",
    )
    max_step_replicas: int = Field(
        4,
        ge=1,
        description="Replicas that one decision adds, at most, and that may be waited for in vain at a time: bounds "
        "what a wrong measurement costs. Source: own choice.",
    )
    settle_s: float = Field(
        60,
        gt=0,
        description="A replica that has come up has its chance for so long before more are added, seconds; not below "
        "window_s. Source: a window without the time before, and the three periods after which a breach clears.",
    )
    start_timeout_s: float = Field(
        600,
        gt=0,
        description="A replica that has not come up by then is given up, seconds. Source: twice a large model's "
        "cold start of five minutes (reported to AIBrix).",
    )
    start_retry_s: float = Field(
        600, gt=0, description="After a start was given up, the next is tried so much later, seconds; doubled each time"
    )
    start_retry_max_s: float = Field(7200, gt=0, description="... up to this, seconds.")
    queue_periods: int = Field(
        3,
        ge=1,
        description="Scale out when, in so many periods in a row, the queue predicts that a TTFT target is missed, or "
        "TTFT P99 is above it. Source: as tbt_breach.",
    )
    headroom_ratio: float = Field(
        0.7,
        gt=0,
        lt=1,
        description="What remains after a scale-in carries at most this share of the load at which a target broke, of "
        "the run slots, and of a target where it is estimated; a scale-out aims at it too. Source: own choice.",
    )
    capacity_half_life_s: float = Field(
        21600,
        gt=0,
        description="What was learned of a replica's capacity loses half its weight in this, seconds. Source: own "
        "choice; long enough that a load which just breaks a smaller fleet is not tried on it every hour, short enough "
        "for the daily change of what is asked.",
    )
    scale_in_quiet_s: float = Field(
        300, gt=0, description="Spare capacity must have been seen for so long before one replica goes, seconds."
    )
    scale_in_quiet_max_s: float = Field(
        3600, gt=0, description="A scale-in that was regretted doubles the quiet time, up to this, seconds."
    )
    scale_in_regret_s: float = Field(
        600, gt=0, description="A breach within this after a scale-in means that it was a mistake, seconds."
    )
    quiet_half_life_s: float = Field(
        3600, gt=0, description="Without another mistake for so long, the quiet time is halved again, seconds."
    )
    zero_after_s: float = Field(
        900,
        gt=0,
        description="The last replica goes (min_replicas: 0) when no promised class has asked for so long, seconds, "
        "and nothing is in flight: who comes next waits for a cold start.",
    )

    @field_validator("mode", mode="before")
    @classmethod
    def _yaml_reads_on_and_off_as_booleans(cls, value: object) -> object:
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _times_hold_together(self) -> Self:
        periods = round(self.window_s / self.period_s)
        if periods < 1 or not isclose(periods * self.period_s, self.window_s):
            raise ValueError(f"window_s={self.window_s:g} must be a multiple of period_s={self.period_s:g}")
        for low, high, strictly in (
            ("period_s", "stale_after_s", True),
            ("window_s", "settle_s", False),
            ("start_retry_s", "start_retry_max_s", False),
            ("scale_in_quiet_s", "scale_in_quiet_max_s", False),
        ):
            a, b = getattr(self, low), getattr(self, high)
            if b < a or (strictly and a == b):
                raise ValueError(f"{high}={b:g} must {'exceed' if strictly else 'not be below'} {low}={a:g}")
        return self

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.min_replicas is not None and self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas={self.min_replicas} exceeds max_replicas={self.max_replicas}")
        return self

    def bounds(self, num_replicas: int) -> ReplicaBounds:
        """The bounds of a deployment that starts with `num_replicas`."""
        default_min = num_replicas if self.max_replicas is None else 1
        return ReplicaBounds(
            default_min if self.min_replicas is None else self.min_replicas,
            num_replicas if self.max_replicas is None else self.max_replicas,
        )

"""The alert rules: when each fires, when it clears again, and what it says.

A rule is evaluated once a period (`autoscale.period_s`) over the window that has just ended (`autoscale.window_s`), by
the controller and, from the rule file that `expresslane rules` writes, by Prometheus.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slo.settings.base import SettingsGroup


class AlertRuleSettings(SettingsGroup):
    """What every rule has. The defaults are in `AlertSettings`, rule by rule."""

    enabled: bool = Field(True, description="False: neither evaluated nor written into the rule file.")
    severity: Literal["critical", "warning"] = Field(
        description="critical: a promise to users is broken. warning: someone should look in working hours."
    )
    hold_periods: int = Field(ge=1, description="It fires when its condition holds in so many periods in a row.")
    recovery_periods: int = Field(ge=1, description="It clears when its condition fails in so many periods in a row.")
    message: str = Field(min_length=1, description="What it says: what is wrong, and what to look at.")


class TbtBreachRule(AlertRuleSettings):
    """TBT P99 of a class with a promised TBT target, against that target; an alert for each class.

    What the scaling policy calls a breach: with this rule disabled, no breach adds a replica.
    """

    target_ratio: float = Field(gt=1, description="TBT P99 above this many times the class's target.")


class PreemptionStormRule(AlertRuleSettings):
    """Preemptions of every kind, of all engines."""

    max_per_minute: float = Field(gt=0, description="Preemptions a minute, above this.")


class LowBatchingRule(AlertRuleSettings):
    """Mean utilisation of all GPUs; never true without any."""

    min_gpu_ratio: float = Field(gt=0, lt=1, description="GPU utilisation below this share ...")
    max_waiting: int = Field(ge=0, description="... while more requests than this wait.")


class TtftHighRule(AlertRuleSettings):
    """TTFT P99 of a class with a promised TTFT target; an alert for each class."""

    max_ms: float = Field(gt=0, description="TTFT P99 above this, milliseconds, whatever the class's target.")


class KvHitLowRule(AlertRuleSettings):
    """Hits among prompt blocks that the cache had held before: a first-time prompt is no miss."""

    min_ratio: float = Field(gt=0, le=1, description="Hits among blocks that could have hit, below this share.")


class BatchSizeLowRule(AlertRuleSettings):
    """Mean number of running requests of the steps in the window, against the run slots of an engine."""

    min_slots_ratio: float = Field(gt=0, le=1, description="Mean batch below this share of engine.max_num_seqs ...")
    max_waiting: int = Field(ge=0, description="... while more requests than this wait.")


class AlertSettings(SettingsGroup):
    """The rules. Source of thresholds and periods: own choice.

    Three periods in a row to fire wherever a window of three periods could be ruled by one bad one, and three to clear,
    so that an alert does not flap at its threshold; longer where the rule is about memory or batching, which move
    slowly.
    """

    tbt_breach: TbtBreachRule = TbtBreachRule(
        target_ratio=2,
        hold_periods=3,
        recovery_periods=3,
        severity="critical",
        message="Tokens come more slowly than promised. The fleet scales out when it may: check that it is not at "
        "max_replicas, then saturation, the prefill beside decodes, and preemptions of this class.",
    )
    preemption_storm: PreemptionStormRule = PreemptionStormRule(
        max_per_minute=10,
        hold_periods=3,
        recovery_periods=3,
        severity="warning",
        message="Urgent requests keep taking the place of others. Check the class mix: who sends P0 and P1, and "
        "whether the fleet is large enough for them.",
    )
    low_batching: LowBatchingRule = LowBatchingRule(
        min_gpu_ratio=0.60,
        max_waiting=100,
        hold_periods=3,
        recovery_periods=3,
        severity="warning",
        message="GPUs idle while requests wait. Check batching: engine.max_num_seqs, KV use, token budget used, and "
        "replicas that answer no more.",
    )
    ttft_high: TtftHighRule = TtftHighRule(
        max_ms=1000,
        hold_periods=3,
        recovery_periods=3,
        severity="warning",
        message="First tokens come late. Check the queue and its waits, long prompts of the same class, and whether "
        "the fleet is at max_replicas.",
    )
    kv_hit_low: KvHitLowRule = KvHitLowRule(
        min_ratio=0.95,
        hold_periods=6,
        recovery_periods=6,
        severity="warning",
        message="Prompts that the cache had held are computed again. Check memory: KV use, long contexts, and "
        "whether conversations return to the replica that knows them.",
    )
    batch_size_low: BatchSizeLowRule = BatchSizeLowRule(
        min_slots_ratio=0.125,
        max_waiting=0,
        hold_periods=30,
        recovery_periods=3,
        severity="warning",
        message="Steps run few requests although work waits. Check what keeps it out: KV use, long prompts, "
        "grammars, and the token budget.",
    )
    cleared_kept_s: float = Field(
        3600,
        ge=0,
        description="How long an alert that cleared is still reported, seconds. Source: own choice, an hour.",
    )
    max_fragmentation_ratio: float = Field(
        0.04,
        gt=0,
        lt=1,
        description="Share of allocated KV slots that hold no token: the expected bound, a line on the dashboard. No "
        "alert: half a block a request is more than this where requests are short. Source: own choice.",
    )

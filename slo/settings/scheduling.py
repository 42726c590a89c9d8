"""The scheduler's settings. They reach it inside the engine through vLLM's `additional_config`."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from slo.priority import PriorityClass
from slo.settings.base import SettingsGroup
from slo.settings.targets import ClassTargets, LatencyProfiles

ADDITIONAL_CONFIG_KEY: Final = "expresslane"
"""The key of vLLM's `additional_config` under which the scheduler finds its settings."""


class PreemptionSettings(SettingsGroup):
    """When a running request gives way to a waiting one of a more urgent class."""

    enabled: bool = Field(True, description="False: class order in the queues only, no preemption.")
    max_victims_per_step: int = Field(
        2, ge=1, description="Running requests preempted in one scheduling step, at most. Source: own choice."
    )
    pause: bool = Field(
        True,
        description="Keep a victim's KV on the device when only run slots are short; false: always recompute.",
    )


class BudgetSettings(SettingsGroup):
    """How much prefill a step computes beside its decodes."""

    adaptive: bool = Field(
        True,
        description="Learn what a step costs, and choose the prefill that keeps the strictest promise; false: the "
        "profiles' table alone.",
    )
    min_prefill_tokens: int = Field(
        48,
        ge=1,
        description="Prefill a step gets however slow the machine is, tokens: it trades P0's TBT for throughput. "
        "Measured on 2 cores, see docs/scheduler.md.",
    )
    tbt_ratio: float = Field(
        0.85, gt=0, le=1, description="A step aims at this share of the TBT target: the rest is for what varies."
    )
    hysteresis_ratio: float = Field(
        0.15, ge=0, lt=1, description="A limit that differs from the one in force by less than this changes nothing."
    )
    urgent_expected: Literal["lately", "always", "never"] = Field(
        "lately",
        description="When steps are kept short for a P0 that may come: while P0s have come lately, always, or never.",
    )
    expected_min_s: float = Field(3, ge=0, description="P0 is expected at least so long after the last, seconds.")
    expected_max_s: float = Field(30, gt=0, description="... and no longer than this, seconds.")
    ceiling_ttft_ratio: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The steps in flight last at most this share of P0's TTFT target together while P0 is expected: "
        "the rest of the target is for its own prefill.",
    )

    @model_validator(mode="after")
    def _expected_at_least_before_at_most(self) -> Self:
        if self.expected_min_s > self.expected_max_s:
            raise ValueError(f"expected_min_s={self.expected_min_s:g} exceeds expected_max_s={self.expected_max_s:g}")
        return self


class CacheSettings(SettingsGroup):
    """Which cached KV is evicted first."""

    evict_by_class: bool = Field(
        True,
        description="Evict cached KV of less urgent classes before that of more urgent ones; false: least recently "
        "used first, whatever the class, as vLLM does. Source: "
        "[a request of vLLM's users](https://github.com/vllm-project/vllm/issues/47802).",
    )


class AgingPeriods(SettingsGroup):
    """How long a class that stands still waits for each step up, seconds. None: it is never lifted.

    Source: own choice. A simulated overload in which 5 s cut the slowest P2 from 52 to 12 s raised P0's median TTFT
    from 7 to 12 s, so a step is long beside any target, and short beside a client's patience.
    """

    p1: float | None = Field(20, gt=0, description="A request that counts as P1 counts as P0 after this, seconds.")
    p2: float | None = Field(30, gt=0, description="A request that counts as P2 counts as P1 after this, seconds.")

    def of(self, priority: PriorityClass) -> float | None:
        """The period of `priority`; None for P0, which has no step up."""
        return {PriorityClass.P0: None, PriorityClass.P1: self.p1, PriorityClass.P2: self.p2}[priority]


class FairnessSettings(SettingsGroup):
    """What a less urgent request gets however much urgent work there is. The rules are in `replicas.scheduler`."""

    aging_s: AgingPeriods = AgingPeriods()
    max_lifted: int = Field(
        1,
        ge=1,
        description="Requests that count as P0, and as P1, by being lifted, at a time: the run slots that fairness "
        "takes from an urgent class at most. Source: own choice.",
    )
    lift_prefill_tokens: int = Field(
        512,
        ge=1,
        description="Prefill tokens that a lifted request computes, at most, before it is of its own class again. "
        "Source: a chunk of the standard latency profile.",
    )
    lift_decode_tokens: int = Field(
        32, ge=1, description="The same for one that decodes, tokens. Source: own choice, about a sentence."
    )
    max_preemptions_per_request: int | None = Field(
        64,
        ge=0,
        description="A request preempted so often yields to nobody any more; null: no limit. Source: simulated, 24 P2 "
        "of 1,500 tokens on 8 slots and 400 P0, one in 8 steps: P0's P99 wait is 303 steps with a limit of 16, 2 with "
        "32 and without; one in 3 steps: 184, 56, and 28 without, where one P2 yields 46 times at most. P2's mean end "
        "is the same in all: a pause costs its victim time, not work.",
    )
    suspended_prefill_deadline_s: float | None = Field(
        5,
        gt=0,
        description="A prefill that was begun and has got no tokens for so long counts as one class more urgent, and "
        "again after as long; seconds, null: never. Source: own choice, below the first step of aging.",
    )


class SchedulerSettings(SettingsGroup):
    """Everything that `replicas.scheduler` reads."""

    targets: ClassTargets = ClassTargets()
    profiles: LatencyProfiles = LatencyProfiles()
    preemption: PreemptionSettings = PreemptionSettings()
    fairness: FairnessSettings = FairnessSettings()
    budget: BudgetSettings = BudgetSettings()
    cache: CacheSettings = CacheSettings()

    def as_additional_config(self) -> dict[str, Any]:
        """The value for vLLM's `additional_config`; plain JSON values, since it crosses processes."""
        return {ADDITIONAL_CONFIG_KEY: self.model_dump(mode="json")}

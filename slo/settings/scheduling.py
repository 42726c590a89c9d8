"""The scheduler's settings. They reach it inside the engine through vLLM's `additional_config`."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from slo.settings.base import SettingsGroup
from slo.settings.targets import ClassTargets, LatencyProfiles

ADDITIONAL_CONFIG_KEY: Final = "expresslane"
"""The key of vLLM's `additional_config` under which the scheduler finds its settings."""


class PreemptionSettings(SettingsGroup):
    """When a running request gives way to a waiting one of a more urgent class."""

    enabled: bool = Field(True, description="False: class order in the queues only, no preemption.")
    max_victims_per_step: int = Field(
        2, ge=1, description="Running requests preempted in one scheduling step, at most. Source: design table."
    )
    saturation_ratio: float = Field(
        0.90,
        gt=0,
        le=1,
        description="P0 may preempt above this saturation, the highest of run slots, KV blocks and token budget used. "
        "Source: design table.",
    )
    pause: bool = Field(
        True,
        description="Keep a victim's KV on the device when only run slots are short; false: always recompute.",
    )


class SchedulerSettings(SettingsGroup):
    """Everything that `replicas.scheduler` reads."""

    targets: ClassTargets = ClassTargets()
    profiles: LatencyProfiles = LatencyProfiles()
    preemption: PreemptionSettings = PreemptionSettings()

    def as_additional_config(self) -> dict[str, Any]:
        """The value for vLLM's `additional_config`; plain JSON values, since it crosses processes."""
        return {ADDITIONAL_CONFIG_KEY: self.model_dump(mode="json")}

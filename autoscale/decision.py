"""The words of a scaling decision, and the numbers it is made by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slo.settings import AutoscaleSettings, ClassTargets, ReplicaBounds, Settings


class ScalingReason(Enum):
    """Why the target is what it is; a metric label. Those down to START_GIVEN_UP can change it."""

    BOUNDS = "bounds"
    RESTORED = "restored"
    WAKE_UP = "wake_up"
    TBT_BREACH = "tbt_breach"
    QUEUE_GROWTH = "queue_growth"
    TTFT_BREACH = "ttft_breach"
    SPARE = "spare"
    IDLE = "idle"
    START_GIVEN_UP = "start_given_up"
    STARTING = "starting"
    SETTLING = "settling"
    CLEARING = "clearing"
    AT_MOST = "at_most"
    STEADY = "steady"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The target, and why. None: nothing is known, and nothing is to be applied."""

    target: int | None
    reason: ScalingReason
    detail: str


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """The numbers that the rules are made of."""

    settings: AutoscaleSettings
    targets: ClassTargets
    bounds: ReplicaBounds

    @classmethod
    def of(cls, settings: Settings) -> ScalingRules:
        return cls(settings.autoscale, settings.scheduler.targets, settings.replica_bounds)

"""The application's settings: the typed `args` of `serve.yaml`, and the file that `CONFIG=` names.

Every number has its default, unit and source where it is defined. Unknown keys and contradictions are refused when the
settings are made, with the key and its value, so a deployment that starts has settings that hold together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationError, model_validator

from slo.settings.alerts import AlertSettings
from slo.settings.autoscale import AutoscaleSettings, ReplicaBounds
from slo.settings.base import SettingsGroup
from slo.settings.classification import ClassificationSettings, HeaderMapping, ShapeRule
from slo.settings.controller import ControllerSettings
from slo.settings.gate import AdmissionSettings, ClassAdmission, TenantSettings
from slo.settings.scheduling import PreemptionSettings, SchedulerSettings
from slo.settings.serving import EngineSettings, IngressSettings, ModelSettings, ReplicaSettings
from slo.settings.swap import SwapSettings
from slo.settings.targets import ClassTargets, LatencyProfile, LatencyProfiles, LatencyTargets

__all__ = [
    "AdmissionSettings",
    "AlertSettings",
    "AutoscaleSettings",
    "ClassAdmission",
    "ClassTargets",
    "ClassificationSettings",
    "ControllerSettings",
    "EngineSettings",
    "HeaderMapping",
    "IngressSettings",
    "LatencyProfile",
    "LatencyProfiles",
    "LatencyTargets",
    "ModelSettings",
    "PreemptionSettings",
    "ReplicaBounds",
    "ReplicaSettings",
    "SchedulerSettings",
    "Settings",
    "SettingsError",
    "ShapeRule",
    "SwapSettings",
    "TenantSettings",
    "parse_settings",
]


class Settings(SettingsGroup):
    """Everything that can be set, in groups named after what reads them."""

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    replicas: ReplicaSettings = ReplicaSettings()
    ingress: IngressSettings = IngressSettings()
    classification: ClassificationSettings = ClassificationSettings()
    admission: AdmissionSettings = AdmissionSettings()
    tenants: TenantSettings = TenantSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    swap: SwapSettings = SwapSettings()
    alerts: AlertSettings = AlertSettings()
    autoscale: AutoscaleSettings = AutoscaleSettings()
    controller: ControllerSettings = ControllerSettings()

    @property
    def replica_bounds(self) -> ReplicaBounds:
        """Between what the number of replicas may change."""
        return self.autoscale.bounds(self.replicas.num_replicas)

    @model_validator(mode="after")
    def _engine_owns_the_queue(self) -> Self:
        if self.replicas.max_ongoing_requests < 2 * self.engine.max_num_seqs:
            raise ValueError(
                f"replicas.max_ongoing_requests={self.replicas.max_ongoing_requests} must be at least twice "
                f"engine.max_num_seqs={self.engine.max_num_seqs}: urgent requests would wait in Serve's queue, "
                "which knows no class"
            )
        return self

    @model_validator(mode="after")
    def _start_lies_within_the_bounds(self) -> Self:
        bounds = self.replica_bounds
        if bounds.clamp(self.replicas.num_replicas) != self.replicas.num_replicas:
            raise ValueError(
                f"replicas.num_replicas={self.replicas.num_replicas} must lie between "
                f"autoscale.min_replicas={bounds.min_replicas} and autoscale.max_replicas={bounds.max_replicas}"
            )
        return self


class SettingsError(ValueError):
    """Settings that cannot be used. The message has a line for each key at fault, with its value."""


def parse_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from plain values, such as a parsed YAML file.

    Raises:
        SettingsError: a key is unknown, a value is wrong, or two contradict each other.
    """
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("\n".join(_describe(e) for e in error.errors(include_url=False))) from None


def _describe(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "settings"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key (value {error['input']!r})"
    if isinstance(error["input"], SettingsGroup | dict) or key.endswith("_sha256"):  # it may be a key, pasted there
        return f"{key}: {message}"
    return f"{key}={error['input']!r}: {message}"

"""The application's settings: the typed `args` of `serve.yaml`, and the file that `CONFIG=` names.

Every number has its default, unit and source where it is defined. Unknown keys and contradictions are refused when the
settings are made, with the key and its value, so a deployment that starts has settings that hold together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from slo.settings.alerts import AlertSettings
from slo.settings.autoscale import AutoscaleSettings, ReplicaBounds
from slo.settings.base import SettingsGroup
from slo.settings.batch import BatchSettings
from slo.settings.classification import ClassificationSettings, HeaderMapping, ShapeRule
from slo.settings.controller import ControllerSettings
from slo.settings.engine import EngineSettings
from slo.settings.faults import FaultSettings
from slo.settings.gate import AdmissionSettings, ClassAdmission, TenantSettings
from slo.settings.models import ModelEntry, check_names, check_periods
from slo.settings.routing import RoutingSettings
from slo.settings.scheduling import PreemptionSettings, SchedulerSettings
from slo.settings.serving import IngressSettings, ModelSettings, ReplicaSettings, check_gpus
from slo.settings.swap import SwapSettings
from slo.settings.targets import ClassTargets, LatencyProfile, LatencyProfiles, LatencyTargets
from slo.settings.told import tell_faults

__all__ = [
    "AdmissionSettings",
    "AlertSettings",
    "AutoscaleSettings",
    "BatchSettings",
    "ClassAdmission",
    "ClassTargets",
    "ClassificationSettings",
    "ControllerSettings",
    "EngineSettings",
    "FaultSettings",
    "HeaderMapping",
    "IngressSettings",
    "LatencyProfile",
    "LatencyProfiles",
    "LatencyTargets",
    "ModelEntry",
    "ModelSettings",
    "PreemptionSettings",
    "ReplicaBounds",
    "ReplicaSettings",
    "RoutingSettings",
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
    models: tuple[ModelEntry, ...] = Field(
        (), description="Several models in one application, each on top of the other groups. Empty: one, `model`."
    )
    engine: EngineSettings = EngineSettings()
    replicas: ReplicaSettings = ReplicaSettings()
    routing: RoutingSettings = RoutingSettings()
    ingress: IngressSettings = IngressSettings()
    classification: ClassificationSettings = ClassificationSettings()
    admission: AdmissionSettings = AdmissionSettings()
    tenants: TenantSettings = TenantSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    swap: SwapSettings = SwapSettings()
    alerts: AlertSettings = AlertSettings()
    autoscale: AutoscaleSettings = AutoscaleSettings()
    controller: ControllerSettings = ControllerSettings()
    faults: FaultSettings = FaultSettings()
    batch: BatchSettings = BatchSettings()

    @property
    def replica_bounds(self) -> ReplicaBounds:
        """Between what the number of replicas may change."""
        return self.autoscale.bounds(self.replicas.num_replicas)

    @property
    def longest_answer_s(self) -> float:
        """How long an answer of any model may take, at most, seconds: what is stopped gracefully waits for it."""
        return max(of_model.replicas.graceful_shutdown_timeout_s for of_model in self.by_model.values())

    @property
    def by_model(self) -> dict[str, Settings]:
        """The settings of each model alone, by its first name; the first one answers requests that name none.

        Raises:
            ValueError: those of one do not hold together.
        """
        if not self.models:
            return {self.model.served_names[0]: self}
        shared = self.model_dump(exclude={"model", "models"})
        each = [
            _settings_of(f"models.{i}", entry.on_top_of(shared, len(self.models)))
            for i, entry in enumerate(self.models)
        ]
        check_names([settings.model_names for settings in each])
        check_periods(settings.autoscale.period_s for settings in each)
        return {settings.model.served_names[0]: settings for settings in each}

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that requests may use, of one model: its own, and its adapters'; not those of a directory."""
        return (*self.model.served_names, *self.engine.adapters)

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        """Of several models each by itself: what is shared need be no whole."""
        if self.models and self.model != ModelSettings():
            raise ValueError(f"model.source={self.model.source!r} with models: of several models each is one of these")
        if self.models:
            self.by_model  # noqa: B018  # raises
            return self
        self._check_names()
        self._check_connectors()
        check_gpus(self.engine, self.replicas)
        self._check_queue()
        self._check_bounds()
        return self

    def _check_names(self) -> None:
        if taken := sorted(self.engine.adapters.keys() & set(self.model.served_names)):
            raise ValueError(f"engine.adapters: {', '.join(taken)}: a name of the model itself (model.names)")

    def _check_connectors(self) -> None:
        if self.swap.host_bytes != 0 and (others := self.engine.connectors()):
            raise ValueError(
                f"engine.extra_args.{others[0]} with swap.host_bytes={self.swap.host_bytes}: vLLM takes one KV "
                "connector, and swap is one; set swap.host_bytes to 0 to use another"
            )

    def _check_queue(self) -> None:
        if self.replicas.max_ongoing_requests < 2 * self.engine.max_num_seqs:
            raise ValueError(
                f"replicas.max_ongoing_requests={self.replicas.max_ongoing_requests} must be at least twice "
                f"engine.max_num_seqs={self.engine.max_num_seqs}: urgent requests would wait in Serve's queue, "
                "which knows no class"
            )

    def _check_bounds(self) -> None:
        bounds = self.replica_bounds
        if bounds.clamp(self.replicas.num_replicas) != self.replicas.num_replicas:
            raise ValueError(
                f"replicas.num_replicas={self.replicas.num_replicas} must lie between "
                f"autoscale.min_replicas={bounds.min_replicas} and autoscale.max_replicas={bounds.max_replicas}"
            )


def _settings_of(key: str, values: Mapping[str, Any]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"{key}: " + tell_faults(error, "settings").replace("\n", "; ")) from None


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
        raise SettingsError(tell_faults(error, "settings")) from None

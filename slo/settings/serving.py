"""Settings of the model, the replicas and the ingress; the engine's are in `engine`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Self

from pydantic import Field, field_validator, model_validator

from slo.settings.base import SettingsGroup
from slo.settings.engine import EngineSettings

DEFAULT_MODEL = "default"
DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"


class ModelSettings(SettingsGroup):
    """Which model is served, and under what names."""

    source: str = Field(
        DEFAULT_MODEL,
        min_length=1,
        description="`default` (SmolLM2-135M-Instruct, embedded), a local directory, or a hub name (org/name).",
    )
    names: tuple[str, ...] = Field(
        (), description="Names that requests may use; the first is the one answered. Empty: derived from the source."
    )

    @field_validator("names")
    @classmethod
    def _no_empty_name(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not name.strip() for name in value):
            raise ValueError("a model's name must not be empty")
        if len(set(value)) != len(value):
            raise ValueError(f"a model's name is given twice: {list(value)}")
        return value

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that requests may use: those set, or one from the source (the last part of a directory's path)."""
        if self.names:
            return self.names
        if self.source == DEFAULT_MODEL:
            return (DEFAULT_MODEL_NAME,)
        if self.source.startswith(("/", ".", "~")):
            return (PurePath(self.source).name or self.source,)
        return (self.source,)


class ReplicaSettings(SettingsGroup):
    """The Serve deployment around the engine."""

    num_replicas: int = Field(1, ge=1, description="Replicas at the start.")
    max_ongoing_requests: int = Field(
        1024,
        ge=1,
        description="Requests in one replica, running and waiting. Far above engine.max_num_seqs, so that class order "
        "is decided by the engine's scheduler: Serve's own queues know no class.",
    )
    max_generation_s: float = Field(
        600,
        gt=0,
        description="The longest generation to be expected, seconds; it ends none. graceful_shutdown_timeout_s must "
        "exceed it, so that no stream is cut off by a shutdown.",
    )
    graceful_shutdown_timeout_s: float = Field(
        660, gt=0, description="How long a replica that is stopped may finish its streams, seconds."
    )
    max_surge_percent: int = Field(
        0,
        ge=0,
        le=100,
        description="Replicas that an update of the deployment starts before it stops old ones, in percent of their "
        "number, rounded up. Each needs its own CPUs, GPUs and memory meanwhile; where there are none, the update "
        "waits for them, and the old replicas serve on. 0: a fifth of the replicas, and one at least, stops first, so "
        "a fleet of one answers nothing while the new one starts.",
    )
    health_check_period_s: float = Field(2, gt=0, description="Seconds between health checks.")
    health_check_timeout_s: float = Field(10, gt=0, description="A health check that takes longer has failed, seconds.")
    num_cpus: float = Field(0.5, ge=0, description="Ray CPUs reserved by a replica.")
    num_gpus: float | None = Field(
        None,
        ge=0,
        description="Ray GPUs reserved by a replica; a fraction shares one GPU between replicas. Null: one for each of "
        "the engine's devices, or 0 where the CPU build of vLLM is installed and no accelerator_type is set.",
    )
    accelerator_type: str | None = Field(
        None,
        min_length=1,
        description="Ray's name of the GPUs that it takes (L4, A100, H100, ...), for clusters of several kinds.",
    )

    @model_validator(mode="after")
    def _shutdown_outlasts_the_longest_generation(self) -> Self:
        if self.graceful_shutdown_timeout_s <= self.max_generation_s:
            raise ValueError(
                f"graceful_shutdown_timeout_s={self.graceful_shutdown_timeout_s:g} must exceed "
                f"max_generation_s={self.max_generation_s:g}, or scaling in cuts streams off"
            )
        return self


class IngressSettings(SettingsGroup):
    """The HTTP side."""

    num_replicas: int = Field(1, ge=1, description="Ingress processes.")
    max_ongoing_requests: int = Field(4096, ge=1, description="Requests in one ingress process, at most.")
    max_body_bytes: int = Field(8 * 1024 * 1024, gt=0, description="A larger request body is answered 413, bytes.")
    ready_timeout_s: float = Field(2, gt=0, description="How long /readyz waits for a replica's word, seconds.")
    num_cpus: float = Field(0.25, ge=0, description="Ray CPUs reserved by an ingress process.")


def check_gpus(engine: EngineSettings, replicas: ReplicaSettings) -> None:
    """Refuses a number of GPUs that the engine cannot use.

    Raises:
        ValueError: not one GPU for each device of the engine, or a share of one whose memory is not shared too.
    """
    num_gpus, num_devices = replicas.num_gpus, engine.num_devices
    if num_gpus is None:
        return
    if num_gpus == 0:
        if replicas.accelerator_type is not None or engine.multi_node:
            raise ValueError(
                f"replicas.num_gpus=0 with replicas.accelerator_type={replicas.accelerator_type!r} and "
                f"engine.multi_node={engine.multi_node}: both are for GPUs"
            )
        return
    if num_devices > 1 and num_gpus != num_devices:
        raise ValueError(
            f"replicas.num_gpus={num_gpus:g} with engine.tensor_parallel_size={engine.tensor_parallel_size} and "
            f"engine.pipeline_parallel_size={engine.pipeline_parallel_size}: set {num_devices}, or leave it out"
        )
    if num_devices == 1 and num_gpus > 1:
        raise ValueError(f"replicas.num_gpus={num_gpus:g}: the engine uses one; set engine.tensor_parallel_size")
    memory_ratio = engine.extra_args.get("gpu_memory_utilization")
    if num_gpus < 1 and not (isinstance(memory_ratio, int | float) and memory_ratio <= num_gpus):
        raise ValueError(
            f"replicas.num_gpus={num_gpus:g} with engine.extra_args.gpu_memory_utilization={memory_ratio}: set it to "
            f"{num_gpus:g} at most, or the replicas that share a GPU take each other's memory"
        )

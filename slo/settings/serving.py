"""Settings of the model, the engine, the replicas and the ingress."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from slo.settings.base import SettingsGroup

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


# Set by Expresslane itself; as an extra argument they would take the scheduler or the queue's order away.
OWN_ENGINE_ARGS = frozenset(
    {
        "model",
        "served_model_name",
        "scheduler_cls",
        "scheduling_policy",
        "additional_config",
        "max_num_seqs",
        "max_model_len",
        "dtype",
        "watermark",
        "enable_prefix_caching",
        "kv_cache_memory_bytes",
        "enforce_eager",
        "block_size",
        "reasoning_parser",
    }
)


class EngineSettings(SettingsGroup):
    """One vLLM engine. Whatever vLLM's engine takes beside these goes into `extra_args`."""

    max_num_seqs: int = Field(64, ge=1, description="Run slots: requests in one step, at most.")
    max_model_len: int | None = Field(None, ge=1, description="Context, tokens. Null: the model's own.")
    dtype: str = Field("auto", description="Weights and KV type, as vLLM names it.")
    enable_prefix_caching: bool = Field(True, description="Keep finished prompts' KV for requests that share them.")
    watermark_ratio: float = Field(
        0.05, ge=0, lt=1, description="KV blocks kept free for growth (vLLM's watermark). Source: design table."
    )
    kv_cache_bytes: int | None = Field(
        None,
        gt=0,
        description="KV cache of the engine, bytes. Null: vLLM's own choice on a GPU, 1 GiB on the CPU backend.",
    )
    block_tokens: int | None = Field(
        None,
        gt=0,
        description="Tokens of a KV block. Null: 16 on a GPU, 32 on the CPU backend, which needs a multiple of 32. "
        "Source: design table.",
    )
    enforce_eager: bool | None = Field(
        None,
        description="No compilation, no CUDA graphs. Null: false on a GPU, true on the CPU backend, where compilation "
        "took 46 s of start-up and changed the default model's greedy answers (vLLM 0.32.0, measured).",
    )
    cpu_threads: int | None = Field(
        None,
        ge=1,
        description="OpenMP threads of the CPU backend. Null: one less than the cores, at least one; with as many "
        "as cores the idle P99 of TTFT was 200 ms instead of 45 (measured on 2 cores).",
    )
    tool_call_parser: str | None = Field(None, description="vLLM's parser for tool calls (hermes, llama3_json, ...).")
    reasoning_parser: str | None = Field(None, description="vLLM's parser for reasoning.")
    extra_args: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of vLLM's AsyncEngineArgs, by their Python names."
    )

    @field_validator("extra_args")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN_ENGINE_ARGS & value.keys()):
            raise ValueError(f"{', '.join(taken)}: set by a key of its own or by Expresslane, not through extra_args")
        return value


class ReplicaSettings(SettingsGroup):
    """The Serve deployment around the engine."""

    num_replicas: int = Field(1, ge=1, description="Replicas at the start.")
    max_ongoing_requests: int = Field(
        1024,
        ge=1,
        description="Requests in one replica, running and waiting. Far above engine.max_num_seqs, so that class order "
        "is decided by the engine's scheduler: Serve's own queues know no class.",
    )
    max_generation_s: float = Field(600, gt=0, description="The longest generation that a shutdown waits for, seconds.")
    graceful_shutdown_timeout_s: float = Field(
        660, gt=0, description="How long a replica that is stopped may finish its streams, seconds."
    )
    health_check_period_s: float = Field(2, gt=0, description="Seconds between health checks.")
    health_check_timeout_s: float = Field(10, gt=0, description="A health check that takes longer has failed, seconds.")
    num_cpus: float = Field(0.5, ge=0, description="Ray CPUs reserved by a replica.")
    num_gpus: float | None = Field(
        None,
        ge=0,
        description="Ray GPUs reserved by a replica. Null: 1, or 0 where the CPU build of vLLM is installed.",
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

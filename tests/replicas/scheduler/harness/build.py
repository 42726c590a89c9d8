"""A scheduler as vLLM's engine core makes it, with the builder of `sim.engine_build`, in the shapes that tests need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.config.lora import LoRAConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig

from replicas.scheduler import PriorityScheduler
from replicas.snapshot_codec import ask_for_statistics
from sim import engine_build
from slo.settings.scheduling import SchedulerSettings
from slo.settings.swap import SwapSettings

MAX_MODEL_LEN = 4096
TOKEN_BYTES = 8
"""KV of a token, in each worker: one head, two wide."""


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Sizes of the engine that a scheduler believes it serves."""

    num_blocks: int = 1000
    block_size: int = 16
    max_num_seqs: int = 8
    token_budget: int = 512
    prefix_cache: bool = True
    is_async: bool = False
    is_v2: bool = False
    watermark: float = 0.0
    has_statistics: bool = False
    """As in a replica, which asks the scheduler for them."""
    swap: SwapSettings | None = None
    """With `host_bytes` set; None: no connector."""
    num_workers: int = 1
    max_adapters: int | None = None
    """LoRA adapters in one step; None: the engine has none."""

    @property
    def block_bytes(self) -> int:
        """Of one block, in each worker."""
        return self.block_size * TOKEN_BYTES

    @property
    def sizes(self) -> engine_build.EngineShape:
        """As the simulator's builder has them."""
        return engine_build.EngineShape(
            num_blocks=self.num_blocks,
            block_tokens=self.block_size,
            block_bytes=self.block_bytes,
            max_num_seqs=self.max_num_seqs,
            max_step_tokens=self.token_budget,
            max_model_len=MAX_MODEL_LEN,
            prefix_cache=self.prefix_cache,
            is_async=self.is_async,
            watermark_ratio=self.watermark,
            swap=self.swap,
        )


def build_scheduler(
    shape: EngineShape = EngineShape(),
    settings: SchedulerSettings | None = None,
    scheduler_cls: type[Scheduler] = PriorityScheduler,
) -> Scheduler:
    """A fresh scheduler of `shape`; with another `scheduler_cls`, vLLM's own to compare with."""
    config = make_config(shape, settings)
    arguments = engine_build.scheduler_arguments(shape.sizes, config, shape.has_statistics)
    scheduler = scheduler_cls(**arguments | {"kv_cache_config": make_kv_config(shape)})  # which a test may replace
    # Which shape of output the scheduler makes for the worker. The CPU backend itself always has the V1 runner.
    scheduler.use_v2_model_runner = shape.is_v2
    return scheduler


def make_config(shape: EngineShape, settings: SchedulerSettings | None = None, policy: str = "priority") -> VllmConfig:
    additional: dict[str, Any] = settings.as_additional_config() if settings else {}
    if shape.has_statistics:
        additional = ask_for_statistics(additional)
    config = engine_build.engine_config(shape.sizes, policy, additional)
    config.parallel_config.world_size = shape.num_workers
    if shape.max_adapters is not None:
        config.lora_config = LoRAConfig(max_loras=shape.max_adapters)
    return config


def make_kv_config(shape: EngineShape) -> KVCacheConfig:
    return engine_build.kv_cache_config(shape.sizes)

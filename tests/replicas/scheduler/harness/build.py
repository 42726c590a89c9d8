"""A scheduler as vLLM's engine core makes it, for a model that exists as a configuration file only."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.structured_output import StructuredOutputManager

from replicas.kv_swap.configuration import transfer_config
from replicas.scheduler import PriorityScheduler
from replicas.snapshot_codec import ask_for_statistics
from slo.settings.scheduling import SchedulerSettings
from slo.settings.swap import SwapSettings

MAX_MODEL_LEN = 4096

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": MAX_MODEL_LEN,
    "torch_dtype": "float32",
}


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

    @property
    def block_bytes(self) -> int:
        """Of one block, in each worker."""
        return _spec_of(self).page_size_bytes


def build_scheduler(
    shape: EngineShape = EngineShape(),
    settings: SchedulerSettings | None = None,
    scheduler_cls: type[Scheduler] = PriorityScheduler,
) -> Scheduler:
    """A fresh scheduler of `shape`; with another `scheduler_cls`, vLLM's own to compare with."""
    config = make_config(shape, settings)
    scheduler = scheduler_cls(
        vllm_config=config,
        kv_cache_config=make_kv_config(shape),
        structured_output_manager=StructuredOutputManager(config),
        block_size=shape.block_size,
        hash_block_size=shape.block_size,
        log_stats=shape.has_statistics,
    )
    # Which shape of output the scheduler makes for the worker. The CPU backend itself always has the V1 runner.
    scheduler.use_v2_model_runner = shape.is_v2
    return scheduler


def make_config(shape: EngineShape, settings: SchedulerSettings | None = None, policy: str = "priority") -> VllmConfig:
    init_none_hash(sha256)
    config = VllmConfig(
        model_config=_model_config(),
        scheduler_config=SchedulerConfig(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.token_budget,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy=policy,
            watermark=shape.watermark,
        ),
        cache_config=CacheConfig(
            block_size=shape.block_size,
            gpu_memory_utilization=0.5,
            cache_dtype="auto",
            enable_prefix_caching=shape.prefix_cache,
        ),
        device_config=DeviceConfig("cpu"),
        additional_config=_additional_config(shape, settings),
        kv_transfer_config=KVTransferConfig(**transfer_config(shape.swap)) if shape.swap else None,
    )
    config.parallel_config.world_size = shape.num_workers
    config.cache_config.num_gpu_blocks = shape.num_blocks
    # The CPU platform switches it off; the scheduler must be right with it all the same.
    config.scheduler_config.async_scheduling = shape.is_async
    return config


def _additional_config(shape: EngineShape, settings: SchedulerSettings | None) -> dict[str, Any]:
    additional = settings.as_additional_config() if settings else {}
    return ask_for_statistics(additional) if shape.has_statistics else additional


@cache
def _model_config() -> ModelConfig:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(_LLAMA))
        return ModelConfig(
            model=directory, dtype="float32", seed=0, max_model_len=MAX_MODEL_LEN, skip_tokenizer_init=True
        )


def _spec_of(shape: EngineShape) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=shape.block_size, num_kv_heads=1, head_size=2, dtype=torch.float16)


def make_kv_config(shape: EngineShape) -> KVCacheConfig:
    spec = _spec_of(shape)
    block_bytes = spec.page_size_bytes
    num_bytes = shape.num_blocks * block_bytes
    tensor = KVCacheTensor(size=num_bytes, layers=["layer"], layer_stride=num_bytes, block_stride=block_bytes)
    return KVCacheConfig(
        num_blocks=shape.num_blocks,
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        kv_cache_tensors=[tensor],
    )

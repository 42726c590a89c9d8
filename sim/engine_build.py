"""A scheduler as vLLM's engine core makes it, without a device: for a model that is a configuration file alone.

The sizes that scheduling depends on are real: run slots, tokens a step, KV blocks and their bytes. Nothing is loaded.
The simulator builds on it, and so does the harness of the scheduler's tests.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.structured_output import StructuredOutputManager

from replicas.kv_swap.configuration import transfer_config
from replicas.scheduler import PriorityScheduler
from slo.settings.scheduling import SchedulerSettings
from slo.settings.swap import SwapSettings

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "torch_dtype": "float32",
}


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Sizes of the engine that a scheduler believes it serves.

    Attributes:
        max_step_tokens: vLLM's max_num_batched_tokens.
        block_bytes: of one KV block over all layers; it decides what a swap costs.
        swap: with `host_bytes` set; None: no KV swap.
    """

    num_blocks: int
    block_tokens: int = 16
    block_bytes: int = 1024
    max_num_seqs: int = 64
    max_step_tokens: int = 2048
    max_model_len: int = 32768
    prefix_cache: bool = True
    is_async: bool = True
    watermark_ratio: float = 0.0
    swap: SwapSettings | None = None


def build_priority_scheduler(shape: EngineShape, settings: SchedulerSettings) -> PriorityScheduler:
    """Ours."""
    config = engine_config(shape, "priority", settings.as_additional_config())
    return PriorityScheduler(**scheduler_arguments(shape, config))


def build_stock_scheduler(shape: EngineShape, policy: str) -> Scheduler:
    """vLLM's own, with its policy `fcfs` or `priority`. It has no swap."""
    shape = replace(shape, swap=None)
    scheduler_cls = AsyncScheduler if shape.is_async else Scheduler
    return scheduler_cls(**scheduler_arguments(shape, engine_config(shape, policy, {})))


def scheduler_arguments(shape: EngineShape, config: VllmConfig, log_stats: bool = False) -> dict[str, Any]:
    """What the engine's core gives a scheduler. `config` is that of `shape`."""
    return {
        "vllm_config": config,
        "kv_cache_config": kv_cache_config(shape),
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": shape.block_tokens,
        "hash_block_size": shape.block_tokens,
        "log_stats": log_stats,
    }


def engine_config(shape: EngineShape, policy: str, additional_config: dict[str, Any]) -> VllmConfig:
    """The configuration of an engine of `shape`."""
    init_none_hash(sha256)
    config = VllmConfig(
        model_config=_model_config(shape.max_model_len),
        scheduler_config=SchedulerConfig(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_step_tokens,
            max_model_len=shape.max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy=policy,
            watermark=shape.watermark_ratio,
        ),
        cache_config=CacheConfig(
            block_size=shape.block_tokens,
            gpu_memory_utilization=0.5,
            cache_dtype="auto",
            enable_prefix_caching=shape.prefix_cache,
        ),
        device_config=DeviceConfig("cpu"),
        additional_config=additional_config,
        kv_transfer_config=KVTransferConfig(**transfer_config(shape.swap)) if shape.swap else None,
    )
    config.cache_config.num_gpu_blocks = shape.num_blocks
    # The CPU platform switches it off; a GPU has it unless told otherwise.
    config.scheduler_config.async_scheduling = shape.is_async
    return config


@cache
def _model_config(max_model_len: int) -> ModelConfig:
    with tempfile.TemporaryDirectory() as directory:
        text = json.dumps({**_CONFIG, "max_position_embeddings": max_model_len})
        Path(directory, "config.json").write_text(text, encoding="utf-8")
        return ModelConfig(
            model=directory, dtype="float32", seed=0, max_model_len=max_model_len, skip_tokenizer_init=True
        )


def kv_cache_config(shape: EngineShape) -> KVCacheConfig:
    """One layer with the bytes of all: K and V of one head of float16, as wide as it takes."""
    spec = FullAttentionSpec(
        block_size=shape.block_tokens,
        num_kv_heads=1,
        head_size=max(1, shape.block_bytes // (shape.block_tokens * 4)),
        dtype=torch.float16,
    )
    num_bytes = shape.num_blocks * spec.page_size_bytes
    tensor = KVCacheTensor(size=num_bytes, layers=["layer"], layer_stride=num_bytes, block_stride=spec.page_size_bytes)
    return KVCacheConfig(
        num_blocks=shape.num_blocks,
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        kv_cache_tensors=[tensor],
    )

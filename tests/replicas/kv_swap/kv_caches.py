"""KV caches as vLLM makes them, small, on the CPU: its own configuration, its own allocation, its own views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

BLOCK_TOKENS = 4


def full(num_heads: int = 2, head_size: int = 8) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=num_heads, head_size=head_size, dtype=torch.float32)


def group(name: str, num_layers: int, spec: KVCacheSpec | None = None) -> KVCacheGroupSpec:
    return KVCacheGroupSpec([f"{name}.{i}" for i in range(num_layers)], spec or full())


def plain() -> list[KVCacheGroupSpec]:
    """A model of one kind of layer."""
    return [group("layer", 3)]


def hybrid() -> list[KVCacheGroupSpec]:
    """Two groups that overlay each other."""
    window = SlidingWindowSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=8, dtype=torch.float32, sliding_window=16
    )
    return [group("full", 2), group("window", 3, window)]


def mixed() -> list[KVCacheGroupSpec]:
    """One group of layers that differ in size."""
    specs = {"small.0": full(head_size=8), "large.0": full(head_size=16), "small.1": full(head_size=8)}
    return [KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs(block_size=BLOCK_TOKENS, kv_cache_specs=specs))]


@dataclass(frozen=True, slots=True)
class Cache:
    """A worker's KV cache: the views that attention reads and writes, by layer."""

    config: KVCacheConfig
    layers: dict[str, torch.Tensor]

    def fill(self, seed: int) -> None:
        """Random bytes in every block of every layer."""
        generator = torch.Generator().manual_seed(seed)
        for view in self.layers.values():
            view.copy_(torch.rand(view.shape, generator=generator).to(view.dtype))

    def block(self, block: int) -> list[torch.Tensor]:
        """What each layer's attention finds in a block: a copy."""
        return [view[block].clone() for view in self.layers.values()]

    def blocks(self, blocks: Sequence[int]) -> list[torch.Tensor]:
        return [content for block in blocks for content in self.block(block)]

    def wipe(self, blocks: Sequence[int]) -> None:
        for view in self.layers.values():
            view[list(blocks)] = 0


def make_cache(groups: list[KVCacheGroupSpec], num_blocks: int, layout: KVCacheLayout = KVCacheLayout.LBNHC) -> Cache:
    config = get_kv_cache_config_from_groups(
        SimpleNamespace(
            attention_config=SimpleNamespace(hisparse_config=None),
            cache_config=SimpleNamespace(
                get_resolved_kv_cache_layout=lambda: layout,
                num_gpu_blocks_override=num_blocks,
                prefix_cache_retention_interval=None,
            ),
        ),
        groups,
        2**20,
    )
    return Cache(config, allocate_kv_cache(config, torch.device("cpu"), layout))


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Whether both hold the same bits."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))

"""Where a KV block's bytes lie in a worker's KV cache: byte ranges worked out from vLLM's `KVCacheConfig`.

All of a worker's layers share one allocation. With the layers outermost, each layer (or each head of it) is a region of
blocks; with the blocks outermost, the whole allocation is one. Cache groups overlay each other, so their regions may be
the same, but must not overlap otherwise: a layout in which they do is refused, and so is a cache that vLLM itself keeps
on the host. Knows no torch, since the scheduler's side works out the size of a block here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor


class UnsupportedLayoutError(ValueError):
    """The KV cache is laid out in a way that cannot be moved block by block."""


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Block `b` is `block_bytes` at `start + b * block_bytes` of the worker's allocation."""

    start: int
    block_bytes: int
    num_blocks: int

    @property
    def end(self) -> int:
        """The byte after the last block."""
        return self.start + self.block_bytes * self.num_blocks


def find_regions(kv_cache_config: KVCacheConfig) -> tuple[Region, ...]:
    """The regions that together hold every block, in order of their start.

    Raises:
        UnsupportedLayoutError: see the module.
    """
    tensors = kv_cache_config.kv_cache_tensors
    if not tensors:
        raise UnsupportedLayoutError("the model has no KV cache")
    num_blocks = kv_cache_config.num_blocks
    regions = sorted({region for tensor in tensors for region in _regions_of(tensor, num_blocks)})
    for region, following in pairwise(regions):
        if following.start < region.end:
            raise UnsupportedLayoutError(f"KV cache groups overlap in part: {region} and {following}")
    size_bytes = min(tensor.size for tensor in tensors)
    if regions[-1].end > size_bytes:
        raise UnsupportedLayoutError(f"{regions[-1]} ends beyond the allocation of {size_bytes} bytes")
    return tuple(regions)


def block_bytes(kv_cache_config: KVCacheConfig) -> int:
    """Bytes of one block in one worker, over all its layers.

    Raises:
        UnsupportedLayoutError: see the module.
    """
    return sum(region.block_bytes for region in find_regions(kv_cache_config))


def num_host_slots(host_bytes: int, kv_cache_config: KVCacheConfig, num_workers: int) -> int:
    """Blocks that fit into an engine's `host_bytes`, which its workers share alike.

    Raises:
        UnsupportedLayoutError: see the module.
    """
    return host_bytes // num_workers // block_bytes(kv_cache_config)


def _regions_of(tensor: KVCacheTensor, num_blocks: int) -> Iterator[Region]:
    if tensor.host_resident:
        raise UnsupportedLayoutError(f"the KV of {tensor.layers[0]} is kept on the host by vLLM itself")
    span = num_blocks * tensor.block_stride
    if tensor.layer_stride < span:  # blocks outermost: what lies between one block and the next are other layers
        yield Region(0, tensor.block_stride, num_blocks)
        return
    regions_per_layer, rest = divmod(tensor.layer_stride, span)
    if rest:
        raise UnsupportedLayoutError(
            f"{tensor.layers[0]}: a layer of {tensor.layer_stride} bytes is no whole number of {num_blocks} blocks of "
            f"{tensor.block_stride} bytes"
        )
    for index in range(regions_per_layer * len(tensor.layers)):
        yield Region(tensor.offset + index * span, tensor.block_stride, num_blocks)

"""Where blocks lie, for every layout that vLLM has, and what is refused.

Mutations tried, each failing here or in test_copier: the offset of a layer left out; one region a layer where heads are
outermost; regions of groups that overlay each other kept twice; overlap in part let through; a host-resident cache let
through; regions beyond the allocation let through.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor
from vllm.v1.kv_cache_layout import KVCacheLayout

from replicas.kv_swap.regions import Region, UnsupportedLayoutError, block_bytes, find_regions, num_host_slots
from tests.replicas.kv_swap.kv_caches import hybrid, make_cache, mixed, plain

NUM_BLOCKS = 6


def config_of(*tensors: KVCacheTensor) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=list(tensors), kv_cache_groups=[])


def tensor(**values: Any) -> KVCacheTensor:
    layers_outermost = {"size": 1200, "layers": ["a", "b"], "layer_stride": 600, "block_stride": 100}
    return KVCacheTensor(**(layers_outermost | values))


@pytest.mark.parametrize("layout", KVCacheLayout)
@pytest.mark.parametrize("groups", [plain, hybrid], ids=["plain", "hybrid"])
def test_regions_cover_each_byte_of_the_cache_once(layout: KVCacheLayout, groups: Any) -> None:
    config = make_cache(groups(), NUM_BLOCKS, layout).config
    regions = find_regions(config)
    assert regions[0].start == 0
    assert all(following.start == region.end for region, following in pairwise(regions))
    assert regions[-1].end == config.kv_cache_tensors[0].size
    assert block_bytes(config) * NUM_BLOCKS == config.kv_cache_tensors[0].size


@pytest.mark.parametrize("layout", [KVCacheLayout.LBNHC, KVCacheLayout.BLHNC])
def test_regions_cover_layers_that_differ_in_size(layout: KVCacheLayout) -> None:
    config = make_cache(mixed(), NUM_BLOCKS, layout).config
    assert {region.block_bytes for region in find_regions(config)} == ({512, 1024} if layout.value[0] == 0 else {2048})
    assert block_bytes(config) == 2048


def test_regions_are_one_a_head_where_heads_are_outermost() -> None:
    heads = tensor(block_stride=50)
    assert find_regions(config_of(heads)) == tuple(Region(300 * i, 50, NUM_BLOCKS) for i in range(4))


def test_regions_are_found_once_in_groups_that_overlay_each_other() -> None:
    assert len(find_regions(config_of(tensor(), tensor(layers=["c"])))) == 2


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((), "no KV cache"),
        ((tensor(host_resident=True),), "kept on the host by vLLM"),
        ((tensor(), tensor(layers=["c"], block_stride=50)), "overlap in part"),
        ((tensor(), tensor(layers=["c"], offset=300)), "overlap in part"),
        ((tensor(layer_stride=650, size=1300),), "no whole number of 6 blocks"),
        ((tensor(offset=100),), "ends beyond the allocation of 1200 bytes"),
        ((tensor(layer_stride=100, block_stride=200, size=1199),), "ends beyond the allocation"),
    ],
)
def test_regions_are_refused_where_blocks_cannot_be_moved(tensors: tuple[KVCacheTensor, ...], message: str) -> None:
    with pytest.raises(UnsupportedLayoutError, match=message):
        find_regions(config_of(*tensors))


@pytest.mark.parametrize(
    ("host_bytes", "num_workers", "expected"),
    [(0, 1, 0), (199, 1, 0), (200, 1, 1), (1000, 1, 5), (1000, 2, 2), (399, 2, 0)],
)
def test_host_slots_are_shared_alike_among_the_workers(host_bytes: int, num_workers: int, expected: int) -> None:
    assert num_host_slots(host_bytes, config_of(tensor()), num_workers) == expected


def test_regions_compare_by_value() -> None:
    region = Region(0, 100, NUM_BLOCKS)
    assert replace(region, start=0) == region
    assert region.end == 600

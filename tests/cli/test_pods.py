from typing import Any

import pytest

from cli.pods import Backend, WorkerPods, plan_pods
from slo.settings import parse_settings

HALF = {"extra_args": {"gpu_memory_utilization": 0.5}}
TWO_MACHINES = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "multi_node": True}
NO_SWAP = {"swap": {"host_bytes": 0}}


def pods(backend: Backend = Backend.GPU, **settings: Any) -> WorkerPods:
    return plan_pods(parse_settings(settings), backend)


@pytest.mark.parametrize(
    ("settings", "counts", "num_gpus"),
    [
        ({}, (1, 1, 1), 1),
        ({"replicas": {"num_replicas": 3}}, (3, 3, 3), 1),
        ({"autoscale": {"min_replicas": 0, "max_replicas": 8}}, (0, 1, 8), 1),
        ({"autoscale": {"max_replicas": 5}, "replicas": {"num_replicas": 2}}, (1, 2, 5), 1),
        ({"engine": {"tensor_parallel_size": 8}, "autoscale": {"max_replicas": 2}}, (1, 1, 2), 8),
        ({"engine": TWO_MACHINES, "autoscale": {"max_replicas": 3}}, (2, 2, 6), 8),
        ({"engine": HALF, "replicas": {"num_gpus": 0.5, "num_replicas": 3}}, (2, 2, 2), 1),
        ({"engine": HALF, "replicas": {"num_gpus": 0.5}, "autoscale": {"max_replicas": 4}}, (1, 1, 2), 1),
    ],
)
def test_pods_are_as_many_as_the_fleets_bounds_need(
    settings: dict[str, Any], counts: tuple[int, int, int], num_gpus: int
) -> None:
    planned = pods(**settings)
    assert (planned.min_pods, planned.start_pods, planned.max_pods) == counts
    assert planned.num_gpus == num_gpus


def test_pods_have_no_gpus_when_the_image_has_the_cpu_build() -> None:
    assert pods(Backend.CPU).num_gpus == 0
    assert pods(Backend.GPU, replicas={"num_gpus": 0}).num_gpus == 0


@pytest.mark.parametrize(
    ("settings", "num_cpus"),
    [
        ({}, 4),
        ({"engine": {"tensor_parallel_size": 8}}, 32),
        ({"replicas": {"num_cpus": 10}}, 11),
        ({"engine": HALF, "replicas": {"num_gpus": 0.5, "num_cpus": 5}}, 11),
    ],
)
def test_pods_have_the_cpus_that_replicas_reserve_or_four_for_each_gpu(settings: dict[str, Any], num_cpus: int) -> None:
    assert pods(**settings).num_cpus == num_cpus


@pytest.mark.parametrize(
    ("backend", "settings", "memory_gib"),
    [
        (Backend.GPU, NO_SWAP, 32),
        (Backend.GPU, {}, 32 + 2 * 32),
        (Backend.GPU, {"swap": {"host_bytes": 2**30 + 1}}, 34),
        (Backend.GPU, {**NO_SWAP, "engine": {"tensor_parallel_size": 4}}, 128),
        (Backend.GPU, {**NO_SWAP, "engine": HALF, "replicas": {"num_gpus": 0.5}}, 64),
        (Backend.GPU, {**NO_SWAP, "engine": {"kv_cache_bytes": 2**40}}, 32),
        (Backend.CPU, NO_SWAP, 7),
        (Backend.CPU, {**NO_SWAP, "engine": {"kv_cache_bytes": 4 * 2**30}}, 10),
        (Backend.CPU, {}, 8),
    ],
)
def test_pods_have_memory_for_swap_and_for_the_cache_where_it_is_there(
    backend: Backend, settings: dict[str, Any], memory_gib: int
) -> None:
    assert pods(backend, **settings).memory_gib == memory_gib


def test_pods_of_an_accelerator_have_gpus_whatever_the_image() -> None:
    planned = pods(Backend.CPU, replicas={"accelerator_type": "L4"})
    assert (planned.num_gpus, planned.accelerator_type) == (1, "L4")

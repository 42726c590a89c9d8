from typing import Any

import pytest
from ray.serve._private.config import ReplicaConfig

from replicas.placement import executor_backend, plan_placement
from slo.settings import EngineSettings, ReplicaSettings

TWO_STAGES = EngineSettings(tensor_parallel_size=2, pipeline_parallel_size=2, multi_node=True)


class Deployed:
    """Stands for the class that Serve deploys."""


def options(engine: EngineSettings, cpu: bool = False, **replicas: Any) -> dict[str, Any]:
    return plan_placement(engine, ReplicaSettings(**replicas), cpu).as_options()


@pytest.mark.parametrize(
    ("engine", "replicas", "cpu", "num_gpus"),
    [
        ({}, {}, True, 0),
        ({}, {}, False, 1),
        ({"tensor_parallel_size": 8}, {}, False, 8),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 4}, {}, False, 8),
        ({"tensor_parallel_size": 2}, {}, True, 0),
        ({}, {"num_gpus": 0.5}, False, 0.5),
        ({}, {"num_gpus": 0}, False, 0),
        ({}, {"num_gpus": 1}, True, 1),
        ({"tensor_parallel_size": 4}, {"accelerator_type": "H100"}, True, 4),
    ],
)
def test_placement_reserves_all_gpus_by_the_actor_when_the_engine_is_on_one_machine(
    engine: dict[str, Any], replicas: dict[str, Any], cpu: bool, num_gpus: float
) -> None:
    given = options(EngineSettings(**engine), cpu, **replicas)
    assert given.keys() == {"ray_actor_options"}
    assert given["ray_actor_options"]["num_gpus"] == num_gpus
    assert given["ray_actor_options"]["num_cpus"] == 0.5


def test_placement_asks_for_the_accelerator_only_when_it_is_set() -> None:
    assert "accelerator_type" not in options(EngineSettings())["ray_actor_options"]
    assert options(EngineSettings(), accelerator_type="A100")["ray_actor_options"]["accelerator_type"] == "A100"


def test_placement_is_a_group_of_one_gpu_bundles_when_the_engine_is_on_several_machines() -> None:
    assert options(TWO_STAGES, num_cpus=2) == {
        "ray_actor_options": {"num_cpus": 2, "num_gpus": 0},
        "placement_group_bundles": [{"GPU": 1, "CPU": 2}, {"GPU": 1}, {"GPU": 1}, {"GPU": 1}],
        "placement_group_strategy": "PACK",
    }


def test_placement_asks_for_the_accelerator_in_each_bundle_of_a_group() -> None:
    given = options(TWO_STAGES, accelerator_type="H100")
    assert "accelerator_type" not in given["ray_actor_options"]
    assert all(bundle["accelerator_type:H100"] == 0.001 for bundle in given["placement_group_bundles"])


def test_placement_reserves_no_cpu_in_a_group_when_none_is_asked_for() -> None:
    assert "CPU" not in options(TWO_STAGES, num_cpus=0)["placement_group_bundles"][0]


@pytest.mark.parametrize(
    ("engine", "replicas"),
    [
        (EngineSettings(), {}),
        (EngineSettings(), {"num_gpus": 0.5, "accelerator_type": "L4"}),
        (EngineSettings(tensor_parallel_size=8), {"accelerator_type": "H100"}),
        (TWO_STAGES, {}),
        (TWO_STAGES, {"num_cpus": 0, "accelerator_type": "H100"}),
    ],
)
def test_placement_is_one_that_serve_accepts(engine: EngineSettings, replicas: dict[str, Any]) -> None:
    given = options(engine, **replicas)
    config = ReplicaConfig.create(Deployed, (), {}, **given)
    assert config.placement_group_bundles == given.get("placement_group_bundles")


def test_placement_of_a_group_is_one_that_vllm_accepts() -> None:
    """vLLM refuses bundles of more than one GPU, and groups with fewer than it has workers."""
    gpus = [bundle["GPU"] for bundle in options(TWO_STAGES)["placement_group_bundles"]]
    assert max(gpus) <= 1
    assert sum(gpu > 0 for gpu in gpus) >= TWO_STAGES.num_devices


def test_executor_is_rays_only_when_the_engine_is_on_several_machines() -> None:
    assert executor_backend(TWO_STAGES) == "ray"
    assert executor_backend(EngineSettings(tensor_parallel_size=8, pipeline_parallel_size=2)) == "mp"

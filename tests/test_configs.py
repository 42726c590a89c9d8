"""The profiles in configs/, through what `expresslane serve` and `serve deploy` read them with."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cli.config import ConfigError, load_config, port_of, settings_of
from replicas.engine import engine_arguments, unknown_arguments
from replicas.placement import plan_placement
from slo.priority import PriorityClass
from slo.settings import ReplicaBounds, Settings

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "configs").glob("*.yaml"))
GPU_FILES = [file for file in FILES if "cpu" not in file.stem]


def settings(name: str) -> Settings:
    return settings_of(load_config(ROOT / "configs" / f"{name}.yaml"))


def actor_options(name: str, cpu: bool) -> list[dict[str, Any]]:
    """Of each model."""
    given = settings(name).by_model.values()
    return [plan_placement(of.engine, of.replicas, cpu).as_options()["ray_actor_options"] for of in given]


def test_profiles_are_those_of_the_common_set_ups() -> None:
    assert {file.stem for file in FILES} == {
        "laptop-cpu",
        "one-gpu-8b",
        "8-gpu-70b-tp",
        "batch-only-scale-to-zero",
        "two-models",
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_profile_is_a_config_that_serve_deploys_with_an_external_scaler(file: Path) -> None:
    config = load_config(file)
    deployed = ServeDeploySchema.model_validate(config)
    (application,) = deployed.applications
    assert application.import_path == "app.main:build"
    assert application.external_scaler_enabled, "without it, the controller's calls are refused"
    assert application.runtime_env == {}
    assert port_of(config) == 8000


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_profile_has_engine_arguments_that_vllm_knows(file: Path) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    cpu = file not in GPU_FILES
    for given in settings(file.stem).by_model.values():
        swap = given.swap.resolve(cpu, 2**50)
        arguments = engine_arguments("/models/m", given.model.served_names, given.engine, given.scheduler, cpu, swap)
        assert unknown_arguments(arguments, [field.name for field in dataclasses.fields(AsyncEngineArgs)]) == []


@pytest.mark.parametrize("file", GPU_FILES, ids=lambda file: file.stem)
def test_profile_of_gpus_reserves_them_when_the_head_has_the_cpu_build(file: Path) -> None:
    assert actor_options(file.stem, cpu=True) == actor_options(file.stem, cpu=False)
    assert all(options["num_gpus"] >= 1 for options in actor_options(file.stem, cpu=True))


def test_laptop_profile_needs_no_gpu_and_one_engine() -> None:
    given = settings("laptop-cpu")
    assert [options["num_gpus"] for options in actor_options("laptop-cpu", cpu=False)] == [0]
    assert (given.model.source, given.replica_bounds) == ("default", ReplicaBounds(1, 1))
    assert given.autoscale.mode == "off"


def test_tensor_parallel_profile_reserves_a_whole_machine_by_one_actor() -> None:
    given = settings("8-gpu-70b-tp")
    options = plan_placement(given.engine, given.replicas, cpu=False).as_options()
    assert options.keys() == {"ray_actor_options"}
    assert options["ray_actor_options"] == {"num_cpus": 8, "num_gpus": 8, "accelerator_type": "H100"}


def test_batch_profile_scales_to_zero_and_out_again() -> None:
    given = settings("batch-only-scale-to-zero")
    assert given.replica_bounds.min_replicas == 0
    assert given.replica_bounds.max_replicas > 1
    assert given.scheduler.targets.of(PriorityClass.P2).promised, "only promised classes scale a fleet out"
    assert given.scheduler.targets.of(PriorityClass.P2).ttft_p99_ms is not None
    assert given.classification.default_class is PriorityClass.P2


def test_batch_profile_lets_requests_wait_for_a_cold_start() -> None:
    given = settings("batch-only-scale-to-zero")
    wait_s = given.admission.p2.queue_timeout_s * given.admission.max_wait_ratio
    assert wait_s > given.autoscale.start_timeout_s


def test_profile_of_two_models_gives_each_its_own() -> None:
    small, large = settings("two-models").by_model.values()
    assert (small.model.served_names, large.model.served_names) == (("llama-3.1-8b",), ("llama-3.1-70b",))
    assert (small.engine.max_num_seqs, large.engine.max_num_seqs) == (128, 64)
    assert small.engine.extra_args == large.engine.extra_args != {}
    assert [options["num_gpus"] for options in actor_options("two-models", cpu=False)] == [1, 8]
    assert (small.replica_bounds.max_replicas, large.replica_bounds.max_replicas) == (4, 2)


def with_working_dir(tmp_path: Path, working_dir: str) -> Path:
    config = load_config(ROOT / "configs" / "one-gpu-8b.yaml")
    config["applications"][0]["runtime_env"] = {"working_dir": working_dir}
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("working_dir", ["https://example.com/expresslane-0.1.0.zip", "local:///opt/expresslane"])
def test_profile_may_name_where_the_code_is(tmp_path: Path, working_dir: str) -> None:
    """As docs/operate.md has it, for images that have the dependencies and not the application."""
    (application,) = load_config(with_working_dir(tmp_path, working_dir))["applications"]
    assert application["runtime_env"] == {"working_dir": working_dir}


def test_profile_may_not_name_a_directory_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="working_dir"):
        load_config(with_working_dir(tmp_path, str(ROOT)))

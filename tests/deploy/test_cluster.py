"""The files for Ray's cluster launcher, by Ray's own schema and its own preparation of them."""

import copy
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from cli import haproxy
from cli.config import load_config, settings_of
from slo.settings.serving import ReplicaSettings

ROOT = Path(__file__).parents[2]
CLOUD, LOCAL = "cluster.yaml", "cluster.local.yaml"
HEAD, WORKER = "head_start_ray_commands", "worker_start_ray_commands"
TOKEN = "~/.ray/auth_token"
"""Where Ray's own clients and processes look for it."""


def written(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return config


def prepared(name: str) -> dict[str, Any]:
    """As `ray up` has it before it asks the provider for machines."""
    config: dict[str, Any] = prepare_config(copy.deepcopy(written(name)))
    return config


@pytest.mark.parametrize("name", [CLOUD, LOCAL])
def test_cluster_file_is_one_that_ray_accepts(name: str) -> None:
    validate_config(prepared(name))


def test_cluster_file_with_an_unknown_key_is_one_that_ray_refuses() -> None:
    with pytest.raises(jsonschema.ValidationError, match="dashboard"):
        validate_config({**prepared(CLOUD), "dashboard": True})


def test_cluster_of_the_cloud_has_a_head_without_gpus_and_workers_between_bounds() -> None:
    types = prepared(CLOUD)["available_node_types"]
    assert written(CLOUD)["head_node_type"] == "head"
    assert types["head"]["resources"]["GPU"] == 0
    assert types["head"]["resources"]["CPU"] > 0, "the controller is pinned to the head, and reserves a share of a CPU"
    worker = types["gpu-worker"]
    assert worker["resources"]["GPU"] > 0
    assert 0 < worker["min_workers"] <= worker["max_workers"] <= written(CLOUD)["max_workers"]


def test_cluster_of_the_cloud_carries_the_profile_that_it_names() -> None:
    settings = settings_of(load_config(ROOT / "configs" / "one-gpu-8b.yaml"))
    worker = prepared(CLOUD)["available_node_types"]["gpu-worker"]
    assert settings.replicas.num_gpus is not None
    per_machine = worker["resources"]["GPU"] // settings.replicas.num_gpus
    assert settings.replica_bounds.max_replicas <= worker["max_workers"] * per_machine
    assert settings.replicas.num_cpus <= worker["resources"]["CPU"]


def test_cluster_of_own_machines_keeps_them_all() -> None:
    provider, (node_type,) = written(LOCAL)["provider"], prepared(LOCAL)["available_node_types"].values()
    assert node_type["min_workers"] == node_type["max_workers"] == len(provider["worker_ips"])


@pytest.mark.parametrize("name", [CLOUD, LOCAL])
def test_cluster_has_token_authentication_on_every_node(name: str) -> None:
    config = written(name)
    assert config["file_mounts"][TOKEN] == TOKEN
    if "docker" in config:
        assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    else:
        assert all("RAY_AUTH_MODE=token" in config[commands][-1] for commands in (HEAD, WORKER))


@pytest.mark.parametrize("name", [CLOUD, LOCAL])
def test_cluster_keeps_the_dashboard_on_the_heads_loopback_interface(name: str) -> None:
    config = written(name)
    assert "--dashboard-host=127.0.0.1" in config[HEAD][-1]
    assert "dashboard" not in config[WORKER][-1]


@pytest.mark.parametrize("name", [CLOUD, LOCAL])
def test_cluster_head_gives_its_cpus_and_no_gpu(name: str) -> None:
    start = written(name)[HEAD][-1]
    assert "--num-gpus=0" in start
    assert "--num-cpus=0" not in start
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in start


def test_cluster_of_own_machines_switches_haproxy_and_throughput_mode_on() -> None:
    config = written(LOCAL)
    for commands in (HEAD, WORKER):
        words = shlex.split(config[commands][-1])
        variables = dict(word.split("=", 1) for word in words[: words.index("ray")] if "=" in word)
        assert variables.items() >= haproxy.settings(ReplicaSettings().graceful_shutdown_timeout_s).items()
        assert variables["RAY_SERVE_ENABLE_HA_PROXY"] == variables["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"
        assert Path(variables[haproxy.BINARY_VARIABLE]).name == "expresslane-haproxy"


@pytest.mark.parametrize("name", [CLOUD, LOCAL])
def test_cluster_names_no_file_that_the_repository_lacks(name: str) -> None:
    text = (ROOT / name).read_text()
    for path in ("configs/one-gpu-8b.yaml", "serve.yaml", "deploy/containers/Dockerfile", "requirements/install.sh"):
        assert path not in text or (ROOT / path).is_file()

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.config import config_for, load_config
from cli.main import app

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy" / "kuberay" / "expresslane.yaml"
RUN = CliRunner()


def run(*arguments: str | Path, code: int = 0) -> str:
    result = RUN.invoke(app, ["manifests", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def ray_service(text: str) -> dict[str, Any]:
    (found,) = [o for o in yaml.safe_load_all(text) if o["kind"] == "RayService"]
    return dict(found)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(config_for({"replicas": {"num_replicas": 3}}, 9000)))
    return path


def test_manifest_of_the_repository_is_of_its_serve_yaml() -> None:
    """Where this fails: `expresslane manifests --output deploy/kuberay/expresslane.yaml`."""
    assert SHIPPED.read_text() == run("--config", ROOT / "serve.yaml")
    embedded = yaml.safe_load(ray_service(SHIPPED.read_text())["spec"]["serveConfigV2"])
    assert embedded == load_config(ROOT / "serve.yaml")


@pytest.mark.parametrize("profile", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_are_made_of_every_profile(profile: Path) -> None:
    embedded = yaml.safe_load(ray_service(run("--config", profile))["spec"]["serveConfigV2"])
    assert embedded == load_config(profile)


def test_options_reach_the_objects(config: Path) -> None:
    text = run(
        "--config", config, "--image", "r.example/x:9", "--backend", "cpu", "--allow-from", "a", "--cache-claim", "m"
    )
    (workers,) = ray_service(text)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["maxReplicas"] == 3
    (container,) = workers["template"]["spec"]["containers"]
    assert container["image"] == "r.example/x:9"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert workers["template"]["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "m"}
    (policy,) = [o for o in yaml.safe_load_all(text) if o["kind"] == "NetworkPolicy"]
    (clients,) = policy["spec"]["ingress"][2]["from"]
    assert clients["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "a"
    assert policy["spec"]["ingress"][2]["ports"] == [{"protocol": "TCP", "port": 9000}]


def test_adapters_lie_in_the_pods_that_have_replicas(tmp_path: Path) -> None:
    path = tmp_path / "adapters.yaml"
    path.write_text(yaml.safe_dump(config_for({"engine": {"adapters_dir": "/mnt/adapters"}}, 9000)))
    assert "engine.adapters_dir='/mnt/adapters': name the volume" in run("--config", path, code=1)
    cluster = ray_service(run("--config", path, "--adapters-claim", "a"))["spec"]["rayClusterConfig"]
    worker, head = (group["template"]["spec"] for group in (cluster["workerGroupSpecs"][0], cluster["headGroupSpec"]))
    assert {"name": "adapters", "persistentVolumeClaim": {"claimName": "a"}} in worker["volumes"]
    mount = {"name": "adapters", "mountPath": "/mnt/adapters", "readOnly": True}
    assert mount in worker["containers"][0]["volumeMounts"]
    assert "adapters" not in str(head)


def test_image_has_the_applications_version_and_build_when_none_is_named(config: Path) -> None:
    (workers,) = ray_service(run("--config", config))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["template"]["spec"]["containers"][0]["image"] == "expresslane:0.1.0-gpu"


def test_output_goes_into_a_file_when_one_is_named(config: Path, tmp_path: Path) -> None:
    assert run("--config", config, "--output", tmp_path / "out.yaml") == ""
    assert (tmp_path / "out.yaml").read_text() == run("--config", config)


def test_manifests_fail_with_the_reason_when_the_config_is_wrong(tmp_path: Path) -> None:
    assert "error: " + str(tmp_path / "none.yaml") in run("--config", tmp_path / "none.yaml", code=1)

"""The Dockerfile and the compose file: by hadolint, by the Compose specification, and by what they are for.

No image is built here: that takes a container engine. Mutations tried by hand, each found by a test here: the USER line
removed; an image of no version; a room that is not copied; Ray's dashboard published; another port exposed; an
ENTRYPOINT; the health check of another path.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from cli import haproxy
from cli.config import load_config, port_of
from cli.kuberay import CACHE_PATH, DASHBOARD_PORT, IMAGE_ENVIRONMENT, USER
from slo.settings.serving import ReplicaSettings
from tests.promtool import check_config

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "deploy" / "containers"
DOCKERFILE, COMPOSE = CONTAINERS / "Dockerfile", CONTAINERS / "compose.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PORT = port_of(load_config(ROOT / "serve.yaml"))
TAGGED = re.compile(r"[\w./-]+:v?\d[\w.]*\d[\w.-]*")
"""An image with a version in its tag: no tag means `latest`, which is another image tomorrow."""


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments; lines that go on joined, comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(words[0], words[1].strip()) for line in joined.splitlines() if len(words := line.split(maxsplit=1)) == 2]


def of(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def compose() -> dict[str, Any]:
    """The compose file with every variable at its default, as it is where none is set."""
    text = re.sub(r"\$\{\w+(?::-([^}]*)|:\?[^}]*)?\}", lambda match: match[1] or "", COMPOSE.read_text())
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def test_dockerfile_has_nothing_that_hadolint_minds() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, "--failure-threshold", "info", DOCKERFILE], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_image_is_of_a_version() -> None:
    stages = {line.split(" AS ")[1] for line in of("FROM")}
    bases = [line.split(" AS ")[0] for line in of("FROM")]
    assert [base for base in bases if base not in stages and base != "${BACKEND}"] == ["python:3.11.14-slim-bookworm"]
    assert {"cpu", "gpu"} <= stages
    assert all(TAGGED.fullmatch(base) for base in bases if ":" in base)


def test_image_runs_as_kubernetes_is_told_and_not_as_root() -> None:
    assert of("USER") == [f"{USER}:{USER}"]
    assert f"useradd --uid {USER} " in of("RUN")[0]
    last = [instruction for instruction, _ in instructions()]
    assert "RUN" not in last[last.index("USER") :], "what is installed as this user could be changed by it"


def test_image_tells_its_health_by_the_applications_readiness() -> None:
    (check,) = of("HEALTHCHECK")
    assert f"http://127.0.0.1:{PORT}/readyz" in check


def test_image_has_the_port_the_volume_and_the_environment_of_the_cluster() -> None:
    assert of("EXPOSE") == [str(PORT)]
    assert of("VOLUME") == [f'["{CACHE_PATH}"]']
    environment = dict(pair.split("=", 1) for line in of("ENV") for pair in shlex.split(line))
    longest_answer_s = ReplicaSettings().graceful_shutdown_timeout_s
    assert environment.items() >= IMAGE_ENVIRONMENT.items() | haproxy.settings(longest_answer_s).items()
    assert environment["HOME"] == "/home/expresslane"
    assert Path(environment[haproxy.BINARY_VARIABLE]).name in PROJECT["scripts"]


def test_image_lets_rays_launchers_start_their_own_command() -> None:
    assert of("ENTRYPOINT") == []
    assert of("CMD")[-1] == '["expresslane", "serve"]'


def test_image_copies_files_that_exist_and_are_sent() -> None:
    sources = [source for line in of("COPY") for source in line.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = {line.strip("/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert not {source.split("/")[0] for source in sources} & ignored


def test_image_has_every_room_of_the_distribution() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = {source for line in of("COPY") for source in line.split()[:-1]}
    assert set(wheel["packages"]) <= copied
    assert {PROJECT["readme"], *PROJECT["license-files"], "serve.yaml", "configs"} <= copied


def test_image_installs_the_locked_dependencies_as_the_repository_does() -> None:
    runs = [line for line in of("RUN") if "requirements/install.sh" in line]
    assert [line.split()[-2:] for line in runs] == [["/usr/local", "cpu"], ["/usr/local", "gpu"]]
    assert all(line.startswith("DEPENDENCIES_ONLY=1 ") for line in runs)
    assert 'if [ -n "${DEPENDENCIES_ONLY:-}" ]; then exit 0; fi' in (ROOT / "requirements" / "install.sh").read_text()


@pytest.mark.parametrize("path", [DOCKERFILE, COMPOSE, ROOT / "cluster.yaml"], ids=lambda path: path.name)
def test_images_of_ours_have_the_projects_version(path: Path) -> None:
    tags = re.findall(r"expresslane:(\d[\w.]*)-", path.read_text())
    assert set(tags) == {PROJECT["version"]}


def test_compose_file_is_one_by_the_specification() -> None:
    parsed = PyCompose.from_yaml(yaml.safe_dump(compose()))
    assert set(parsed.service_names()) == {"expresslane", "prometheus", "grafana"}


def test_compose_specification_refuses_a_misspelt_key() -> None:
    config = compose()
    config["services"]["grafana"]["ports"] = "3000"
    with pytest.raises(ValueError, match="ports"):
        PyCompose.from_yaml(yaml.safe_dump(config))


def test_compose_images_are_of_a_version() -> None:
    images = [service["image"] for service in compose()["services"].values()]
    assert [image for image in images if not TAGGED.fullmatch(image)] == []


def test_compose_publishes_no_port_beyond_the_machine_and_not_the_dashboards() -> None:
    ports = {name: service["ports"] for name, service in compose()["services"].items()}
    assert ports["expresslane"] == [f"127.0.0.1:{PORT}:{PORT}"]
    published = [port for each in ports.values() for port in each]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert not any(port.endswith(f":{DASHBOARD_PORT}") for port in published)


def test_compose_services_have_no_capabilities() -> None:
    for service in compose()["services"].values():
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])


def test_compose_keeps_models_metrics_and_dashboards() -> None:
    config = compose()
    mounts = [volume.split(":") for service in config["services"].values() for volume in service["volumes"]]
    named = {source for source, *_ in mounts if not source.startswith(".")}
    assert named == config["volumes"].keys()
    assert ["cache", CACHE_PATH] in mounts
    assert [s for s, *_ in mounts if s.startswith(".") and not (CONTAINERS / s).exists()] == []
    build = config["services"]["expresslane"]["build"]
    assert (CONTAINERS / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
    assert (CONTAINERS / build["context"]).resolve() == ROOT


def test_prometheus_scrapes_the_application_and_judges_by_its_rules() -> None:
    path = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
    check_config(path)
    config = yaml.safe_load(path.read_text())
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"expresslane:{PORT}"]}]
    assert config["rule_files"] == ["rules.yaml"]
    command = compose()["services"]["prometheus"]["command"]
    assert "--config.file=/etc/prometheus/prometheus.yaml" in command


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "expresslane.yaml").read_text())["providers"]
    mounts = [volume.split(":")[1] for volume in compose()["services"]["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/expresslane.json" in mounts
    assert "/etc/grafana/provisioning" in mounts

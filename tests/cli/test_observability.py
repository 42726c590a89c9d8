import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.main import app

RUN = CliRunner()
SERVE_YAML = Path(__file__).parents[2] / "serve.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose alerts are not the defaults."""
    arguments = {
        "alerts": {"ttft_high": {"max_ms": 2500, "hold_periods": 5}, "kv_hit_low": {"min_ratio": 0.5}},
        "scheduler": {"targets": {"p0": {"tbt_p99_ms": 5}}},
        "autoscale": {"period_s": 5, "window_s": 15, "stale_after_s": 12},
    }
    application = {"name": "expresslane", "import_path": "app.main:build", "route_prefix": "/", "args": arguments}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"applications": [application]}))
    return path


def run(*arguments: str | Path, code: int = 0) -> str:
    result = RUN.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_rules_are_of_the_configs_settings(config: Path) -> None:
    (group,) = yaml.safe_load(run("rules", "--config", config))["groups"]
    rules: dict[tuple[str, str | None], dict[str, Any]] = {
        (rule["alert"], rule["labels"].get("priority_class")): rule for rule in group["rules"]
    }
    assert group["interval"] == "5s"
    assert rules["tbt_breach", "P0"]["expr"].endswith("[19s999ms]))) > 0.01")
    assert rules["ttft_high", "P1"]["expr"].endswith(" > 2.5")
    assert rules["ttft_high", "P1"]["for"] == "20s"
    assert rules["kv_hit_low", None]["expr"].endswith(" < 0.5")


def test_dashboard_is_of_the_configs_settings(config: Path) -> None:
    dashboard = json.loads(run("dashboard", "--config", config))
    (hits,) = [panel for panel in dashboard["panels"] if panel["title"] == "KV hit rate"]
    assert hits["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] == 0.5
    assert dashboard["refresh"] == "5s"


@pytest.mark.parametrize("command", ["rules", "dashboard"])
def test_output_goes_into_a_file_when_one_is_named(command: str, config: Path, tmp_path: Path) -> None:
    file = tmp_path / "output"
    assert run(command, "--config", config, "--output", file) == ""
    assert file.read_text() == run(command, "--config", config)


@pytest.mark.parametrize("command", ["rules", "dashboard"])
def test_config_is_the_directorys_serve_yaml_when_none_is_named(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SERVE_YAML.parent)
    assert run(command) == run(command, "--config", SERVE_YAML)


@pytest.mark.parametrize("command", ["rules", "dashboard"])
def test_command_fails_with_the_reason_when_it_cannot_read_or_write(command: str, config: Path, tmp_path: Path) -> None:
    assert "error: " + str(tmp_path / "none.yaml") in run(command, "--config", tmp_path / "none.yaml", code=1)
    assert "error: " in run(command, "--config", config, "--output", tmp_path, code=1)

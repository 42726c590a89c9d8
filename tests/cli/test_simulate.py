import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app

SCENARIO = """\
duration_s: 10
engine: {measured: {step_ms: 10, prefill_token_ms: 0.1, decode_ms: 1}}
settings: {engine: {max_num_seqs: 4}}
traffic:
  - {priority: P0, source: {kind: poisson, rate_per_s: 1, prompt_tokens: {mean: 50}, output_tokens: {mean: 5}}}
  - {priority: P2, source: {kind: poisson, rate_per_s: 1, prompt_tokens: {mean: 50}, output_tokens: {mean: 50}}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_simulate_prints_json_by_contender_and_class(scenario: Path) -> None:
    result = run("simulate", str(scenario), "--contender", "expresslane", "--contender", "fcfs", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["scenario"] == "small"
    assert set(told["contenders"]) == {"expresslane", "fcfs"}
    ours = told["contenders"]["expresslane"]
    assert set(ours["classes"]) == {"P0", "P2"}
    assert ours["classes"]["P0"]["outcomes"] == {"completed": ours["classes"]["P0"]["outcomes"]["completed"]}
    assert ours["classes"]["P2"]["attainment"] is None


def test_simulate_prints_a_table_and_takes_its_changes(scenario: Path) -> None:
    result = run("simulate", str(scenario), "--replicas", "2", "--time-scale", "2", "--duration", "5")
    assert result.exit_code == 0, result.output
    assert "small: expresslane" in result.stdout
    assert "TTFT" in result.stdout
    assert "output tokens/s" in result.stdout


def test_simulate_scales_as_it_is_told(scenario: Path) -> None:
    scenario.write_text(
        SCENARIO.replace("{engine:", "{autoscale: {max_replicas: 3}, engine:").replace("s: 10", "s: 100")
    )
    hours = []
    for options in (["none"], ["requests", "--target-requests", "0.1"]):
        result = run("simulate", str(scenario), "--scaling", *options, "--json")
        assert result.exit_code == 0, result.output
        hours.append(json.loads(result.stdout)["contenders"]["expresslane"]["replica_hours"])
    assert hours[0] < hours[1]


def test_wrong_value_of_the_fleet_is_told_and_exits_1(scenario: Path) -> None:
    result = run("simulate", str(scenario), "--scaling", "magic")
    assert result.exit_code == 1
    assert "fleet.scaling" in result.output
    assert "'magic'" in result.output


@pytest.mark.parametrize("command", ["simulate", "plan"])
def test_wrong_scenario_is_told_and_exits_1(command: str, scenario: Path) -> None:
    scenario.write_text(SCENARIO + "colour: red\n")
    result = run(command, str(scenario))
    assert result.exit_code == 1
    assert "colour: unknown key (value 'red')" in result.output


def test_unknown_contender_is_refused(scenario: Path) -> None:
    result = run("simulate", str(scenario), "--contender", "nobody")
    assert result.exit_code == 1
    assert "nobody" in result.output


def test_plan_prints_the_fewest_and_a_chart(scenario: Path) -> None:
    result = run("plan", str(scenario), "--most", "2")
    assert result.exit_code == 0, result.output
    assert "of target: P0" in result.stdout
    assert "|" in result.stdout
    assert "Token budgets" in result.stdout or "Not even 2 replicas" in result.stdout

"""The command against small real servers, one of which is started and ended by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from bench import curves
from bench.compare import contest
from cli.main import app
from tests.bench.scripted_server import Script, ScriptedServer, running_server

SCENARIO = {
    "rate": 60,
    "warm_up_s": 0,
    "duration_s": 0.3,
    "max_lag_ms": 60_000,
    "seed": 3,
    "classes": [
        {"name": "P0", "share": 0.5, "headers": {"X-Priority": "P0"}, "targets": {"ttft_ms": 60_000}},
        {"name": "P2", "share": 0.5, "headers": {"X-Priority": "batch"}},
    ],
}
STARTED = {"title": "started", "command": ["$python", "-m", "tests.bench.scripted_server", "$port"]}
FAILS = {"command": ["$python", "-c", "import sys; sys.exit('no | [red]device')"]}
HOLDS = {"metric": "P0.answered_ratio", "of": "remote", "at_least": 1}
FAILED_CLAIM = {"metric": "goodput_per_s", "of": "remote", "to": "fails", "at_least": 0}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def directory(tmp_path: Path, server: ScriptedServer) -> Path:
    """A scenario, contenders of each kind, and comparisons of them."""
    remote = {
        "url": server.url,
        "model": "theirs",
        "headers": {"X-Team": "red"},
        "api_key_env": "REMOTE_KEY",
        "priorities": {"realtime": {"body": {"priority": 0}}, "P2": {"headers": {"X-Tier": "flex"}}},
    }
    write(tmp_path, "load", SCENARIO)
    write(tmp_path, "remote", remote)
    write(tmp_path, "started", STARTED)
    write(tmp_path, "fails", FAILS)
    write(tmp_path, "mine", comparison(["remote.yaml"], HOLDS, alone=["P0"]))
    write(tmp_path, "all", comparison(["remote.yaml", "fails.yaml", "started.yaml"], HOLDS, FAILED_CLAIM))
    return tmp_path


def comparison(contenders: list[str], *claims: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"scenario": "load.yaml", "contenders": contenders, "engine": {"model": "x"}, "claims": [*claims], **values}


def write(directory: Path, name: str, values: Any) -> None:
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(values))


def compare(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], env={"REMOTE_KEY": "secret"})
    assert result.exit_code == code, result.output
    return result


def test_compare_measures_all_that_start_and_writes_what_is_asked_for(directory: Path) -> None:
    figures, page = directory / "figures.json", directory / "page.html"
    result = compare(directory / "all.yaml", "--json", figures, "--report", page, code=3)
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in result.stdout.splitlines()]
    assert ["P0", "started"] in [line[:2] for line in lines]
    assert [line[2] for line in lines if line[:2] == ["all", "fails"]] == [
        "FAILED: ended by itself (exit status 1): no \\| [red]device"
    ]
    assert [line[-1].strip(" |") for line in lines[-2:]] == ["yes", "no"]
    assert lines[-1][1] == "not measured"
    document = json.loads(figures.read_text())
    assert [c["failure"] is None for c in document["contenders"]] == [True, False, True]
    assert document["contenders"][2]["loaded"]["classes"][0]["outcomes"]["completed"] > 0
    assert [claim["held"] for claim in document["claims"]] == [True, False]
    told = page.read_text()
    assert told.count("data:image/png;base64") == 2
    assert "no | [red]device" in told
    assert "secret" not in figures.read_text() + told + result.output


def test_every_contender_gets_the_same_load_with_its_class_told_its_way(
    directory: Path, server: ScriptedServer
) -> None:
    compare(directory / "mine.yaml")
    bodies = {headers["x-priority"]: (body, headers) for _, body, headers in server.asked}
    urgent, batch = bodies["P0"], bodies["batch"]
    assert (urgent[0]["priority"], urgent[0]["model"], urgent[1]["x-team"]) == (0, "theirs", "red")
    assert "priority" not in batch[0]
    assert (batch[1]["x-tier"], batch[1]["authorization"]) == ("flex", "Bearer secret")
    first = sorted(prompt_of(body) for _, body, _ in server.asked)
    server.asked.clear()
    compare(directory / "mine.yaml")
    assert sorted(prompt_of(body) for _, body, _ in server.asked) == first
    assert len(set(first)) == len(first)


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"])


def test_chosen_contenders_leave_out_the_claims_about_others(directory: Path) -> None:
    printed = compare(directory / "all.yaml", "--contender", "remote").stdout
    assert "fails" not in printed
    assert printed.count("| yes") == 1


def test_contender_and_scenario_are_taken_from_where_the_command_runs(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(directory, "other", {**SCENARIO, "seed": 99})
    monkeypatch.chdir(directory)
    printed = compare("mine.yaml", "--scenario", "other.yaml", "--duration", "0.2", "--contender", "remote.yaml").stdout
    assert "scenario other, seed 99" in printed


def test_failed_contender_ends_with_1_when_no_claim_is_touched(directory: Path) -> None:
    write(directory, "two", comparison(["remote.yaml", "fails.yaml"], HOLDS))
    compare(directory / "two.yaml", code=1)


def test_server_that_answers_nothing_is_told_and_holds_no_claim(directory: Path, server: ScriptedServer) -> None:
    server.script = lambda _body, _headers: Script(status=400, error={"message": "no such thing"})
    result = compare(directory / "mine.yaml", code=3)
    assert "remote, P0: not answered: no such thing" in result.stderr
    assert "0.0% of" in result.stdout


def test_what_was_measured_is_shown_when_it_is_broken_off(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = contest._measure

    def interrupted(of: contest.Contest, contender: Any, teller: Any) -> contest.Entry:
        if contender.name != "remote":
            raise KeyboardInterrupt
        return measure(of, contender, teller)

    monkeypatch.setattr(contest, "_measure", interrupted)
    figures = directory / "figures.json"
    printed = compare(directory / "all.yaml", "--json", figures, code=130).stdout
    assert "| P0 " in printed
    assert "not measured" in printed
    assert json.loads(figures.read_text())["is_whole"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.yaml"], "built in: memory, mixed, prefill, slots"),
        (["FILE", "--contender", "nobody"], "nobody: "),
        (["FILE", "--scenario", "nothing"], "nothing: "),
        (["FILE", "--scenario", "path"], "claims.0.metric='P0.answered_ratio'"),
        (["FILE", "--rate", "-1"], "rate=-1"),
        (["FILE", "--json", "/no/such/folder/x.json"], "/no/such/folder/x.json"),
        (["FILE", "--report", "/no/such/folder/x.html"], "/no/such/folder/x.html"),
    ],
)
def test_compare_fails_with_the_reason_before_anything_is_sent(
    directory: Path, server: ScriptedServer, arguments: list[str], message: str
) -> None:
    write(directory, "mine", comparison(["remote.yaml"], HOLDS))
    result = compare(*(directory / "mine.yaml" if a == "FILE" else a for a in arguments), code=1)
    assert message in result.stderr
    assert server.asked == []


def test_compare_tells_that_charts_are_missing_before_it_sends_anything(
    directory: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "find_spec", lambda _: None)
    result = compare(directory / "mine.yaml", "--report", "x.html", code=1)
    assert "pip install 'expresslane[bench]'" in result.stderr
    assert server.asked == []

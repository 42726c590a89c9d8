from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from bench import curves
from cli.main import app
from tests.bench.scripted_server import Script, ScriptedServer, running_server

SCENARIO = {
    "rate": 60,
    "warm_up_s": 0,
    "duration_s": 0.3,
    "max_lag_ms": 60_000,
    "classes": [
        {"name": "P0", "share": 0.5, "headers": {"X-Priority": "P0"}, "targets": {"ttft_ms": 60_000}},
        {"name": "P2", "share": 0.5, "headers": {"X-Priority": "P2"}},
    ],
}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def file(tmp_path: Path, server: ScriptedServer) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(SCENARIO | {"url": server.url}))
    return str(path)


def bench(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_bench_prints_a_row_for_each_class_and_writes_what_is_asked_for(file: str, tmp_path: Path) -> None:
    figures, page = tmp_path / "figures.json", tmp_path / "page.html"
    printed = bench(file, "--json", figures, "--report", page, "--seed", "3").stdout
    assert "mine: first at http://127.0.0.1:" in printed
    assert "seed 3" in printed
    assert all(any(line.strip("│ ").startswith(name) for line in printed.splitlines()) for name in ("P0", "P2"))
    assert json.loads(figures.read_text())["scenario"]["name"] == "mine"
    assert page.read_text().startswith("<!doctype html>")


def test_flags_take_the_place_of_the_files_values(file: str, server: ScriptedServer, tmp_path: Path) -> None:
    flags = ["--model", "mine", "--endpoint", "completions", "--rate", "90", "--duration", "0.2", "--warm-up", "0.1"]
    flags += ["--time-scale", "1.5", "--streams", "2", "--url", server.url, "--only", "P0"]
    bench(file, *flags, "--json", tmp_path / "f.json")
    told = json.loads((tmp_path / "f.json").read_text())["scenario"]
    values = {"model": "mine", "endpoint": "completions", "rate": 90, "duration_s": 0.2, "warm_up_s": 0.1}
    values |= {"time_scale": 1.5, "streams": 2}
    assert {key: told[key] for key in values} == values
    assert {path for path, _, _ in server.asked} == {"/v1/completions"}
    assert {headers["x-priority"] for _, _, headers in server.asked} == {"P0"}


def test_several_speeds_give_a_table_of_rates(file: str) -> None:
    printed = bench(file, "--speeds", "1,2").stdout
    assert "sent/s" in printed
    assert printed.count("hold") == 2


def test_search_tells_the_highest_rate_found(file: str) -> None:
    assert "the highest rate found at which all targets hold" in bench(file, "--search", "--tries", "2").stdout


def test_bench_says_loudly_that_it_did_not_keep_up(file: str, tmp_path: Path) -> None:
    changed = tmp_path / "strict.yaml"
    changed.write_text(yaml.safe_dump(yaml.safe_load(Path(file).read_text()) | {"max_lag_ms": 1e-6}))
    assert "THE GENERATOR DID NOT KEEP UP" in bench(changed).stderr
    assert "DID NOT KEEP UP" not in bench(file).output


def test_errors_of_the_server_are_shown(file: str, server: ScriptedServer) -> None:
    server.script = lambda _body, _headers: Script(status=400, error={"message": "no such thing"})
    assert "P0: not answered: no such thing" in bench(file).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.yaml"], "none.yaml"),
        (["FILE", "--rate", "-1"], "rate=-1"),
        (["FILE", "--only", "P9"], "no class is called P9"),
        (["FILE", "--speeds", "1,x"], "--speeds='1,x'"),
        (["FILE", "--speeds", "0"], "--speeds='0'"),
        (["FILE", "--url", "http://127.0.0.1:9"], "http://127.0.0.1:9/v1/models"),
        (["FILE", "--search", "--only", "P2"], "needs a class with targets"),
        (["FILE", "--json", "/no/such/folder/x.json"], "/no/such/folder/x.json"),
        (["flood"], "QUIET_API_KEY"),
    ],
)
def test_bench_fails_with_the_reason(file: str, arguments: list[str], message: str) -> None:
    result = bench(*(file if argument == "FILE" else argument for argument in arguments), code=1)
    assert "error: " in result.stderr
    assert message in result.stderr


def test_bench_tells_that_charts_are_missing_before_it_sends_anything(
    file: str, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "find_spec", lambda _: None)
    assert "pip install 'expresslane[bench]'" in bench(file, "--report", "x.html", code=1).stderr
    assert server.asked == []

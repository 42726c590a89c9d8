from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.compare.contender import PROVIDED, ContenderError
from bench.compare.contender_file import CONTENDERS, load_contender
from bench.compare.sizes import Sizes
from cli.config import load_config, settings_of
from slo.priority import PriorityClass

VALUES = {name: f"<{name}>" for name in PROVIDED}


def written(directory: Path, values: Any, name: str = "mine") -> str:
    path = directory / f"{name}.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return str(path)


@pytest.mark.parametrize("name", CONTENDERS.names())
def test_built_in_contender_is_whole(name: str) -> None:
    filled = load_contender(name).with_values(VALUES)
    assert filled.command is not None
    assert filled.name == name
    assert filled.url == "http://127.0.0.1:<port>"


@pytest.mark.parametrize("name", [n for n in CONTENDERS.names() if "serve.yaml" in load_contender(n).files])
def test_built_in_settings_of_expresslane_are_accepted_and_have_the_common_sizes(name: str, tmp_path: Path) -> None:
    provided = Sizes(model="/some/model", slots=5, threads=3, kv_cache_bytes=2**20).provided("/tmp/x", 8123)
    (tmp_path / "serve.yaml").write_text(load_contender(name).with_values(provided).files["serve.yaml"])
    settings = settings_of(load_config(tmp_path / "serve.yaml"))
    engine = settings.engine
    assert (engine.max_num_seqs, engine.cpu_threads, engine.kv_cache_bytes) == (5, 3, 2**20)
    assert settings.model.source == "/some/model"
    assert settings.admission.p0.queue_timeout_s == 600


def test_contender_takes_over_what_it_does_not_say(tmp_path: Path) -> None:
    written(tmp_path, {"title": "base", "command": ["run", "$a", "$b"], "variables": {"a": "1", "b": "2"}}, "base")
    mine = load_contender(written(tmp_path, {"extends": "base.yaml", "variables": {"b": "$slots slots"}}))
    assert (mine.name, mine.shown) == ("mine", "mine")
    assert mine.with_values(VALUES).command == ("run", "1", "<slots> slots")
    assert load_contender(str(tmp_path / "mine.yaml"), variables={"a": "9"}).with_values(VALUES).command == (
        "run",
        "9",
        "<slots> slots",
    )


def test_class_is_told_by_header_and_field() -> None:
    stock = load_contender("priority")
    assert [dict(stock.marking(c).body) for c in PriorityClass] == [{"priority": 0}, {"priority": 1}, {"priority": 2}]
    assert load_contender("fcfs").marking(PriorityClass.P0).body == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"command": ["run", "$prot"]}, r"command\.1: \$prot stands for nothing; there are: port, python"),
        ({"command": ["costs 3$"]}, r"command\.0: a lone \$"),
        ({"command": []}, "command: is empty"),
        ({"command": "run"}, "command"),
        ({"command": ["run"], "colour": "red"}, r"colour: unknown key \(value 'red'\)"),
        ({"command": ["run"], "variables": {"port": "1"}}, r"variables\.port"),
        ({"command": ["run"], "variables": {"a": "$b", "b": "1"}}, r"variables\.a: \$b stands for nothing"),
        ({"command": ["run"], "files": {"../x": "1"}}, r"'\.\./x' is no name"),
        ({"command": ["run"], "priorities": {"P7": {}}}, "each class once, of P0"),
        ({"command": ["run"], "priorities": {"P0": {}, "realtime": {}}}, "each class once"),
        ({"command": ["run"], "start_limit_s": 0}, "start_limit_s=0"),
        ({"command": ["run"], "ready": "health"}, "ready='health'"),
        ({"command": ["run"], "url": "127.0.0.1:$port"}, r"url='127\.0\.0\.1:\$port'"),
        ({"command": ["run"], "url": "http://127.0.0.1:99999"}, r"url='http://127\.0\.0\.1:99999'"),
        ({"command": ["run"], "url": "http://$model"}, r"url='http://\$model'"),
        ({"command": ["run"], "environment": {"A": 1}}, r"environment\.A=1"),
        ({"url": "http://h", "headers": {"Authorization": "x"}}, "name its variable by api_key_env"),
        ({"files": {"a": "1"}, "url": "http://h:1"}, "command=None: `files` and `environment`"),
        ({}, r"url='http://127\.0\.0\.1:\$port': is the whole of it"),
        ({"extends": "none.yaml"}, r"none\.yaml.*built in: bare, expresslane, fcfs"),
        ({"extends": "mine.yaml"}, "goes round in a circle"),
        ({"extends": 3}, "extends=3"),
        ({"extends": "fcfs", "variables": 3}, "variables=3: a mapping is expected"),
        ("- 1", "a mapping with `command` or `url` is expected"),
        ("a: [", "no YAML"),
    ],
)
def test_contender_that_cannot_be_used_is_told_by_file_and_key(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(ContenderError, match=message) as refused:
        load_contender(written(tmp_path, values))
    assert str(tmp_path) in str(refused.value)

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.scenario import ScenarioError
from bench.scenario_file import built_in_names, load_scenario


def written(directory: Path, values: Any) -> str:
    path = directory / "mine.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return str(path)


@pytest.mark.parametrize("name", built_in_names())
def test_built_in_scenarios_can_be_used(name: str) -> None:
    assert load_scenario(name).name == name


def test_flood_is_twenty_times_the_quiet_tenant() -> None:
    flood = load_scenario("flood")
    quiet_rate, flood_rate = (flood.rate_of(spec) for spec in flood.classes)
    assert quiet_rate is not None
    assert flood_rate == 20 * quiet_rate


def test_changes_take_the_place_of_the_files_values() -> None:
    assert load_scenario("mixed", {"rate": 9, "seed": 3}).rate == 9
    with pytest.raises(ScenarioError, match=r"mixed\.yaml: rate=-1"):
        load_scenario("mixed", {"rate": -1})


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    classes = [
        {"name": "a", "source": {"kind": "azure", "path": "traces/a.csv"}},
        {"name": "b", "source": {"kind": "mooncake", "path": "/traces/b.jsonl"}},
        {"name": "c", "rate": 1, "source": {"kind": "sharegpt"}},
        {"name": "d", "rate": 1, "body": {"path": "as it is"}},
    ]
    loaded = load_scenario(written(tmp_path, {"classes": classes}))
    sources: list[Any] = [spec.source for spec in loaded.classes]
    assert sources[0].path == tmp_path / "traces/a.csv"
    assert sources[1].path == Path("/traces/b.jsonl")
    assert sources[2].path is None
    assert loaded.classes[3].body == {"path": "as it is"}


@pytest.mark.parametrize(
    ("content", "message"),
    [("a: [", "no YAML"), ("- 1", "a mapping with `classes` is expected"), ("name: x", "classes")],
)
def test_file_that_is_no_scenario_is_refused_by_its_name(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load_scenario(written(tmp_path, content))
    assert str(refused.value).startswith(str(tmp_path / "mine.yaml"))
    assert message in str(refused.value)


def test_missing_file_names_those_built_in() -> None:
    built_in = "busy, first_token, flood, memory, mixed, overload, path, prefill, slots"
    with pytest.raises(ScenarioError, match=f"built in: {built_in}"):
        load_scenario("none.yaml")

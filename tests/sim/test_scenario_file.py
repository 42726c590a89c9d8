from pathlib import Path

import pytest

from sim.scenario import ScenarioError, Trace
from sim.scenario_file import BUILT_IN, built_in_names, load_scenario, parse_scenario, with_replicas

TRAFFIC = "traffic: [{priority: P1, source: {kind: azure, path: a.csv}}]\n"


def test_traces_are_looked_for_beside_the_file_or_where_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TRAFFIC)
    for traces, directory in ((None, tmp_path), (Path("/elsewhere"), Path("/elsewhere"))):
        loaded = load_scenario(str(path), traces)
        source = loaded.traffic[0].source
        assert isinstance(source, Trace)
        assert source.path == directory / "a.csv"
    assert loaded.name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense: 1\n" + TRAFFIC, "nonsense: unknown key"),
        ("engine: {gpu: H1000}\n" + TRAFFIC, r"engine.gpu='H1000': one of H100, H200, A100, L4"),
        ("engine: {gpu: L4, model: llama-3.1-70b}\n" + TRAFFIC, "does not fit into num_gpus=1"),
        ("settings: {engine: {slots: 3}}\n" + TRAFFIC, "settings.engine.slots: unknown key"),
        ("settings: {models: [{model: {source: a/b}}]}\n" + TRAFFIC, "settings.*: models: a simulation is of one"),
        (TRAFFIC.replace("P1", "P7"), r"traffic.0.priority='P7': one of P0"),
        ("traffic: []\n", "traffic"),
        ("- 1\n", "a mapping with `traffic` is expected"),
        (TRAFFIC.replace("]", ", {priority: P2, source: {kind: azure, path: a.csv, share: 0.1}}]"), "come to 1.1"),
    ],
)
def test_wrong_scenario_is_refused_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message):
        load_scenario(str(path))


def test_missing_scenario_names_those_built_in() -> None:
    with pytest.raises(ScenarioError, match="built in: azure"):
        load_scenario("no-such")


@pytest.mark.parametrize("name", built_in_names())
def test_built_in_scenario_is_valid(name: str) -> None:
    assert load_scenario(name).name == name
    assert (BUILT_IN / f"{name}.yaml").is_file()


def test_with_replicas_changes_nothing_else() -> None:
    loaded = load_scenario("azure")
    changed = with_replicas(loaded, 3)
    assert changed.settings.replicas.num_replicas == 3
    assert with_replicas(changed, loaded.settings.replicas.num_replicas) == loaded


def test_changes_go_before_the_files_values() -> None:
    assert load_scenario("azure", changes={"time_scale": 4}).time_scale == 4
    assert parse_scenario(load_scenario("azure").model_dump()) == load_scenario("azure")

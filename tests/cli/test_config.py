from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.config import ConfigError, load_config, port_of, settings_of

SERVE_YAML = Path(__file__).parents[2] / "serve.yaml"
OURS: dict[str, Any] = {"name": "expresslane", "import_path": "app.main:build", "route_prefix": "/"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "serve.yaml"


def write(path: Path, **config: Any) -> Path:
    path.write_text(yaml.safe_dump({"applications": [OURS], **config}))
    return path


def test_load_config_takes_the_repositorys_serve_yaml_as_it_is() -> None:
    config = load_config(SERVE_YAML)
    assert config == yaml.safe_load(SERVE_YAML.read_text())
    assert port_of(config) == 8000
    assert settings_of(config).model.source == "default"


def test_load_config_puts_port_and_model_in_their_places_and_keeps_the_rest() -> None:
    plain, config = load_config(SERVE_YAML), load_config(SERVE_YAML, port=9000, model="org/name")
    assert port_of(config) == 9000
    assert settings_of(config).model.source == "org/name"
    config["http_options"]["port"] = plain["http_options"]["port"]
    config["applications"][0]["args"]["model"]["source"] = "default"
    assert config == plain


def test_load_config_keeps_the_models_names_when_its_source_is_overridden(path: Path) -> None:
    write(path, applications=[{**OURS, "args": {"model": {"source": "a/b", "names": ["mine"]}}}])
    model = settings_of(load_config(path, model="c/d")).model
    assert (model.source, model.names) == ("c/d", ("mine",))


def test_load_config_refuses_a_model_in_the_place_of_several(path: Path) -> None:
    write(
        path, applications=[{**OURS, "args": {"models": [{"model": {"source": "a/b"}}, {"model": {"source": "c/d"}}]}}]
    )
    assert list(settings_of(load_config(path)).by_model) == ["a/b", "c/d"]
    with pytest.raises(ConfigError, match=r"models: there are several, and 'org/name'"):
        load_config(path, model="org/name")


@pytest.mark.parametrize("args", [None, {}, {"model": None}])
def test_load_config_puts_the_model_in_when_nothing_is_written_there(path: Path, args: Any) -> None:
    write(path, applications=[{**OURS, "args": args}])
    assert settings_of(load_config(path, model="org/name")).model.source == "org/name"


@pytest.mark.parametrize("written", [{}, {"http_options": {"host": "127.0.0.1"}}])
def test_port_of_is_8000_when_none_is_written(path: Path, written: dict[str, Any]) -> None:
    config = load_config(write(path, **written))
    assert port_of(config) == 8000
    assert settings_of(config) == settings_of(load_config(SERVE_YAML))


def test_port_of_is_a_number_when_it_is_written_as_text(path: Path) -> None:
    assert port_of(load_config(write(path, http_options={"port": "8001"}))) == 8001


def test_load_config_puts_the_port_in_when_there_are_no_http_options(path: Path) -> None:
    write(path, http_options=None)
    assert port_of(load_config(path, port=9000)) == 9000


def test_load_config_makes_a_models_directory_absolute(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write(path)
    for written in ("models/tiny", "./models/tiny", "~/models/tiny"):
        assert settings_of(load_config(path, model=written)).model.source == str(tmp_path / "models" / "tiny")
    assert settings_of(load_config(path, model="models/none")).model.source == "models/none"


def test_load_config_finds_our_application_among_others(path: Path) -> None:
    others = [{"import_path": "x:y", "route_prefix": "/x"}, {"name": "z", "import_path": "x:z", "route_prefix": "/z"}]
    write(path, applications=[*others, {**OURS, "args": {"engine": {"max_num_seqs": 8}}}])
    config = load_config(path, model="org/name")
    assert settings_of(config).engine.max_num_seqs == 8
    assert config["applications"][:2] == others


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a mapping with `applications` is expected"),
        ("- a\n", "a mapping with `applications` is expected"),
        ("just text", "a mapping with `applications` is expected"),
        ("a: [1\n", "no YAML: "),
        ("a: 2026-13-45\n", "month must be in"),
        ("a: !!python/object:os.system {}\n", "no YAML: "),
        ("http_options: {port: 8000}\n", "applications: a list of mappings is expected"),
        ("applications: {name: expresslane}\n", "applications: a list of mappings is expected"),
        ("applications: [expresslane]\n", "applications: a list of mappings is expected"),
        ("applications: []\n", "exactly one named 'expresslane' is expected, found 0"),
        ("applications: [{name: other, import_path: 'a:b'}]\n", "exactly one named 'expresslane' is expected, found 0"),
    ],
)
def test_load_config_names_the_file_when_it_is_no_serve_config(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"applications": [OURS, OURS]}, "exactly one named 'expresslane' is expected, found 2"),
        ({"applications": [{**OURS, "args": {"engin": 1}}]}, r"args: engin: unknown key \(value 1\)"),
        ({"applications": [{**OURS, "args": {"engine": {"max_num_seqs": 0}}}]}, "args: engine.max_num_seqs=0: "),
        ({"applications": [{**OURS, "args": [1]}]}, r"args=\[1\]: a mapping is expected"),
        ({"applications": [{**OURS, "args": {"model": "org/name"}}]}, "args: model='org/name': Input should be"),
        ({"applications": [{**OURS, "import_path": "nowhere"}]}, "applications.0.import_path: "),
        ({"proxy_location": "Nowhere"}, "proxy_location: "),
        ({"http_options": {"port": "many"}}, "http_options.port: "),
        ({"http_options": {"port": None}}, "http_options.port: "),
        ({"http_options": "8000"}, "http_options=.8000.: a mapping is expected"),
    ],
)
def test_load_config_is_refused_with_the_key_at_fault(path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{path}: .*{message}"):
        load_config(write(path, **config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"http_options": "8000"}, "http_options='8000': a mapping is expected"),
        ({"applications": [{**OURS, "args": "default"}]}, "args='default': a mapping is expected"),
        ({"applications": [{**OURS, "args": {"model": "default"}}]}, "model='default': a mapping is expected"),
    ],
)
def test_load_config_is_refused_when_an_override_has_no_mapping_to_go_into(
    path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(write(path, **config), port=9000, model="org/name")
    assert str(raised.value) == f"{path}: {message}"


def test_load_config_names_the_file_when_it_cannot_be_read(path: Path, tmp_path: Path) -> None:
    for unreadable, message in ((path, "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=f"^{unreadable}: .*{message}"):
            load_config(unreadable)
    path.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match=f"^{path}: .*codec can't decode"):
        load_config(path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c.update(aplications=[]), "aplications"),
        (lambda c: c["applications"][0].update(arg={}), "applications.arg"),
        (lambda c: c.update(http_options={"prot": 1}), "http_options.prot"),
    ],
)
def test_load_config_refuses_keys_that_serve_would_pass_over(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    config = {"applications": [{"name": "expresslane", "import_path": "app.main:build", "args": {}}]}
    change(config)
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=f"unknown key: {named}"):
        load_config(file)

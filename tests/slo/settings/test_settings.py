import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from slo.settings import Settings, SettingsError, parse_settings

SERVE_YAML = Path(__file__).parents[3] / "serve.yaml"


def groups_of(group: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], BaseModel]]:
    """Every group of settings in `group`, with its path."""
    yield path, group
    for name in type(group).model_fields:
        if isinstance(child := getattr(group, name), BaseModel):
            yield from groups_of(child, (*path, name))


def nested(path: tuple[str, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


GROUPS = list(groups_of(Settings()))


def test_serve_yaml_of_the_repository_holds_settings() -> None:
    (application,) = yaml.safe_load(SERVE_YAML.read_text())["applications"]
    settings = parse_settings(application["args"])
    assert settings.replicas.max_ongoing_requests >= 2 * settings.engine.max_num_seqs


def test_settings_are_all_default_when_nothing_is_set() -> None:
    assert parse_settings({}) == Settings()


@pytest.mark.parametrize("path", [path for path, _ in GROUPS], ids=lambda path: ".".join(path) or "top")
def test_unknown_key_is_refused_with_its_value_in_every_group(path: tuple[str, ...]) -> None:
    key = ".".join([*path, "no_such_key"])
    with pytest.raises(SettingsError, match=rf"(?m)^{key}: unknown key \(value 42\)$"):
        parse_settings(nested(path, {"no_such_key": 42}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engine": {"max_num_seqs": "many"}}, "engine.max_num_seqs='many': Input should be a valid integer"),
        ({"engine": {"max_num_seqs": 0}}, "engine.max_num_seqs=0: Input should be greater than or equal to 1"),
        ({"swap": {"max_move_ms": float("nan")}}, "swap.max_move_ms=nan: Input should be a finite number"),
        ({"swap": None}, "swap=None: Input should be a valid dictionary"),
        ({"classification": {"default_class": "P7"}}, "classification.default_class='P7': 'P7' is no class"),
        (
            {"engine": {"max_num_seqs": 600}},
            "settings: replicas.max_ongoing_requests=1024 must be at least twice engine.max_num_seqs=600",
        ),
        (
            {"replicas": {"max_generation_s": 700}},
            "replicas: graceful_shutdown_timeout_s=660 must exceed max_generation_s=700",
        ),
        (
            {"scheduler": {"targets": {"p1": {"tbt_p99_ms": 1}}}},
            "scheduler.targets: p1.tbt_p99_ms=1 is tighter than p0.tbt_p99_ms=20",
        ),
        ({1: 2}, "1=1: Keys should be strings"),
        ([], "settings=[]: Input should be a valid dictionary"),
        (None, "settings=None: Input should be a valid dictionary"),
    ],
)
def test_settings_are_refused_with_key_and_value(values: Any, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings(values)
    assert str(raised.value).startswith(message)


def test_every_fault_has_its_line_when_there_are_several() -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings({"engin": {}, "swap": {"host_bytes": -1}, "ingress": {"max_body_bytes": "x"}})
    lines = str(raised.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "ingress.max_body_bytes='x'",
        "swap.host_bytes=-1",
        "engin",
    ]


def test_max_ongoing_requests_may_be_just_twice_the_slots() -> None:
    settings = parse_settings({"engine": {"max_num_seqs": 8}, "replicas": {"max_ongoing_requests": 16}})
    assert settings.replicas.max_ongoing_requests == 16


@pytest.mark.parametrize("group", [group for _, group in GROUPS], ids=lambda group: type(group).__name__)
def test_settings_cannot_change_once_made_in_any_group(group: BaseModel) -> None:
    name = next(iter(type(group).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(group, name, getattr(group, name))


def test_settings_survive_pickling_to_a_replica() -> None:
    settings = parse_settings({"engine": {"extra_args": {"seed": 1}}, "classification": {"default_class": "batch"}})
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_settings_keep_the_defaults_of_what_is_not_set_in_a_group() -> None:
    given = parse_settings({"scheduler": {"profiles": {"strict": {"chunk_tokens": 128}}}}).scheduler
    assert given.profiles.strict.chunk_tokens == 128
    assert given.profiles.strict.token_budget == 512
    assert given.profiles.relaxed == Settings().scheduler.profiles.relaxed

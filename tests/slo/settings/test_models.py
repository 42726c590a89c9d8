"""Mutations tried by hand, each found by a test here: an entry's group in the place of the shared one; what guards an
ingress process given to each model whole."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from slo.settings import Settings, SettingsError, parse_settings
from slo.settings.models import slug

ONE, TWO = {"model": {"source": "/m/one"}}, {"model": {"source": "org/two", "names": ["two", "zwei"]}}


def by_model(*models: dict[str, Any], **shared: Any) -> dict[str, Settings]:
    return parse_settings({"models": list(models), **shared}).by_model


def test_one_model_has_the_settings_as_they_are() -> None:
    settings = parse_settings({"model": {"names": ["a", "b"]}})
    assert settings.by_model == {"a": settings}


def test_each_model_has_its_own_on_top_of_the_shared_ones_key_by_key() -> None:
    rules = [{"priority": "P2", "streamed": False, "min_max_tokens": 500}]
    of = by_model(
        {**ONE, "engine": {"max_model_len": 100, "extra_args": {"seed": 2}}},
        {**TWO, "scheduler": {"targets": {"p0": {"ttft_p99_ms": 50}}}, "autoscale": {"max_replicas": 4}},
        engine={"max_num_seqs": 8, "extra_args": {"seed": 1, "quantization": "fp8"}},
        classification={"rules": rules},
        tenants={"above_class": "refuse"},
    )
    assert list(of) == ["one", "two"]
    one, two = of.values()
    assert (one.engine.max_num_seqs, one.engine.max_model_len) == (8, 100)
    assert one.engine.extra_args == {"seed": 2, "quantization": "fp8"}
    assert (two.engine.max_model_len, two.engine.extra_args["seed"]) == (None, 1)
    assert (two.scheduler.targets.p0.ttft_p99_ms, two.scheduler.targets.p0.tbt_p99_ms) == (50, 20)
    assert one.scheduler.targets.p0.ttft_p99_ms == 100
    assert (one.replica_bounds.max_replicas, two.replica_bounds.max_replicas) == (1, 4)
    assert (
        one.classification == two.classification == parse_settings({"classification": {"rules": rules}}).classification
    )
    assert one.tenants.above_class == two.tenants.above_class == "refuse"
    assert not one.models


def test_what_guards_an_ingress_process_is_divided_among_the_models() -> None:
    shared = {"ingress": {"max_ongoing_requests": 1000}, "admission": {"max_held_bytes": 2**20}}
    one, two = by_model(ONE, {**TWO, "admission": {"max_held_bytes": 77}}, **shared).values()
    assert (one.ingress.max_ongoing_requests, two.ingress.max_ongoing_requests) == (500, 500)
    assert (one.admission.max_held_bytes, two.admission.max_held_bytes) == (2**19, 77)


def test_settings_of_several_models_cross_processes() -> None:
    settings = parse_settings({"models": [ONE, TWO]})
    copied = pickle.loads(pickle.dumps(settings))
    assert copied.by_model == settings.by_model
    assert parse_settings(settings.model_dump(mode="json")).by_model == settings.by_model


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"models": [ONE, {**TWO, "engine": {"max_num_seqs": 0}}]}, r"models\.1: engine\.max_num_seqs=0: .*greater"),
        ({"models": [{**ONE, "engine": {"slots": 1}}]}, r"models\.0: engine\.slots: unknown key"),
        ({"models": [{**ONE, "tenants": {}}]}, r"models\.0\.tenants: unknown key"),
        ({"models": [{"engine": {}}]}, r"models\.0\.model: Field required"),
        ({"models": [{"model": {"source": ""}}]}, r"models\.0: model\.source='': "),
        ({"models": [ONE, {"model": {"source": "/other/one"}}]}, r"models: one: a name of two models"),
        ({"models": [ONE, {**TWO, "engine": {"adapters": {"one": "/a"}}}]}, r"models: one: a name of two models"),
        ({"models": [ONE, {"model": {"names": ["ONE!"]}}]}, r"models: one: .* differ in signs or case alone"),
        ({"models": [ONE, TWO], "model": {"source": "/m"}}, r"model\.source='/m' with models"),
        (
            {"models": [ONE, {**TWO, "autoscale": {"period_s": 5, "window_s": 15}}]},
            r"autoscale\.period_s=5 and 10: set",
        ),
        (
            {"models": [{**ONE, "replicas": {"num_replicas": 3}}], "autoscale": {"max_replicas": 2}},
            r"models\.0: .*3 must",
        ),
    ],
)
def test_models_that_do_not_hold_together_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings(values)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tiny", "tiny"), ("meta-llama/Llama-3.1-8B", "meta-llama-llama-3-1-8b"), ("Ä", "model"), ("_a_", "a")],
)
def test_slug_is_what_other_names_may_be_made_of(name: str, expected: str) -> None:
    assert slug(name) == expected

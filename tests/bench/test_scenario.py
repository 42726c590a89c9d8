from pathlib import Path
from typing import Any

import pytest

from bench.scenario import Lengths, Scenario, ScenarioError
from bench.scenario_file import parse_scenario

ONE: dict[str, Any] = {"name": "a", "rate": 2}
AZURE = {"kind": "azure", "path": "t.csv"}


def scenario(*classes: dict[str, Any], **values: Any) -> Scenario:
    return parse_scenario({"classes": list(classes) or [ONE], **values})


@pytest.mark.parametrize(
    ("classes", "values", "message"),
    [
        ([], {"classes": []}, "classes: at least one"),
        ([ONE], {"speed": 1}, "speed: unknown key (value 1)"),
        ([ONE | {"sharre": 1}], {}, "classes.0.sharre: unknown key (value 1)"),
        ([ONE | {"source": {"kind": "synthetic", "words": 1}}], {}, "classes.0.source.synthetic.words: unknown key"),
        ([ONE | {"source": {"kind": "csv"}}], {}, "classes.0.source"),
        ([ONE | {"source": {"kind": "azure"}}], {}, "classes.0.source.azure.path"),
        ([{"name": "a"}], {}, "rate=None, share=None: exactly one"),
        ([ONE | {"share": 1}], {"rate": 3}, "rate=2.0, share=1.0: exactly one"),
        ([{"name": "a", "share": 1}], {}, "rate: is needed where a class has a share"),
        ([{"name": "a", "share": 0.5}, {"name": "b", "share": 0.4}], {"rate": 1}, "come to 0.9, not to 1"),
        ([ONE, ONE], {}, "a name is given twice: a, a"),
        ([ONE | {"arrivals": "bursty"}], {}, "burstiness=None and arrivals=bursty"),
        ([ONE | {"burstiness": 0.5}], {}, "burstiness=0.5 and arrivals=None"),
        ([ONE | {"arrivals": "trace"}], {}, "a source of kind synthetic has no times"),
        ([ONE | {"source": AZURE}], {}, "rate=2.0: a trace has its own"),
        ([ONE | {"arrivals": "at_once"}], {}, "takes max_requests, and neither rate nor share"),
        ([{"name": "a", "arrivals": "at_once"}], {}, "takes max_requests"),
        ([ONE | {"headers": {"Authorization": "Bearer k"}}], {}, "name its variable by api_key_env"),
        ([ONE], {"min_attainment": 1.5}, "min_attainment=1.5"),
        ([ONE], {"duration_s": float("inf")}, "duration_s=inf"),
        ([ONE | {"targets": {"ttft": 1}}], {}, "classes.0.targets.ttft: unknown key"),
    ],
)
def test_scenario_is_refused_with_its_key_and_value(
    classes: list[dict[str, Any]], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse_scenario({"classes": classes, **values})
    assert message in str(refused.value)


def test_key_of_a_server_is_not_shown_when_it_is_pasted_into_the_headers() -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(ONE | {"headers": {"Authorization": "Bearer secret"}})
    assert "secret" not in str(refused.value)


def test_rate_of_a_class_is_its_own_or_its_share() -> None:
    mixed = scenario({"name": "a", "share": 0.25}, {"name": "b", "share": 0.75}, {"name": "c", "rate": 7}, rate=8)
    assert [mixed.rate_of(spec) for spec in mixed.classes] == [2, 6, 7]


def test_rate_of_a_class_is_none_when_it_comes_by_trace_or_at_once() -> None:
    mixed = scenario({"name": "a", "source": AZURE}, {"name": "b", "arrivals": "at_once", "max_requests": 3})
    assert [mixed.rate_of(spec) for spec in mixed.classes] == [None, None]
    assert [spec.comes_by_trace for spec in mixed.classes] == [True, False]


def test_trace_can_give_lengths_alone_when_arrivals_are_of_another_kind() -> None:
    spec = scenario({"name": "a", "rate": 3, "arrivals": "poisson", "source": AZURE}).classes[0]
    assert not spec.comes_by_trace


def test_only_keeps_the_rates_that_classes_have_among_all() -> None:
    mixed = scenario({"name": "a", "share": 0.25}, {"name": "b", "share": 0.75}, rate=8)
    (spec,) = mixed.only(["a"]).classes
    assert mixed.only(["a"]).rate_of(spec) == 2
    with pytest.raises(ScenarioError, match="no class is called c; there are: a, b"):
        mixed.only(["c"])


def test_length_may_be_one_number() -> None:
    spec = scenario(ONE | {"source": {"kind": "synthetic", "prompt_tokens": 9, "output_tokens": {"mean": 4, "cv": 1}}})
    source: Any = spec.classes[0].source
    assert source.prompt_tokens == Lengths(mean=9)
    assert source.output_tokens == Lengths(mean=4, cv=1)


def test_source_path_is_a_path() -> None:
    source: Any = scenario({"name": "a", "source": AZURE}).classes[0].source
    assert source.path == Path("t.csv")

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.plan import plan
from bench.scenario import Scenario
from bench.scenario_file import parse_scenario
from bench.workload import Arrival

MIX = [
    {"name": "a", "share": 0.25},
    {"name": "b", "share": 0.75, "arrivals": "bursty", "burstiness": 0.3},
    {"name": "c", "rate": 2, "arrivals": "constant"},
]


def scenario(*classes: dict[str, Any], **values: Any) -> Scenario:
    return parse_scenario({"rate": 10, "classes": list(classes), **values})


def first(planned: Scenario, num: int = 2000, seed: int = 1, **options: Any) -> list[Arrival]:
    return list(islice(plan(planned, seed, **options), num))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A thousand requests, one each tenth of a second, each with a length of its own."""
    path = tmp_path / "t.csv"
    lines = [f"2023-11-16 18:{s // 600:02}:{s % 600 / 10:04.1f}000000,{s + 1},2" for s in range(1000)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    return path


def test_plan_is_in_order_and_mixes_the_classes_by_their_rates() -> None:
    arrivals = first(scenario(*MIX))
    assert all(before.at_s <= after.at_s for before, after in pairwise(arrivals))
    end_s = arrivals[-1].at_s
    rates = {name: sum(a.spec.name == name for a in arrivals) / end_s for name in "abc"}
    assert rates == {
        "a": pytest.approx(2.5, rel=0.1),
        "b": pytest.approx(7.5, rel=0.15),
        "c": pytest.approx(2, rel=0.01),
    }


def test_plan_is_the_seeds() -> None:
    assert first(scenario(*MIX)) == first(scenario(*MIX))
    assert first(scenario(*MIX), seed=2) != first(scenario(*MIX))


def test_class_arrives_as_it_does_among_all_when_others_are_left_out() -> None:
    whole = scenario(*MIX)
    alone = first(whole, 200, chosen=whole.only(["a"]))
    assert alone == [arrival for arrival in first(whole) if arrival.spec.name == "a"][: len(alone)][:200]
    assert len(alone) == 200


def test_class_that_starts_later_brings_the_same_requests_so_much_later() -> None:
    late = {**MIX[2], "start_s": 3}
    shift = [after.at_s - before.at_s for before, after in zip(*map(first_of_c, (MIX[2], late)), strict=True)]
    assert shift == pytest.approx([3] * 50)
    assert first_of_c(late, time_scale=2)[0].at_s == 1.5


def first_of_c(spec: dict[str, Any], **values: Any) -> list[Arrival]:
    return first(scenario(spec, **values), 50)


def test_time_scale_brings_the_same_requests_sooner() -> None:
    usual, faster = first(scenario(*MIX)), first(scenario(*MIX, time_scale=4))
    assert [a.ask for a in faster] == [a.ask for a in usual]
    assert [a.at_s for a in faster] == pytest.approx([a.at_s / 4 for a in usual])


def test_class_ends_after_its_most_requests() -> None:
    assert len(first(scenario(*MIX[:2], MIX[2] | {"max_requests": 3}), 200)) == 200
    assert sum(a.spec.name == "c" for a in first(scenario(*MIX[:2], MIX[2] | {"max_requests": 3}), 200)) == 3


def test_class_at_once_comes_at_the_start() -> None:
    arrivals = first(scenario({"name": "a", "arrivals": "at_once", "max_requests": 4}, {"name": "b", "share": 1}), 6)
    assert [(a.spec.name, a.at_s) for a in arrivals[:4]] == [("a", 0.0)] * 4
    assert arrivals[4].spec.name == "b"


def test_trace_comes_at_its_own_times(trace: Path) -> None:
    source = {"kind": "azure", "path": str(trace)}
    arrivals = first(scenario({"name": "a", "source": source}, time_scale=2))
    assert [a.at_s for a in arrivals] == pytest.approx([i / 20 for i in range(1000)])


def test_trace_is_dealt_out_among_the_classes_that_share_it(trace: Path) -> None:
    source = {"kind": "azure", "path": str(trace)}
    dealt = scenario(*({"name": name, "share": share, "source": source} for name, share in (("a", 0.3), ("b", 0.6))))
    by_class = {"a": set[int](), "b": set[int]()}
    for arrival in first(dealt):
        by_class[arrival.spec.name].add(round(arrival.at_s * 10))
    assert not by_class["a"] & by_class["b"]
    assert len(by_class["a"]) == pytest.approx(300, abs=50)
    assert len(by_class["b"]) == pytest.approx(600, abs=50)
    alone = first(dealt, chosen=dealt.only(["b"]))
    assert {round(a.at_s * 10) for a in alone} == by_class["b"]


def test_trace_gives_lengths_alone_when_the_class_has_a_rate(trace: Path) -> None:
    source = {"kind": "azure", "path": str(trace)}
    arrivals = first(scenario({"name": "a", "rate": 4, "arrivals": "constant", "source": source}), 3)
    assert [(a.at_s, a.ask.prompt_tokens) for a in arrivals] == [(0, 1), (0.25, 2), (0.5, 3)]


def test_classes_that_are_alike_are_not_in_step() -> None:
    arrivals = first(scenario({"name": "a", "rate": 5}, {"name": "b", "rate": 5}), 100)
    times_of_a, times_of_b = ({a.at_s for a in arrivals if a.spec.name == name} for name in "ab")
    texts_of_a, texts_of_b = ({a.ask.pieces for a in arrivals if a.spec.name == name} for name in "ab")
    assert not times_of_a & times_of_b
    assert not texts_of_a & texts_of_b

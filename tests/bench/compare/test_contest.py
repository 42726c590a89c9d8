import pytest

from bench.compare.contest import class_of, warming
from slo.priority import PriorityClass
from tests.bench.answers import scenario


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"X-Priority": "batch"}, "P2"), ({"x-priority": "p0"}, "P0"), ({}, "P1"), ({"X-Priority": "soon"}, "P1")],
)
def test_class_is_that_of_the_header(headers: dict[str, str], expected: str) -> None:
    (spec,) = scenario({"name": "a", "rate": 1, "headers": headers}).classes
    assert class_of(spec) is PriorityClass[expected]


def test_warm_up_is_a_few_short_answers_of_each_class_at_once() -> None:
    load = scenario({"name": "a", "rate": 1, "start_s": 9}, {"name": "b", "share": 1}, rate=3, warm_up_s=5, streams=4)
    told = warming(load)
    assert (told.streams, told.warm_up_s) == (None, 0)
    assert [(s.arrivals, s.rate, s.start_s, s.max_requests, s.body["max_tokens"]) for s in told.classes] == [
        ("at_once", None, 0, 2, 8)
    ] * 2

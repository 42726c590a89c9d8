from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass.P0, PriorityClass.P1, PriorityClass.P2


def test_outranks_holds_for_strictly_more_urgent_classes_only() -> None:
    outranking = {(a, b) for a, b in product(PriorityClass, repeat=2) if a.outranks(b)}
    assert outranking == {(P0, P1), (P0, P2), (P1, P2)}


def test_level_sorts_the_most_urgent_class_first() -> None:
    assert sorted([P2, P0, P1], key=lambda c: c.level) == [P0, P1, P2]
    assert [c.level for c in (P0, P1, P2)] == [0, 1, 2]


@pytest.mark.parametrize(("before", "after"), [(P2, P1), (P1, P0), (P0, P0)])
def test_promoted_gives_the_next_more_urgent_class(before: PriorityClass, after: PriorityClass) -> None:
    assert before.promoted() is after


@pytest.mark.parametrize(("before", "after"), [(P0, P1), (P1, P2), (P2, P2)])
def test_demoted_gives_the_next_less_urgent_class(before: PriorityClass, after: PriorityClass) -> None:
    assert before.demoted() is after


@pytest.mark.parametrize(
    ("level", "expected"), [(0, P0), (1, P1), (2, P2), (3, P2), (-1, P0), (2**63 - 1, P2), (-(2**63), P0)]
)
def test_from_level_clamps_to_the_classes_there_are(level: int, expected: PriorityClass) -> None:
    assert PriorityClass.from_level(level) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P0", P0),
        ("p1", P1),
        (" P2\t", P2),
        ("realtime", P0),
        ("Standard", P1),
        ("BATCH", P2),
        ("", None),
        ("P3", None),
        ("0", None),
        ("P0,P0", None),
        ("urgent", None),
    ],
)
def test_parse_takes_names_in_any_case(text: str, expected: PriorityClass | None) -> None:
    assert PriorityClass.parse(text) is expected


def test_allowed_names_lists_everything_that_parse_takes() -> None:
    assert PriorityClass.allowed_names() == ("P0", "P1", "P2", "realtime", "standard", "batch")
    assert all(PriorityClass.parse(name) is not None for name in PriorityClass.allowed_names())


@settings(derandomize=True, deadline=None, database=None)
@given(text=st.text())
def test_parse_gives_none_when_the_text_names_no_class(text: str) -> None:
    allowed = {name.lower() for name in PriorityClass.allowed_names()}
    assert (PriorityClass.parse(text) is not None) == (text.strip().lower() in allowed)


@pytest.mark.parametrize(("priority", "name"), [(P0, "realtime"), (P1, "standard"), (P2, "batch")])
def test_long_name_says_what_the_class_is_for(priority: PriorityClass, name: str) -> None:
    assert priority.long_name == name
    assert PriorityClass.parse(name) is priority

"""Mutations tried by hand, each found by a test here: a list of token ids taken for prompts; a telling of another
version that raises; own requests left in the others' sum."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slo.priority import PriorityClass
from slo.routing import MAX_COUNT, RoutingStats, count_of, num_sequences, plus, total_of

STATS = RoutingStats(3, {"a": (1, 2, 3)}, 4096, (5, 6, 7), 0.02)


def test_stats_pass_through_serve_as_plain_values() -> None:
    assert RoutingStats.parse(STATS.as_dict()) == STATS
    assert json.loads(json.dumps(STATS.as_dict()))["ongoing"] == {"a": [1, 2, 3]}


@pytest.mark.parametrize("told", [{}, {"number": 1}, {**STATS.as_dict(), "of_another_version": 1}])
def test_stats_that_are_not_ours_are_absent(told: dict[str, Any]) -> None:
    assert RoutingStats.parse(told) is None


@pytest.mark.parametrize(
    ("body", "num"),
    [
        ({}, 1),
        ({"prompt": "a"}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": []}, 1),
        ({"messages": [], "n": 3}, 3),
        ({"n": 0}, 1),
        ({"n": True}, 1),
        ({"n": "3"}, 1),
        ({"n": 10**9, "prompt": ["a", "b"]}, MAX_COUNT),
    ],
)
def test_num_sequences(body: dict[str, Any], num: int) -> None:
    assert num_sequences(body) == num


def test_count_of_takes_positive_integers_only() -> None:
    assert [count_of(v, 7) for v in (3, 0, -1, None, 2.0, True, 10**9)] == [3, 7, 7, 7, 7, 7, MAX_COUNT]


def test_plus_changes_one_class() -> None:
    assert plus((1, 2, 3), PriorityClass.P1, -2) == (1, 0, 3)


def test_total_of_leaves_one_router_out() -> None:
    counts = {"a": (1, 0, 2), "b": (0, 3, 0), "c": (1, 1, 1)}
    assert total_of(counts, without="b") == (2, 1, 3)
    assert total_of(counts, without="nobody") == (2, 4, 3)
    assert total_of({}, without="a") == (0, 0, 0)

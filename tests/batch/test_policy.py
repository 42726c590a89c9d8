"""Mutations tried by hand, each found by a test here: the newest batch first; a paused batch chosen; lines in flight of
one batch counted, not of its tenant; of equals always the oldest; load counted as an attempt; one attempt too many; a
line that no replica was found for not tried again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch.policy import AGAIN_S, Again, BatchView, Settle, choose_batch, decide
from slo.batch import LineAnswer
from slo.errors import (
    EngineFailed,
    Expired,
    NotAdmitted,
    NotContinued,
    OverQuota,
    Rejected,
    ReplicaLost,
    ServingError,
    Shed,
)
from slo.outcome import LineOutcome


def view(number: int, tenant: str = "a", num_in_flight: int = 0, **changes: Any) -> BatchView:
    return BatchView(number, tenant, num_in_flight, **{"has_lines": True, "ready_s": 0.0, "last_turn": 0} | changes)


@pytest.mark.parametrize(
    ("views", "chosen"),
    [
        ([], None),
        ([view(2), view(1)], 1),
        ([view(1, has_lines=False), view(2)], 2),
        ([view(1, ready_s=11), view(2)], 2),
        ([view(1, ready_s=10)], 1),
        ([view(1, ready_s=11)], None),
        ([view(1, "a", 2), view(2, "b", 1)], 2),
        ([view(1, "a", 2, has_lines=False), view(2, "a"), view(3, "b", 1)], 3),
        ([view(1, "a", 1), view(2, "a"), view(3, "b", 2)], 1),
        ([view(1, "a", last_turn=2), view(2, "b", last_turn=1)], 2),
        ([view(1, "a", last_turn=1), view(2, "b", last_turn=2)], 1),
        ([view(1, "a", 1, last_turn=2), view(2, "a", last_turn=2), view(3, "b", 2, last_turn=1)], 1),
    ],
)
def test_next_line_is_of_the_oldest_batch_of_the_tenant_with_the_fewest_in_flight(
    views: list[BatchView], chosen: int | None
) -> None:
    assert choose_batch(views, now_s=10) == chosen


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.integers(1, 30))
def test_tenants_with_lines_differ_by_one_line_in_flight_at_most(tenants: list[str], room: int) -> None:
    in_flight = dict.fromkeys(range(len(tenants)), 0)
    for _ in range(room):
        chosen = choose_batch((view(n, t, in_flight[n]) for n, t in enumerate(tenants)), 0)
        assert chosen is not None
        in_flight[chosen] += 1
    of_tenant = [sum(in_flight[n] for n, t in enumerate(tenants) if t == tenant) for tenant in set(tenants)]
    assert max(of_tenant) - min(of_tenant) <= 1


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 60))
def test_tenants_whose_lines_end_at_once_are_answered_equally_often(
    tenants: list[str], room: int, num_lines: int
) -> None:
    """One line ends before the next starts, or all that may be in flight do: few in flight, and many tenants."""
    started, last = dict.fromkeys(range(len(tenants)), 0), dict.fromkeys(tenants, 0)
    ended = started.copy()
    for turn in range(1, num_lines + 1):
        views = (view(n, t, started[n] - ended[n], last_turn=last[t]) for n, t in enumerate(tenants))
        chosen = choose_batch(views, 0)
        assert chosen is not None
        started[chosen] += 1
        last[tenants[chosen]] = turn
        if sum(started.values()) - sum(ended.values()) == room:
            ended = started.copy()
    of_tenant = [sum(started[n] for n, t in enumerate(tenants) if t == tenant) for tenant in set(tenants)]
    assert max(of_tenant) - min(of_tenant) <= 1


def answer(error: ServingError | None) -> LineAnswer:
    return LineAnswer(200 if error is None else 500, "{}", error, 1)


@pytest.mark.parametrize(
    ("error", "num_attempts", "expected"),
    [
        (None, 0, Settle(LineOutcome.COMPLETED)),
        (Shed("full", 30), 99, Again(30, is_attempt=False)),
        (Shed("full", 0.1), 0, Again(AGAIN_S, is_attempt=False)),
        (OverQuota("used up", 20), 99, Again(20, is_attempt=False)),
        (Expired("late"), 99, Again(AGAIN_S, is_attempt=False)),
        (NotAdmitted("none runs"), 99, Again(AGAIN_S, is_attempt=False)),
        (ReplicaLost("gone"), 1, Again(AGAIN_S, is_attempt=True)),
        (ReplicaLost("gone"), 2, Settle(LineOutcome.FAILED)),
        (NotContinued("half gone"), 0, Again(AGAIN_S, is_attempt=True)),
        (EngineFailed("broken"), 1, Again(AGAIN_S, is_attempt=True)),
        (EngineFailed("broken"), 2, Settle(LineOutcome.FAILED)),
        (Rejected("bad"), 0, Settle(LineOutcome.FAILED)),
        (ServingError("unexpected"), 0, Settle(LineOutcome.FAILED)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_load_is_waited_out_and_faults_of_engines_are_tried_so_often(
    error: ServingError | None, num_attempts: int, expected: Settle | Again
) -> None:
    assert decide(answer(error), num_attempts, max_attempts=3) == expected

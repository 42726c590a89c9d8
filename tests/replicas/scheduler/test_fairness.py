"""The rules about who has waited too long, as tables and for all values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.scheduler.fairness import (
    Lift,
    Wait,
    can_be_preempted_again,
    counts_as_most_urgent_after_s,
    grain_of,
    has_had_its_grain,
    lifted,
    may_lift,
    next_lift_s,
)
from slo.priority import PriorityClass
from slo.settings.scheduling import AgingPeriods, FairnessSettings

P0, P1, P2 = PriorityClass
FAIR = FairnessSettings(aging_s=AgingPeriods(p1=20, p2=30), suspended_prefill_deadline_s=5)
NEVER = FairnessSettings(aging_s=AgingPeriods(p1=None, p2=None), suspended_prefill_deadline_s=None)
PERIODS = st.none() | st.floats(0.1, 1000)
SETTINGS = st.builds(
    FairnessSettings,
    aging_s=st.builds(AgingPeriods, p1=PERIODS, p2=PERIODS),
    suspended_prefill_deadline_s=PERIODS,
    max_lifted=st.integers(1, 4),
)
WAITS = st.builds(Wait, st.sampled_from(PriorityClass), st.floats(0, 1e6), st.booleans())


@pytest.mark.parametrize(
    ("counts_as", "is_suspended", "due_s"),
    [(P2, False, 130), (P1, False, 120), (P0, False, None), (P2, True, 105), (P1, True, 105), (P0, True, None)],
)
def test_next_lift_s_is_a_period_of_the_class_after_the_wait_began(counts_as, is_suspended, due_s) -> None:
    assert next_lift_s(Wait(counts_as, 100, is_suspended), FAIR) == due_s


def test_next_lift_s_is_that_of_aging_when_it_comes_before_the_deadline() -> None:
    late = FAIR.model_copy(update={"suspended_prefill_deadline_s": 25})
    assert next_lift_s(Wait(P1, 100, True), late) == 120
    assert next_lift_s(Wait(P2, 100, True), late) == 125


@pytest.mark.parametrize("counts_as", list(PriorityClass))
@pytest.mark.parametrize("is_suspended", [False, True])
def test_next_lift_s_is_never_when_fairness_is_off(counts_as, is_suspended) -> None:
    assert next_lift_s(Wait(counts_as, 0, is_suspended), NEVER) is None


@pytest.mark.parametrize(
    ("wait", "now_s", "num_lifted", "lowest_running", "expected"),
    [
        (Wait(P2, 0), 29.9, 0, P0, False),
        (Wait(P2, 0), 30, 0, P0, True),
        (Wait(P2, 0), 30, 0, None, True),
        (Wait(P2, 0), 30, 0, P1, True),
        (Wait(P2, 0), 30, 0, P2, False),  # Its class is served.
        (Wait(P1, 0), 20, 0, P0, True),
        (Wait(P1, 0), 20, 0, P1, False),
        (Wait(P1, 0), 20, 0, P2, False),  # It would preempt that one if it could.
        (Wait(P2, 0), 30, 1, P0, False),  # Another one's turn.
        (Wait(P2, 0, True), 4.9, 0, P0, False),
        (Wait(P2, 0, True), 5, 0, P2, True),  # Begun work resumes whoever runs.
        (Wait(P2, 0, True), 5, 1, P2, False),
        (Wait(P0, 0, True), 1e9, 0, None, False),
    ],
)
def test_may_lift_is_for_overdue_requests_of_classes_that_stand_still(
    wait, now_s, num_lifted, lowest_running, expected
) -> None:
    assert may_lift(wait, now_s, num_lifted, lowest_running, FAIR) is expected


def test_lifted_counts_on_from_when_it_was_due_for_every_step_up() -> None:
    wait = Wait(P2, 100)
    wait = lifted(wait, FAIR)
    assert wait == Wait(P1, 130)
    wait = lifted(wait, FAIR)
    assert wait == Wait(P0, 150)
    assert next_lift_s(wait, FAIR) is None


@pytest.mark.parametrize(("num_tokens_left", "tokens"), [(1, 32), (0, 32), (2, 2), (512, 512), (9000, 512)])
def test_grain_of_is_some_prefill_or_some_decode_tokens(num_tokens_left, tokens) -> None:
    assert grain_of(num_tokens_left, FAIR) == tokens


@pytest.mark.parametrize(("grain_tokens", "expected"), [(None, False), (1, False), (0, True), (-5, True)])
def test_has_had_its_grain_when_no_tokens_of_it_are_left(grain_tokens, expected) -> None:
    assert has_had_its_grain(Lift(P2, P1, grain_tokens)) is expected


@pytest.mark.parametrize(("cap", "num_preemptions", "expected"), [(2, 1, True), (2, 2, False), (0, 0, False)])
def test_can_be_preempted_again_until_the_cap(cap, num_preemptions, expected) -> None:
    assert can_be_preempted_again(num_preemptions, FairnessSettings(max_preemptions_per_request=cap)) is expected


def test_can_be_preempted_again_without_end_when_there_is_no_cap() -> None:
    assert can_be_preempted_again(10**6, FairnessSettings(max_preemptions_per_request=None))


@pytest.mark.parametrize(
    ("p1", "p2", "bounds"), [(20, 30, (0, 20, 50)), (None, 30, (0, None, None)), (20, None, (0, 20, None))]
)
def test_counts_as_most_urgent_after_s_is_the_sum_of_the_steps(p1, p2, bounds) -> None:
    fair = FairnessSettings(aging_s=AgingPeriods(p1=p1, p2=p2))
    assert tuple(counts_as_most_urgent_after_s(own, fair) for own in PriorityClass) == bounds


@settings(derandomize=True, deadline=None, database=None)
@given(wait=WAITS, fair=SETTINGS)
def test_lifted_goes_one_class_up_and_reaches_p0_by_the_bound(wait, fair) -> None:
    bound_s = counts_as_most_urgent_after_s(wait.counts_as, fair)
    began_s, steps = wait.counted_from_s, 0
    while (due_s := next_lift_s(wait, fair)) is not None:
        assert not may_lift(wait, due_s - 1e-3, 0, None, fair)
        assert may_lift(wait, due_s, 0, None, fair)
        after = lifted(wait, fair)
        assert after.counts_as.level == wait.counts_as.level - 1
        wait, steps = after, steps + 1
        assert steps <= 2
    if bound_s is not None:
        assert wait.counts_as is P0
        assert wait.counted_from_s <= began_s + bound_s + 1e-6

"""The learned step cost, on machines that are made up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.scheduler.step_cost import MIN_PREFILL_STEPS, StepCost, StepShape, StepTimes


def true_ms(shape: StepShape, scale: float = 1.0) -> float:
    """The CPU backend as it was measured, `scale` times as slow."""
    return scale * (15 + 1.1 * shape.prefill_tokens + 1.2 * shape.num_decodes + 0.002 * shape.context_tokens)


def random_shape(rng: random.Random, most_prefill: int = 256) -> StepShape:
    return StepShape(rng.randrange(most_prefill), rng.randrange(9), rng.randrange(20_000))


def learned(steps: int, scale: float = 1.0, seed: int = 0) -> StepCost:
    cost, rng = StepCost(), random.Random(seed)
    for _ in range(steps):
        shape = random_shape(rng)
        cost.observe(shape, true_ms(shape, scale) * rng.uniform(0.95, 1.05))
    return cost


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_step_cost_learns_what_a_machine_costs(scale: float) -> None:
    cost = learned(200, scale)
    for shape in (StepShape(0, 8, 3000), StepShape(48, 4, 2000), StepShape(200, 0, 0)):
        assert cost.estimate_ms(shape) == pytest.approx(true_ms(shape, scale), rel=0.15)


def test_step_cost_is_not_believed_before_it_has_seen_prefill() -> None:
    cost = StepCost()
    for _ in range(100):
        cost.observe(StepShape(0, 4, 100), 20)
    assert not cost.is_known
    for _ in range(MIN_PREFILL_STEPS):
        cost.observe(StepShape(64, 4, 100), 90)
    assert cost.is_known


def test_step_cost_follows_a_machine_that_becomes_slower() -> None:
    cost, rng = learned(400), random.Random(1)
    for _ in range(2000):
        shape = random_shape(rng)
        cost.observe(shape, true_ms(shape, 3.0))
    assert cost.estimate_ms(StepShape(100, 4, 1000)) == pytest.approx(true_ms(StepShape(100, 4, 1000), 3.0), rel=0.1)


def test_step_cost_keeps_what_prefill_costs_through_a_long_time_without_any() -> None:
    cost, rng = learned(400), random.Random(2)
    for _ in range(5000):
        shape = StepShape(0, rng.randrange(1, 9), rng.randrange(20_000))
        cost.observe(shape, true_ms(shape))
    assert cost.estimate_ms(StepShape(100, 4, 1000)) == pytest.approx(true_ms(StepShape(100, 4, 1000)), rel=0.3)


def test_step_cost_is_hardly_moved_by_one_pause_of_the_machine() -> None:
    cost = learned(400)
    before = cost.estimate_ms(StepShape(64, 4, 1000))
    cost.observe(StepShape(64, 4, 1000), 60_000)
    assert cost.estimate_ms(StepShape(64, 4, 1000)) == pytest.approx(before, rel=0.1)


def test_prefill_within_a_limit_takes_the_limit_and_no_more() -> None:
    cost = learned(400)
    tokens = cost.prefill_tokens_within(100, 4, 1000)
    assert cost.estimate_ms(StepShape(tokens, 4, 1000)) <= 100
    assert cost.estimate_ms(StepShape(tokens + 2, 4, 1000)) > 100
    assert cost.prefill_tokens_within(10, 4, 1000) == 0


@settings(derandomize=True, deadline=None, database=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 512), st.integers(0, 10**6), st.floats(0, 1e5)), min_size=1)
)
def test_step_cost_never_estimates_less_for_more(observed: list[tuple[int, int, int, float]]) -> None:
    cost = StepCost()
    for prefill, decodes, context, took_ms in observed:
        cost.observe(StepShape(prefill, decodes, context), took_ms)
    small, large = StepShape(10, 1, 100), StepShape(500, 9, 9000)
    assert 0 <= cost.estimate_ms(small) <= cost.estimate_ms(large)


def test_step_times_are_from_begin_to_end_when_one_step_is_in_flight() -> None:
    times, shape = StepTimes(), StepShape(1, 0, 0)
    times.begin(1.0, shape)
    assert times.end(1.5) == (shape, 500)
    times.begin(9.0, shape)
    assert times.end(9.25) == (shape, 250)


def test_step_times_are_from_end_to_end_when_two_steps_are_in_flight() -> None:
    times, shape = StepTimes(), StepShape(1, 0, 0)
    times.begin(1.0, shape)
    times.begin(1.01, shape)
    assert times.end(2.0) == (shape, 1000)
    times.begin(2.0, shape)
    assert times.end(2.5) == (shape, 500)
    assert times.end(3.0) == (shape, 500)


def test_step_times_pass_over_empty_steps_and_output_that_was_not_begun() -> None:
    times = StepTimes()
    assert times.end(1.0) is None
    times.begin(2.0, StepShape(0, 0, 0))
    assert times.end(3.0) is None

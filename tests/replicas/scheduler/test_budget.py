"""The budget of a step: the table, the learned limit, the ceiling, the floor, and no flapping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replicas.scheduler.budget import BudgetPlanner, StepWork, step_limit_ms
from replicas.scheduler.step_cost import StepCost, StepShape
from slo.priority import PriorityClass
from slo.settings.scheduling import BudgetSettings, SchedulerSettings

P0, P1, P2 = PriorityClass
IDLE = StepWork(None, None, 0, 0, 0, 0, 0, False)
MAX_TOKENS = 8192
TABLE = SchedulerSettings(budget=BudgetSettings(adaptive=False))
DEFAULT = SchedulerSettings()


def work(
    strictest: PriorityClass,
    decoding: PriorityClass | None = None,
    own: int = 0,
    expected: bool = False,
    num_own: int | None = None,
) -> StepWork:
    decodes = 0 if decoding is None else 4
    num_own = int(own > 0) if num_own is None else num_own
    return StepWork(strictest, decoding, decodes, decodes, decodes * 500, own, num_own, expected)


def machine(fixed_ms: float, token_ms: float, decode_ms: float = 0.0) -> StepCost:
    """A cost that has learned this machine."""
    cost = StepCost()
    for i in range(400):
        shape = StepShape((i * 37) % 512, i % 9, 0)
        cost.observe(shape, fixed_ms + token_ms * shape.prefill_tokens + decode_ms * shape.num_decodes)
    return cost


SLOW = machine(15, 1.1, 1.2)
FAST = machine(4, 0.02, 0.01)


@pytest.mark.parametrize(
    ("strictest", "tokens", "chunk"), [(P0, 512, 256), (P1, 1024, 512), (P2, 2048, 2048)], ids=["P0", "P1", "P2"]
)
@pytest.mark.parametrize("settings", [TABLE, DEFAULT], ids=["table", "nothing learned yet"])
def test_budget_is_the_profiles_table(
    strictest: PriorityClass, tokens: int, chunk: int, settings: SchedulerSettings
) -> None:
    budget = BudgetPlanner(settings, MAX_TOKENS).plan(work(strictest), StepCost())
    assert (budget.tokens, budget.chunk_tokens, budget.reason) == (tokens, chunk, "table")


def test_budget_is_the_table_although_the_cost_is_known_when_not_adaptive() -> None:
    assert BudgetPlanner(TABLE, MAX_TOKENS).plan(work(P0, P0), SLOW).tokens == 512


def test_budget_never_exceeds_what_the_engine_computes_in_a_step() -> None:
    assert BudgetPlanner(TABLE, 300).plan(work(P2), StepCost()).tokens == 300


def test_budget_fits_the_step_into_the_tbt_target_of_the_strictest_stream() -> None:
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P0, P0), FAST)
    assert budget.reason == "tbt"
    step = StepShape(budget.tokens - 4, 4, 2000)
    assert FAST.estimate_ms(step) <= 17 < FAST.estimate_ms(replace(step, prefill_tokens=step.prefill_tokens + 10))


def test_budget_is_larger_than_the_table_when_there_is_room() -> None:
    assert BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P1, P1), FAST).tokens > 1024
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P2, P2), FAST)
    assert (budget.tokens, budget.reason) == (MAX_TOKENS, "room")


def test_budget_leaves_prefill_its_floor_when_the_target_cannot_be_met() -> None:
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P0, P0), SLOW)
    assert (budget.tokens, budget.reason) == (4 + DEFAULT.budget.min_prefill_tokens, "floor")


@pytest.mark.parametrize(("num_decodes", "reason"), [(60, "floor"), (80, "broken"), (160, "broken")])
def test_prompts_get_as_much_as_decodes_that_alone_break_the_target(num_decodes: int, reason: str) -> None:
    """P1's 100 ms are out of reach with 80 decodes here (15 ms + 80 * 1.2 ms), whatever prompts get."""
    many = StepWork(P1, P1, num_decodes, num_decodes, 0, 5000, 9, False)
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(many, SLOW)
    assert budget.reason == reason
    decodes_ms = SLOW.estimate_ms(StepShape(0, num_decodes, 0))
    step_ms = SLOW.estimate_ms(StepShape(budget.tokens - num_decodes, num_decodes, 0))
    if reason == "broken":
        assert 1.95 * decodes_ms < step_ms <= 2 * decodes_ms
    else:
        assert budget.tokens == num_decodes + DEFAULT.budget.min_prefill_tokens


@pytest.mark.parametrize("what", [{"strictest_decoding": P0, "strictest": P0}, {"is_urgent_expected": True}])
def test_nothing_is_given_up_for_p0_however_far_its_target_is_out_of_reach(what: dict[str, Any]) -> None:
    many = replace(StepWork(P1, P1, 160, 160, 0, 5000, 9, False), **what)
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(many, SLOW)
    assert (budget.tokens, budget.reason) == (160 + DEFAULT.budget.min_prefill_tokens, "floor")


def test_budget_has_a_floor_beside_however_many_decodes() -> None:
    many = StepWork(P0, P0, 4000, 4000, 0, 0, 0, False)
    for settings in (TABLE, DEFAULT):
        budget = BudgetPlanner(settings, MAX_TOKENS).plan(many, SLOW)
        assert budget.tokens == 4000 + settings.budget.min_prefill_tokens


def test_budget_is_held_down_while_urgent_traffic_is_expected() -> None:
    planner = BudgetPlanner(DEFAULT, MAX_TOKENS)
    free = planner.plan(work(P2), SLOW)
    held = planner.plan(work(P2, expected=True), SLOW)
    assert (free.tokens, free.reason) == (MAX_TOKENS, "room")
    assert held.tokens == DEFAULT.budget.min_prefill_tokens
    fast = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P2, expected=True), FAST)
    assert fast.reason == "ceiling"
    assert FAST.estimate_ms(StepShape(fast.tokens, 0, 0)) <= 50


def test_budget_does_not_cut_an_urgent_prompt_for_those_behind_it() -> None:
    planner = BudgetPlanner(DEFAULT, MAX_TOKENS)
    budget = planner.plan(work(P0, P2, own=200, expected=True), SLOW)
    assert (budget.tokens, budget.own_chunk_tokens) == (204, 200)
    assert budget.chunk_tokens == DEFAULT.budget.min_prefill_tokens
    assert planner.plan(work(P0, P2, own=3000, expected=True), SLOW).own_chunk_tokens == 256


def test_budget_reads_an_urgent_prompt_at_once_as_far_as_its_target_allows() -> None:
    """Beyond the step's ceiling: who comes next waits as long, and has as much of the target left."""
    planner = BudgetPlanner(DEFAULT, MAX_TOKENS, num_in_flight=2)
    budget = planner.plan(work(P0, P1, own=1500, expected=True), FAST)
    assert budget.own_chunk_tokens == 1500 == budget.tokens - 4
    assert FAST.estimate_ms(StepShape(budget.chunk_tokens * 2, 4, 2000)) <= 25
    longer = planner.plan(work(P0, P1, own=9000, expected=True), FAST)
    assert 45 <= FAST.estimate_ms(StepShape(longer.own_chunk_tokens, 4, 2000)) <= 50


@pytest.mark.parametrize("decoding", [P0, P1])
def test_budget_gives_an_urgent_prompt_all_that_others_want_too(decoding: PriorityClass) -> None:
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P0, decoding, own=4000), FAST)
    assert budget.own_chunk_tokens >= budget.tokens - 4
    assert budget.chunk_tokens <= budget.own_chunk_tokens // 2 + 1


def test_budget_halves_long_prompts_of_one_class_and_reads_short_ones_in_turn() -> None:
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P0, P0, own=8000, num_own=2), FAST)
    assert budget.own_chunk_tokens == budget.chunk_tokens <= budget.tokens // 2
    assert 45 <= FAST.estimate_ms(StepShape(budget.short_prompt_tokens, 4, 2000)) <= 50


@pytest.mark.parametrize(("strictest", "short"), [(P0, 256), (P1, 0), (P2, 0)])
def test_prompt_of_p0_is_short_by_the_table_while_nothing_is_learned(strictest: PriorityClass, short: int) -> None:
    assert BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(strictest, own=9), StepCost()).short_prompt_tokens == short


def test_steps_in_flight_share_the_ceiling() -> None:
    held = work(P2, P2, expected=True)
    assert [step_limit_ms(held, DEFAULT, n) for n in (1, 2)] == [(50, "ceiling"), (25, "ceiling")]
    one, two = (BudgetPlanner(DEFAULT, MAX_TOKENS, n).plan(held, FAST) for n in (1, 2))
    assert FAST.estimate_ms(StepShape(two.tokens - 4, 4, 2000)) <= 25 < FAST.estimate_ms(StepShape(one.tokens, 4, 2000))


def test_budget_cuts_an_urgent_prompt_for_streams_of_its_own_class() -> None:
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P0, P0, own=200), SLOW)
    assert budget.tokens == 4 + DEFAULT.budget.min_prefill_tokens


def test_budget_cuts_a_batch_prompt_for_an_urgent_request_to_be_expected() -> None:
    budget = BudgetPlanner(DEFAULT, MAX_TOKENS).plan(work(P2, own=3000, expected=True), SLOW)
    assert budget.tokens == DEFAULT.budget.min_prefill_tokens


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        (work(P2, P2), (None, "room")),
        (work(P1, P1), (85, "tbt")),
        (work(P1, P1, expected=True), (50, "ceiling")),
        (work(P0, P0, expected=True), (17, "tbt")),
        (work(P0, P1), (85, "tbt")),
        (work(P0), (None, "room")),
        (IDLE, (None, "room")),
    ],
)
def test_step_limit_is_the_strictest_promise(what: StepWork, limit: tuple[float | None, str]) -> None:
    assert step_limit_ms(what, DEFAULT) == limit


def test_budget_does_not_flap_when_the_estimate_moves_a_little() -> None:
    planner, seen = BudgetPlanner(DEFAULT, MAX_TOKENS), set()
    for i in range(40):
        cost = machine(4, 0.02 * (1 + 0.05 * (i % 2)), 0.01)
        seen.add(planner.plan(work(P0, P0), cost).tokens)
    assert len(seen) == 1
    assert planner.plan(work(P0, P0), machine(4, 0.04, 0.01)).tokens < min(seen)


def test_budget_moves_at_once_when_the_promise_changes() -> None:
    planner = BudgetPlanner(DEFAULT, MAX_TOKENS)
    slack = planner.plan(work(P1, P1), FAST).tokens
    strict = planner.plan(work(P0, P0), FAST).tokens
    assert strict < slack == planner.plan(work(P1, P1), FAST).tokens

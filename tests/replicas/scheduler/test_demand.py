"""What users of neighbouring projects complain of, each as the small case that must pass here.

Fairness has a file of its own, `test_demand_fairness.py`, and so has the prefix cache, `test_eviction.py`. Mutations
that these tests were seen to catch: no preemption for slots, none for blocks, no token caps for running prefills, no
limit by the TBT target, no share of a chunk, no hysteresis, no ceiling while urgent traffic is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from slo.priority import PriorityClass
from slo.settings.scheduling import BudgetSettings, PreemptionSettings, SchedulerSettings
from tests.replicas.scheduler.harness.build import EngineShape, build_scheduler
from tests.replicas.scheduler.harness.driver import Driver, Step

P0, P1, P2 = PriorityClass
GPU_LIKE = EngineShape(num_blocks=2000, max_num_seqs=8, token_budget=2048)


def machine(fixed_ms: float, token_ms: float) -> Callable[[SchedulerOutput], float]:
    """The seconds that a step takes on a machine like this."""
    return lambda output: (fixed_ms + token_ms * output.total_num_scheduled_tokens) / 1e3


def learn(driver: Driver) -> None:
    """Let the scheduler learn its machine, on prompts of different lengths."""
    for i in range(30):
        driver.add(f"warm-up-{i}", P1, prompt=50 + 17 * i, max_tokens=3)
        driver.steps(4)
    driver.run_to_end()
    assert driver.scheduler.pacing.cost.is_known


def token_gaps_s(driver: Driver, request_id: str, steps: int) -> list[float]:
    """Seconds between the tokens of a request over the next steps."""
    gaps, last_s, seen = [], driver.now_s, len(driver.outputs[request_id])
    for _ in range(steps):
        driver.step()
        if len(driver.outputs[request_id]) > seen:
            seen = len(driver.outputs[request_id])
            gaps.append(driver.now_s - last_s)
            last_s = driver.now_s
    return gaps


def test_vllm_40004_urgent_request_runs_by_the_next_step_when_every_slot_is_held() -> None:
    driver = Driver(build_scheduler(EngineShape(max_num_seqs=4)))
    for i in range(8):
        driver.add(f"batch-{i}", P2, max_tokens=200)
    driver.steps(5)
    driver.add("urgent", P0)
    assert "urgent" in driver.step().scheduled


@pytest.mark.parametrize("priority", [P0, P1, P2])
def test_vllm_40004_equal_class_never_displaces(priority: PriorityClass) -> None:
    driver = Driver(build_scheduler(EngineShape(max_num_seqs=4)))
    for i in range(8):
        driver.add(f"first-{i}", priority, max_tokens=50)
    driver.steps(5)
    driver.add("later", priority)
    steps = driver.run_to_end()
    assert not any(step.preempted for step in steps)


def test_sglang_14872_urgent_request_gets_a_slot_when_only_slots_are_short() -> None:
    driver = Driver(build_scheduler(EngineShape(num_blocks=1000, max_num_seqs=2)))
    driver.add("batch-0", P2, max_tokens=200)
    driver.add("batch-1", P2, max_tokens=200)
    driver.steps(3)
    driver.add("urgent", P0)
    assert "urgent" in driver.step().scheduled
    assert driver.scheduler.preemption_counts.num_lost_tokens == 0


def test_sglang_14872_urgent_request_gets_blocks_when_only_memory_is_short() -> None:
    driver = Driver(build_scheduler(EngineShape(num_blocks=40, max_num_seqs=8, prefix_cache=False)))
    for i in range(2):
        driver.add(f"batch-{i}", P2, prompt=250, max_tokens=40)
    driver.steps(3)
    driver.add("urgent", P0, prompt=200)
    driver.steps(2)
    assert len(driver.outputs["urgent"]) > 0
    assert driver.scheduler.preemption_counts.num_lost_tokens > 0


def test_sglang_14872_urgent_request_gets_tokens_when_only_the_budget_is_short() -> None:
    table = SchedulerSettings(budget=BudgetSettings(adaptive=False, urgent_expected="never"))
    driver = Driver(build_scheduler(EngineShape(num_blocks=1000, max_num_seqs=8, token_budget=512), table))
    for i in range(3):
        driver.add(f"batch-{i}", P2, prompt=3000)
    driver.steps(2)
    driver.add("urgent", P0, prompt=200)
    step = driver.step()
    assert step.output.num_scheduled_tokens["urgent"] == 200
    assert not step.preempted


@pytest.mark.parametrize("kind", ["slots", "blocks"])
def test_sglang_14872_each_trigger_is_preemption_and_can_be_switched_off(kind: str) -> None:
    off = SchedulerSettings(preemption=PreemptionSettings(enabled=False))
    shape = EngineShape(max_num_seqs=2) if kind == "slots" else EngineShape(num_blocks=40, prefix_cache=False)
    driver = Driver(build_scheduler(shape, off))
    for i in range(2):
        driver.add(f"batch-{i}", P2, prompt=250, max_tokens=40)
    driver.steps(3)
    driver.add("urgent", P0, prompt=200)
    assert "urgent" not in driver.step().scheduled


@pytest.mark.parametrize(("fixed_ms", "token_ms"), [(5, 0.02), (8, 0.05)])
def test_vllm_541_urgent_stream_keeps_its_tbt_while_a_huge_batch_prompt_is_read(
    fixed_ms: float, token_ms: float
) -> None:
    driver = Driver(build_scheduler(GPU_LIKE), cost_s=machine(fixed_ms, token_ms))
    learn(driver)
    driver.add("stream", P0, prompt=50, max_tokens=150)
    driver.steps(3)
    driver.add("huge", P2, prompt=4000, max_tokens=5)
    before = driver.requests["huge"].num_computed_tokens
    gaps = token_gaps_s(driver, "stream", 60)
    assert len(gaps) == 60
    assert max(gaps) <= 0.020
    assert driver.requests["huge"].num_computed_tokens > before


def test_vllm_541_the_table_alone_would_break_it() -> None:
    table = SchedulerSettings(budget=BudgetSettings(adaptive=False))
    driver = Driver(build_scheduler(GPU_LIKE, table), cost_s=machine(8, 0.05))
    driver.add("stream", P0, prompt=50, max_tokens=150)
    driver.steps(3)
    driver.add("huge", P2, prompt=4000, max_tokens=5)
    assert max(token_gaps_s(driver, "stream", 10)) > 0.020


def test_vllm_52906_budget_follows_the_load_without_flapping() -> None:
    driver = Driver(build_scheduler(GPU_LIKE), cost_s=machine(8, 0.05))
    learn(driver)
    budgets: dict[str, list[int]] = {"batch alone": [], "beside P0": [], "batch again": []}
    driver.now_s += 1000
    for i in range(6):
        driver.add(f"batch-{i}", P2, prompt=4000, max_tokens=5)
    for phase, seen in budgets.items():
        if phase == "beside P0":
            driver.add("stream", P0, prompt=20, max_tokens=12)
        for _ in range(4 if phase == "batch alone" else 12):
            prefill = driver.step().output.total_num_scheduled_tokens - driver.scheduler.pacing.budget.tokens
            seen.append(driver.scheduler.pacing.budget.tokens)
            assert prefill <= 0
        if phase == "beside P0":
            driver.now_s += 1000  # nobody expects another P0 by then
    assert set(budgets["batch alone"]) == {2048}
    beside = budgets["beside P0"][2:]
    assert max(beside) < 400
    assert sum(before != after for before, after in pairwise(beside)) <= 1
    assert budgets["batch again"][-1] == 2048


def test_sglang_34554_one_huge_prompt_does_not_own_every_chunk() -> None:
    for adaptive in (True, False):
        settings = SchedulerSettings(budget=BudgetSettings(adaptive=adaptive))
        driver = Driver(build_scheduler(GPU_LIKE, settings), cost_s=machine(5, 0.02))
        learn(driver)
        driver.add("huge", P1, prompt=4000)
        driver.step()
        driver.add("small", P1, prompt=100)
        step = driver.step()
        assert step.output.num_scheduled_tokens["small"] == 100
        assert step.output.num_scheduled_tokens["huge"] > 0


def test_vllm_23347_scheduled_and_preempted_never_overlap_under_tiny_memory() -> None:
    def check(step: Step) -> None:
        assert not step.scheduled & step.preempted

    for depth in (1, 2):
        shape = EngineShape(num_blocks=30, max_num_seqs=6, prefix_cache=False, is_async=depth > 1)
        driver = Driver(build_scheduler(shape), depth=depth, check=check)
        for i in range(40):
            driver.add(f"r-{i}", (P0, P1, P2, P2)[i % 4], prompt=20 + (i * 37) % 150, max_tokens=5 + i % 30)
            driver.steps(2)
        driver.run_to_end()
        assert driver.scheduler.preemption_counts.num_lost_tokens > 0


def test_urgent_arrival_waits_for_a_short_step_while_urgent_traffic_is_expected() -> None:
    driver = Driver(build_scheduler(GPU_LIKE), cost_s=machine(8, 0.05))
    learn(driver)
    driver.add("hint", P0, prompt=20, max_tokens=2)
    driver.run_to_end()
    for i in range(6):
        driver.add(f"batch-{i}", P2, prompt=4000, max_tokens=5)
    driver.steps(3)
    begun_s = driver.now_s
    driver.step()
    assert driver.now_s - begun_s <= 0.050

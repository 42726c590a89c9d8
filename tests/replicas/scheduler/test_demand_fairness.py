"""What users of such systems ask for in fairness, each named after its public issue. A step lasts a second here.

Each rule, and a test that fails when it is taken out, by hand. F is test_fairness.py, W test_waits.py, A test_aging.py:

    rule                                              test
    every step up, not one                            F, lifted_counts_on_from_when_it_was_due_for_every_step_up
    a late lift does not delay the next               W, goes_through_every_step_when_all_are_overdue
    only a class that stands still is lifted          A, lifts_nobody_while_its_own_class_runs
    ... seen over the moment between two of it        A, takes_no_class_for_starved_in_the_moment_between_two_of_it
    ... but a suspended prefill whoever runs          suspended_prefill_resumes_by_the_deadline_when_its_class_runs
    few are lifted at a time                          A, lifts_as_few_as_are_set
    the nearest class has its places freed first      W, goes_through_every_step_when_all_are_overdue
    first come, first lifted                          W, lifts_those_that_came_together_in_the_order_...
    the queue is ordered anew at a lift               A, reorders_the_queue_at_once
    a lift holds for a grain                          A, is_sticky_until_a_decode_has_had_its_tokens
    ... and no longer                                 A, is_sticky_until_a_decode_has_had_its_tokens
    a grain of prefill is a chunk                     F, grain_of_is_some_prefill_or_some_decode_tokens
    who runs waits no more                            A, lifts_a_waiting_request_step_by_step
    a victim of vLLM's own preemption waits           A, does_not_lose_a_lift_when_kv_runs_out
    who is gone is forgotten                          A, gives_the_place_of_an_aborted_request_to_the_next
    a session is not counted while its client is due  A, does_not_count_a_session_that_waits_for_its_client
    a resumed request keeps its place                 preempted_request_returns_before_the_flood_of_its_class
    at the cap nobody yields                          preemptions_of_one_request_are_capped
    those at the cap are counted                      A, forbids_victims_that_have_had_enough
    a paused prefill is a suspended one               paused_prefill_resumes_by_the_deadline
    a running one without tokens is, too              running_prefill_gets_tokens_by_the_deadline
    ... until it gets some                            A, keeps_its_promises_whatever_arrives
    one that was not begun is not                     A, lifts_nobody_while_its_own_class_runs
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from replicas.scheduler.fairness import counts_as_most_urgent_after_s
from slo.priority import PriorityClass
from slo.settings.scheduling import AgingPeriods, FairnessSettings, PreemptionSettings
from tests.replicas.scheduler.harness import Driver
from tests.replicas.scheduler.harness.scenes import check_answers, fill, is_running
from tests.replicas.scheduler.test_aging import OFF, make_fair_driver

P0, P1, P2 = PriorityClass
P0_STEPS = 10


class EndlessP0:
    """Adds a P0 whenever none waits, so that no slot is ever left for others; notes how long each P0 waits."""

    def __init__(self, driver: Driver, num_prompt_tokens: int = 20) -> None:
        self.driver = driver
        self.waits: list[int] = []
        self.first_run: dict[str, int] = {}
        self._num_prompt_tokens = num_prompt_tokens
        self._added_at: dict[str, int] = {}
        self._count = 0

    def step(self) -> None:
        if not any(r not in self.driver.finished and not is_running(self.driver, r) for r in self._added_at):
            name = f"urgent-{self._count}"
            self._count += 1
            self._added_at[name] = self.driver.num_steps
            self.driver.add(name, P0, self._num_prompt_tokens, P0_STEPS)
        now = self.driver.num_steps
        scheduled = self.driver.step().scheduled
        self.first_run = dict.fromkeys(scheduled, self.driver.num_steps) | self.first_run
        for request_id in scheduled & self._added_at.keys():
            self.waits.append(now - self._added_at[request_id])
            del self._added_at[request_id]


def resume_of(driver: Driver, request_id: str, load: EndlessP0) -> int:
    while not is_running(driver, request_id):
        load.step()
        assert driver.num_steps < 2000, f"{request_id} never resumes"
    return driver.num_steps


@pytest.mark.parametrize("pause", [True, False])
@pytest.mark.parametrize("is_async", [False, True])
def test_demand_preempted_request_returns_before_the_flood_of_its_class(pause, is_async) -> None:
    """vllm 41951: preempted work loses its place."""
    driver = make_fair_driver(PreemptionSettings(pause=pause), shape={"max_num_seqs": 1, "is_async": is_async})
    driver.add("A", P2, max_tokens=40)
    driver.steps(5)
    driver.add("urgent", P0, max_tokens=5)
    assert driver.step().preempted == {"A"}
    for i in range(30):
        driver.add(f"flood-{i}", P2, max_tokens=3)
    while not is_running(driver, "A"):
        driver.step()
        assert not any(is_running(driver, f"flood-{i}") for i in range(30))
    check_answers(driver)


def test_demand_preemptions_of_one_request_are_capped() -> None:
    """vllm 41951: the same victim is chosen again and again."""
    driver = make_fair_driver(max_preemptions_per_request=3, **OFF)
    fill(driver, P2, 2, max_tokens=200)
    for i in range(30):
        driver.add(f"urgent-{i}", P0, max_tokens=2)
        driver.steps(5)
    assert [driver.requests[f"P2-{i}"].num_preemptions for i in range(2)] == [3, 3]
    check_answers(driver)


def test_demand_urgent_requests_meet_few_capped_victims_by_the_default() -> None:
    """vllm 41951: a cap low enough to make every victim unavailable would make P0 wait for batch work."""
    driver = make_fair_driver(
        shape={"max_num_seqs": 8}, max_preemptions_per_request=FairnessSettings().max_preemptions_per_request
    )
    for i in range(24):
        driver.add(f"batch-{i}", P2, 50, 400)
    driver.steps(5)
    waits = Counter()
    for i in range(120):
        added = driver.num_steps
        driver.add(f"urgent-{i}", P0, max_tokens=5)
        while not is_running(driver, f"urgent-{i}"):
            driver.step()
        waits[driver.num_steps - added] += 1
        driver.steps(5)
    assert waits == {1: 120}
    check_answers(driver)


@pytest.mark.parametrize("num_batch", [1, 20])
@pytest.mark.parametrize("is_async", [False, True])
def test_demand_batch_request_starts_within_the_bound_under_endless_urgent_ones(num_batch, is_async) -> None:
    """vllm PR 20608, GIE 1861: the low class starves."""
    driver = make_fair_driver(shape={"is_async": is_async})
    load = EndlessP0(driver)
    for _ in range(5):
        load.step()
    for i in range(num_batch):
        driver.add(f"batch-{i}", P2)
    began = driver.num_steps
    bound_s = counts_as_most_urgent_after_s(P2, driver.scheduler.settings.fairness)
    assert bound_s == 50
    for _ in range(600):
        load.step()
    starts = [load.first_run[f"batch-{i}"] - began for i in range(num_batch)]
    assert 50 <= starts[0] <= bound_s + P0_STEPS
    turns = [later - earlier for earlier, later in pairwise(starts)]
    assert all(0 < turn <= P0_STEPS + is_async for turn in turns), "the others follow one by one"
    check_answers(driver)


def test_demand_batch_request_never_starts_when_aging_is_off() -> None:
    """vllm PR 20608, GIE 1861: without aging the low class starves, which is what the bound is there for."""
    driver = make_fair_driver(**OFF)
    load = EndlessP0(driver)
    load.step()
    driver.add("batch", P2)
    for _ in range(600):
        load.step()
        assert not is_running(driver, "batch")


@pytest.mark.parametrize("num_batch", [0, 1, 40])
def test_demand_urgent_requests_pay_one_slot_at_most_for_fairness(num_batch) -> None:
    """vllm PR 20608, GIE 1861: P0 still meets its target. It waits one step more, and at no time for two others."""
    driver = make_fair_driver(lift_decode_tokens=4)
    load = EndlessP0(driver)
    for _ in range(5):
        load.step()
    for i in range(num_batch):
        driver.add(f"batch-{i}", P2, max_tokens=30)
    num_lesser = []
    for _ in range(400):
        load.step()
        num_lesser.append(sum(r.request_id.startswith("batch") for r in driver.scheduler.running))
    assert max(num_lesser) <= 1
    unhindered, grain_steps = P0_STEPS, 4
    assert max(load.waits) <= unhindered + (grain_steps + 1 if num_batch else 0)
    check_answers(driver)


@pytest.mark.parametrize("pause", [True, False])
def test_demand_batch_request_ends_under_endless_urgent_ones(pause) -> None:
    """vllm PR 20608, GIE 1861: a grain now and then, though preempted after each, adds up to an answer."""
    driver = make_fair_driver(PreemptionSettings(pause=pause), lift_decode_tokens=8)
    load = EndlessP0(driver)
    load.step()
    driver.add("batch", P2, 100, max_tokens=20)
    while "batch" not in driver.finished:
        load.step()
        assert driver.num_steps < 1000, "it never ends"
    check_answers(driver)


@pytest.mark.parametrize("is_async", [False, True])
def test_demand_paused_prefill_resumes_by_the_deadline(is_async) -> None:
    """vllm PR 44794: an unbounded suspension doubled TTFT."""
    driver = make_fair_driver(suspended_prefill_deadline_s=5, shape={"token_budget": 64, "is_async": is_async})
    driver.add("batch", P2, 300)
    driver.steps(2)
    load = EndlessP0(driver)
    while is_running(driver, "batch"):
        load.step()
    paused_at = driver.num_steps
    assert driver.requests["batch"].is_prefill_chunk
    assert resume_of(driver, "batch", load) - paused_at <= 2 * 5 + P0_STEPS
    check_answers(driver)


def test_demand_running_prefill_gets_tokens_by_the_deadline() -> None:
    """vllm PR 44794: urgent prompts take every token, and a prefill keeps its slot and stands still."""
    driver = make_fair_driver(
        suspended_prefill_deadline_s=5, lift_prefill_tokens=64, shape={"token_budget": 64, "max_num_seqs": 8}
    )
    driver.add("batch", P2, 600)
    driver.step()
    gaps, gap = [], 0
    for i in range(100):
        driver.add(f"urgent-{i}", P0, 64, max_tokens=1)
        if "batch" in driver.step().scheduled:
            gaps.append(gap)
            gap = 0
        else:
            gap += 1
    assert max(gaps) <= 2 * 5 + 1
    assert len(gaps) >= 8
    check_answers(driver)


def test_demand_running_prefill_stands_still_when_there_is_no_deadline() -> None:
    """vllm PR 44794: what the deadline is there for."""
    driver = make_fair_driver(**OFF, shape={"token_budget": 64, "max_num_seqs": 8})
    driver.add("batch", P2, 600)
    driver.step()
    for i in range(60):
        driver.add(f"urgent-{i}", P0, 64, max_tokens=1)
        assert "batch" not in driver.step().scheduled


def test_demand_suspended_prefill_resumes_by_the_deadline_when_its_class_runs() -> None:
    """vllm PR 44794: it does not wait for the end of the long answers of its own class."""
    driver = make_fair_driver(
        suspended_prefill_deadline_s=5, aging_s=AgingPeriods(p1=None, p2=None), shape={"token_budget": 64}
    )
    driver.add("long", P2, 300, max_tokens=300)
    driver.steps(6)
    driver.add("begun", P2, 400)
    driver.step()
    driver.add("urgent", P0, max_tokens=200)
    assert driver.step().preempted == {"begun"}
    steps = driver.steps(7)
    assert [("begun" in s.scheduled) for s in steps] == [False] * 4 + [True] * 3
    check_answers(driver)

"""Requests that were paused: when they resume, and when they give up their KV. The rules are in `test_scheduler.py`."""

from __future__ import annotations

import pytest
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from replicas.scheduler import PriorityScheduler
from slo.priority import PriorityClass
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler
from tests.replicas.scheduler.harness.scenes import check_answers, fill, make_driver

P0, P1, P2 = PriorityClass


@pytest.mark.parametrize("is_async", [False, True])
def test_scheduler_paused_request_does_not_overtake_an_urgent_one(is_async) -> None:
    driver = make_driver(max_num_seqs=1, is_async=is_async)
    fill(driver, P2, 1, max_tokens=30)
    for i in range(3):
        driver.add(f"urgent-{i}", P0, max_tokens=4)
    while not driver.finished >= {"urgent-0", "urgent-1", "urgent-2"}:
        assert "P2-0" not in driver.step().scheduled or len(driver.finished) == 3
    assert driver.scheduler.preemption_counts.num_paused == 1
    check_answers(driver)


def test_scheduler_paused_request_is_not_held_up_by_one_that_cannot_run() -> None:
    driver = make_driver(max_num_seqs=1)
    fill(driver, P2, 1, max_tokens=30)
    driver.add("urgent", P0, max_tokens=2)
    driver.step()
    driver.add("blocked", P0).status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    while "urgent" not in driver.finished:
        driver.step()
    assert driver.step().scheduled == {"P2-0"}


def test_scheduler_paused_request_is_not_held_up_by_one_that_does_not_fit() -> None:
    driver = make_driver(num_blocks=41, max_num_seqs=2)
    fill(driver, P0, 1, prompt=300, max_tokens=60)
    driver.add("batch", P2, 40, max_tokens=100)
    driver.steps(2)
    driver.add("short", P0, 10, max_tokens=2)
    assert driver.step().preempted == {"batch"}
    driver.add("too-big", P0, 450, max_tokens=4)
    while "short" not in driver.finished:
        driver.step()
    assert driver.step().scheduled == {"P0-0", "batch"}
    check_answers(driver)


def test_scheduler_paused_request_drains_when_new_ones_are_held_back() -> None:
    driver = make_driver(max_num_seqs=1)
    fill(driver, P2, 1, max_tokens=30)
    driver.add("urgent", P0, max_tokens=2)
    driver.add("urgent-too", P0)
    driver.step()
    driver.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    while "urgent" not in driver.finished:
        driver.step()
    assert driver.step().scheduled == {"P2-0"}
    driver.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert driver.step().scheduled == {"urgent-too"}
    check_answers(driver)


@pytest.mark.parametrize("is_async", [False, True])
def test_scheduler_paused_request_gives_its_kv_to_a_running_one(is_async) -> None:
    driver = make_driver(max_num_seqs=1, num_blocks=21, is_async=is_async)
    fill(driver, P2, 1, prompt=200, max_tokens=30)
    driver.add("urgent", P0, 60, max_tokens=150)
    driver.step()
    assert driver.scheduler.preemption_counts.num_paused == 1
    while "urgent" not in driver.finished:
        step = driver.step()
        assert "urgent" in step.scheduled or step.output.total_num_scheduled_tokens == 0
    counts = driver.scheduler.preemption_counts
    assert (counts.num_reclaimed, counts.num_recomputed) == (1, 0)
    assert counts.num_lost_tokens >= 200
    check_answers(driver)


def test_scheduler_paused_requests_do_not_lock_each_other_out() -> None:
    """Nothing runs, no block is free, and the first to resume needs one: another paused one has to give up its own."""
    driver = make_driver(max_num_seqs=2)
    first, second = fill(driver, P2, 2, prompt=28)
    scheduler = driver.scheduler
    while driver.requests[first].num_computed_tokens % scheduler.block_size:
        driver.step()
    for i in range(2):
        driver.add(f"urgent-{i}", P0)
    scheduler.schedule()
    scheduler.finish_requests(["urgent-0", "urgent-1"], RequestStatus.FINISHED_ABORTED)
    scheduler.kv_cache_manager.block_pool.get_new_blocks(driver.num_free_blocks)
    assert list(scheduler.schedule().num_scheduled_tokens) == [first]
    assert list(scheduler.waiting) == [driver.requests[second]]
    assert scheduler.preemption_counts.num_reclaimed == 1


def test_scheduler_does_not_pause_and_resume_by_turns_when_the_urgent_one_cannot_fit() -> None:
    driver = make_driver(num_blocks=41, max_num_seqs=3)
    fill(driver, P0, 1, prompt=300, max_tokens=60)
    driver.add("batch", P2, 40, max_tokens=100)
    driver.steps(2)
    driver.add("short", P0, 10, max_tokens=2)
    driver.add("short-too", P0, 10, max_tokens=2)
    driver.step()
    driver.add("too-big", P0, 450, max_tokens=4)
    while "P0-0" not in driver.finished:
        driver.step()
    assert driver.scheduler.preemption_counts.num_paused <= 1
    check_answers(driver)


@pytest.mark.parametrize("is_async", [False, True])
def test_scheduler_frees_the_blocks_of_a_paused_request_that_is_aborted(is_async) -> None:
    driver = make_driver(is_async=is_async)
    fill(driver, P2, 2)
    driver.add("urgent", P0)
    [victim] = driver.step().preempted
    held = len(driver.scheduler.kv_blocks.held_by(victim))
    free = driver.num_free_blocks
    driver.abort(victim)
    assert driver.num_free_blocks == free + held
    check_answers(driver)


def test_scheduler_preempts_nobody_for_a_request_whose_output_is_still_in_flight() -> None:
    """vLLM would not resume it yet. As many steps in flight are what pipeline stages add."""
    scheduler = build_scheduler(EngineShape(max_num_seqs=1, is_async=True))
    driver = Driver(scheduler, depth=4)
    driver.add("standard", P1, max_tokens=60)
    driver.steps(6)
    driver.add("urgent", P0)
    assert driver.step().preempted == {"standard"}
    driver.abort("urgent")
    driver.add("batch", P2, max_tokens=60)
    joined = [step.scheduled for step in driver.steps(3)]
    assert joined == [{"batch"}, {"batch"}, {"standard"}]
    assert scheduler.preemption_counts.num_refused == 0
    check_answers(driver)


def test_scheduler_resumes_a_paused_request_as_the_decode_it_was() -> None:
    driver = make_driver(is_async=True, max_num_seqs=1)
    fill(driver, P2, 1)
    driver.add("urgent", P0, max_tokens=3)
    assert driver.step().preempted == {"P2-0"}
    while "urgent" not in driver.finished:
        driver.step()
    assert "P2-0" in driver.step().scheduled
    request = driver.requests["P2-0"]
    assert not request.is_prefill_chunk
    assert request.num_output_placeholders == 1, "the token of the step in which it resumed, and no older one"
    check_answers(driver)


def test_scheduler_finishes_a_paused_request_whose_last_token_was_in_flight() -> None:
    driver = make_driver(is_async=True, max_num_seqs=1)
    driver.add("batch", P2, max_tokens=2)
    driver.steps(2)
    driver.add("urgent", P0, max_tokens=5)
    assert driver.step().preempted == {"batch"}
    driver.steps(2)
    assert "batch" in driver.finished
    check_answers(driver)


def test_scheduler_resets_the_prefix_cache_although_a_request_is_paused() -> None:
    driver = make_driver(prefix_cache=True)
    fill(driver, P2, 2)
    driver.add("urgent", P0)
    driver.step()
    assert isinstance(driver.scheduler, PriorityScheduler)
    assert driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert driver.num_free_blocks == driver.num_all_blocks

"""The scheduler's rules on the real vLLM scheduler, without a model.

Each rule, and the test that fails when it is taken out (by hand; the properties catch most of them as well):

    rule                                              test
    classes order the waiting queue                   test_class_queue.py, orders_by_class_then_by_arrival
    a victim keeps its place by arrival               victim_resumes_before_newer_ones_of_its_class
    decodes go first                                  stream_does_not_stall_while_a_more_urgent_prompt_is_read
    prefills go by class                              running_prefills_get_tokens_in_class_order
    a waiting request's tokens are reserved           waiting_prompt_gets_its_tokens_before_a_lesser_running_prefill
    a preemption for a waiting request                urgent_request_runs_in_the_next_step_when_every_slot_is_taken
    never among equals                                equal_class_never_displaces
    two victims a step                                takes_two_victims_a_step_at_most
    nobody yields to who cannot run yet               preempts_nobody_for_a_request_whose_output_is_still_in_flight
    nobody yields in vain                             takes_nobody_when_all_would_not_be_enough
    slots short: pause                                pauses_when_only_slots_are_short
    KV short: recompute                               recomputes_when_kv_is_short
    output in flight is stale for a paused one        resumes_a_paused_request_as_the_decode_it_was
    victims stay out of the queues for a step         victim_does_not_resume_in_its_own_step
    the victim leaves prev_step_scheduled_req_ids     victim_gets_all_its_tokens_sent_again
    paused ones wait behind a more urgent one         paused_request_does_not_overtake_an_urgent_one
    ... but not behind one that cannot run            paused_request_is_not_held_up_by_one_that_does_not_fit
    ... nor when new requests are held back           paused_request_drains_when_new_ones_are_held_back
    paused ones yield their KV to running ones        paused_request_gives_its_kv_to_a_running_one
    paused ones yield to the first of them            paused_requests_do_not_lock_each_other_out
    refused requests ask less and less often          test_scheduler_fallbacks.py, asks_less_and_less_often_when_refused
    priorities are clamped                            exhausted_kv_takes_the_newest_of_the_least_urgent_class
"""

from __future__ import annotations

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from slo.priority import PriorityClass
from slo.settings.scheduling import PreemptionSettings
from tests.replicas.scheduler.harness import EngineShape, build_scheduler
from tests.replicas.scheduler.harness.scenes import check_answers, fill, is_running, make_driver

P0, P1, P2 = PriorityClass
FORMS = [(is_async, is_v2) for is_async in (False, True) for is_v2 in (False, True)]


@pytest.mark.parametrize(("is_async", "is_v2"), FORMS)
@pytest.mark.parametrize("pause", [True, False])
def test_scheduler_urgent_request_runs_in_the_next_step_when_every_slot_is_taken(is_async, is_v2, pause) -> None:
    driver = make_driver(PreemptionSettings(pause=pause), is_async=is_async, is_v2=is_v2)
    fill(driver, P2, 2)
    driver.add("urgent", P0)
    step = driver.step()
    assert "urgent" in step.scheduled
    assert len(step.preempted) == 1
    check_answers(driver)


def test_scheduler_is_asynchronous_where_the_engine_is() -> None:
    forms = [type(build_scheduler(EngineShape(is_async=is_async))).__name__ for is_async in (False, True)]
    assert forms == ["PriorityScheduler", "AsyncPriorityScheduler"]


@pytest.mark.parametrize(("is_async", "is_v2"), FORMS)
def test_scheduler_standard_request_displaces_a_batch_one(is_async, is_v2) -> None:
    driver = make_driver(is_async=is_async, is_v2=is_v2)
    fill(driver, P2, 2)
    driver.add("standard", P1)
    assert "standard" in driver.step().scheduled
    check_answers(driver)


@pytest.mark.parametrize("priority", list(PriorityClass))
def test_scheduler_equal_class_never_displaces(priority) -> None:
    driver = make_driver()
    first = fill(driver, priority, 2)
    driver.add("equal", priority)
    for step in driver.steps(10):
        assert not step.preempted
        assert step.scheduled == set(first)
    check_answers(driver)


def test_scheduler_takes_two_victims_a_step_at_most() -> None:
    driver = make_driver(max_num_seqs=4)
    fill(driver, P2, 4)
    for i in range(4):
        driver.add(f"urgent-{i}", P0)
    first, second = driver.step(), driver.step()
    assert [len(first.preempted), len(second.preempted)] == [2, 2]
    assert {"urgent-0", "urgent-1"} <= first.scheduled
    assert second.scheduled == {f"urgent-{i}" for i in range(4)}
    check_answers(driver)


def test_scheduler_takes_nobody_when_all_would_not_be_enough() -> None:
    driver = make_driver(num_blocks=41, max_num_seqs=4)
    fill(driver, P0, 1, prompt=300, max_tokens=40)
    driver.add("batch", P2, 40, max_tokens=100)
    driver.step()
    driver.add("too-big", P0, 450)
    for step in driver.steps(20):
        assert not step.preempted
        assert "batch" in step.scheduled
    check_answers(driver)


def test_scheduler_takes_as_many_victims_as_it_needs_over_several_steps() -> None:
    driver = make_driver(num_blocks=41, max_num_seqs=8)
    fill(driver, P2, 5, prompt=100, max_tokens=20)
    driver.add("big", P0, 600)
    steps = [driver.step() for _ in range(3)]
    assert [len(s.preempted) for s in steps] == [2, 2, 1]
    assert [("big" in s.scheduled) for s in steps] == [False, False, True]
    check_answers(driver)


@pytest.mark.parametrize("is_async", [False, True])
def test_scheduler_victim_resumes_before_newer_ones_of_its_class(is_async) -> None:
    driver = make_driver(is_async=is_async)
    fill(driver, P2, 2, max_tokens=30)
    driver.add("newer", P2)
    driver.add("urgent", P0, max_tokens=3)
    victim = next(iter(driver.step().preempted))
    while not is_running(driver, victim):
        driver.step()
        assert not is_running(driver, "newer")
    check_answers(driver)


@pytest.mark.parametrize(("is_async", "is_v2"), FORMS)
def test_scheduler_pauses_when_only_slots_are_short(is_async, is_v2) -> None:
    driver = make_driver(is_async=is_async, is_v2=is_v2)
    victims = fill(driver, P2, 2)
    driver.add("urgent", P0)
    driver.step()
    assert len(driver.scheduler.kv_holding_waiting) == 1
    check_answers(driver)
    counts = driver.scheduler.preemption_counts
    assert (counts.num_paused, counts.num_recomputed, counts.num_lost_tokens) == (1, 0, 0)
    assert counts.num_victims == {P0: 0, P1: 0, P2: 1}
    for request_id in victims:
        request = driver.requests[request_id]
        assert driver.worker.num_computed_tokens[request_id] <= request.num_tokens - 1 + is_async


@pytest.mark.parametrize(("is_async", "is_v2"), FORMS)
def test_scheduler_recomputes_when_kv_is_short(is_async, is_v2) -> None:
    driver = make_driver(is_async=is_async, is_v2=is_v2, num_blocks=21)
    fill(driver, P2, 1, prompt=250)
    driver.add("urgent", P0, 100)
    assert "urgent" in driver.step().scheduled
    counts = driver.scheduler.preemption_counts
    assert (counts.num_paused, counts.num_recomputed) == (0, 1)
    assert counts.num_lost_tokens >= 250
    check_answers(driver)


def test_scheduler_recomputes_when_pausing_is_switched_off() -> None:
    driver = make_driver(PreemptionSettings(pause=False))
    fill(driver, P2, 2)
    driver.add("urgent", P0)
    driver.step()
    counts = driver.scheduler.preemption_counts
    assert (counts.num_paused, counts.num_recomputed) == (0, 1)
    check_answers(driver)


def test_scheduler_preempts_nobody_when_preemption_is_switched_off() -> None:
    driver = make_driver(PreemptionSettings(enabled=False), max_num_seqs=1)
    fill(driver, P2, 1, max_tokens=20)
    driver.add("batch", P2)
    driver.add("urgent", P0)
    steps = driver.run_to_end()
    assert not any(s.preempted for s in steps)
    joined = [r for s in steps for r in s.scheduled - set(s.running_before)]
    assert joined == ["urgent", "batch"]


def test_scheduler_victim_is_the_least_urgent_with_the_least_kv() -> None:
    driver = make_driver(max_num_seqs=3)
    driver.add("standard", P1, 20, max_tokens=60)
    driver.add("large", P2, 200, max_tokens=60)
    driver.add("small", P2, 50, max_tokens=60)
    driver.steps(3)
    driver.add("urgent", P0)
    assert driver.step().preempted == {"small"}


@pytest.mark.parametrize("pause", [True, False])
def test_scheduler_victim_does_not_resume_in_its_own_step(monkeypatch, pause) -> None:
    driver = make_driver(PreemptionSettings(pause=pause))
    fill(driver, P2, 2)
    driver.add("urgent", P0)
    monkeypatch.setattr(driver.scheduler, "_ec_transfer_pending", lambda r, _: r.request_id == "urgent")
    step = driver.step()
    assert step.preempted
    assert not step.preempted & step.scheduled
    assert step.preempted < driver.step().scheduled
    assert driver.scheduler.preemption_counts.num_refused == 1


def test_scheduler_victim_gets_all_its_tokens_sent_again(monkeypatch) -> None:
    """vLLM leaves out the tokens of whom it scheduled in the step before; the V1 runner has dropped a victim since."""
    driver = make_driver()
    fill(driver, P2, 2)
    driver.add("urgent", P0)
    seen: list[tuple[str, set[str]]] = []
    schedule = Scheduler.schedule

    def spy(self, throttle_prefills=False):
        seen.extend((i, set(self.prev_step_scheduled_req_ids)) for i in self.reset_preempted_req_ids)
        return schedule(self, throttle_prefills)

    monkeypatch.setattr(Scheduler, "schedule", spy)
    driver.step()
    [(victim, sent_before)] = seen
    assert victim not in sent_before
    assert sent_before, "the other one was scheduled in the step before"


def test_scheduler_exhausted_kv_takes_the_newest_of_the_least_urgent_class() -> None:
    driver = make_driver(num_blocks=21, max_num_seqs=4)
    driver.add("older", 7, 90, max_tokens=60)
    driver.add("newer", 2, 90, max_tokens=60)
    driver.add("urgent", P0, 90, max_tokens=60)
    victims: list[str] = []
    while not victims:
        victims += driver.step().preempted
    assert victims == ["newer"]
    assert driver.scheduler.preemption_counts.num_victims == {P0: 0, P1: 0, P2: 1}
    check_answers(driver)


def test_scheduler_forgets_a_waiting_request_that_is_aborted() -> None:
    driver = make_driver()
    fill(driver, P0, 2)
    driver.add("waiting", P1)
    driver.step()
    driver.abort("waiting")
    assert len(driver.scheduler.waiting) == 0
    assert not any("waiting" in s.scheduled for s in driver.run_to_end())

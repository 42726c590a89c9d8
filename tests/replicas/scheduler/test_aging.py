"""Fairness on the real scheduler: what a lifted request counts as, and for how long. A step lasts a second here."""

from __future__ import annotations

from collections import deque
from copy import copy

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from vllm.v1.request import RequestStatus

from replicas.scheduler.step_view import StepView
from slo.priority import PriorityClass
from slo.settings.scheduling import AgingPeriods, FairnessSettings, PreemptionSettings, SchedulerSettings
from tests.replicas.scheduler.harness import Driver, EngineShape, Step, build_scheduler
from tests.replicas.scheduler.harness.scenes import check_answers, fill, is_running
from tests.replicas.scheduler.test_scheduler_properties import ARRIVALS, SHAPES
from tests.replicas.scheduler.test_scheduler_properties import _check_answers as check_all_answers
from tests.replicas.scheduler.test_scheduler_properties import _play as play

P0, P1, P2 = PriorityClass
OFF = {"aging_s": AgingPeriods(p1=None, p2=None), "suspended_prefill_deadline_s": None}


def make_fair_driver(preemption: PreemptionSettings | None = None, shape=None, **fairness) -> Driver:
    fair = FairnessSettings(**{"aging_s": AgingPeriods(p1=20, p2=30), "suspended_prefill_deadline_s": None, **fairness})
    engine = EngineShape(**{"max_num_seqs": 2, "prefix_cache": False, **(shape or {})})
    settings = SchedulerSettings(fairness=fair, preemption=preemption or PreemptionSettings())
    return Driver(build_scheduler(engine, settings), depth=2 if engine.is_async else 1, step_s=1.0)


def level(driver: Driver, request_id: str) -> int:
    return driver.requests[request_id].priority


def first_step_at(driver: Driver, request_id: str, priority: PriorityClass) -> int:
    while level(driver, request_id) != priority.level:
        driver.step()
        assert driver.num_steps < 1000, f"{request_id} never counts as {priority}"
    return driver.num_steps


def test_aging_lifts_a_waiting_request_step_by_step() -> None:
    driver = make_fair_driver()
    fill(driver, P0, 2, max_tokens=200)
    driver.add("batch", P2)
    began = driver.num_steps
    assert first_step_at(driver, "batch", P1) - began == 31
    assert first_step_at(driver, "batch", P0) - began == 51
    assert driver.scheduler.preemption_counts.num_promotions == 2
    check_answers(driver)


def test_aging_leaves_everyone_as_they_are_when_it_is_off() -> None:
    driver = make_fair_driver(**OFF)
    fill(driver, P0, 2, max_tokens=300)
    driver.add("batch", P2)
    driver.add("standard", P1)
    driver.steps(250)
    assert (level(driver, "batch"), level(driver, "standard")) == (2, 1)
    check_answers(driver)


def test_aging_reorders_the_queue_at_once() -> None:
    driver = make_fair_driver(aging_s=AgingPeriods(p1=None, p2=30))
    fill(driver, P0, 2, max_tokens=70)
    driver.add("batch", P2)
    for i in range(3):
        driver.steps(16)
        driver.add(f"standard-{i}", P1)
    assert [r.request_id for r in driver.scheduler.waiting] == ["batch", "standard-0", "standard-1", "standard-2"]
    check_answers(driver)


def test_aging_lifts_nobody_while_its_own_class_runs() -> None:
    driver = make_fair_driver()
    fill(driver, P2, 2, max_tokens=200)
    driver.add("batch", P2)
    for step in driver.steps(150):
        assert not step.preempted
    assert level(driver, "batch") == 2
    check_answers(driver)


def test_aging_takes_no_class_for_starved_in_the_moment_between_two_of_it() -> None:
    driver = make_fair_driver(shape={"max_num_seqs": 1})
    for i in range(8):
        driver.add(f"batch-{i}", P2)
    driver.run_to_end()
    assert driver.scheduler.preemption_counts.num_promotions == 0


def test_aging_lifts_as_few_as_are_set() -> None:
    driver = make_fair_driver(max_lifted=2)
    fill(driver, P0, 2, max_tokens=200)
    for i in range(5):
        driver.add(f"batch-{i}", P2)
    driver.steps(100)
    assert [level(driver, f"batch-{i}") for i in range(5)] == [0, 0, 1, 1, 2]
    check_answers(driver)


def test_aging_gives_the_place_of_an_aborted_request_to_the_next() -> None:
    driver = make_fair_driver()
    fill(driver, P0, 2, max_tokens=200)
    for i in range(3):
        driver.add(f"batch-{i}", P2)
    first_step_at(driver, "batch-0", P0)
    driver.abort("batch-0")
    assert level(driver, "batch-0") == P2.level
    driver.steps(2)
    assert (level(driver, "batch-1"), level(driver, "batch-2")) == (0, 1)
    check_answers(driver)
    assert not len(driver.scheduler.aging.book)


@pytest.mark.parametrize("is_async", [False, True])
def test_aging_is_sticky_until_a_decode_has_had_its_tokens(is_async) -> None:
    driver = make_fair_driver(
        lift_decode_tokens=8, shape={"max_num_seqs": 1, "is_async": is_async}, max_preemptions_per_request=None
    )
    driver.add("batch", P2, max_tokens=60)
    driver.steps(3)
    for i in range(12):
        driver.add(f"urgent-{i}", P0, max_tokens=10)
    first_step_at(driver, "batch", P0)
    while not is_running(driver, "batch"):
        driver.step()
    while level(driver, "batch") != P2.level:
        step = driver.step()
        assert "batch" in step.scheduled
    num_tokens = driver.scheduler.requests["batch"].num_tokens
    assert driver.step().preempted == {"batch"}
    assert num_tokens >= 20 + 8
    check_answers(driver)


def test_aging_is_sticky_until_a_prefill_has_had_its_chunk() -> None:
    driver = make_fair_driver(lift_prefill_tokens=100, shape={"max_num_seqs": 1, "token_budget": 64})
    driver.add("urgent", P0, max_tokens=10)
    driver.add("batch", P2, 300)
    driver.step()
    for i in range(12):
        driver.add(f"urgent-{i}", P0, max_tokens=10)
    shares: list[int] = []
    while not sum(shares) or level(driver, "batch") != P2.level:
        shares.append(driver.step().output.num_scheduled_tokens.get("batch", 0))
    assert [s for s in shares if s] == [64, 64]
    assert driver.step().preempted == {"batch"}
    check_answers(driver)


def test_aging_counts_anew_from_the_last_preemption() -> None:
    driver = make_fair_driver(shape={"max_num_seqs": 1})
    driver.add("batch", P2, max_tokens=80)
    driver.steps(25)
    driver.add("urgent", P0, max_tokens=90)
    assert driver.step().preempted == {"batch"}
    preempted_at = driver.num_steps
    assert 30 <= first_step_at(driver, "batch", P1) - preempted_at <= 31
    check_answers(driver)


def test_aging_protects_a_lifted_request_from_its_equals_only() -> None:
    driver = make_fair_driver(shape={"max_num_seqs": 1, "token_budget": 64})
    driver.add("standard-0", P1, max_tokens=10)
    driver.add("batch", P2, 400)
    for i in range(1, 6):
        driver.add(f"standard-{i}", P1, max_tokens=12)
    while not is_running(driver, "batch"):
        driver.step()
    for step in driver.steps(3):
        assert level(driver, "batch") == 1
        assert not step.preempted
    driver.add("urgent", P0, max_tokens=3)
    step = driver.step()
    assert step.preempted == {"batch"}
    assert "urgent" in step.scheduled
    check_answers(driver)


def test_aging_keeps_the_place_of_a_resumed_request_among_its_new_class() -> None:
    driver = make_fair_driver(shape={"max_num_seqs": 1})
    driver.add("batch", P2, max_tokens=60)
    driver.steps(3)
    driver.add("urgent", P0, max_tokens=45)
    driver.step()
    driver.steps(25)
    driver.add("standard", P1)
    driver.steps(10)
    assert level(driver, "batch") == 1
    while not is_running(driver, "batch"):
        assert not is_running(driver, "standard")
        driver.step()
    check_answers(driver)


def test_aging_does_not_lose_a_lift_when_kv_runs_out() -> None:
    driver = make_fair_driver(shape={"max_num_seqs": 4, "num_blocks": 21}, lift_decode_tokens=500)
    driver.add("urgent-0", P0, 90, max_tokens=60)
    driver.add("urgent-1", P0, 150, max_tokens=50)
    driver.step()
    driver.add("batch", P2, 100, max_tokens=40)
    first_step_at(driver, "batch", P1)
    check_answers(driver)
    assert not len(driver.scheduler.aging.book)


@pytest.mark.parametrize("pause", [True, False])
def test_aging_forbids_victims_that_have_had_enough(pause) -> None:
    driver = make_fair_driver(PreemptionSettings(pause=pause), max_preemptions_per_request=2, **OFF)
    fill(driver, P2, 2, max_tokens=100)
    victims: list[str] = []
    for i in range(6):
        driver.add(f"urgent-{i}", P0, max_tokens=2)
        for step in driver.steps(6):
            victims += step.preempted
    assert sorted(victims) == ["P2-0", "P2-0", "P2-1", "P2-1"]
    assert driver.scheduler.preemption_counts.num_capped == 2
    assert not any(h.can_yield for h in StepView(driver.scheduler).list_holders())
    check_answers(driver)


def test_aging_knows_no_cap_when_there_is_none() -> None:
    driver = make_fair_driver(max_preemptions_per_request=None, **OFF)
    fill(driver, P2, 2, max_tokens=100)
    for i in range(10):
        driver.add(f"urgent-{i}", P0, max_tokens=2)
        driver.steps(6)
    assert sum(driver.requests[f"P2-{i}"].num_preemptions for i in range(2)) == 10
    assert driver.scheduler.preemption_counts.num_capped == 0
    check_answers(driver)


def test_aging_does_not_count_a_session_that_waits_for_its_client() -> None:
    driver = make_fair_driver(shape={"max_num_seqs": 3})
    fill(driver, P0, 3, max_tokens=300)
    session = driver.add("session", P2)
    first_step_at(driver, "session", P1)
    scheduler = driver.scheduler
    scheduler.waiting.remove_request(session)
    session.resumable, session.streaming_queue = True, deque()
    session.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    scheduler.num_waiting_for_streaming_input += 1
    scheduler._enqueue_waiting_request(session)
    assert level(driver, "session") == 2
    assert "session" not in scheduler.aging.book.waiting_ids
    driver.steps(40)
    assert level(driver, "session") == 2
    scheduler.add_request(copy(session))
    assert scheduler.aging.book.waiting_ids == {"session"}
    scheduler.aging.check_invariants()


FAIRNESS = st.builds(
    FairnessSettings,
    aging_s=st.builds(AgingPeriods, p1=st.sampled_from([None, 3, 9]), p2=st.sampled_from([None, 2, 7])),
    max_lifted=st.sampled_from([1, 2]),
    lift_prefill_tokens=st.sampled_from([1, 32, 512]),
    lift_decode_tokens=st.sampled_from([1, 5]),
    max_preemptions_per_request=st.sampled_from([None, 0, 1, 3]),
    suspended_prefill_deadline_s=st.sampled_from([None, 2, 5]),
)


@hypothesis_settings(
    max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(fair=FAIRNESS, shape=SHAPES, arrivals=ARRIVALS, pause=st.booleans())
def test_aging_keeps_its_promises_whatever_arrives(fair, shape, arrivals, pause) -> None:
    preemption = PreemptionSettings(pause=pause)
    scheduler = build_scheduler(shape, SchedulerSettings(fairness=fair, preemption=preemption))
    cap = fair.max_preemptions_per_request

    def check(step: Step) -> None:
        if cap is not None and not scheduler._has_engine_preempted:
            assert all(driver.requests[victim].num_preemptions <= cap for victim in step.preempted)
        for request_id, request in driver.requests.items():
            assert request.priority <= arrivals[int(request_id[1:])].priority.level
            is_lifted = request_id in scheduler.aging.book.lifted_ids
            assert (
                is_lifted or request.is_finished() or request.priority == arrivals[int(request_id[1:])].priority.level
            )

    driver = Driver(scheduler, depth=2 if shape.is_async else 1, step_s=1.0, check=check)
    play(driver, arrivals)
    check_all_answers(driver)
    assert driver.num_free_blocks == driver.num_all_blocks
    assert not len(scheduler.aging.book)

"""One thing at a time that happens to a request that is swapped out, and what must be left of it: nothing.

Mutations tried, each of which fails a test here: one worker's word taken for all; host slots given back at once on an
abort; a refusal counted in each step; a finished load let through before an urgent request; the slot of a loading
request given away; swapping although the prefix cache is being reset; blocks on their way out not counted as free soon.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from vllm.v1.request import RequestStatus

from replicas.kv_swap.counts import LossReason, SwapCounts
from replicas.kv_swap.ledger import SwapLedger
from replicas.kv_swap.moves import Direction, Tier
from slo.priority import PriorityClass
from tests.replicas.scheduler.harness import Driver
from tests.replicas.scheduler.harness.scenes import check_answers, is_running
from tests.replicas.scheduler.harness.swap_run import SwapRun, make_swap_driver

P0, P1, P2 = PriorityClass
SCENE = SwapRun(num_blocks=33, max_num_seqs=4, token_budget=512, prefix_cache=False, max_delay_steps=0)
"""32 blocks of 16 tokens: two requests of 200 tokens fill them."""


def make_scene(delay_steps: int = 0, **changes) -> Driver:
    """Two batch requests that decode and hold nearly all KV; each copy takes `delay_steps` steps."""
    driver = make_swap_driver(replace(SCENE, **changes))
    set_delay(driver, delay_steps)
    for name in ("batch-0", "batch-1"):
        driver.add(name, P2, 200, max_tokens=40)
    driver.steps(4)
    assert is_running(driver, "batch-0")
    assert is_running(driver, "batch-1")
    return driver


def set_delay(driver: Driver, *delays: int) -> None:
    """For each rank, or one for all."""
    copiers = driver.swap.copiers
    for copier, delay in zip(copiers, delays * len(copiers) if len(delays) == 1 else delays, strict=True):
        copier.delay_of = lambda _, delay=delay: delay


def ledger_of(driver: Driver) -> SwapLedger:
    return driver.scheduler.connector.swap.ledger


def counts_of(driver: Driver) -> SwapCounts:
    return driver.scheduler.preemption_counts.swap


def step_until(driver: Driver, condition) -> None:
    for _ in range(300):
        if condition():
            return
        driver.step()
    raise AssertionError("it does not come to that")


def check_nothing_left(driver: Driver, host_slots: int = SCENE.host_slots) -> None:
    driver.run_to_end()
    ledger = ledger_of(driver)
    ledger.check_invariants()
    assert not ledger.num_in_flight
    assert ledger.room.free_blocks(Tier.MEMORY) == host_slots
    assert driver.num_free_blocks == driver.num_all_blocks


@pytest.mark.parametrize("depth", [1, 2])
def test_connector_makes_room_for_an_urgent_request_and_brings_the_victim_back(depth: int) -> None:
    driver = make_scene(depth=depth)
    driver.add("urgent", P0, 150, max_tokens=5)
    first = driver.step()
    assert first.preempted == {"batch-1"}
    step_until(driver, lambda: is_running(driver, "urgent"))
    assert driver.num_steps <= 4 + 1 + depth
    check_answers(driver)
    counts = driver.scheduler.preemption_counts
    assert (counts.num_swapped, counts.num_recomputed, counts.num_recomputed_tokens) == (1, 0, 0)
    assert counts.swap.num_swapped_in == 1
    computed = driver.worker.num_computed_tokens["batch-1"]
    assert computed == 200 + 40 - 1, "something was computed again"
    check_nothing_left(driver)


def test_connector_keeps_blocks_until_every_worker_has_copied_them() -> None:
    driver = make_scene(num_workers=2)
    set_delay(driver, 0, 3)
    driver.add("urgent", P0, 150, max_tokens=5)
    driver.step()
    freeing = ledger_of(driver).num_freeing
    assert freeing > 0
    for _ in range(3):
        assert driver.num_free_blocks < freeing
        assert not is_running(driver, "urgent")
        driver.step()
    step_until(driver, lambda: is_running(driver, "urgent"))
    check_answers(driver)


def test_connector_takes_no_second_victim_while_blocks_are_on_their_way() -> None:
    driver = make_scene(delay_steps=5)
    driver.add("urgent", P0, 150, max_tokens=5)
    assert sum(len(step.preempted) for step in driver.steps(6)) == 1
    check_answers(driver)


def test_connector_says_not_yet_while_a_copy_out_is_in_flight() -> None:
    driver = make_scene(delay_steps=4)
    driver.add("urgent", P0, 150, max_tokens=1)
    driver.step()
    connector, victim = driver.scheduler.connector, driver.requests["batch-1"]
    assert connector.get_num_new_matched_tokens(victim, 0) == (None, False)
    step_until(driver, lambda: not ledger_of(driver).is_leaving("batch-1"))
    num_tokens, is_async = connector.get_num_new_matched_tokens(victim, 0)
    assert num_tokens == victim.num_tokens - 1
    assert is_async
    check_answers(driver)


def test_connector_resumes_in_class_order_before_later_ones_of_its_class() -> None:
    driver = make_scene()
    driver.add("urgent", P0, 150, max_tokens=5)
    driver.step()
    for i in range(6):
        driver.add(f"late-{i}", P2, 100, max_tokens=5)
    step_until(driver, lambda: is_running(driver, "batch-1"))
    assert not any(driver.outputs[f"late-{i}"] for i in range(6))
    check_answers(driver)


def test_connector_lets_no_finished_load_overtake_an_urgent_request() -> None:
    driver = make_scene(delay_steps=2, max_num_seqs=2)
    driver.add("urgent-0", P0, 150, max_tokens=6)
    step_until(driver, lambda: "batch-1" in driver.scheduler.finished_recving_kv_req_ids)
    assert len(driver.scheduler.running) == 1, "one slot is free"
    driver.add("urgent-1", P0, 30, max_tokens=20)
    step = driver.step()
    assert "urgent-1" in step.scheduled
    assert not step.preempted
    assert not is_running(driver, "batch-1")
    check_answers(driver)


def test_connector_keeps_the_slot_of_a_request_that_is_being_loaded() -> None:
    driver = make_scene(delay_steps=4, max_num_seqs=2)
    driver.add("urgent", P0, 150, max_tokens=2)
    step_until(driver, lambda: driver.requests["batch-1"].status == RequestStatus.WAITING_FOR_REMOTE_KVS)
    driver.add("late", P2, 10, max_tokens=5)
    driver.steps(2)
    assert driver.scheduler.swapping.num_reserved_slots == 1
    assert not is_running(driver, "late")
    step_until(driver, lambda: is_running(driver, "batch-1"))
    check_answers(driver)


@pytest.mark.parametrize("when", ["copying out", "waiting", "copying in"])
@pytest.mark.parametrize("depth", [1, 2])
def test_connector_leaves_nothing_when_a_request_is_aborted(when: str, depth: int) -> None:
    driver = make_scene(delay_steps=3, depth=depth)
    driver.add("urgent", P0, 150, max_tokens=12)
    driver.step()
    victim, ledger = driver.requests["batch-1"], ledger_of(driver)
    reached = {
        "copying out": lambda: ledger.is_leaving("batch-1"),
        "waiting": lambda: ledger.is_swapped("batch-1") and not ledger.is_leaving("batch-1"),
        "copying in": lambda: victim.status == RequestStatus.WAITING_FOR_REMOTE_KVS,
    }
    step_until(driver, reached[when])
    num_free = ledger.room.free_blocks(Tier.MEMORY)
    driver.abort("batch-1")
    is_copied = when != "waiting"
    assert (ledger.room.free_blocks(Tier.MEMORY) == num_free) == is_copied, "slots in use until the copy is done"
    check_answers(driver)
    check_nothing_left(driver)


def test_connector_leaves_nothing_after_a_thousand_aborts() -> None:
    driver = make_scene(delay_steps=2)
    chance = random.Random(1)
    for i in range(1000):
        driver.add(f"r{i}", chance.choice([P0, P1, P2, P2]), 60 + i % 90, max_tokens=1000)
        driver.step()
        alive = [request_id for request_id in driver.requests if request_id not in driver.finished]
        for _ in range(len(alive) - 12):
            driver.abort(alive.pop(chance.randrange(len(alive))))
    for request_id in list(driver.requests):
        if request_id not in driver.finished:
            driver.abort(request_id)
    assert counts_of(driver).num_swapped_out > 50
    check_nothing_left(driver)


def test_connector_gives_the_preemption_up_when_the_move_would_take_too_long() -> None:
    driver = make_scene(max_move_ms=1e-6)
    driver.add("urgent", P0, 150, max_tokens=5)
    assert not any(step.preempted for step in driver.steps(10))
    assert not driver.outputs["urgent"]
    assert counts_of(driver).num_refused == 1, "once a request"
    check_answers(driver)
    assert driver.scheduler.preemption_counts.num_victims[P2] == counts_of(driver).num_recomputed[LossReason.OVER_LIMIT]


def test_connector_recomputes_when_the_move_would_take_too_long_and_settings_say_so() -> None:
    driver = make_scene(max_move_ms=1e-6, over_limit="recompute")
    driver.add("urgent", P0, 150, max_tokens=5)
    assert driver.step().preempted == {"batch-1"}
    assert is_running(driver, "urgent")
    counts = counts_of(driver)
    assert (counts.num_recomputed[LossReason.OVER_LIMIT], counts.num_refused) == (1, 0)
    check_answers(driver)


def test_connector_recomputes_when_the_host_pool_is_smaller_than_one_request() -> None:
    driver = make_scene(host_slots=3)
    driver.add("urgent", P0, 150, max_tokens=5)
    driver.step()
    assert is_running(driver, "urgent")
    assert counts_of(driver).num_recomputed[LossReason.NO_ROOM] == 1
    check_answers(driver)
    check_nothing_left(driver, host_slots=3)


@pytest.mark.parametrize(
    ("direction", "reason"), [(Direction.OUT, LossReason.OUT_FAILED), (Direction.IN, LossReason.IN_FAILED)]
)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_connector_recomputes_when_a_copy_fails(direction: Direction, reason: LossReason, num_workers: int) -> None:
    driver = make_scene(delay_steps=1, num_workers=num_workers)
    driver.swap.copiers[-1].fails = lambda move_id: move_id == (0 if direction is Direction.OUT else 1)
    driver.add("urgent", P0, 150, max_tokens=5)
    check_answers(driver)
    assert counts_of(driver).num_recomputed[reason] == 1
    assert driver.scheduler.preemption_counts.num_recomputed_tokens >= 200
    check_nothing_left(driver)


def test_connector_swaps_a_paused_victim_when_memory_gets_short() -> None:
    driver = make_scene(max_num_seqs=2)
    driver.add("urgent-0", P0, 20, max_tokens=60)
    assert driver.step().preempted == {"batch-1"}
    counts = driver.scheduler.preemption_counts
    assert counts.num_paused == 1
    driver.add("urgent-1", P0, 150, max_tokens=5)
    step_until(driver, lambda: is_running(driver, "urgent-1"))
    assert counts.num_reclaimed_swapped >= 1
    check_answers(driver)
    assert counts.num_recomputed_tokens == 0


def test_connector_swaps_out_again_what_has_just_come_back() -> None:
    driver = make_scene(delay_steps=2)
    driver.add("urgent-0", P0, 150, max_tokens=3)
    step_until(driver, lambda: driver.requests["batch-1"].status == RequestStatus.WAITING_FOR_REMOTE_KVS)
    driver.add("urgent-1", P0, 150, max_tokens=3)
    step_until(driver, lambda: is_running(driver, "urgent-1"))
    check_answers(driver)
    assert driver.requests["batch-1"].num_preemptions + driver.requests["batch-0"].num_preemptions >= 2
    assert driver.scheduler.preemption_counts.num_recomputed_tokens == 0


@pytest.mark.parametrize("reset_running", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_steps", [1, 3, 8, 14, 16, 18, 20])
def test_connector_uses_no_kv_from_before_a_reset_of_the_prefix_cache(
    reset_running: bool, depth: int, num_steps: int
) -> None:
    driver = make_scene(delay_steps=3, depth=depth, prefix_cache=True)
    for copier in driver.swap.copiers:
        copier.may_change = True
    driver.add("urgent", P0, 150, max_tokens=6)
    driver.steps(num_steps)
    is_loading = ledger_of(driver).has_loads
    is_reset = driver.scheduler.reset_prefix_cache(reset_running_requests=reset_running)
    assert is_reset == (reset_running and not is_loading)
    if reset_running:
        assert not ledger_of(driver).room.holders
        driver.worker.note_reset(is_reset)
    check_answers(driver)
    check_nothing_left(driver)


def test_connector_swaps_nobody_out_when_the_prefix_cache_is_reset() -> None:
    driver = make_scene(prefix_cache=True)
    assert driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    driver.worker.note_reset(is_reset=True)
    assert counts_of(driver).num_swapped_out == 0
    assert driver.scheduler.preemption_counts.num_recomputed == 2
    check_answers(driver)


def test_connector_can_be_shut_down_in_the_middle() -> None:
    driver = make_scene(delay_steps=5)
    driver.add("urgent", P0, 150, max_tokens=5)
    driver.step()
    for connector in driver.swap.connectors:
        connector.shutdown()
        connector.shutdown()
    assert not any(copier.moves for copier in driver.swap.copiers)
    driver.scheduler.shutdown()
    assert ledger_of(driver).num_in_flight == 1

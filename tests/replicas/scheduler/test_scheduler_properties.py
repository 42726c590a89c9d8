"""What holds for every trace of arrivals, lengths and aborts: see `Driver` for what it checks in each step as well."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.v1.request import Request, RequestStatus

from replicas.scheduler import PriorityScheduler
from replicas.scheduler.step_view import adapter_of
from slo.priority import PriorityClass
from slo.settings.scheduling import PreemptionSettings, SchedulerSettings
from tests.replicas.scheduler.harness import Driver, EngineShape, Step, build_scheduler, expected_output

SHARED_PREFIX = list(range(100, 148))
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Arrival:
    priority: PriorityClass
    num_prompt_tokens: int
    max_tokens: int
    has_shared_prefix: bool
    steps_after_previous: int
    aborted_after_steps: int | None
    adapter: int | None


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        priority=st.sampled_from([PriorityClass.P0, PriorityClass.P1, PriorityClass.P2, PriorityClass.P2]),
        num_prompt_tokens=st.integers(1, 150),
        max_tokens=st.integers(1, 40),
        has_shared_prefix=st.booleans(),
        steps_after_previous=st.sampled_from([0, 0, 0, 1, 2, 7]),
        aborted_after_steps=st.sampled_from([None, None, None, 0, 1, 5]),
        adapter=st.sampled_from([None, None, None, 1, 2, 3]),
    ),
    min_size=2,
    max_size=24,
)

SHAPES = st.builds(
    EngineShape,
    num_blocks=st.sampled_from([18, 24, 40, 200]),
    block_size=st.just(BLOCK_SIZE),
    max_num_seqs=st.sampled_from([1, 2, 4, 8]),
    token_budget=st.sampled_from([16, 64, 512]),
    prefix_cache=st.booleans(),
    is_async=st.booleans(),
    is_v2=st.booleans(),
    watermark=st.sampled_from([0.0, 0.0, 0.1]),
    max_adapters=st.sampled_from([None, 1, 2]),
)


@pytest.mark.parametrize("pause", [True, False])
@settings(
    max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(shape=SHAPES, arrivals=ARRIVALS, depth=st.sampled_from([2, 2, 3]))
def test_scheduler_keeps_its_promises_whatever_arrives(
    pause: bool, shape: EngineShape, arrivals: list[Arrival], depth: int
) -> None:
    preemption = PreemptionSettings(pause=pause)
    scheduler = build_scheduler(shape, SchedulerSettings(preemption=preemption))
    assert isinstance(scheduler, PriorityScheduler)

    def check(step: Step) -> None:
        _check_victims(driver, step, preemption.max_victims_per_step)
        _check_urgent_ones_are_served(driver, step, preemption.max_victims_per_step)

    driver = Driver(scheduler, depth=depth if shape.is_async else 1, check=check)
    _play(driver, arrivals)
    _check_answers(driver)
    assert driver.num_free_blocks == driver.num_all_blocks
    assert not scheduler.waiting
    assert not scheduler.kv_holding_waiting
    assert not len(scheduler.refusals)


def _play(driver: Driver, arrivals: list[Arrival]) -> None:
    aborts: list[tuple[int, str]] = []
    pending = list(enumerate(arrivals))
    due = 0
    while pending or driver.scheduler.has_unfinished_requests():
        while pending and due <= driver.num_steps:
            number, arrival = pending.pop(0)
            prefix = SHARED_PREFIX if arrival.has_shared_prefix else []
            own = [3 + (number * 31 + i * 7) % 97 for i in range(arrival.num_prompt_tokens)]
            adapter = arrival.adapter if driver.scheduler.lora_config else None
            driver.add(f"r{number}", arrival.priority, prefix + own, arrival.max_tokens, adapter)
            if arrival.aborted_after_steps is not None:
                aborts.append((driver.num_steps + arrival.aborted_after_steps, f"r{number}"))
            due = driver.num_steps + pending[0][1].steps_after_previous if pending else 0
        for when, request_id in list(aborts):
            if when <= driver.num_steps:
                aborts.remove((when, request_id))
                if request_id not in driver.finished:
                    driver.abort(request_id)
        driver.step()
        assert driver.num_steps < 5000, "live lock"
    driver.run_to_end()


def _check_victims(driver: Driver, step: Step, max_victims: int) -> None:
    scheduler = driver.scheduler
    if not scheduler._has_engine_preempted:
        assert len(step.preempted) <= max_victims
    joined = step.scheduled - set(step.running_before)
    for victim in step.preempted:
        victim_class = _class_of(driver.requests[victim])
        stays = [_class_of(r) for r in scheduler.running]
        if scheduler._has_engine_preempted:
            assert not any(victim_class.outranks(c) for c in stays), "a more urgent request made room for a lesser one"
        elif joined:
            assert any(_class_of(driver.requests[j]).outranks(victim_class) for j in joined), "equals preempted"


def _check_urgent_ones_are_served(driver: Driver, step: Step, max_victims: int) -> None:
    """No request waits behind one that could yield: if it waits, then not even all lesser ones could have helped."""
    scheduler = driver.scheduler
    if scheduler._has_engine_preempted or len(step.preempted) >= max_victims:
        return
    if step.output.total_num_scheduled_tokens >= scheduler.max_num_scheduled_tokens:
        return
    waiting = [r for r in (*scheduler.waiting, *scheduler.kv_holding_waiting) if not r.num_stale_output_tokens]
    waiting = [r for r in waiting if r.request_id not in step.preempted]
    if not waiting:
        return
    first = min(waiting, key=lambda r: (r.priority, r.arrival_time))
    lesser = [r for r in scheduler.running if _class_of(first).outranks(_class_of(r))]
    if not lesser:
        return
    kept = [r for r in scheduler.requests.values() if not _class_of(first).outranks(_class_of(r)) and r is not first]
    kept_adapters = {adapter_of(r) for r in kept if r.status == RequestStatus.RUNNING} - {None, adapter_of(first)}
    if adapter_of(first) is not None and scheduler.lora_config and len(kept_adapters) >= scheduler.max_adapters:
        return
    get_ids = scheduler.kv_cache_manager.get_block_ids
    kept_blocks = {block for r in kept for group in get_ids(r.request_id) for block in group}
    needed = -(-first.num_tokens // BLOCK_SIZE)
    growth = len(kept)
    spare = driver.num_all_blocks - len(kept_blocks) - growth - scheduler.kv_cache_manager.watermark_blocks
    assert spare < needed, f"{first.request_id} waits behind {[r.request_id for r in lesser]}"


def _check_answers(driver: Driver) -> None:
    for request_id, request in driver.requests.items():
        prompt = request.prompt_token_ids
        expected = expected_output(prompt, request.max_tokens, adapter_of(request))
        if request.status == RequestStatus.FINISHED_ABORTED:
            assert driver.outputs[request_id] == expected[: len(driver.outputs[request_id])]
        else:
            assert driver.outputs[request_id] == expected


def _class_of(request: Request) -> PriorityClass:
    return PriorityClass.from_level(request.priority)

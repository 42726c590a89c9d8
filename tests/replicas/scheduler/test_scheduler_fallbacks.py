"""Requests and engines that cannot be paused, or preempted for, and what vLLM refuses for reasons of its own."""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace

import pytest
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from replicas.scheduler import PriorityScheduler
from slo.priority import PriorityClass
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler

P0, P1, P2 = PriorityClass


@pytest.fixture
def driver() -> Driver:
    """Two slots, both taken by batch requests that decode."""
    driver = Driver(build_scheduler(EngineShape(max_num_seqs=2)))
    for i in range(2):
        driver.add(f"batch-{i}", P2, max_tokens=200)
    driver.steps(3)
    return driver


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("num_spec_tokens", 3),
        ("num_sampled_tokens_per_step", 0),
        ("connector", object()),
        ("ec_connector", object()),
        ("aux_output_connector", object()),
        ("use_pp", True),
        ("is_encoder_decoder", True),
        ("has_mamba_layers", True),
        ("prefix_replay_tokens", 64),
    ],
)
def test_scheduler_cannot_pause_in_an_engine_that_loses_track_of_paused_requests(driver, attribute, value) -> None:
    scheduler = driver.scheduler
    request = driver.requests["batch-0"]
    assert attribute in vars(scheduler)
    scheduler.__dict__.pop("_engine_can_pause", None)
    assert scheduler.can_pause(request)
    del scheduler.__dict__["_engine_can_pause"]
    setattr(scheduler, attribute, value)
    assert not scheduler.can_pause(request)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("sampling_params", None), ("mm_features", [object()]), ("resumable", True), ("num_stale_output_tokens", 1)],
)
def test_scheduler_cannot_pause_a_request_of_which_more_than_its_kv_would_have_to_be_kept(
    driver, attribute, value
) -> None:
    request = driver.requests["batch-0"]
    setattr(request, attribute, value)
    assert not driver.scheduler.can_pause(request)


def test_scheduler_cannot_pause_a_request_for_prompt_logprobs(driver) -> None:
    request = driver.requests["batch-0"]
    request.sampling_params.prompt_logprobs = 1
    assert not driver.scheduler.can_pause(request)


def test_scheduler_recomputes_a_victim_that_cannot_be_paused(driver) -> None:
    for request in driver.requests.values():
        request.sampling_params.prompt_logprobs = 1
    driver.add("urgent", P0)
    assert "urgent" in driver.step().scheduled
    counts = driver.scheduler.preemption_counts
    assert (counts.num_paused, counts.num_recomputed) == (0, 1)


def test_scheduler_leaves_streaming_sessions_alone(driver) -> None:
    for request in driver.requests.values():
        request.resumable = True
    driver.add("urgent", P0)
    step = driver.step()
    assert not step.preempted
    assert "urgent" not in step.scheduled


def test_scheduler_preempts_nobody_for_a_request_whose_grammar_is_not_ready(driver) -> None:
    urgent = driver.add("urgent", P0)
    urgent.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    urgent.structured_output_request = SimpleNamespace(grammar=None)
    assert not driver.step().preempted
    urgent.structured_output_request.grammar = object()
    output = driver.scheduler.schedule()
    assert output.preempted_req_ids
    assert "urgent" in output.num_scheduled_tokens


def test_scheduler_looks_behind_a_request_whose_grammar_is_not_ready(driver) -> None:
    driver.add("blocked", P0).status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    driver.add("urgent", P0)
    step = driver.step()
    assert "urgent" in step.scheduled
    assert len(step.preempted) == 1


def test_scheduler_preempts_nobody_in_a_step_without_prefills(driver) -> None:
    """With data parallelism vLLM holds prefills back in some steps; room made then would be lost."""
    driver.add("urgent", P0)
    output = driver.scheduler.schedule(throttle_prefills=True)
    assert not output.preempted_req_ids
    assert set(output.num_scheduled_tokens) == {"batch-0", "batch-1"}


def test_scheduler_asks_less_and_less_often_when_refused(driver, monkeypatch) -> None:
    monkeypatch.setattr(driver.scheduler, "_ec_transfer_pending", lambda r, _: r.request_id == "urgent")
    driver.add("urgent", P0)
    asked_at = [i for i, step in enumerate(driver.steps(64)) if step.preempted]
    waits = [later - earlier for earlier, later in pairwise(asked_at)]
    assert waits == [2, 4, 8, 16, 32]
    assert driver.scheduler.preemption_counts.num_refused == 6
    monkeypatch.undo()
    while "urgent" not in driver.finished:
        driver.step()
    driver.step()
    assert not len(driver.scheduler.refusals)


def test_scheduler_takes_nobody_twice_while_freed_blocks_are_still_written() -> None:
    """With a connector and steps in flight, vLLM returns blocks to the pool one step later."""
    driver = Driver(build_scheduler(EngineShape(max_num_seqs=4, num_blocks=41, prefix_cache=False)))
    scheduler = driver.scheduler
    scheduler.defer_block_free = True
    for i in range(3):
        driver.add(f"batch-{i}", P2, 180, max_tokens=100)
    driver.steps(3)
    scheduler.sched_step_seq += 1  # As with a step in flight.
    for request in scheduler.running:
        request.last_sched_seq = scheduler.sched_step_seq
    driver.add("urgent", P0, 100, max_tokens=5)
    first = scheduler.schedule()
    assert len(first.preempted_req_ids) == 1
    assert "urgent" not in first.num_scheduled_tokens
    second = scheduler.schedule()
    assert not second.preempted_req_ids
    scheduler.processed_step_seq = scheduler.sched_step_seq
    scheduler._drain_deferred_frees()
    third = scheduler.schedule()
    assert not third.preempted_req_ids
    assert "urgent" in third.num_scheduled_tokens


@pytest.mark.parametrize(("cap", "expected"), [(0, 0), (30, 100), (128, 100)])
def test_scheduler_never_cuts_a_chunk_inside_an_image(cap, expected) -> None:
    scheduler = build_scheduler()
    assert isinstance(scheduler, PriorityScheduler)
    driver = Driver(scheduler)
    request = driver.add("image", P2, 300)
    request.mm_features = [object()]
    scheduler._token_caps = {"image": cap}
    assert scheduler._reserve_prefill_lookahead(request, 0, 100) == expected


def test_scheduler_cuts_a_mamba_chunk_where_its_state_can_be_kept(monkeypatch) -> None:
    scheduler = build_scheduler()
    request = Driver(scheduler).add("mamba", P2, 300)
    scheduler.need_mamba_block_aligned_split = True
    monkeypatch.setattr(scheduler, "_mamba_block_aligned_split", lambda _, n: n // 16 * 16)
    scheduler._token_caps = {"mamba": 40}
    assert scheduler._reserve_prefill_lookahead(request, 0, 100) == 32


@pytest.mark.parametrize("lookahead", [0, 3])
def test_scheduler_leaves_a_chunk_to_vllm_when_it_has_no_cap_of_its_own(lookahead) -> None:
    """With no look-ahead the answer is given without vLLM's call, which would be made for each running request."""
    scheduler = build_scheduler()
    request = Driver(scheduler).add("any", P2, 30)
    scheduler.num_prefill_lookahead = lookahead
    scheduler._token_caps = {"any": 100}
    for computed, new in product(range(0, 31, 3), range(-2, 31)):
        ours = scheduler._reserve_prefill_lookahead(request, computed, new)
        assert ours == Scheduler._reserve_prefill_lookahead(scheduler, request, computed, new)

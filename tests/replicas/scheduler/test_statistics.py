"""What the scheduler tells about itself, driven without a model on a virtual clock of 10 ms a step.

Mutations tried by hand, each found by a test here: something sent where nobody asked; a snapshot in each step; none
when the engine goes idle; a resumed request's wait counted again; a lifted request counted in the class it was lifted
to; a paused one counted as waiting; shared blocks counted twice; a step without tokens counted; saturation kept when
idle; the token use of the latest step alone.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.request import RequestStatus

from replicas.scheduler.statistics import KNOWN_BLOCKS_RATIO, PERIOD_S, TOKEN_USE_WEIGHT
from slo.priority import PriorityClass
from slo.settings.scheduling import AgingPeriods, FairnessSettings, PreemptionSettings, SchedulerSettings
from slo.snapshots import EngineSnapshot, PreemptionKind
from tests.replicas.scheduler.harness import build
from tests.replicas.scheduler.harness.listener import Listener, make_listener

P0, P1, P2 = PriorityClass


def wait_of(snapshot: EngineSnapshot, priority: PriorityClass) -> tuple[int, float]:
    """Requests that waited, and how long between them, seconds."""
    histogram = snapshot.classes[priority].queue_wait
    return histogram.count, pytest.approx(histogram.sum)


@pytest.mark.parametrize("shape", [{"has_statistics": False}, {}], ids=["no statistics", "not asked for"])
def test_statistics_are_not_sent_where_the_engine_s_owner_did_not_ask(shape, monkeypatch) -> None:
    monkeypatch.setattr(build, "ask_for_statistics", dict)
    listener = make_listener(**shape)
    listener.driver.add("a", P0)
    listener.driver.run_to_end()
    stats = listener.make_stats()
    assert listener.told == []
    assert stats is None or stats.kv_connector_stats is None


def test_statistics_are_sent_at_once_then_now_and_then_and_when_the_engine_goes_idle() -> None:
    listener = make_listener()
    listener.driver.add("a", P2, max_tokens=130)
    sent_s, num_told = [], 0
    while "a" not in listener.driver.finished:
        listener.driver.step()
        sent_s += [listener.driver.now_s] * (len(listener.told) - num_told)
        num_told = len(listener.told)
    assert sent_s == pytest.approx([0.01, 0.01 + PERIOD_S, 0.01 + 2 * PERIOD_S, 1.3])
    listener.driver.run_to_end()
    listener.scheduler.make_stats()
    assert len(listener.told) == num_told, "an idle engine has nothing new to say"


def test_statistics_take_back_what_they_told_of_a_request_that_was_aborted_before_any_step() -> None:
    listener = make_listener()
    listener.driver.add("a", P2, max_tokens=2)
    listener.driver.run_to_end()
    listener.driver.now_s += PERIOD_S
    listener.driver.add("b", P2)
    listener.scheduler.make_stats()
    listener.driver.abort("b")
    listener.scheduler.make_stats()
    assert [snapshot.classes[P2].num_waiting for snapshot in listener.told[-3:]] == [0, 1, 0]


def test_statistics_say_at_the_end_that_nothing_runs_and_nothing_is_held() -> None:
    listener = make_listener(prefix_cache=False)
    for i in range(4):
        listener.driver.add(f"a-{i}", P1, max_tokens=3)
    listener.driver.run_to_end()
    last = listener.told[-1]
    load = last.classes[P1]
    assert (load.num_running, load.num_waiting, load.num_paused) == (0, 0, 0)
    assert (last.kv.num_used_blocks, last.kv.num_allocated_slots, last.kv.num_filled_slots) == (0, 0, 0)
    assert (last.saturation_ratio, load.queue_wait.count) == (0.0, 4)
    assert last == listener.now()


def test_statistics_say_that_the_engine_is_idle_when_the_last_request_was_aborted_before_it_ran() -> None:
    listener = make_listener(max_num_seqs=1)
    listener.driver.add("runs", P2, max_tokens=2)
    listener.driver.add("waits", P2)
    listener.driver.step()
    assert listener.told[-1].classes[P2].num_waiting == 1
    listener.driver.abort("waits")
    listener.driver.run_to_end()
    assert (listener.told[-1].classes[P2].num_waiting, listener.told[-1].classes[P2].num_running) == (0, 0)
    assert listener.scheduler.statistics._arrivals == {}


def test_statistics_count_requests_by_class_and_state() -> None:
    listener = make_listener()
    driver = listener.driver
    driver.add("batch-0", P2, max_tokens=60)
    driver.add("batch-1", P2, max_tokens=60)
    driver.steps(3)
    driver.add("urgent", P0)
    driver.add("batch-2", P2)
    driver.add("standard", P1)
    driver.add("standard-1", P1)
    driver.step()
    loads = {c: (v.num_running, v.num_waiting, v.num_paused) for c, v in listener.now().classes.items()}
    assert loads == {P0: (1, 0, 0), P1: (1, 1, 0), P2: (0, 1, 2)}


def test_statistics_leave_out_a_session_that_waits_for_its_client() -> None:
    listener = make_listener()
    request = listener.driver.add("session", P1)
    request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    assert listener.now().classes[P1].num_waiting == 0


def test_statistics_count_a_lifted_request_in_its_own_class() -> None:
    settings = SchedulerSettings(fairness=FairnessSettings(aging_s=AgingPeriods(p2=0.05)))
    listener = make_listener(settings, max_num_seqs=1)
    listener.driver.add("runs", P1, max_tokens=100)
    request = listener.driver.add("waits", P2)
    while request.priority == P2.level:
        listener.driver.step()
    snapshot = listener.now()
    assert (snapshot.classes[P1].num_waiting, snapshot.classes[P2].num_waiting) == (0, 1)
    assert snapshot.num_promotions == 1


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("pause", [True, False])
def test_statistics_count_the_wait_for_the_first_step_and_none_after_a_preemption(pause, is_v2) -> None:
    settings = SchedulerSettings(preemption=PreemptionSettings(pause=pause))
    listener = make_listener(settings, max_num_seqs=1, is_v2=is_v2)
    driver = listener.driver
    driver.add("batch", P2, max_tokens=12)
    driver.steps(3)
    driver.add("urgent", P0, max_tokens=4)
    driver.add("late", P2, max_tokens=1)
    driver.run_to_end()
    snapshot = listener.told[-1]
    assert driver.scheduler.preemption_counts.num_victims[P2] == 1
    assert wait_of(snapshot, P0) == (1, 0.0)
    num_waits, waited_s = wait_of(snapshot, P2)
    assert num_waits == 2, "one for each request, however often it was preempted"
    assert waited_s == 0.01 * (4 + 9), "the late one's: behind the urgent one's 4 steps and the rest of the other's"


def test_statistics_count_the_wait_in_the_class_that_the_client_sent() -> None:
    settings = SchedulerSettings(fairness=FairnessSettings(aging_s=AgingPeriods(p2=0.05)))
    listener = make_listener(settings, max_num_seqs=1)
    listener.driver.add("runs", P1, max_tokens=20)
    listener.driver.add("waits", P2)
    listener.driver.run_to_end()
    snapshot = listener.told[-1]
    assert snapshot.num_promotions > 0
    assert (wait_of(snapshot, P1)[0], wait_of(snapshot, P2)[0]) == (1, 1)


@pytest.mark.parametrize("is_async", [False, True])
def test_statistics_count_what_each_step_computed_and_could_have(is_async) -> None:
    listener = make_listener(is_async=is_async, prefix_cache=False)
    driver = listener.driver
    budgets: list[int] = []
    driver.check = lambda step: budgets.append(
        driver.scheduler.max_num_scheduled_tokens if step.output.total_num_scheduled_tokens else 0
    )
    driver.add("a", P2, 100, max_tokens=10)
    driver.add("b", P2, 30, max_tokens=5)
    steps = driver.run_to_end()
    tokens = [step.output.total_num_scheduled_tokens for step in steps]
    sizes = [len(step.scheduled) for step in steps if step.scheduled]
    last = listener.told[-1]
    assert last.num_step_tokens == sum(tokens) >= 100 + 9 + 30 + 4
    assert last.num_budget_tokens == sum(budgets)
    assert (last.batch_sizes.count, last.batch_sizes.sum) == (len(sizes), sum(sizes))
    assert max(sizes) == 2


def test_statistics_tell_empty_slots_of_the_last_blocks_only() -> None:
    listener = make_listener(block_size=16)
    listener.driver.add("a", P2, 20, max_tokens=40)
    listener.driver.step()
    kv = listener.now().kv
    assert (kv.num_blocks, kv.num_used_blocks) == (999, 2)
    assert (kv.num_allocated_slots, kv.num_filled_slots) == (32, 20)
    listener.driver.steps(12)
    kv = listener.now().kv
    assert (kv.num_allocated_slots, kv.num_filled_slots) == (32, 32)
    listener.driver.step()
    kv = listener.now().kv
    assert (kv.num_allocated_slots, kv.num_filled_slots) == (48, 33)


def test_statistics_count_a_shared_block_once() -> None:
    listener = make_listener(block_size=16)
    prompt = list(range(3, 43))
    listener.driver.add("a", P2, prompt, max_tokens=40)
    listener.driver.step()
    listener.driver.add("b", P2, prompt, max_tokens=40)
    listener.driver.step()
    kv = listener.now().kv
    assert kv.num_used_blocks == 3 + 1
    assert (kv.num_allocated_slots, kv.num_filled_slots) == (64, 32 + 9 + 8)


def test_statistics_count_the_blocks_of_a_paused_request_as_used() -> None:
    listener = make_listener(max_num_seqs=1)
    listener.driver.add("batch", P2, 40, max_tokens=40)
    listener.driver.steps(2)
    listener.driver.add("urgent", P0, 20)
    listener.driver.step()
    kv = listener.now().kv
    assert (kv.num_used_blocks, kv.num_filled_slots) == (3 + 2, 41 + 20)


def test_statistics_tell_hits_of_a_prompt_that_comes_again_and_none_of_a_first_time_prompt() -> None:
    listener = make_listener()
    prompt = list(range(3, 60))
    for number, expected in enumerate([(0, 0), (3, 3), (6, 6)]):
        listener.driver.add(f"a-{number}", P2, prompt, max_tokens=2)
        listener.driver.run_to_end()
        kv = listener.told[-1].kv
        assert (kv.num_reusable_blocks, kv.num_hit_blocks) == expected
    listener.driver.add("b", P2, 57, max_tokens=2)
    listener.driver.run_to_end()
    kv = listener.told[-1].kv
    assert (kv.num_reusable_blocks, kv.num_hit_blocks) == (6, 6)


def test_statistics_tell_a_prompt_that_was_evicted_as_reusable_without_a_hit() -> None:
    listener = make_listener(num_blocks=11)
    prompt = list(range(3, 60))
    listener.driver.add("a", P2, prompt, max_tokens=2)
    listener.driver.run_to_end()
    listener.driver.add("b", P2, 150, max_tokens=2)
    listener.driver.run_to_end()
    listener.driver.add("a-again", P2, prompt, max_tokens=2)
    listener.driver.run_to_end()
    kv = listener.told[-1].kv
    assert (kv.num_reusable_blocks, kv.num_hit_blocks) == (3, 0)


def test_statistics_tell_a_conversation_s_next_turn_as_reusable_with_its_answer() -> None:
    listener = make_listener()
    prompt = list(range(3, 35))
    listener.driver.add("turn-1", P1, prompt, max_tokens=40)
    listener.driver.run_to_end()
    follow_up = [*prompt, *listener.driver.outputs["turn-1"], 7, 8, 9]
    listener.driver.add("turn-2", P1, follow_up, max_tokens=2)
    listener.driver.run_to_end()
    kv = listener.told[-1].kv
    assert (kv.num_reusable_blocks, kv.num_hit_blocks) == (4, 4)


def test_statistics_count_no_miss_after_the_cache_was_reset() -> None:
    listener = make_listener()
    prompt = list(range(3, 60))
    listener.driver.add("a", P2, prompt, max_tokens=2)
    listener.driver.run_to_end()
    assert listener.scheduler.reset_prefix_cache()
    listener.driver.add("a-again", P2, prompt, max_tokens=60)
    listener.driver.run_to_end()
    kv = listener.told[-1].kv
    assert (kv.num_reusable_blocks, kv.num_hit_blocks) == (0, 0)


def test_statistics_know_nothing_of_reuse_without_a_prefix_cache() -> None:
    listener = make_listener(prefix_cache=False)
    prompt = list(range(3, 60))
    for i in range(2):
        listener.driver.add(f"a-{i}", P2, prompt, max_tokens=2)
        listener.driver.run_to_end()
    kv = listener.told[-1].kv
    assert (kv.num_reusable_blocks, kv.num_hit_blocks) == (0, 0)


def test_statistics_remember_a_few_times_as_many_blocks_as_the_device_has() -> None:
    assert make_listener(num_blocks=101).scheduler.statistics.reuse._max_known == KNOWN_BLOCKS_RATIO * 100


@pytest.mark.parametrize(
    ("shape", "kind", "preemption"),
    [
        ({"max_num_seqs": 1}, PreemptionKind.PAUSED, {}),
        ({"max_num_seqs": 1}, PreemptionKind.RECOMPUTED, {"pause": False}),
    ],
    ids=["paused", "recomputed"],
)
def test_statistics_count_preemptions_by_the_victim_s_class_and_what_was_done(shape, kind, preemption) -> None:
    listener = make_listener(
        SchedulerSettings(preemption=PreemptionSettings(**preemption)), **shape, prefix_cache=False
    )
    listener.driver.add("batch", P2, 40, max_tokens=30)
    listener.driver.steps(3)
    listener.driver.add("urgent", P0, max_tokens=3)
    listener.driver.run_to_end()
    last = listener.told[-1]
    assert {c: dict(load.num_preempted) for c, load in last.classes.items()} == {P0: {}, P1: {}, P2: {kind: 1}}
    assert last.num_lost_tokens == (0 if kind is PreemptionKind.PAUSED else 42)


def test_statistics_count_a_paused_request_that_lost_its_kv_as_reclaimed_too() -> None:
    listener = make_listener(max_num_seqs=1, num_blocks=21, prefix_cache=False)
    listener.driver.add("batch", P2, 200, max_tokens=30)
    listener.driver.steps(4)
    listener.driver.add("urgent", P0, 60, max_tokens=150)
    listener.driver.run_to_end()
    last = listener.told[-1]
    assert dict(last.classes[P2].num_preempted) == {PreemptionKind.PAUSED: 1, PreemptionKind.RECLAIMED: 1}
    assert last.num_lost_tokens >= 200


def test_saturation_is_of_the_slots_when_they_are_scarcest() -> None:
    listener = make_listener(max_num_seqs=4)
    for i in range(3):
        listener.driver.add(f"a-{i}", P2, 20, max_tokens=20)
    listener.driver.steps(5)
    snapshot = listener.now()
    assert (snapshot.saturation_ratio, snapshot.max_num_seqs) == (0.75, 4)


def test_saturation_is_of_the_blocks_when_they_are_scarcest() -> None:
    listener = make_listener(max_num_seqs=8, num_blocks=21)
    listener.driver.add("a", P2, 250, max_tokens=20)
    listener.driver.steps(3)
    assert listener.now().saturation_ratio == 16 / 20


def test_saturation_is_of_the_tokens_of_recent_steps_when_they_are_scarcest() -> None:
    listener = make_listener(max_num_seqs=8, token_budget=64)
    listener.driver.add("a", P2, 2000, max_tokens=20)
    expected = 0.0
    for _ in range(12):
        listener.driver.step()
        expected += (1 - expected) * TOKEN_USE_WEIGHT
        if expected > 1 / 8:
            assert listener.now().saturation_ratio == pytest.approx(expected)
    assert expected > 0.7


def test_saturation_falls_to_nothing_when_the_engine_is_idle() -> None:
    listener = make_listener(max_num_seqs=8, token_budget=64, prefix_cache=False)
    listener.driver.add("a", P2, 2000, max_tokens=2)
    listener.driver.steps(30)
    assert listener.now().saturation_ratio > 0.9
    listener.driver.run_to_end()
    assert listener.told[-1].saturation_ratio == 0.0


@settings(derandomize=True, deadline=None, database=None, max_examples=25)
@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(PriorityClass), st.integers(1, 90), st.integers(1, 25)),
        min_size=1,
        max_size=14,
    ),
    is_async=st.booleans(),
    is_v2=st.booleans(),
    num_blocks=st.sampled_from([12, 40]),
)
def test_statistics_add_up_whatever_comes(arrivals, is_async, is_v2, num_blocks) -> None:
    listener = make_listener(max_num_seqs=3, num_blocks=num_blocks, is_async=is_async, is_v2=is_v2)
    listener.driver.step_s = PERIOD_S  # A snapshot after each step.
    pending = sorted(arrivals, key=lambda arrival: arrival[0])
    for step in range(41):
        for number, (due, priority, prompt, max_tokens) in enumerate(pending):
            if due == step:
                listener.driver.add(f"{number}", priority, prompt, max_tokens)
        if listener.scheduler.has_unfinished_requests():
            listener.driver.step()
            _check(listener)
    listener.driver.run_to_end()
    last = listener.told[-1]
    assert sum(load.queue_wait.count for load in last.classes.values()) == len(arrivals)
    assert sum(load.num_running + load.num_waiting + load.num_paused for load in last.classes.values()) == 0
    assert last.num_step_tokens == sum(listener.driver.worker.num_computed_tokens.values())
    for earlier, later in zip(listener.told, listener.told[1:], strict=False):
        _check_grown(earlier, later)


def _check(listener: Listener) -> None:
    scheduler, now = listener.scheduler, listener.now()
    scheduler.statistics.check_invariants()
    loads = now.classes.values()
    assert sum(load.num_running for load in loads) == len(scheduler.running)
    assert sum(load.num_paused for load in loads) == len(scheduler.kv_holding_waiting)
    assert sum(load.num_waiting for load in loads) == len(scheduler.waiting)
    assert 0 <= now.kv.num_filled_slots <= now.kv.num_allocated_slots
    assert now.kv.num_used_blocks <= now.kv.num_blocks
    assert 0 <= now.saturation_ratio <= 1


def _check_grown(earlier: EngineSnapshot, later: EngineSnapshot) -> None:
    """No total falls."""
    for priority in PriorityClass:
        before, after = earlier.classes[priority], later.classes[priority]
        assert (after.queue_wait - before.queue_wait).count >= 0
        assert all(after.num_preempted[kind] >= n for kind, n in before.num_preempted.items())
    assert (later.batch_sizes - earlier.batch_sizes).count >= 0
    for name in ("num_step_tokens", "num_budget_tokens", "num_lost_tokens", "num_promotions"):
        assert getattr(later, name) >= getattr(earlier, name)
    assert later.kv.num_reusable_blocks - earlier.kv.num_reusable_blocks >= 0
    assert later.kv.num_hit_blocks >= earlier.kv.num_hit_blocks


def test_statistics_count_the_prompt_tokens_that_are_still_to_be_computed() -> None:
    listener = make_listener(max_num_seqs=1, prefix_cache=False)
    listener.driver.add("runs", P1, prompt=30, max_tokens=5)
    listener.driver.add("waits", P2, prompt=40)
    unread = {c: load.num_unread_tokens for c, load in listener.now().classes.items()}
    assert unread == {P0: 0, P1: 30, P2: 40}
    listener.driver.steps(3)
    unread = {c: load.num_unread_tokens for c, load in listener.now().classes.items()}
    assert unread == {P0: 0, P1: 0, P2: 40}, "a request that generates has been read"

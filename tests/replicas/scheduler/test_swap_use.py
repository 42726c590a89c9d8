"""What a snapshot says of KV swap: a victim is copied out, waits, and comes back.

Mutations tried by hand, each found by a test here: bytes of one worker of several; free host memory told as used; a
swapped request counted as waiting; one whose KV is on its way back as well.
"""

from __future__ import annotations

import pytest
from vllm.v1.request import RequestStatus

from replicas.kv_swap.counts import LossReason, SwapCounts
from replicas.scheduler.swap_use import refusals_of
from slo.priority import PriorityClass
from slo.settings.swap import SwapSettings
from slo.snapshots import PreemptionKind, SwapRefusal, SwapUse
from tests.replicas.scheduler.harness import EngineShape
from tests.replicas.scheduler.harness.listener import Listener, make_listener
from tests.replicas.scheduler.harness.scenes import check_answers, fill
from tests.replicas.scheduler.harness.swap import BLOCK_BYTES
from tests.replicas.scheduler.harness.swap_run import step_cost_s

P0, P1, P2 = PriorityClass
HOST_SLOTS = 50


def make_scene(num_workers: int = 1) -> Listener:
    """Two batch requests hold nearly all blocks, and an urgent one comes."""
    host_bytes = HOST_SLOTS * EngineShape().block_bytes * num_workers
    listener = make_listener(
        num_blocks=33,
        max_num_seqs=4,
        prefix_cache=False,
        swap=SwapSettings(host_bytes=host_bytes),
        num_workers=num_workers,
    )
    driver = listener.driver
    driver.cost_s = step_cost_s
    for copier in driver.swap.copiers:
        copier.delay_of = lambda _: 2
    fill(driver, P2, 2, prompt=200, max_tokens=40)
    driver.steps(10)
    driver.add("urgent", P0, 150, max_tokens=12)
    return listener


def test_snapshot_without_swap_has_none() -> None:
    listener = make_listener()
    listener.driver.add("a", P0)
    listener.driver.run_to_end()
    assert listener.told[-1].swap == SwapUse()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_snapshot_tells_a_victim_that_is_swapped_out_and_comes_back(num_workers: int) -> None:
    listener = make_scene(num_workers)
    driver, slot_bytes = listener.driver, EngineShape().block_bytes * num_workers
    assert listener.now().swap == SwapUse(host_bytes=HOST_SLOTS * slot_bytes)
    while not (victims := driver.step().preempted):
        pass
    (victim,) = victims
    num_blocks = listener.scheduler.preemption_counts.swap.num_blocks_out
    out = listener.now()
    load = out.classes[P2]
    assert (load.num_swapped, load.num_waiting, load.num_running) == (1, 0, 1)
    assert dict(load.num_preempted) == {PreemptionKind.SWAPPED: 1}
    assert num_blocks > 12
    assert out.swap.host_used_bytes == num_blocks * slot_bytes
    statuses = set()
    while victim not in driver.finished:
        driver.step()
        if driver.requests[victim].status in (RequestStatus.WAITING_FOR_REMOTE_KVS, RequestStatus.PREEMPTED):
            statuses.add(driver.requests[victim].status)
            load = listener.now().classes[P2]
            assert load.num_swapped + load.num_paused == 1
            assert load.num_waiting == 0
    assert RequestStatus.WAITING_FOR_REMOTE_KVS in statuses
    check_answers(driver)
    end = listener.told[-1].swap
    told_bytes = num_blocks * BLOCK_BYTES * num_workers
    assert (end.bytes_out, end.host_used_bytes, end.refusals) == (told_bytes, 0, {})
    assert 0 < end.bytes_in <= end.bytes_out
    assert end.seconds_out > 0
    assert end.seconds_in > 0
    assert listener.told[-1].num_lost_tokens == 0


@pytest.mark.parametrize(
    ("losses", "num_refused", "expected"),
    [
        ({}, 0, {}),
        ({}, 3, {SwapRefusal.TOO_SLOW: 3}),
        ({LossReason.OVER_LIMIT: 2}, 3, {SwapRefusal.TOO_SLOW: 5}),
        ({LossReason.NO_ROOM: 4}, 0, {SwapRefusal.HOST_FULL: 4}),
        ({LossReason.OUT_FAILED: 1, LossReason.IN_FAILED: 2}, 0, {SwapRefusal.COPY_FAILED: 3}),
        ({LossReason.CHEAPER: 1, LossReason.NOTHING_TO_MOVE: 1, LossReason.CANNOT_SWAP: 1, LossReason.RESET: 1}, 0, {}),
    ],
)
def test_refusals_are_moves_that_were_not_made_or_failed(losses, num_refused, expected) -> None:
    counts = SwapCounts(num_refused=num_refused)
    for reason, number in losses.items():
        counts.num_recomputed[reason] = number
    assert refusals_of(counts) == expected

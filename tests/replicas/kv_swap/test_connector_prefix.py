"""Swap beside the prefix cache: what others share stays on the device, and what is still there is not copied back.

Mutations tried, each of which fails a test here: copying the shared blocks too; not keeping a reference on them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicas.kv_swap.counts import LossReason
from slo.priority import PriorityClass
from tests.replicas.kv_swap.test_connector_scenes import counts_of, ledger_of, set_delay, step_until
from tests.replicas.scheduler.harness import Driver
from tests.replicas.scheduler.harness.scenes import check_answers, is_running
from tests.replicas.scheduler.harness.swap_run import SwapRun, make_swap_driver

P0, P1, P2 = PriorityClass
SCENE = SwapRun(num_blocks=41, max_num_seqs=4, token_budget=512, prefix_cache=True, max_delay_steps=0)
SHARED = list(range(50, 50 + 96))
"""Six blocks."""


def make_scene(**changes) -> Driver:
    """Two batch requests with a prefix in common: 6 shared blocks and 9 of their own each, and 16 that are free."""
    driver = make_swap_driver(replace(SCENE, **changes))
    set_delay(driver, 0)
    for i in range(2):
        driver.add(f"batch-{i}", P2, SHARED + [7 + i] * 130, max_tokens=30)
        driver.step()
    driver.steps(3)
    assert len(ledger_of(driver)._pool.cached_block_hash_to_block) > 6
    return driver


def test_connector_keeps_shared_blocks_and_copies_the_rest() -> None:
    driver = make_scene()
    driver.add("urgent", P0, 330, max_tokens=3)
    assert driver.step().preempted == {"batch-1"}
    ledger = ledger_of(driver)
    assert len(ledger.kept_blocks()) == 6
    assert counts_of(driver).num_blocks_out == 9
    assert ledger.num_kept_alone() == 0, "batch-0 holds them too"
    step_until(driver, lambda: is_running(driver, "urgent"))
    check_answers(driver)
    assert driver.scheduler.preemption_counts.num_recomputed_tokens == 0


def test_connector_brings_back_only_what_is_not_on_the_device_any_more() -> None:
    driver = make_scene()
    driver.add("urgent", P0, 280, max_tokens=3)
    driver.step()
    num_out = counts_of(driver).num_blocks_out
    driver.abort("urgent")
    check_answers(driver)
    counts = counts_of(driver)
    assert (counts.num_swapped_out, counts.num_swapped_in) == (1, 1)
    assert counts.num_blocks_in <= 1 < num_out, "only the last block, which is not full, is in no prefix cache"
    assert driver.scheduler.preemption_counts.num_recomputed_tokens == 0


def test_connector_lets_kept_blocks_go_when_an_urgent_request_needs_them() -> None:
    driver = make_scene()
    driver.add("urgent", P0, 620, max_tokens=3)
    step_until(driver, lambda: is_running(driver, "urgent"))
    assert counts_of(driver).num_kept_released > 0
    check_answers(driver)
    assert counts_of(driver).num_recomputed[LossReason.PREFIX_LOST] > 0
    assert driver.scheduler.preemption_counts.num_recomputed_tokens > 0


def test_connector_lets_kept_blocks_go_when_nothing_else_can_run() -> None:
    driver = make_scene()
    driver.add("urgent", P0, 330, max_tokens=3)
    step_until(driver, lambda: ledger_of(driver).is_swapped("batch-1") and not ledger_of(driver).is_leaving("batch-1"))
    driver.abort("batch-0")
    driver.abort("urgent")
    assert ledger_of(driver).num_kept_alone() == 6
    driver.add("large", P1, 625, max_tokens=2)
    check_answers(driver)
    assert counts_of(driver).num_kept_released > 0


@pytest.mark.parametrize("num_workers", [1, 2])
def test_connector_forgets_what_it_kept_when_its_request_is_aborted(num_workers: int) -> None:
    driver = make_scene(num_workers=num_workers)
    driver.add("urgent", P0, 330, max_tokens=3)
    driver.step()
    driver.abort("batch-1")
    assert not ledger_of(driver).kept_blocks()
    check_answers(driver)

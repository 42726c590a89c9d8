"""Runs of equal steps: while every request of an engine decodes and nobody waits, each step is as the one before it.

Such a run is carried out at once. The scheduler's state after it is the one that it would have reached step by step,
but for the order in which its requests took new KV blocks inside the run. `tests/sim/test_equal_steps.py` compares.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

TOKEN = 7
"""What every simulated request samples."""
MIN_STEPS = 2


def count_equal_steps(scheduler: Scheduler, in_flight: Sequence[SchedulerOutput]) -> int:
    """Steps that will be as those in flight, with certainty, if nothing arrives: 0 if that cannot be told.

    Called when `in_flight` is full and has decodes alone. Those in flight are not counted: after so many more, each
    request still has a token to come from each step in flight.
    """
    running = scheduler.running
    if not running or len(scheduler.waiting) or len(scheduler.kv_holding_waiting):
        return 0
    if scheduler.connector is not None and scheduler.connector.has_pending_push_work():
        return 0
    for output in in_flight:
        scheduled = output.num_scheduled_tokens
        if len(scheduled) != len(running) or any(r.request_id not in scheduled for r in running):
            return 0
    num_steps = min(r.max_tokens - r.num_output_tokens for r in running) - len(in_flight)
    blocks_each = scheduler.kv_cache_manager.block_pool.get_num_free_blocks() // len(running)
    num_steps = min(num_steps, (blocks_each - 2) * scheduler.block_size)
    return num_steps if num_steps >= MIN_STEPS else 0


def carry_out(scheduler: Scheduler, num_steps: int) -> None:
    """So many steps pass; those in flight move on with them."""
    tokens = [TOKEN] * num_steps
    for request in scheduler.running:
        request.append_output_token_ids(tokens)
        blocks = scheduler.kv_cache_manager.allocate_slots(request, num_steps)
        assert blocks is not None, "there were blocks enough"
        request.num_computed_tokens += num_steps

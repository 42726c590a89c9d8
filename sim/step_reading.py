"""What a scheduled step computes, read from vLLM's own account of it."""

from __future__ import annotations

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from sim.step_work import StepWork


def read_work(scheduler: Scheduler, output: SchedulerOutput) -> tuple[StepWork, list[bool]]:
    """The work, and for each request of the step, in order, whether it gets a token. Called when it was scheduled."""
    requests = scheduler.requests
    samples: list[bool] = []
    prefill_tokens = prefill_pairs = num_prefills = num_decodes = decode_context = 0
    for request_id, num_tokens in output.num_scheduled_tokens.items():
        request = requests[request_id]
        num_computed = request.num_computed_tokens
        if num_tokens == 1:
            num_decodes += 1
            decode_context += num_computed
        else:
            num_prefills += 1
            prefill_tokens += num_tokens
            prefill_pairs += num_tokens * (num_computed - num_tokens) + num_tokens * (num_tokens + 1) // 2
        samples.append(not request.is_prefill_chunk)
    work = StepWork(prefill_tokens, prefill_pairs, num_prefills, num_decodes, decode_context, sum(samples))
    return work, samples

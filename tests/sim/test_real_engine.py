"""The same small trace through a real engine and through the simulator: the same order of first tokens, and victims.

Time is counted in steps in both, and nothing is decided by it.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from vllm import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.llm_engine import LLMEngine

from sim.linear_cost import LinearCost
from sim.request import Arrival
from slo.settings.scheduling import AgingPeriods, BudgetSettings, FairnessSettings, SchedulerSettings
from tests.real_engine import BLOCK_TOKENS, real_engine
from tests.sim.scenes import P0, P1, P2, build, new_log, play
from tests.tiny_model import VOCAB_SIZE, make_tiny_model

pytestmark = pytest.mark.engine
STEPS = LinearCost(step_ms=1000, prefill_token_ms=0, decode_ms=0)
TIMELESS = SchedulerSettings(
    budget=BudgetSettings(adaptive=False, urgent_expected="never"),
    fairness=FairnessSettings(aging_s=AgingPeriods(p1=None, p2=None), suspended_prefill_deadline_s=None),
)
Seen = list[tuple[int, tuple[str, ...]]]


def _arrivals(seed: int) -> list[Arrival]:
    """One at first, so that both begin with the same step; times are in steps."""
    chance = random.Random(seed)
    steps = [0, *sorted(chance.randrange(1, 60) for _ in range(17))]
    return [
        Arrival(i, float(step), chance.choice([P0, P1, P2, P2]), chance.randrange(10, 300), chance.randrange(1, 60))
        for i, step in enumerate(steps)
    ]


@pytest.mark.parametrize("num_blocks", [200, 24], ids=["slots-short", "kv-short"])
def test_simulated_engine_schedules_as_the_real_one(tmp_path: Path, num_blocks: int) -> None:
    arrivals = _arrivals(seed=11)
    with real_engine(make_tiny_model(tmp_path), num_blocks, TIMELESS, max_model_len=640) as engine:
        real_first, real_victims = _run_real(engine, arrivals)
    first, victims = _run_simulated(arrivals, num_blocks)
    assert len(victims) > 0
    assert victims == real_victims
    assert first == real_first


def _run_simulated(arrivals: list[Arrival], num_blocks: int) -> tuple[dict[str, int], Seen]:
    log, seen = new_log(), []
    engine = build(
        log,
        cost=STEPS,
        settings=TIMELESS,
        num_blocks=num_blocks,
        block_tokens=BLOCK_TOKENS,
        max_num_seqs=3,
        max_step_tokens=512,
        max_model_len=640,
        prefix_cache=False,
    )
    engine.on_step = lambda output: _note(seen, round(engine.now_s), output)
    play(engine, log, [replace(a, arrived_s=max(0.0, a.arrived_s - 0.5)) for a in arrivals])
    return {t.arrival.request_id: round(t.first_s or 0) - 1 for t in log.tracks}, seen


def _run_real(engine: LLMEngine, arrivals: list[Arrival]) -> tuple[dict[str, int], Seen]:
    scheduler, seen, step = engine.engine_core.engine_core.scheduler, [], 0
    schedule = scheduler.schedule

    def watched(*args: object, **kwargs: object) -> SchedulerOutput:
        output = schedule(*args, **kwargs)
        _note(seen, step, output)
        return output

    scheduler.schedule = watched
    first: dict[str, int] = {}
    pending = list(arrivals)
    while pending or engine.has_unfinished_requests():
        while pending and pending[0].arrived_s <= step:
            _add(engine, pending.pop(0))
        for output in engine.step():
            first.setdefault(output.request_id, step)
        step += 1
        assert step < 2000
    return first, seen


def _note(seen: Seen, step: int, output: SchedulerOutput) -> None:
    if output.preempted_req_ids:
        ids = {request_id.partition("-")[0] for request_id in output.preempted_req_ids}  # vLLM adds a suffix
        seen.append((step, tuple(sorted(ids))))


def _add(engine: LLMEngine, arrival: Arrival) -> None:
    chance = random.Random(arrival.number)
    prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(arrival.prompt_tokens)]
    sampling = SamplingParams(temperature=0, max_tokens=arrival.output_tokens, ignore_eos=True)
    engine.add_request(
        arrival.request_id,
        {"prompt_token_ids": prompt},
        sampling,
        priority=arrival.priority.level,
        arrival_time=float(arrival.number),
    )

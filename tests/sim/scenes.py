"""Engines and arrivals for tests: small ones, with steps that cost what one can add up."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from vllm.v1.core.sched.scheduler import Scheduler

from replicas.kv_swap.moves import Bandwidths
from sim.copies import SwapSide
from sim.engine import SimEngine
from sim.engine_build import EngineShape, build_priority_scheduler, build_stock_scheduler
from sim.linear_cost import LinearCost
from sim.request import Arrival
from sim.scenario import Contender
from sim.static_batch import StaticBatch
from sim.token_log import TokenLog
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings.scheduling import BudgetSettings, SchedulerSettings

P0, P1, P2 = PriorityClass
COST = LinearCost(step_ms=10, prefill_token_ms=0.1, decode_ms=1, context_token_ms=0.001)
TABLE_ALONE = SchedulerSettings(budget=BudgetSettings(adaptive=False))
"""Nothing is learned from times, so nothing depends on how they are learned."""


def new_log(late_s: float = 0.05, front_s: float = 0.0) -> TokenLog:
    return TokenLog(dict.fromkeys(PriorityClass, late_s), front_s)


def build(
    log: TokenLog,
    contender: Contender = Contender.EXPRESSLANE,
    settings: SchedulerSettings = TABLE_ALONE,
    cost: LinearCost = COST,
    is_stepwise: bool = False,
    **shape: object,
) -> SimEngine:
    sizes = EngineShape(**{"num_blocks": 1000, "max_num_seqs": 8, "is_async": False, **shape})  # type: ignore[arg-type]
    scheduler: Scheduler
    batch = None
    if contender is Contender.EXPRESSLANE:
        scheduler = build_priority_scheduler(sizes, settings)
    else:
        is_static = contender is Contender.STATIC
        scheduler = build_stock_scheduler(sizes, "fcfs" if is_static else contender.value)
        batch = StaticBatch() if is_static else None
    swap = (
        SwapSide(sizes.block_bytes, Bandwidths(1e9, 1e9)) if sizes.swap and contender is Contender.EXPRESSLANE else None
    )
    return SimEngine(scheduler, cost, log, is_async=sizes.is_async, swap=swap, batch=batch, is_stepwise=is_stepwise)


def play(engine: SimEngine, log: TokenLog, arrivals: Iterable[Arrival]) -> None:
    """Everything, to the end of the last request."""
    for arrival in arrivals:
        _advance(engine, log, arrival.arrived_s)
        engine.add(log.begin(arrival), arrival.arrived_s)
    _advance(engine, log, math.inf)


def _advance(engine: SimEngine, log: TokenLog, until_s: float) -> None:
    num_events = 0
    while engine.next_event_s <= until_s and engine.next_event_s < math.inf:
        for track in engine.advance():
            log.end(track, engine.now_s, Outcome.COMPLETED)
        num_events += 1
        assert num_events < 20_000, "live lock"


def random_arrivals(seed: int, count: int, rate_per_s: float, prompt: int = 100, output: int = 40) -> list[Arrival]:
    chance, at_s, arrivals = random.Random(seed), 0.0, []
    for number in range(count):
        at_s += chance.expovariate(rate_per_s)
        sizes = chance.randrange(1, 2 * prompt), chance.randrange(1, 2 * output)
        arrivals.append(Arrival(number, at_s, chance.choice([P0, P1, P2, P2]), *sizes))
    return arrivals

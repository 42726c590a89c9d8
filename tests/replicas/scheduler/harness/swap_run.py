"""One random run of a scheduler with KV swap, from a seed, checked at its end: answers, blocks, host memory, files."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import RequestStatus

from replicas.kv_swap.counts import SwapCounts
from replicas.kv_swap.ledger import SwapLedger
from replicas.kv_swap.moves import Tier
from replicas.scheduler import PriorityScheduler
from slo.priority import PriorityClass
from slo.settings.scheduling import PreemptionSettings, SchedulerSettings
from slo.settings.swap import SwapSettings
from tests.replicas.scheduler.harness.build import EngineShape, build_scheduler
from tests.replicas.scheduler.harness.driver import Driver
from tests.replicas.scheduler.harness.worker import expected_output

P0, P1, P2 = PriorityClass
MAX_STEPS = 6000


@dataclass(frozen=True, slots=True)
class SwapRun:
    """What varies. `depth` 2 is asynchronous scheduling; `fail_ratio` of the copies fail."""

    seed: int = 0
    depth: int = 1
    is_v2: bool = False
    prefix_cache: bool = True
    num_workers: int = 1
    num_blocks: int = 40
    max_num_seqs: int = 8
    token_budget: int = 128
    watermark: float = 0.0
    pause: bool = True
    host_slots: int = 400
    directory_bytes: int = 0
    max_move_ms: float = 50
    over_limit: str = "queue"
    max_delay_steps: int = 3
    fail_ratio: float = 0.0
    num_requests: int = 30
    num_aborts: int = 0
    last_arrival_step: int = 150


@dataclass(slots=True)
class Outcome:
    """The driver at the end of a run, and what the run was for."""

    driver: Driver
    arrivals: list[tuple[int, str, PriorityClass, list[int], int]] = field(default_factory=list)

    @property
    def scheduler(self) -> PriorityScheduler:
        assert isinstance(self.driver.scheduler, PriorityScheduler)
        return self.driver.scheduler

    @property
    def counts(self) -> SwapCounts:
        return self.scheduler.preemption_counts.swap

    @property
    def ledger(self) -> SwapLedger:
        return self.scheduler.connector.swap.ledger


def swap_settings(run: SwapRun) -> SwapSettings:
    block_bytes = EngineShape().block_bytes
    return SwapSettings(
        host_bytes=run.host_slots * block_bytes * run.num_workers,
        max_move_ms=run.max_move_ms,
        over_limit=run.over_limit,
        directory="/nowhere" if run.directory_bytes else None,
        directory_bytes=run.directory_bytes or None,
    )


def step_cost_s(output: SchedulerOutput) -> float:
    """Steps of a small model: what makes moving KV worth its while."""
    return 0.005 + 1e-4 * output.total_num_scheduled_tokens


def make_swap_driver(run: SwapRun) -> Driver:
    """A driver whose copies take random steps, the same in every run of the seed, others in each rank."""
    shape = EngineShape(
        num_blocks=run.num_blocks,
        max_num_seqs=run.max_num_seqs,
        token_budget=run.token_budget,
        prefix_cache=run.prefix_cache,
        is_async=run.depth > 1,
        is_v2=run.is_v2,
        watermark=run.watermark,
        swap=swap_settings(run),
        num_workers=run.num_workers,
    )
    settings = SchedulerSettings(preemption=PreemptionSettings(pause=run.pause))
    driver = Driver(build_scheduler(shape, settings), depth=run.depth, cost_s=step_cost_s)
    assert driver.swap is not None
    for rank, copier in enumerate(driver.swap.copiers):
        chance = random.Random(run.seed * 8 + rank)
        copier.delay_of = lambda _, chance=chance: chance.randint(0, run.max_delay_steps)
        copier.fails = lambda _, chance=chance: chance.random() < run.fail_ratio
    return driver


def play(run: SwapRun) -> Outcome:
    """Plays the run to its end. AssertionError: KV was wrong at a read, an invariant did not hold, or a live lock."""
    chance = random.Random(run.seed)
    outcome = Outcome(make_swap_driver(run), _make_arrivals(run, chance))
    driver, pending = outcome.driver, list(outcome.arrivals)
    aborts = sorted(
        (chance.randrange(2 * run.last_arrival_step), f"r{chance.randrange(run.num_requests)}")
        for _ in range(run.num_aborts)
    )
    while pending or driver.scheduler.has_unfinished_requests():
        while pending and pending[0][0] <= driver.num_steps:
            _, request_id, priority, prompt, max_tokens = pending.pop(0)
            driver.add(request_id, priority, prompt, max_tokens)
        while aborts and aborts[0][0] <= driver.num_steps:
            _, request_id = aborts.pop(0)
            if request_id in driver.requests and request_id not in driver.finished:
                driver.abort(request_id)
        driver.step()
        assert driver.num_steps < MAX_STEPS, "live lock"
    driver.run_to_end()
    check_end(outcome, run)
    return outcome


def check_end(outcome: Outcome, run: SwapRun) -> None:
    """Every request has answered as it should, and everything is back where it was."""
    driver = outcome.driver
    for request_id, request in driver.requests.items():
        expected = expected_output(request.prompt_token_ids, request.max_tokens)
        if request.status == RequestStatus.FINISHED_ABORTED:
            expected = expected[: len(driver.outputs[request_id])]
        assert driver.outputs[request_id] == expected, f"{request_id} answers wrong"
    assert driver.num_free_blocks == driver.num_all_blocks
    ledger = outcome.ledger
    ledger.check_invariants()
    assert not ledger.held_blocks()
    assert not ledger.num_in_flight
    assert not ledger.room.holders
    assert ledger.room.free_blocks(Tier.MEMORY) == run.host_slots
    assert not outcome.scheduler.waiting
    assert not outcome.scheduler.kv_holding_waiting
    assert not len(outcome.scheduler.recomputed)
    assert driver.swap is not None
    assert not any(copier.files for copier in driver.swap.copiers), "a file was left"


def _make_arrivals(run: SwapRun, chance: random.Random) -> list[tuple[int, str, PriorityClass, list[int], int]]:
    shared = [chance.randrange(3, 400) for _ in range(48)]
    arrivals = []
    for i in range(run.num_requests):
        own = [chance.randrange(3, 400) for _ in range(chance.randrange(5, 200))]
        prompt = shared + own if chance.random() < 0.5 else own
        priority = chance.choice([P0, P1, P2, P2])
        arrivals.append((chance.randrange(run.last_arrival_step), f"r{i}", priority, prompt, chance.randrange(1, 100)))
    return sorted(arrivals)

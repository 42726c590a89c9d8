"""What the priority scheduler's `schedule()` costs beside vLLM's own, with no model behind either.

`python -m bench.scheduler_overhead` from a checkout prints a table: milliseconds a step (the median over the steps of a
repeat; of these the median), and their ratio. Both take turns, step by step, so that other load on the machine meets
both alike.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from rich.console import Console
from rich.table import Table
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from replicas.scheduler import PriorityScheduler
from slo.priority import PriorityClass
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler

REPEATS = 3
STEPS = 150
WARM_UP_STEPS = 20
NUM_RUNNING = 256


@dataclass(frozen=True, slots=True)
class Case:
    """A steady state: as many requests decode as fit, and others wait."""

    name: str
    num_waiting: int
    running: PriorityClass = PriorityClass.P2
    num_paused: int = 0
    """Batch requests that ran before the running ones came. vLLM's own scheduler knows no such state."""


CASES = [
    Case("256 running, 0 waiting", 0),
    Case("256 running, 1,024 waiting", 1024),
    Case("256 running P0, 1,024 waiting, 16 paused", 1024, running=PriorityClass.P0, num_paused=16),
]


def main() -> None:
    table = Table("case", "vLLM ms", "priority ms", "ratio", "ratios of the repeats")
    for case in CASES:
        repeats = [measure_step_ms(case) for _ in range(REPEATS)]
        stock, priority = (statistics.median(times) for times in zip(*repeats, strict=True))
        ratios = " ".join(f"{p / s:.3f}" for s, p in repeats)
        table.add_row(case.name, f"{stock:.3f}", f"{priority:.3f}", f"{priority / stock:.3f}", ratios)
    Console(width=120).print(table)


def measure_step_ms(case: Case) -> tuple[float, float]:
    """The median time of `schedule()` in the steady state of `case`: vLLM's own, and the priority scheduler's."""
    stock, priority = (make_steady_state(case, scheduler_cls) for scheduler_cls in (Scheduler, PriorityScheduler))
    times = [(_step(stock), _step(priority)) for _ in range(STEPS)]
    stock_s, priority_s = (statistics.median(column) for column in zip(*times, strict=True))
    return stock_s * 1e3, priority_s * 1e3


def make_steady_state(case: Case, scheduler_cls: type[Scheduler]) -> Scheduler:
    shape = EngineShape(num_blocks=8000, max_num_seqs=NUM_RUNNING, token_budget=8192, has_statistics=True)
    scheduler = build_scheduler(shape, scheduler_cls=scheduler_cls)
    driver = Driver(scheduler)
    num_paused = case.num_paused if scheduler_cls is PriorityScheduler else 0
    for i in range(num_paused):
        driver.add(f"paused-{i}", PriorityClass.P2, 20, max_tokens=1000)
    _step(scheduler)
    for i in range(NUM_RUNNING):
        driver.add(f"running-{i}", case.running, 20, max_tokens=1000)
    for i in range(case.num_waiting):
        driver.add(f"waiting-{i}", PriorityClass.P2, 20, max_tokens=1000)
    for _ in range(WARM_UP_STEPS):
        _step(scheduler)
    assert len(scheduler.running) == NUM_RUNNING
    assert len(scheduler.waiting) == case.num_waiting
    assert len(scheduler.kv_holding_waiting) == num_paused
    return scheduler


def _step(scheduler: Scheduler) -> float:
    start_s = time.perf_counter()
    output = scheduler.schedule()
    elapsed_s = time.perf_counter() - start_s
    scheduler.update_from_output(output, _sample(scheduler, output))
    return elapsed_s


def _sample(scheduler: Scheduler, output: SchedulerOutput) -> ModelRunnerOutput:
    """One token for every request that has read its prompt."""
    request_ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
        sampled_token_ids=[[] if scheduler.requests[i].is_prefill_chunk else [7] for i in request_ids],
    )


if __name__ == "__main__":
    main()

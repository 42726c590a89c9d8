"""What an urgent request waits for while batch work holds the engine: Expresslane, stock priority, stock fcfs.

    python -m bench.urgent_under_batch [slots] [prefill] [memory] [--variants]

Runs the contenders one after the other on this machine, each idle and under load, and prints one table in Markdown.
The figures of a contender are compared with its own idle ones from the same run: ratios travel between machines, times
do not. `--variants` adds Expresslane with its ceiling off and with the table of budgets alone, and its scheduler in
vLLM's own server, which tells what the scheduler costs apart from the serving path. `memory` runs by itself, in engines
with slots for everyone and KV for half of the batch: with KV swap, without it, and in stock vLLM.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psutil

from bench.contenders import Engine, expresslane, stock_vllm
from bench.load import Load, Measured, Route, run_idle, run_load
from replicas.engine import SCHEDULER_CLS
from replicas.models.default import ensure_default_model

SLOTS = 8
LOADS = {
    "slots": Load("slots", 24, 32, 400, 100, 24, 16, 0.35),
    "prefill": Load("prefill", 8, 3000, 16, 24, 24, 32, 0.5),
}
MEMORY = Load("memory", 32, 256, 400, 60, 64, 16, 0.5)
MEMORY_SLOTS = 64
MEMORY_KV_BYTES = 2**28
"""About 11,600 tokens of the default model; the 32 batch requests come to 656 tokens each, 21,000 in all."""
VARIANTS: dict[str, dict[str, Any]] = {
    "Expresslane, ceiling off": {"scheduler": {"budget": {"urgent_expected": "never"}}},
    "Expresslane, table alone": {"scheduler": {"budget": {"urgent_expected": "never", "adaptive": False}}},
}
BARE = "vLLM's server with our scheduler"
FCFS = "stock vLLM, fcfs"
Contenders = dict[str, Callable[[], AbstractContextManager[Route]]]
PRIORITY = "stock vLLM, priority"


@dataclass(frozen=True, slots=True)
class Row:
    """One contender under one load."""

    contender: str
    load: Load
    idle: Measured
    loaded: Measured

    def cells(self) -> list[str]:
        """As the table shows them."""
        idle, loaded = self.idle, self.loaded
        return [
            self.load.name,
            self.contender,
            f"{idle.ttft_ms(50):,.0f} / {idle.ttft_ms(99):,.0f}",
            f"{loaded.ttft_ms(50):,.0f} / {loaded.ttft_ms(99):,.0f}",
            f"{loaded.ttft_ms(50) / idle.ttft_ms(50):.1f} / {loaded.ttft_ms(99) / idle.ttft_ms(99):.1f}",
            f"{idle.tbt_ms(99):,.0f} -> {loaded.tbt_ms(99):,.0f} ({loaded.tbt_ms(99) / idle.tbt_ms(99):.1f})",
            f"{loaded.slowest_batch_s:.1f}",
            f"{loaded.all_done_s:.1f}",
        ]


HEADER = [
    "load",
    "contender",
    "idle P0 TTFT p50 / p99, ms",
    "loaded P0 TTFT p50 / p99, ms",
    "ratio p50 / p99",
    "P0 TBT p99, ms (ratio)",
    "slowest P2, s",
    "all done, s",
]


def main(names: list[str]) -> None:
    """Runs the loads named (`slots` unless told) and prints the table; progress goes to standard error."""
    variants = VARIANTS if "--variants" in names else {}
    loads = [LOADS[name] for name in names if name in LOADS]
    engine = Engine(str(ensure_default_model()), SLOTS, threads=max(1, (psutil.cpu_count() or 1) - 1))
    if "memory" in names:
        tight = replace(engine, slots=MEMORY_SLOTS, kv_cache_bytes=MEMORY_KV_BYTES)
        no_swap = {"swap": {"host_bytes": 0}}
        _compare([MEMORY], tight, {"Expresslane, no swap": partial(expresslane, tight, no_swap)})
    if loads or "memory" not in names:
        further: Contenders = {name: partial(expresslane, engine, settings) for name, settings in variants.items()}
        if variants:
            further[BARE] = partial(stock_vllm, engine, "priority", SCHEDULER_CLS)
        _compare(loads or [LOADS["slots"]], engine, further)


def _compare(loads: list[Load], engine: Engine, further: Contenders) -> None:
    contenders: Contenders = {
        "Expresslane": partial(expresslane, engine),
        **further,
        PRIORITY: partial(stock_vllm, engine, "priority"),
        FCFS: partial(stock_vllm, engine, "fcfs"),
    }
    rows = []
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    for name, start in contenders.items():
        print(f"starting {name}", file=sys.stderr)
        with start() as route:
            for load in loads:
                rows.append(asyncio.run(_measure(name, route, load)))
                print(f"| {' | '.join(rows[-1].cells())} |", flush=True)
    for load in loads:
        print("\n" + _against_stock([row for row in rows if row.load is load]))


def _against_stock(rows: list[Row]) -> str:
    """How long everything took, and the slowest batch request, as ratios to stock vLLM."""
    by_name = {row.contender: row.loaded for row in rows}
    lines = [f"{rows[0].load.name}: all done against {FCFS}; slowest P2 against {PRIORITY}"]
    for name, measured in by_name.items():
        done = measured.all_done_s / by_name[FCFS].all_done_s
        slowest = measured.slowest_batch_s / by_name[PRIORITY].slowest_batch_s
        lines.append(f"- {name}: {done:.2f}; {slowest:.2f}")
    return "\n".join(lines)


async def _measure(name: str, route: Route, load: Load) -> Row:
    warm_up = replace(load, urgent_requests=4, batch_requests=2, batch_output_tokens=8)
    await run_load(route, warm_up)
    print(f"{name}, {load.name}: idle, then loaded", file=sys.stderr)
    return Row(name, load, await run_idle(route, load), await run_load(route, load))


if __name__ == "__main__":
    main(sys.argv[1:])

"""A comparison that was measured beside the same one simulated: how far the simulator is off, by class.

    expresslane compare mixed --json measured.json
    expresslane calibrate --slots 8 --max-prompt 2048 --step-tokens 2048 > cost.yaml
    python -m bench.simulated measured.json cost.yaml

Both met the same requests at the same times. The simulator knows of the machine what `expresslane calibrate` found, and
a constant for HTTP. Prints Markdown: each latency as simulated and as measured, and the first over the second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.compare.contest import class_of
from bench.compare.show import markdown
from bench.compare.sizes import Sizes
from bench.plan import plan
from bench.scenario import Scenario
from bench.scenario_file import parse_scenario
from replicas.engine import CPU_KV_BLOCK_TOKENS
from sim.figures import Latency
from sim.request import Arrival
from sim.scenario import Contender
from sim.scenario import Scenario as Simulated
from sim.scenario_file import parse_scenario as parse_simulated

MAX_STEP_TOKENS = 2048
"""vLLM's default for a server on CPUs."""
HOST_BYTES = 2**28
PATIENCE_S = 600
HEADINGS = ("class", "contender", *(f"{what}, ms" for what in ("TTFT p50", "TTFT p99", "TBT p50", "TBT p99")))


def main(measured_file: str, cost_file: str) -> None:
    """Prints the table for every contender that was measured and that the simulator knows."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vLLM is imported, by the next line
    from sim.simulation import simulate

    document = msgspec.json.decode(Path(measured_file).read_bytes())
    cost = yaml.safe_load(Path(cost_file).read_text(encoding="utf-8"))["engine"]["measured"]
    scenario = parse_scenario(document["scenario"])
    simulated = simulated_scenario(scenario, Sizes(**document["comparison"]["engine"]), cost)
    arrivals = arrivals_of(scenario)
    known = {contender.value: contender for contender in Contender}
    lines: list[list[str]] = []
    for entry in document["contenders"]:
        if entry["name"] in known and entry["loaded"] is not None:
            figures = simulate(simulated, known[entry["name"]], arrivals)
            by_class = {of_class.priority.name: of_class for of_class in figures.classes}
            for of_class in entry["loaded"]["classes"]:
                own = by_class[of_class["name"]]
                cells = [*beside(own.ttft, of_class["ttft"]), *beside(own.tbt, of_class["tbt"])]
                lines.append([of_class["name"], entry["title"], *cells])
    print(markdown(HEADINGS, sorted(lines, key=lambda line: line[0])))


def simulated_scenario(scenario: Scenario, sizes: Sizes, cost: Mapping[str, Any]) -> Simulated:
    """The engine of a comparison on CPUs, for the simulator. Its traffic stands for nothing: give `arrivals_of`."""
    patience = {name: {"queue_timeout_s": PATIENCE_S} for name in ("p0", "p1", "p2")}
    lengths = {"prompt_tokens": {"mean": 1}, "output_tokens": {"mean": 1}}
    return parse_simulated(
        {
            "name": scenario.name,
            "duration_s": scenario.end_s,
            "engine": {
                "model": "smollm2-135m",
                "is_async": False,
                "max_step_tokens": MAX_STEP_TOKENS,
                "measured": cost,
            },
            "settings": {
                "engine": {
                    "max_num_seqs": sizes.slots,
                    "kv_cache_bytes": sizes.kv_cache_bytes,
                    "block_tokens": sizes.block_tokens or CPU_KV_BLOCK_TOKENS,
                },
                "swap": {"host_bytes": HOST_BYTES},
                "admission": patience,
            },
            "traffic": [{"priority": "P0", "source": {"kind": "poisson", "rate_per_s": 1, **lengths}}],
        }
    )


def arrivals_of(scenario: Scenario) -> list[Arrival]:
    """The requests of a scenario whose seed is set, as the load generator sends them."""
    planned = takewhile(lambda arrival: arrival.at_s < scenario.end_s, plan(scenario, scenario.seed or 0))
    return [
        Arrival(i, each.at_s, class_of(each.spec), each.ask.prompt_tokens or 1, each.ask.output_tokens or 1)
        for i, each in enumerate(planned)
    ]


def beside(simulated: Latency | None, measured: Mapping[str, float] | None) -> Iterator[str]:
    """P50 and P99: as simulated, as measured, and their ratio."""
    for field in ("p50_ms", "p99_ms"):
        if simulated is None or measured is None:
            yield "-"
        else:
            own = float(getattr(simulated, field))
            yield f"{own:,.0f} / {measured[field]:,.0f} ({own / measured[field]:.2f})"


def _arguments(arguments: Sequence[str]) -> tuple[str, str]:
    if len(arguments) != 2:
        sys.exit("usage: python -m bench.simulated MEASURED.json COST.yaml")
    return arguments[0], arguments[1]


if __name__ == "__main__":
    main(*_arguments(sys.argv[1:]))

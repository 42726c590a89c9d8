"""`expresslane simulate`: a fleet of GPUs on a virtual clock, as a table or as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from sim.figures import ClassFigures, Latency, RunFigures
    from sim.scenario import Contender, Scenario

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

ScenarioArgument = Annotated[str, typer.Argument(help="A scenario file, or the name of a built-in one.")]
TracesOption = Annotated[
    Path | None, typer.Option(help="The directory of the scenario's traces, instead of its file's.")
]


def simulate(
    scenario: ScenarioArgument,
    contender: Annotated[
        list[str] | None, typer.Option(help="expresslane, priority, fcfs or static; may be repeated.")
    ] = None,
    traces: TracesOption = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Replicas, instead of the scenario's.")] = None,
    scaling: Annotated[
        str | None, typer.Option(help="Who sets their number: none, expresslane or requests, Ray Serve's own.")
    ] = None,
    target_requests: Annotated[
        float | None, typer.Option(help="Ray Serve's target_ongoing_requests, for --scaling requests.")
    ] = None,
    time_scale: Annotated[float | None, typer.Option(min=1e-6, help="2: everything arrives twice as fast.")] = None,
    duration: Annotated[float | None, typer.Option(min=1, help="Seconds of arrivals.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Serve a scenario with the real scheduler on a virtual clock and a cost model of a GPU."""
    quiet_vllm()
    from sim.scenario import Contender, ScenarioError
    from sim.scenario_file import with_fleet
    from sim.simulation import simulate as run

    try:
        loaded = load(scenario, traces, replicas, {"time_scale": time_scale, "duration_s": duration})
        loaded = with_fleet(loaded, _given({"scaling": scaling, "target_requests": target_requests}))
        chosen = [Contender(name) for name in contender or ["expresslane"]]
        found = {}
        for each in chosen:
            begun_s = time.perf_counter()
            found[each] = run(loaded, each)
            errors.print(f"{each.value}: simulated in {time.perf_counter() - begun_s:.0f} s", markup=False)
    except (ScenarioError, OSError, ValueError) as error:
        fail(error)
    if as_json:
        sys.stdout.write(json.dumps(as_plain(loaded, found), indent=2) + "\n")
    else:
        for each, figures in found.items():
            console.print(table_of(f"{loaded.name}: {each.value}", figures))
            console.print(summary_of(figures), markup=False, soft_wrap=True)


def load(name: str, traces: Path | None, replicas: int | None, changes: dict[str, Any]) -> Scenario:
    """The scenario with what the command line changes in it.

    Raises:
        ScenarioError: it cannot be read, or used.
    """
    from sim.scenario_file import load_scenario, with_replicas

    loaded = load_scenario(name, traces, _given(changes))
    return loaded if replicas is None else with_replicas(loaded, replicas)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def quiet_vllm() -> None:
    """Called before anything imports vLLM, which reads these then."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def fail(error: Exception) -> None:
    """Ends the command with `error` as its message."""
    errors.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
    raise typer.Exit(1)


def table_of(title: str, figures: RunFigures) -> Table:
    """A row for each class."""
    table = Table(title=title)
    for heading in (
        "class",
        "requests",
        "TTFT p50 / p99, ms",
        "TBT p50 / p99, ms",
        "attained",
        "goodput/s",
        "preempted",
    ):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for each in figures.classes:
        table.add_row(*_cells(each))
    return table


def summary_of(figures: RunFigures) -> str:
    """The run as a whole, in a line."""
    return (
        f"{figures.output_tokens_per_s:,.0f} output tokens/s, {figures.tokens_per_s:,.0f} with prompts; goodput "
        f"{figures.goodput_per_s:.2f}/s; busy {figures.busy_ratio:.0%}; {figures.replica_hours:.2f} replica-hours; the "
        f"last request ended at {figures.end_s:,.0f} s of {figures.duration_s:,.0f}; {figures.num_steps:,} steps"
    )


def as_plain(scenario: Scenario, found: dict[Contender, RunFigures]) -> dict[str, Any]:
    """Plain JSON values."""
    return {
        "scenario": scenario.name,
        "replicas": scenario.settings.replicas.num_replicas,
        "gpu": scenario.engine.gpu,
        "model": scenario.engine.model,
        "contenders": {contender.value: _plain_figures(figures) for contender, figures in found.items()},
    }


def _plain_figures(figures: RunFigures) -> dict[str, Any]:
    values = asdict(figures)
    values["classes"] = {
        each.priority.name: {
            **{key: value for key, value in asdict(each).items() if key != "priority"},
            "outcomes": {outcome.value: count for outcome, count in each.outcomes.items()},
        }
        for each in figures.classes
    }
    return {**values, "holds": figures.holds}


def _cells(figures: ClassFigures) -> tuple[str, ...]:
    return (
        figures.priority.name,
        f"{figures.num_requests:,}",
        _pair(figures.ttft),
        _pair(figures.tbt),
        "-" if figures.attainment is None else f"{figures.attainment:.1%}",
        "-" if figures.goodput_per_s is None else f"{figures.goodput_per_s:.2f}",
        f"{figures.num_preempted:,}",
    )


def _pair(latency: Latency | None) -> str:
    return "-" if latency is None else f"{latency.p50_ms:,.1f} / {latency.p99_ms:,.1f}"

"""`expresslane plan`: how many replicas a load needs, and what one more or fewer does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cli.simulate import ScenarioArgument, TracesOption, console, errors, fail, load, quiet_vllm

if TYPE_CHECKING:
    from sim.planning import Plan, Tried, Use
    from slo.priority import PriorityClass

CHART_WIDTH = 40
"""Characters of a bar that reaches the target; a longer one breaks it, and is cut at twice as many."""


def plan(
    scenario: ScenarioArgument,
    traces: TracesOption = None,
    most: Annotated[int, typer.Option(min=1, help="Replicas, at most.")] = 64,
    time_scale: Annotated[float | None, typer.Option(min=1e-6, help="2: everything arrives twice as fast.")] = None,
    duration: Annotated[float | None, typer.Option(min=1, help="Seconds of arrivals.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Find the fewest replicas with which every promised target holds at P99."""
    quiet_vllm()
    from sim.planning import plan as run
    from sim.scenario import Contender, ScenarioError

    try:
        loaded = load(scenario, traces, None, {"time_scale": time_scale, "duration_s": duration})
        found = run(loaded, Contender.EXPRESSLANE, most, _progress)
    except (ScenarioError, OSError, ValueError) as error:
        fail(error)
    if as_json:
        sys.stdout.write(json.dumps(as_plain(found), indent=2) + "\n")
        return
    console.print(table_of(f"{loaded.name} on {loaded.engine.gpu}, {loaded.engine.model}", found))
    for line in chart_of(found):
        console.print(line, markup=False)
    console.print(_advice(found, most), markup=False, soft_wrap=True)


def table_of(title: str, found: Plan) -> Table:
    """A row for each number of replicas that was tried."""
    table = Table(title=title)
    for heading in ("replicas", "every promise", "busy", "goodput/s", "P99 of target: P0", "P1", "P2"):
        table.add_column(heading, justify="right")
    for tried in found.tried:
        figures = tried.figures
        table.add_row(
            f"{tried.num_replicas}{' <' if tried.num_replicas == found.fewest else ''}",
            "kept" if figures.holds else "broken",
            f"{figures.busy_ratio:.0%}",
            f"{figures.goodput_per_s:.2f}",
            *_uses(tried),
        )
    return table


def chart_of(found: Plan) -> list[str]:
    """The worst use of a target by number of replicas; `|` is the target."""
    lines = []
    for tried in found.tried:
        worst = max((use.worst for use in tried.uses.values() if use.worst is not None), default=0.0)
        bar = ("#" * min(round(worst * CHART_WIDTH), 2 * CHART_WIDTH)).ljust(CHART_WIDTH)
        lines.append(f"{tried.num_replicas:>4} {bar[:CHART_WIDTH]}|{bar[CHART_WIDTH:]} {worst:.2f}")
    return lines


def as_plain(found: Plan) -> dict[str, Any]:
    """Plain JSON values."""
    return {
        "fewest": found.fewest,
        "budgets": {priority.name: tokens for priority, tokens in found.budgets.items()},
        "tried": [
            {
                "replicas": tried.num_replicas,
                "holds": tried.figures.holds,
                "busy_ratio": tried.figures.busy_ratio,
                "goodput_per_s": tried.figures.goodput_per_s,
                "uses": {c.name: {"ttft": use.ttft_ratio, "tbt": use.tbt_ratio} for c, use in tried.uses.items()},
            }
            for tried in found.tried
        ],
    }


def _uses(tried: Tried) -> list[str]:
    from slo.priority import PriorityClass

    return [_use_text(tried.uses, priority) for priority in PriorityClass]


def _use_text(uses: Mapping[PriorityClass, Use], priority: PriorityClass) -> str:
    use = uses.get(priority)
    if use is None:
        return "-"
    ratios = (("TTFT", use.ttft_ratio), ("TBT", use.tbt_ratio))
    return ", ".join(f"{name} {ratio:.0%}" for name, ratio in ratios if ratio is not None)


def _advice(found: Plan, most: int) -> str:
    if found.fewest is None:
        return f"Not even {most} replicas keep every promise: see which class breaks it."
    budgets = ", ".join(f"{priority.name} {tokens:,}" for priority, tokens in found.budgets.items())
    return f"{found.fewest} replicas. Token budgets of a step that keep each class's TBT target there: {budgets}."


def _progress(tried: Tried) -> None:
    state = "kept" if tried.figures.holds else "broken"
    errors.print(f"{tried.num_replicas} replicas: every promise {state}", markup=False)

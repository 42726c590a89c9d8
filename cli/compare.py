"""`expresslane compare`: the same load on several servers, one after another, and a verdict on each claim."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.compare.comparison import ComparisonError
from bench.compare.comparison_file import load_contest
from bench.compare.contender import ContenderError
from bench.compare.contest import Contest, Entry, hold
from bench.compare.result import ContestResult, write_report
from bench.compare.show import ConsoleTeller, show
from bench.compare.verdicts import verdicts
from bench.curves import ChartsMissing, require_charts
from bench.scenario import ScenarioError
from cli.signals import stop_on_signals

FAILED = 1
NOT_HELD = 3
BROKEN_OFF = 130


def compare(
    comparison: Annotated[str, typer.Argument(help="A YAML file, or a built-in comparison.")] = "mixed",
    scenario: Annotated[str | None, typer.Option(help="A YAML file, or a built-in scenario, instead.")] = None,
    contender: Annotated[
        list[str] | None, typer.Option(help="This one alone, by name or file; may be given again.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A local directory, a hub name, or `default`.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Run slots of each engine.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="OpenMP threads of each engine on CPUs.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second of all classes that have a share.")] = None,
    time_scale: Annotated[float | None, typer.Option(help="2: everything twice as fast, traces too.")] = None,
    duration: Annotated[float | None, typer.Option(help="Of arrivals that are counted, seconds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the load, the same for all.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures into this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page (.html), contenders side by side.")] = None,
) -> None:
    """Put the same load on several servers, one after another, and tell which claims hold.

    Ends with 0 when all claims held, 3 when one did not or could not be measured, 1 when a contender failed or nothing
    could be begun.
    """
    changes = {"rate": rate, "time_scale": time_scale, "duration_s": duration, "seed": seed}
    engine = {"model": model, "slots": slots, "threads": threads}
    try:
        if report is not None:
            require_charts()
        contest = load_contest(
            comparison,
            os.environ,
            scenario=scenario,
            contenders=contender or (),
            engine=_given(engine),
            changes=_given(changes),
        )
        for path in (json_file, report):
            if path is not None:
                path.open("ab").close()  # an hour later would be too late to learn that it cannot be written
        result = _carried_out(contest)
        if json_file is not None:
            json_file.write_bytes(result.to_json())
        if report is not None:
            write_report(result, report)
    except (ComparisonError, ContenderError, ScenarioError, ChartsMissing, OSError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from None
    raise typer.Exit(_status(result))


def _carried_out(contest: Contest) -> ContestResult:
    """All of it, or what there is when it is broken off; shown in either case."""
    stop_on_signals()
    errors = Console(stderr=True, highlight=False)
    teller = ConsoleTeller(errors)
    entries: list[Entry] = []
    is_whole = False
    try:
        for entry in hold(contest, teller):
            entries.append(entry)
            if entry.output:
                errors.print(entry.output, markup=False, soft_wrap=True)
        is_whole = True
    except KeyboardInterrupt:
        teller.say("broken off: what was measured so far")
    result = ContestResult(contest, tuple(entries), tuple(verdicts(contest, entries)), is_whole)
    if entries:
        show(result, Console(highlight=False), errors)
    return result


def _status(result: ContestResult) -> int:
    if not result.is_whole:
        return BROKEN_OFF
    if not result.all_held:
        return NOT_HELD
    return FAILED if any(entry.failure is not None for entry in result.entries) else 0


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}

"""`expresslane bench`: a load on any OpenAI-compatible server, and what each class met."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.benchmark import Benchmark, open_benchmark, run_search, run_speeds
from bench.client import ServerUnreachable
from bench.curves import ChartsMissing, require_charts
from bench.reply import Reply
from bench.report import write_report
from bench.result import Result
from bench.scenario import Endpoint, Scenario, ScenarioError
from bench.scenario_file import load_scenario
from bench.table import class_table, notes_of, rate_table, warnings_of
from slo.outcome import Outcome

REFRESHES_PER_S = 2
"""Of the progress bar: drawing it takes this process's time, and becomes lag."""
CONSOLE_WIDTH = 160


def bench(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or a built-in scenario.")] = "mixed",
    url: Annotated[str | None, typer.Option(help="Of the server, without /v1.")] = None,
    model: Annotated[str | None, typer.Option(help="Unless told, the first that the server lists.")] = None,
    endpoint: Annotated[Endpoint | None, typer.Option(help="Of OpenAI's API.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second of all classes that have a share.")] = None,
    time_scale: Annotated[float | None, typer.Option(help="2: everything twice as fast, traces too.")] = None,
    duration: Annotated[float | None, typer.Option(help="Of arrivals that are counted, seconds.")] = None,
    warm_up: Annotated[float | None, typer.Option(help="Of arrivals before, not counted, seconds.")] = None,
    streams: Annotated[int | None, typer.Option(help="A closed loop of so many streams instead.")] = None,
    seed: Annotated[int | None, typer.Option(help="Unless told, drawn: repeated text would be cached.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Send this class alone; may be given again.")] = None,
    speeds: Annotated[str, typer.Option(help="One run at each of these multiples of the rates: 0.5,1,2.")] = "1",
    search: Annotated[bool, typer.Option(help="Search for the highest speed at which all targets hold.")] = False,
    precision: Annotated[float, typer.Option(min=0.001, help="Of the search, as a ratio.")] = 0.1,
    tries: Annotated[int, typer.Option(min=1, help="Of the search, at most.")] = 12,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures into this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page (.html) or a picture (.png) of curves.")] = None,
) -> None:
    """Put an open-loop load of mixed classes on a server, and tell what each class met."""
    changes = {
        "url": url,
        "model": model,
        "endpoint": endpoint,
        "rate": rate,
        "time_scale": time_scale,
        "duration_s": duration,
        "warm_up_s": warm_up,
        "streams": streams,
        "seed": seed,
    }
    try:
        if report is not None:
            require_charts()
        loaded = load_scenario(scenario, {key: value for key, value in changes.items() if value is not None})
        benchmark = open_benchmark(loaded, only or [], os.environ)
        result = _carry_out(benchmark, _numbers(speeds), search, precision, tries)
        _tell(result)
        if json_file is not None:
            json_file.write_bytes(result.to_json())
        if report is not None:
            write_report(result, report)
    except (ScenarioError, ServerUnreachable, ChartsMissing, OSError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


class ProgressWatcher:
    """Shows a run as it goes on: the time, and how its requests fare."""

    def __init__(self, progress: Progress, scenario: Scenario, speed: float) -> None:
        self._progress = progress
        self._task = progress.add_task(f"speed {speed:.3g}", total=scenario.end_s, tally="")
        self._start_s = time.monotonic()
        self._num_sent = 0
        self._by_outcome: dict[Outcome, int] = {}

    def sent(self) -> None:
        """One more request was sent."""
        self._num_sent += 1
        self._show()

    def ended(self, reply: Reply) -> None:
        """One more has ended."""
        self._by_outcome[reply.outcome] = self._by_outcome.get(reply.outcome, 0) + 1
        self._show()

    def _show(self) -> None:
        ended = ", ".join(f"{count:,} {outcome.value}" for outcome, count in self._by_outcome.items())
        in_flight = self._num_sent - sum(self._by_outcome.values())
        elapsed_s = time.monotonic() - self._start_s
        self._progress.update(self._task, completed=elapsed_s, tally=f"{in_flight:,} in flight; {ended}")


def _carry_out(benchmark: Benchmark, speeds: list[float], search: bool, precision: float, tries: int) -> Result:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[tally]}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, refresh_per_second=REFRESHES_PER_S) as progress:

        def watch(speed: float) -> ProgressWatcher:
            return ProgressWatcher(progress, benchmark.scenario, speed)

        if search:
            return run_search(benchmark, speeds[0], precision, tries, watch)
        return run_speeds(benchmark, speeds, watch)


def _tell(result: Result) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=CONSOLE_WIDTH)
    errors = Console(stderr=True, highlight=False)
    for warning in warnings_of(result):
        errors.print(warning, style="bold red", markup=False, soft_wrap=True)
    shown = result.shown()
    console.print(
        f"{result.scenario.name}: {result.model} at {result.scenario.url}, seed {result.seed}, "
        f"{shown.figures.sent_per_s:,.2f} requests/s for {shown.figures.window_s:,.1f} s, "
        f"lag p99 {lag_text(result)}",
        markup=False,
        soft_wrap=True,
    )
    console.print(class_table(shown.figures))
    if len(result.measured) > 1:
        console.print(rate_table(result))
    for note in notes_of(result):
        console.print(note, markup=False, soft_wrap=True)


def lag_text(result: Result) -> str:
    """The generator's own lag in the run that is shown."""
    lag = result.shown().figures.lag
    sent = "" if lag.send_p99_ms is None else f"{lag.send_p99_ms:.1f} ms sending, "
    return f"{sent}{lag.loop_p99_ms:.1f} ms reading"


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) <= 0:
        raise ScenarioError(f"--speeds={text!r}: numbers above 0 are expected, such as 0.5,1,2")
    return numbers

"""Runs of scenarios on a server that `expresslane compare` knows how to start, for what is no comparison of servers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from bench.benchmark import open_benchmark
from bench.compare.contender_file import load_contender
from bench.compare.server import Server, running
from bench.compare.sizes import Sizes
from bench.result import Measured
from bench.run import Unwatched
from bench.scenario_file import load_scenario
from bench.table import lag_warning


class Runs:
    """The runs on a server; each one's text is its own. `environment`: where keys are found."""

    def __init__(self, server: Server, environment: Mapping[str, str] | None = None) -> None:
        self._contender = server.contender
        self._environment = environment or {}
        self._indices = count()

    def run(self, name: str, speed: float = 1.0, *, only: Sequence[str] = (), **changes: Any) -> Measured:
        """Runs the scenario of this name once, and says on standard error how it went."""
        common = {"endpoint": "completions", "seed": 1, "url": self._contender.url, "model": self._contender.model}
        scenario = load_scenario(name, common | changes)
        benchmark = open_benchmark(scenario, only, self._environment)
        measured = benchmark.run(speed, next(self._indices), Unwatched())
        say(f"  {name} {' '.join(only)}: {measured.figures.sent_per_s:.2f} requests/s; {_outcomes(measured)}")
        for error in (error for of_class in measured.figures.classes for error in of_class.errors):
            say(f"  not answered: {error}")
        if not measured.figures.kept_up:
            say(lag_warning(measured, scenario.max_lag_ms))
        return measured

    def capacity(self, name: str, slots: int, seconds: float) -> float:
        """Requests of a scenario's mix that it completes a second when it is never idle."""
        changes: dict[str, Any] = {"streams": 2 * slots, "warm_up_s": seconds / 6, "duration_s": seconds / 2}
        return self.run(name, **changes).figures.completed_per_s


def expresslane(sizes: Sizes, **variables: str) -> AbstractContextManager[Server]:
    """Expresslane, whole, started here. `variables`: those of its contender file."""
    return running(load_contender("expresslane", variables=variables), sizes)


def say(line: str) -> None:
    """Progress, to standard error."""
    print(line, file=sys.stderr, flush=True)


def _outcomes(measured: Measured) -> str:
    return "; ".join(
        f"{of_class.name} " + ", ".join(f"{count} {outcome.value}" for outcome, count in of_class.outcomes.items())
        for of_class in measured.figures.classes
    )

"""A scenario carried out: once, at several speeds, or in search of the highest at which all targets hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.client import Client, first_model, open_session
from bench.measure import figures_of
from bench.plan import plan
from bench.reply import Reply
from bench.result import Measured, Result, best_of
from bench.run import Loop, Run, Watcher
from bench.scenario import ClassSpec, Scenario, ScenarioError
from bench.search import find_highest
from bench.workload import Arrival, endpoint_of, payload_of

SEEDS = 2**31
RUNS = 2**16
"""More than a benchmark has: each has a salt of its own, so that no run finds the text of another in a cache."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What is measured, with nothing left open.

    Attributes:
        scenario: whole, so that rates and shares mean what they say.
        chosen: with the classes that are sent; the same, unless some are left out.
        headers: of each class, by its name, key included.
    """

    scenario: Scenario
    chosen: Scenario
    model: str
    seed: int
    headers: Mapping[str, Mapping[str, str]]

    def run(self, speed: float, index: int, watcher: Watcher) -> Measured:
        """Runs it once, `speed` times as fast as written. `index`: of this run, among those on one server."""
        run = asyncio.run(self._run(speed, index, watcher))
        return Measured(speed, run, figures_of(run, self.chosen))

    async def _run(self, speed: float, index: int, watcher: Watcher) -> Run:
        scenario = self.scenario
        faster = scenario.model_copy(update={"time_scale": scenario.time_scale * speed})
        salt = self.seed * RUNS + index
        arrivals = plan(faster, self.seed, chosen=self.chosen)
        async with open_session(scenario.timeout_s) as session:
            client = Client(session, scenario.url)

            async def send(payload: bytes, arrival: Arrival) -> Reply:
                path = endpoint_of(arrival, scenario).path
                return await client.send(path, payload, self.headers[arrival.spec.name])

            def prepare(arrival: Arrival) -> bytes:
                return payload_of(arrival, scenario, self.model, salt)

            loop = Loop(send, prepare, watcher)
            if scenario.streams is not None:
                return await loop.run_closed(arrivals, scenario.streams, scenario.warm_up_s, scenario.end_s)
            return await loop.run_open(arrivals, scenario.warm_up_s, scenario.end_s)


def open_benchmark(scenario: Scenario, only: Sequence[str], environment: Mapping[str, str]) -> Benchmark:
    """`scenario` with its seed drawn, its model asked for and its keys found, where it leaves them open.

    Raises:
        ScenarioError: a class or the variable of a key is not there.
        ServerUnreachable: the server must be asked for its model, and does not tell.
    """
    chosen = scenario.only(only) if only else scenario
    headers = {spec.name: headers_of(spec, environment) for spec in chosen.classes}
    seed = scenario.seed if scenario.seed is not None else random.randrange(SEEDS)
    model = scenario.model or asyncio.run(_ask_model(scenario, next(iter(headers.values()))))
    return Benchmark(scenario, chosen, model, seed, headers)


def headers_of(spec: ClassSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """The headers of a class, with its key.

    Raises:
        ScenarioError: the variable of its key is not set.
    """
    if spec.api_key_env is None:
        return dict(spec.headers)
    if not (key := environment.get(spec.api_key_env)):
        raise ScenarioError(f"classes.{spec.name}.api_key_env={spec.api_key_env!r}: the variable is not set")
    return {**spec.headers, "Authorization": f"Bearer {key}"}


def run_speeds(benchmark: Benchmark, speeds: Sequence[float], watch: Callable[[float], Watcher]) -> Result:
    """One run at each speed, one after the other. `watch` is asked for each run's watcher."""
    measured = tuple(benchmark.run(speed, index, watch(speed)) for index, speed in enumerate(speeds))
    return Result(benchmark.chosen, benchmark.model, benchmark.seed, measured)


def run_search(
    benchmark: Benchmark, start: float, precision: float, max_tries: int, watch: Callable[[float], Watcher]
) -> Result:
    """Searches for the highest speed at which all targets hold.

    Raises:
        ScenarioError: no class has a target, or it is a closed loop, which sets its rate itself.
    """
    if not any(spec.targets.promise_something for spec in benchmark.chosen.classes):
        raise ScenarioError("classes: a search needs a class with targets")
    if benchmark.scenario.streams is not None:
        raise ScenarioError(f"streams={benchmark.scenario.streams}: a closed loop has no rate to search")
    measured: list[Measured] = []

    def holds(speed: float) -> bool:
        measured.append(benchmark.run(speed, len(measured), watch(speed)))
        return best_of(measured[-1:]) is not None

    found = find_highest(holds, start, precision, max_tries)
    return Result(benchmark.chosen, benchmark.model, benchmark.seed, tuple(measured), found)


async def _ask_model(scenario: Scenario, headers: Mapping[str, str]) -> str:
    async with open_session(scenario.timeout_s) as session:
        return await first_model(session, scenario.url, headers)

"""A comparison carried out: each contender started, warmed up, measured and ended, one after another.

A contender that fails is told as such, and the others go on. Nothing outlives it: see `bench.compare.server`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.benchmark import SEEDS, Benchmark, headers_of, open_benchmark
from bench.client import ServerUnreachable
from bench.compare.comparison import ALONE, Comparison, ComparisonError
from bench.compare.contender import Contender
from bench.compare.metrics import metrics_of, nearest
from bench.compare.server import ServerFailed, running
from bench.plan import plan
from bench.result import Measured, Result
from bench.run import Watcher
from bench.scenario import ClassSpec, Scenario
from replicas.models.default import ModelPreparationError
from slo.priority import PriorityClass

PRIORITY_HEADER = "x-priority"
WARM_UP_REQUESTS = 2
"""Of each class, before anything is measured: the first ones open files and fill pools."""
WARM_UP_TOKENS = 8
_WARM_UP, _ALONE, _LOADED = range(3)


class Teller(Protocol):
    """Told how a comparison goes on."""

    def say(self, line: str) -> None:
        """What begins now, or went wrong."""

    def watch(self, what: str, scenario: Scenario) -> Watcher:
        """Watches the run that begins now."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared, checked and with nothing left open.

    Attributes:
        scenario: as it is sent to each, but for what tells a class there; its seed is set.
        environment: where keys are found.
    """

    comparison: Comparison
    scenario: Scenario
    contenders: tuple[Contender, ...]
    environment: Mapping[str, str]

    @property
    def baseline(self) -> str:
        """The name of the contender that ratios are to."""
        return self.comparison.baseline or self.contenders[-1].name


@dataclass(frozen=True, slots=True)
class Entry:
    """What one contender showed. `failure`: why there are no figures; `output`: the end of what its server wrote."""

    contender: Contender
    start_s: float | None = None
    alone: Measured | None = None
    loaded: Result | None = None
    failure: str | None = None
    output: str = ""

    @property
    def measured(self) -> Measured | None:
        """Under the whole load."""
        return None if self.loaded is None else self.loaded.measured[0]


def open_contest(
    comparison: Comparison, scenario: Scenario, contenders: Sequence[Contender], environment: Mapping[str, str]
) -> Contest:
    """Everything checked that can be before a server is started.

    Raises:
        ComparisonError, ScenarioError: names do not fit together, or the variable of a key is not set.
        OSError, ValueError: the file of a class's source cannot be read.
    """
    if scenario.seed is None:
        scenario = scenario.model_copy(update={"seed": random.randrange(SEEDS)})
    if comparison.alone:
        scenario.only(comparison.alone)
    contest = Contest(comparison, scenario, tuple(contenders), environment)
    for fault in _faults(contest):
        raise ComparisonError(fault)
    for contender in contenders:
        for spec in as_met_by(scenario, contender).classes:
            headers_of(spec, environment)
    next(plan(scenario, 0), None)
    return contest


def hold(contest: Contest, teller: Teller) -> Iterator[Entry]:
    """Each contender's entry, as soon as it has been measured."""
    for contender in contest.contenders:
        try:
            entry = _measure(contest, contender, teller)
        except (ServerFailed, ServerUnreachable, ModelPreparationError, OSError) as error:
            teller.say(f"{contender.shown}: {error}")
            output = error.output if isinstance(error, ServerFailed) else ""
            entry = Entry(contender, failure=str(error), output=output)
        yield entry


def as_met_by(scenario: Scenario, contender: Contender) -> Scenario:
    """The scenario with its classes told as a contender wants them told. Its own headers and fields go along."""
    classes = [_told(spec, contender) for spec in scenario.classes]
    url = scenario.url if "$" in contender.url else contender.url
    return scenario.model_copy(update={"url": url, "model": contender.model, "classes": tuple(classes)})


def class_of(spec: ClassSpec) -> PriorityClass:
    """What its requests are by their X-Priority header; P1 without one, as the ingress has it."""
    named = next((value for name, value in spec.headers.items() if name.lower() == PRIORITY_HEADER), "")
    return PriorityClass.parse(named) or PriorityClass.P1


def warming(scenario: Scenario) -> Scenario:
    """A few short answers of each class, at once."""
    few = {"arrivals": "at_once", "rate": None, "share": None, "burstiness": None, "start_s": 0.0}
    classes = [
        spec.model_copy(
            update={**few, "max_requests": WARM_UP_REQUESTS, "body": {**spec.body, "max_tokens": WARM_UP_TOKENS}}
        )
        for spec in scenario.classes
    ]
    return scenario.model_copy(update={"classes": tuple(classes), "streams": None, "warm_up_s": 0.0})


def _measure(contest: Contest, contender: Contender, teller: Teller) -> Entry:
    comparison, environment = contest.comparison, contest.environment
    teller.say(f"{contender.shown}: {'starting' if contender.command else 'asking ' + contender.url}")
    with running(contender, comparison.engine) as server:
        scenario = as_met_by(contest.scenario, server.contender)

        def run(what: str, index: int, of: Scenario, only: Sequence[str]) -> tuple[Benchmark, Measured]:
            benchmark = open_benchmark(of, only, environment)
            measured = benchmark.run(1, index, teller.watch(f"{contender.shown}: {what}", of))
            server.check()
            return benchmark, measured

        run("warming up", _WARM_UP, warming(scenario), ())
        alone = None
        if comparison.alone:
            _, alone = run(f"{', '.join(comparison.alone)} alone", _ALONE, scenario, comparison.alone)
        benchmark, loaded = run("under load", _LOADED, scenario, ())
        result = Result(benchmark.chosen, benchmark.model, benchmark.seed, (loaded,))
        return Entry(contender, server.start_s, alone, result)


def _told(spec: ClassSpec, contender: Contender) -> ClassSpec:
    marking = contender.marking(class_of(spec))
    return spec.model_copy(
        update={
            "headers": {**spec.headers, **marking.headers},
            "body": {**spec.body, **marking.body},
            "api_key_env": contender.api_key_env or spec.api_key_env,
        }
    )


def _faults(contest: Contest) -> Iterator[str]:
    comparison, scenario = contest.comparison, contest.scenario
    names = [contender.name for contender in contest.contenders]
    if twice := {name for name in names if names.count(name) > 1}:
        yield f"contenders: two are called {', '.join(sorted(twice))}"
    if ALONE in names:
        yield f"contenders: none may be called {ALONE!r}"
    if comparison.baseline is not None and comparison.baseline not in names:
        yield f"baseline={comparison.baseline!r}: is none of the contenders, {', '.join(names)}"
    known = metrics_of(spec.name for spec in scenario.classes)
    of_alone = metrics_of(comparison.alone)
    for i, claim in enumerate(comparison.claims):
        for key, name in (("of", claim.of), ("to", claim.to)):
            if name is not None and name not in names and (key, name) != ("to", ALONE):
                yield f"claims.{i}.{key}={name!r}: is none of the contenders, {', '.join(names)}"
        if claim.metric not in known:
            yield f"claims.{i}.metric={claim.metric!r}: no such figure; like it: {nearest(claim.metric, known)}"
        elif claim.to == ALONE and claim.metric not in of_alone:
            yield f"claims.{i}.metric={claim.metric!r}: is not of what is sent alone, {', '.join(comparison.alone)}"

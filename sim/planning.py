"""How many replicas a load needs, and what each number of them does: a search over simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sim.contenders import step_time_of
from sim.figures import ClassFigures, RunFigures
from sim.scenario import Contender, Scenario
from sim.scenario_file import with_replicas, without_scaling
from sim.search import find_fewest
from sim.simulation import simulate
from sim.step_work import StepTime, StepWork
from sim.traffic import arrivals_of
from slo.priority import PriorityClass
from slo.settings.targets import BUDGET_MULTIPLE_TOKENS, LatencyTargets


@dataclass(frozen=True, slots=True)
class Use:
    """How much of its targets a class uses at P99, as ratios: above 1 is a promise broken. None: no such target."""

    ttft_ratio: float | None
    tbt_ratio: float | None

    @property
    def worst(self) -> float | None:
        """The higher of the two."""
        return max((r for r in (self.ttft_ratio, self.tbt_ratio) if r is not None), default=None)


@dataclass(frozen=True, slots=True)
class Tried:
    """One number of replicas."""

    num_replicas: int
    figures: RunFigures
    uses: Mapping[PriorityClass, Use]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found.

    Attributes:
        fewest: None: not even the most that were allowed keep every promise.
        tried: by number, ascending; with `fewest`, one fewer and one more are in it.
        budgets: tokens of a step that keep the TBT target of each class, with the batch of a replica at `fewest`.
    """

    fewest: int | None
    tried: tuple[Tried, ...]
    budgets: Mapping[PriorityClass, int]


def plan(
    scenario: Scenario,
    contender: Contender,
    most: int,
    progress: Callable[[Tried], None] = lambda _: None,
) -> Plan:
    """The fewest replicas of `scenario`, always there, that meet every promised target, at P99.

    Raises:
        OSError, ValueError: a trace cannot be read.
    """
    scenario = without_scaling(scenario)
    arrivals = arrivals_of(scenario)
    tried: dict[int, Tried] = {}

    def run(num_replicas: int) -> Tried:
        if num_replicas not in tried:
            figures = simulate(with_replicas(scenario, num_replicas), contender, arrivals)
            tried[num_replicas] = Tried(num_replicas, figures, uses_of(scenario, figures))
            progress(tried[num_replicas])
        return tried[num_replicas]

    fewest = find_fewest(lambda num: run(num).figures.holds, scenario.settings.replicas.num_replicas, most)
    if fewest is not None:
        run(fewest + 1)
        if fewest > 1:
            run(fewest - 1)
    best = tried[most if fewest is None else fewest]
    budgets = budgets_of(scenario, step_time_of(scenario), _mean_batch(best))
    return Plan(fewest, tuple(tried[num] for num in sorted(tried)), budgets)


def uses_of(scenario: Scenario, figures: RunFigures) -> Mapping[PriorityClass, Use]:
    """Of each class with a promise."""
    targets = scenario.settings.scheduler.targets
    return {c.priority: _use(c, of) for c in figures.classes if (of := targets.of(c.priority)).promised}


def budgets_of(scenario: Scenario, step_time: StepTime, num_decodes: int) -> Mapping[PriorityClass, int]:
    """The largest step, in tokens, that keeps each class's TBT target beside `num_decodes`; a multiple of 256, as the
    profiles' budgets are, and at least one such."""
    scheduler = scenario.settings.scheduler
    found = {}
    for priority in PriorityClass:
        target_ms = scheduler.targets.of(priority).tbt_p99_ms
        if target_ms is not None:
            limit_s = target_ms * scheduler.budget.tbt_ratio / 1e3
            found[priority] = _largest_step(step_time, limit_s, num_decodes, scenario.engine.max_step_tokens)
    return found


def _largest_step(step_time: StepTime, limit_s: float, num_decodes: int, most: int) -> int:
    budget = BUDGET_MULTIPLE_TOKENS
    while budget + BUDGET_MULTIPLE_TOKENS <= most:
        tokens = budget + BUDGET_MULTIPLE_TOKENS
        work = StepWork(tokens - num_decodes, tokens * tokens // 2, 1, num_decodes, 0, num_decodes)
        if step_time.step_s(work) > limit_s:
            break
        budget = tokens
    return budget


def _mean_batch(tried: Tried) -> int:
    """Requests that decode at once on a replica: tokens of a second by the time that a token takes."""
    batch = 0.0
    for of_class in tried.figures.classes:
        if of_class.tbt is not None:
            batch += of_class.output_tokens_per_s * of_class.tbt.mean_ms / 1e3
    return max(1, round(batch / tried.num_replicas))


def _use(figures: ClassFigures, targets: LatencyTargets) -> Use:
    def ratio(value_ms: float | None, target_ms: float | None) -> float | None:
        return None if value_ms is None or target_ms is None else value_ms / target_ms

    return Use(
        ratio(figures.ttft.p99_ms if figures.ttft else None, targets.ttft_p99_ms),
        ratio(figures.tbt.p99_ms if figures.tbt else None, targets.tbt_p99_ms),
    )

"""Better settings of the scheduler for a load on one replica: from where they are, one knob after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sim.figures import RunFigures
from sim.planning import uses_of
from sim.scenario import Contender, Scenario
from sim.scenario_file import parse_scenario, with_replicas
from sim.simulation import simulate
from sim.traffic import arrivals_of

KNOBS: Final[Mapping[str, tuple[Any, ...]]] = {
    "engine.max_step_tokens": (2048, 4096, 8192, 16384),
    "settings.scheduler.budget.min_prefill_tokens": (48, 128, 256, 512),
    "settings.scheduler.budget.tbt_ratio": (0.7, 0.85, 0.95),
    "settings.scheduler.budget.ceiling_ttft_ratio": (0.25, 0.5, 0.75),
    "settings.scheduler.profiles.standard.token_budget": (512, 1024, 2048),
    "settings.scheduler.preemption.max_victims_per_step": (1, 2, 4, 8),
    "settings.scheduler.fairness.max_preemptions_per_request": (16, 64, 256),
}
"""In the order in which operators turn them: the size of a step, how prefill shares it, then who yields."""
MIN_GAIN: Final = 0.01
"""A setting is changed for no less than this, as a ratio."""


@dataclass(frozen=True, slots=True)
class Score:
    """How well a run went. First promises are kept; then more is done.

    Attributes:
        over_ratio: the worst P99 over its target, as a ratio; 1 where every promise is kept.
        tokens_per_s: of prompts and answers, in the time of arrivals.
    """

    over_ratio: float
    tokens_per_s: float

    def is_better_than(self, other: Score) -> bool:
        """By more than `MIN_GAIN`."""
        if self.over_ratio < other.over_ratio * (1 - MIN_GAIN):
            return True
        is_as_safe = self.over_ratio <= other.over_ratio
        return is_as_safe and self.tokens_per_s > other.tokens_per_s * (1 + MIN_GAIN)


@dataclass(frozen=True, slots=True)
class Turn:
    """A knob that was tried at a value."""

    knob: str
    value: Any
    score: Score
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found. `changes`: by knob, only what differs from the start."""

    before: Score
    after: Score
    changes: Mapping[str, Any]
    turns: tuple[Turn, ...]


def tune(
    scenario: Scenario,
    knobs: Mapping[str, tuple[Any, ...]] = KNOBS,
    progress: Callable[[Turn], None] = lambda _: None,
) -> Tuning:
    """One pass over `knobs`, each at every value beside its present one, on one replica.

    Raises:
        OSError, ValueError: a trace cannot be read.
    """
    best = with_replicas(scenario, 1)
    arrivals = arrivals_of(best)

    def score(candidate: Scenario) -> Score:
        return score_of(candidate, simulate(candidate, Contender.EXPRESSLANE, arrivals))

    before = best_score = score(best)
    changes: dict[str, Any] = {}
    turns: list[Turn] = []
    for knob, values in knobs.items():
        for value, candidate in _alternatives(best, knob, values):
            found = score(candidate)
            is_kept = found.is_better_than(best_score)
            turns.append(Turn(knob, value, found, is_kept))
            progress(turns[-1])
            if is_kept:
                best, best_score, changes[knob] = candidate, found, value
    return Tuning(before, best_score, changes, tuple(turns))


def score_of(scenario: Scenario, figures: RunFigures) -> Score:
    """The score of a run."""
    worst = [use.worst for use in uses_of(scenario, figures).values() if use.worst is not None]
    return Score(max(1.0, *worst) if worst else 1.0, figures.tokens_per_s)


def _alternatives(scenario: Scenario, knob: str, values: tuple[Any, ...]) -> Iterator[tuple[Any, Scenario]]:
    """`scenario` with `knob` at each of `values` but its present one; where settings forbid it, not at all."""
    *groups, key = knob.split(".")
    plain = scenario.model_dump()
    group = plain
    for name in groups:
        group = group[name]
    present = group[key]
    for value in values:
        if value == present:
            continue
        group[key] = value
        try:
            yield value, parse_scenario(plain)
        except ValueError:
            continue

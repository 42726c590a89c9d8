"""Comparisons from YAML files, and those that come with the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.compare.comparison import ALONE, Comparison, ComparisonError
from bench.compare.contender import Contender
from bench.compare.contender_file import load_contender
from bench.compare.contest import Contest, open_contest
from bench.scenario import Scenario
from bench.scenario_file import built_in_names, load_scenario
from slo.settings.shelf import Shelf

BUILT_IN: Final = Path(__file__).parent / "comparisons"
COMPARISONS: Final = Shelf(Comparison, BUILT_IN, "comparison", "scenario", ComparisonError, shows_lists=False)


def load_contest(
    name: str,
    environment: Mapping[str, str],
    *,
    scenario: str | None = None,
    contenders: Sequence[str] = (),
    engine: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Contest:
    """The comparison in a file, or one of those built in (`mixed`), with what the command line changes in it.

    Args:
        environment: where keys are found.
        scenario: in place of its own; a path is relative to the working directory, as those of `contenders` are.
        contenders: instead of its own, or some of them; claims that name another are left out.
        engine: keys of its `engine`, with values that fit.
        changes: keys of its scenario.

    Raises:
        ComparisonError, ContenderError, ScenarioError: a file cannot be read, or they do not fit together.
    """
    comparison, path = COMPARISONS.load(name)
    met = _contenders(comparison, path.parent, contenders)
    try:
        load = _scenario(comparison, path.parent, scenario, changes)
        updates: dict[str, Any] = {}
        if engine:
            updates["engine"] = comparison.engine.model_copy(update=engine)
        if contenders:
            updates |= _narrowed(comparison, {contender.name for contender in met})
        return open_contest(comparison.model_copy(update=updates), load, met, environment)
    except ComparisonError as error:
        raise ComparisonError(f"{path}: {error}") from None


def _contenders(comparison: Comparison, directory: Path, chosen: Sequence[str]) -> list[Contender]:
    own = [load_contender(name, directory) for name in comparison.contenders]
    if not chosen:
        return own
    by_name = {contender.name: contender for contender in own}
    return [by_name[name] if name in by_name else load_contender(name) for name in chosen]


def _scenario(
    comparison: Comparison, directory: Path, chosen: str | None, changes: Mapping[str, Any] | None
) -> Scenario:
    if chosen is not None or comparison.scenario in built_in_names():
        return load_scenario(chosen or comparison.scenario, changes)
    return load_scenario(str(directory / comparison.scenario), changes)


def _narrowed(comparison: Comparison, names: set[str]) -> dict[str, Any]:
    """What of a comparison is left when these contenders alone are met."""
    return {
        "claims": tuple(c for c in comparison.claims if c.of in names and c.to in names | {None, ALONE}),
        "baseline": comparison.baseline if comparison.baseline in names else None,
    }

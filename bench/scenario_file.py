"""Scenarios from YAML files, and those that come with the product."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.scenario import Scenario, ScenarioError, Synthetic
from slo.settings.shelf import Shelf

BUILT_IN: Final = Path(__file__).parent / "scenarios"
SCENARIOS: Final = Shelf(Scenario, BUILT_IN, "scenario", "classes", ScenarioError, shows_lists=False)
parse_scenario: Final = SCENARIOS.parse
built_in_names: Final = SCENARIOS.names


def load_scenario(name: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario in a file, or one of those built in (`overload`), with `changes` in place of its own values.

    Paths in it are relative to its file.

    Raises:
        ScenarioError: it cannot be read, or used.
    """
    scenario, path = SCENARIOS.load(name, changes)
    return _relative_to(path.parent, scenario)


def _relative_to(directory: Path, scenario: Scenario) -> Scenario:
    classes = []
    for spec in scenario.classes:
        path = None if isinstance(spec.source, Synthetic) else spec.source.path
        if path is not None:
            source = spec.source.model_copy(update={"path": directory / path.expanduser()})
            spec = spec.model_copy(update={"source": source})
        classes.append(spec)
    return scenario.model_copy(update={"classes": tuple(classes)})

"""Scenarios from YAML files, and those that come with the product."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sim.scenario import Scenario, ScenarioError, Trace
from slo.settings.shelf import Shelf

BUILT_IN: Final = Path(__file__).parent / "scenarios"
SCENARIOS: Final = Shelf(Scenario, BUILT_IN, "scenario", "traffic", ScenarioError)
parse_scenario: Final = SCENARIOS.parse
built_in_names: Final = SCENARIOS.names


def load_scenario(name: str, traces: Path | None = None, changes: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario in a file, or one of those built in, with `changes` in place of its own values at the top.

    Args:
        traces: the directory in which its traces are; None: that of its file.

    Raises:
        ScenarioError: it cannot be read, or used.
    """
    scenario, path = SCENARIOS.load(name, changes)
    return _with_traces_in(traces or path.parent, scenario)


def with_replicas(scenario: Scenario, num_replicas: int) -> Scenario:
    """The same traffic on another number of replicas, bounds and all.

    Raises:
        ScenarioError: the settings do not allow it.
    """
    settings = scenario.settings.model_dump()
    settings["replicas"]["num_replicas"] = num_replicas
    return parse_scenario({**scenario.model_dump(), "settings": settings})


def without_scaling(scenario: Scenario) -> Scenario:
    """The same traffic on replicas whose number nobody changes, or bounds."""
    values = scenario.model_dump()
    values["fleet"]["scaling"] = "none"
    values["settings"]["autoscale"] |= {"min_replicas": None, "max_replicas": None}
    return parse_scenario(values)


def with_fleet(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """The same traffic with other values of the group `fleet`.

    Raises:
        ScenarioError: a value is wrong.
    """
    values = scenario.model_dump()
    return parse_scenario({**values, "fleet": {**values["fleet"], **changes}}) if changes else scenario


def _with_traces_in(directory: Path, scenario: Scenario) -> Scenario:
    traffic = []
    for spec in scenario.traffic:
        if isinstance(spec.source, Trace):
            source = spec.source.model_copy(update={"path": directory / spec.source.path.expanduser()})
            spec = spec.model_copy(update={"source": source})
        traffic.append(spec)
    return scenario.model_copy(update={"traffic": tuple(traffic)})

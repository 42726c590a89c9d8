"""The form of a Grafana dashboard: rows of panels that show PromQL over time, laid out and written as Grafana's JSON.

Written out because it is a handful of keys: the form that Grafana imports (schema version 39, Grafana 10 and later),
with the data source as a variable. Knows no metric; what is shown is in autoscale/dashboard.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from string import ascii_uppercase
from typing import Any, Final

GRID_WIDTH: Final = 24
PANEL_HEIGHT: Final = 8
RATE_RANGE: Final = "$__rate_interval"
"""Grafana's range for `rate`: long enough for the step and the scrape interval."""
REFERENCE: Final = "target"
"""The legend's last word of a line that others are compared with: drawn dashed."""

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Unit(Enum):
    """Of a panel's values, as Grafana names it."""

    SECONDS = "s"
    SHARE = "percentunit"
    BYTES = "bytes"
    BYTES_PER_S = "Bps"
    REQUESTS_PER_S = "reqps"
    COUNT = "short"


@dataclass(frozen=True, slots=True)
class Query:
    """A line, or one for each value of the labels that `legend` names in braces."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over time. `limit` draws a threshold; `is_state` shows 0 and 1 as bands instead."""

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    limit: float | None = None
    is_stacked: bool = False
    is_state: bool = False
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, filled from the left, as many lines as they need."""

    title: str
    panels: tuple[Panel, ...]

    def with_expressions(self, change: Callable[[str], str]) -> Row:
        """The same with each query's expression changed."""
        return replace(
            self,
            panels=tuple(
                replace(p, queries=tuple(replace(q, expression=change(q.expression)) for q in p.queries))
                for p in self.panels
            ),
        )


def dashboard(
    title: str, uid: str, rows: Sequence[Row], step_s: float, variables: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The dashboard, as Grafana imports it.

    Args:
        step_s: how often values change; nothing is asked for more often.
        variables: beside the data source's.
    """
    step = f"{max(1, round(step_s))}s"
    return {
        "uid": uid,
        "title": title,
        "tags": [uid],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": step,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource_variable(), *variables]},
        "annotations": {"list": []},
        "links": [],
        "panels": [{"id": number, **panel} for number, panel in enumerate(_laid_out(rows, step), start=1)],
    }


def label_variable(name: str, label: str, metric: str, metric_label: str) -> dict[str, Any]:
    """A variable whose values are those of a label, as they are now."""
    query = f"label_values({metric}, {metric_label})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # when the time range changes, so that a model that has come is there
        "sort": 1,
        "hide": 0,
    }


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _laid_out(rows: Sequence[Row], step: str) -> Iterator[dict[str, Any]]:
    y = 0
    for row in rows:
        yield {
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1},
        }
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > GRID_WIDTH:
                x, y = 0, y + PANEL_HEIGHT
            yield _panel(panel, step) | {"gridPos": {"x": x, "y": y, "w": panel.width, "h": PANEL_HEIGHT}}
            x += panel.width
        y += PANEL_HEIGHT


def _panel(panel: Panel, step: str) -> dict[str, Any]:
    return {
        "type": "state-timeline" if panel.is_state else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "interval": step,
        "targets": [
            {
                "refId": letter,
                "datasource": _DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "range": True,
            }
            for letter, query in zip(ascii_uppercase, panel.queries, strict=False)
        ],
        "fieldConfig": _states() if panel.is_state else _lines(panel),
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": not panel.is_state}}
        | ({} if panel.is_state else {"tooltip": {"mode": "multi", "sort": "desc"}}),
    }


def _lines(panel: Panel) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}] + ([{"color": "red", "value": panel.limit}] if panel.limit else [])
    defaults = {
        "unit": panel.unit.value,
        "min": 0,
        **({"max": 1} if panel.unit is Unit.SHARE and panel.limit is None else {}),
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": {
            "fillOpacity": 20 if panel.is_stacked else 0,
            "stacking": {"mode": "normal" if panel.is_stacked else "none"},
            "showPoints": "never",
            "thresholdsStyle": {"mode": "off" if panel.limit is None else "dashed"},
        },
    }
    return {"defaults": defaults, "overrides": [_dashed_reference()]}


def _dashed_reference() -> dict[str, Any]:
    return {
        "matcher": {"id": "byRegexp", "options": f"/{REFERENCE}$/"},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
            {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
        ],
    }


def _states() -> dict[str, Any]:
    options = {"0": {"text": "quiet", "color": "green"}, "1": {"text": "firing", "color": "red"}}
    return {
        "defaults": {"mappings": [{"type": "value", "options": options}], "custom": {"fillOpacity": 70}},
        "overrides": [],
    }

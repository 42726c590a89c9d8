"""The dashboard asks only for what is exported, and each of its queries gives something. Judged by promtool.

Mutations that were tried by hand, and are caught here: a metric's name misspelt, and one without its `_total`; a label
that the metric does not have, in `by` and in a legend; a quotient whose sides have other labels; a bracket too few; the
target of another class; a limit of another setting; a metric shown nowhere.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscale.dashboard import render_dashboard, rows
from autoscale.grafana import GRID_WIDTH, RATE_RANGE, Panel, Query
from cli.config import load_config, settings_of
from slo import metrics
from slo.metrics import LABEL_CLASS, LABEL_STATE, Metric, MetricKind
from slo.settings import Settings, parse_settings
from tests.promtool import check_rules, run_rule_tests

ROOT = Path(__file__).parents[2]
PANELS = [panel for row in rows(Settings()) for panel in row.panels]
QUERIES = [(panel, query) for panel in PANELS for query in panel.queries]
OF_SERIES = {series: metric for metric in metrics.ALL for series in metric.series}
LABEL_VALUES = {LABEL_CLASS: ("P0", "P1", "P2"), LABEL_STATE: ("running", "waiting")}


def promql(query: Query) -> str:
    return query.expression.replace(RATE_RANGE, "40s")


def names_in(query: Query) -> set[str]:
    return set(re.findall(rf"{metrics.NAMESPACE}_\w+", query.expression))


def series_of(metric: Metric) -> Iterator[dict[str, str]]:
    """A series for each combination of labels, as promtool takes them: counters grow, gauges stand."""
    names = [label for label in metric.labels if label in LABEL_VALUES]
    for values in itertools.product(*(LABEL_VALUES[name] for name in names)):
        labels = dict.fromkeys(metric.labels, "any") | dict(zip(names, values, strict=True))
        growth = "1+0x30" if metric.kind is MetricKind.GAUGE else "0+10x30"
        for series in metric.series:
            for le in ("0.1", "1", "+Inf") if series.endswith("_bucket") else (None,):
                of_series = labels | ({} if le is None else {"le": le})
                text = ",".join(f'{name}="{value}"' for name, value in of_series.items())
                yield {"series": f"{series}{{{text}}}", "values": growth}


@pytest.mark.parametrize(("panel", "query"), QUERIES, ids=lambda x: x.title if isinstance(x, Panel) else x.legend)
def test_query_names_metrics_that_are_exported(panel: Panel, query: Query) -> None:
    assert names_in(query), f"{panel.title}: no metric of ours"
    assert names_in(query) <= OF_SERIES.keys()


@pytest.mark.parametrize(("panel", "query"), QUERIES, ids=lambda x: x.title if isinstance(x, Panel) else x.legend)
def test_query_groups_by_labels_that_its_metrics_have_and_names_its_lines_by_them(panel: Panel, query: Query) -> None:
    known = {label for name in names_in(query) for label in OF_SERIES[name].labels} | {"le"}
    grouped = {label for labels in re.findall(r"by \(([^)]*)\)", query.expression) for label in labels.split(", ")}
    assert grouped <= known, panel.title
    assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= grouped, panel.title


def test_every_query_parses(tmp_path: Path) -> None:
    recorded = [{"record": f"q:{n}", "expr": promql(query)} for n, (_, query) in enumerate(QUERIES)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    assert f"SUCCESS: {len(QUERIES)} rules found" in check_rules(file)


def test_every_query_gives_a_number_when_every_metric_is_exported(tmp_path: Path) -> None:
    test: dict[str, Any] = {
        "interval": "10s",
        "input_series": [series for metric in metrics.ALL for series in series_of(metric)],
        "promql_expr_test": [
            {
                "expr": f"count(({promql(query)}) >= 0) > bool 0",
                "eval_time": "4m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for _, query in QUERIES
        ],
    }
    assert "SUCCESS" in run_rule_tests(tmp_path, {"groups": []}, "10s", [test])


def test_every_metric_is_shown() -> None:
    shown = {OF_SERIES[name].name for _, query in QUERIES for name in names_in(query)}
    assert shown == {metric.name for metric in metrics.ALL}


@pytest.mark.parametrize(("noun", "target"), [("TTFT", metrics.TTFT_TARGET), ("TBT", metrics.TBT_TARGET)])
@pytest.mark.parametrize("label", ["P0", "P1", "P2"])
def test_latency_is_shown_against_the_target_of_its_class(noun: str, target: Metric, label: str) -> None:
    (panel,) = [panel for panel in PANELS if panel.title == f"{noun} of {label}"]
    selector = f'{{priority_class="{label}"}}'
    assert [query.legend for query in panel.queries] == ["P50", "P99", "P99 target"]
    assert [query.expression.count(selector) for query in panel.queries] == [1, 1, 1]
    assert panel.queries[2].expression == f"max({target.name}{selector})"


def test_limits_are_the_settings() -> None:
    settings = parse_settings(
        {
            "alerts": {
                "max_fragmentation_ratio": 0.5,
                "kv_hit_low": {"min_ratio": 0.75},
                "preemption_storm": {"max_per_minute": 33},
            }
        }
    )
    limits = {p.title: p.limit for row in rows(settings) for p in row.panels if p.limit is not None}
    assert limits == {"KV fragmentation": 0.5, "KV hit rate": 0.75, "Preemptions a minute": 33}
    assert len({p.title for p in PANELS}) == len(PANELS)


def test_committed_dashboard_is_what_the_repositorys_settings_give() -> None:
    committed = (ROOT / "deploy" / "grafana" / "expresslane.json").read_text()
    assert committed == render_dashboard(settings_of(load_config(ROOT / "serve.yaml"))), (
        "run: expresslane dashboard --output deploy/grafana/expresslane.json"
    )


def test_dashboard_is_json_whose_panels_fit_the_grid() -> None:
    loaded = json.loads(render_dashboard(Settings()))
    assert loaded["uid"] == "expresslane"
    assert loaded["refresh"] == "10s"
    cells = [
        (x, y)
        for p in (panel["gridPos"] for panel in loaded["panels"])
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == GRID_WIDTH - 1
    assert [p["title"] for p in loaded["panels"] if p["type"] != "row"] == [p.title for p in PANELS]


def test_dashboard_of_several_models_shows_the_one_that_is_chosen() -> None:
    models = [{"model": {"source": "org/one"}}, {"model": {"source": "org/two"}}]
    several = json.loads(render_dashboard(parse_settings({"models": models})))
    of_one = json.loads(render_dashboard(Settings()))
    chosen = several["templating"]["list"][1]
    assert (chosen["name"], chosen["definition"]) == ("model", "label_values(expresslane_replicas, model)")
    queries = [[t["expr"] for p in d["panels"] for t in p.get("targets", [])] for d in (several, of_one)]
    for expression, without in zip(*queries, strict=True):
        names = re.findall(rf"{metrics.NAMESPACE}_\w+", expression)
        assert expression.count('{model="$model"') == len(names) > 0
        assert expression.replace('{model="$model"}', "").replace('model="$model",', "") == without

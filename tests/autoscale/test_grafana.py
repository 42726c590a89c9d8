import json
from typing import Any

import pytest

from autoscale.grafana import Panel, Query, Row, Unit, dashboard

LINE = Query("up", "up")


def panel(title: str, **values: Any) -> Panel:
    return Panel(title, "", Unit.COUNT, (LINE,), **values)


def shown(*rows: Row, step_s: float = 10) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = dashboard("Title", "uid", rows, step_s)["panels"]
    return panels


def test_dashboard_has_its_data_source_as_a_variable() -> None:
    value = dashboard("Title", "uid", (Row("row", (panel("a"), panel("b"))),), 10)
    (variable,) = value["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
    sources = [p["datasource"] for p in value["panels"][1:]] + [
        t["datasource"] for p in value["panels"][1:] for t in p["targets"]
    ]
    assert sources == [{"type": "prometheus", "uid": "${datasource}"}] * 4


def test_dashboard_fills_rows_from_the_left_and_numbers_its_panels() -> None:
    panels = shown(Row("one", (panel("a"), panel("b", width=12), panel("c"))), Row("two", (panel("d", width=24),)))
    assert [(p["id"], p["title"]) for p in panels] == [(1, "one"), (2, "a"), (3, "b"), (4, "c"), (5, "two"), (6, "d")]
    assert [tuple(p["gridPos"][k] for k in "xywh") for p in panels] == [
        (0, 0, 24, 1),
        (0, 1, 8, 8),
        (8, 1, 12, 8),
        (0, 9, 8, 8),
        (0, 17, 24, 1),
        (0, 18, 24, 8),
    ]


def test_panel_draws_its_limit() -> None:
    plain, limited = (p["fieldConfig"]["defaults"] for p in shown(Row("r", (panel("a"), panel("b", limit=0.5))))[1:])
    assert plain["thresholds"]["steps"] == [{"color": "green", "value": None}]
    assert plain["custom"]["thresholdsStyle"] == {"mode": "off"}
    assert limited["thresholds"]["steps"] == [{"color": "green", "value": None}, {"color": "red", "value": 0.5}]
    assert limited["custom"]["thresholdsStyle"] == {"mode": "dashed"}


def test_panel_ends_a_share_at_1_unless_a_limit_is_to_be_seen() -> None:
    shares = (Panel("a", "", Unit.SHARE, (LINE,)), Panel("b", "", Unit.SHARE, (LINE,), limit=0.04), panel("c"))
    assert [p["fieldConfig"]["defaults"].get("max") for p in shown(Row("r", shares))[1:]] == [1, None, None]


def test_panel_stacks_when_it_is_told_to() -> None:
    modes = [
        p["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"]
        for p in shown(Row("r", (panel("a"), panel("b", is_stacked=True))))[1:]
    ]
    assert modes == ["none", "normal"]


def test_panel_of_states_shows_what_fires() -> None:
    (state,) = shown(Row("r", (panel("a", is_state=True),)))[1:]
    assert state["type"] == "state-timeline"
    assert state["fieldConfig"]["defaults"]["mappings"][0]["options"]["1"]["text"] == "firing"


def test_panel_gives_each_query_a_letter() -> None:
    queries = (Query("a", "{{x}}"), Query("b", "P99 target"))
    (lines,) = shown(Row("r", (Panel("t", "d", Unit.SECONDS, queries),)))[1:]
    assert [(t["refId"], t["expr"], t["legendFormat"]) for t in lines["targets"]] == [
        ("A", "a", "{{x}}"),
        ("B", "b", "P99 target"),
    ]
    assert lines["fieldConfig"]["overrides"][0]["matcher"] == {"id": "byRegexp", "options": "/target$/"}


@pytest.mark.parametrize(("step_s", "text"), [(10, "10s"), (0.5, "1s"), (60, "60s")])
def test_dashboard_asks_no_more_often_than_values_change(step_s: float, text: str) -> None:
    value = dashboard("Title", "uid", (Row("r", (panel("a"),)),), step_s)
    assert (value["refresh"], value["panels"][1]["interval"]) == (text, text)
    assert json.loads(json.dumps(value)) == value

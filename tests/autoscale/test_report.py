"""Mutations tried, each seen by a test here: targets in milliseconds; the fault left out, or told last; ages not taken
from the time of the answer; a dry run told as made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscale.policy import ScalingReason
from autoscale.report import Look, alerts_report, exposed, status_report
from autoscale.rules import SCALING_FAILED, AlertBook, alert_rules, evaluate
from autoscale.scaling import Change, Fault
from autoscale.series import Series
from autoscale.summary import ServedReplicas, fleet_view
from autoscale.view import ClassView, FleetView
from autoscale.window import Window
from slo import metrics
from slo.settings import Settings, parse_settings
from slo.snapshots import ClassLoad, ClassTraffic, KVUse
from slo.status import AlertsReport, AlertState, StatusReport
from tests.autoscale.fleet import P0, P1, collection, engine, ingress, latencies

SETTINGS = parse_settings({"model": {"source": "org/name"}, "autoscale": {"mode": "dry_run", "max_replicas": 4}})
SERVED = ServedReplicas(target=2, running=1, starting=1, draining=0)
CHANGE = Change(90, 1, 2, ScalingReason.TBT_BREACH, "P0 over", dry_run=True)


def look(served: ServedReplicas | None = SERVED, fault: Fault | None = None) -> Look:
    window = Window(30, 10, 25)
    window.add(collection(80), 80)
    kv = KVUse(num_blocks=100, num_used_blocks=25, num_allocated_slots=100, num_filled_slots=99)
    engines = [
        engine("new", {P0: ClassLoad(num_running=2, num_waiting=1), P1: ClassLoad(num_running=1)}, kv=kv, age_s=1),
        engine("old", age_s=20),
    ]
    traffic = ClassTraffic(ttft=latencies([0.2]), num_held=3, num_missed=1)
    recent = window.add(collection(100, [ingress(classes={P0: traffic})], engines), 100)
    return Look(
        recent, served, fleet_view(recent, served, 30), AlertBook(), (CHANGE,), {ScalingReason.TBT_BREACH: 1}, fault
    )


def status(of: Look | None = None) -> StatusReport:
    return status_report(of or look(), SETTINGS, started_s=40, now_s=105)


def test_status_tells_the_settings_and_the_age() -> None:
    report = status()
    assert (report.model, report.mode, report.up_s, report.period_s, report.window_s) == (
        "org/name",
        "dry_run",
        65,
        10,
        30,
    )


def test_status_tells_replicas_by_state_and_the_bounds() -> None:
    counts = status().counts
    assert (counts.target, counts.running, counts.starting, counts.draining) == (2, 1, 1, 0)
    assert (counts.min_replicas, counts.max_replicas) == (1, 4)


def test_status_has_null_where_serve_could_not_be_asked() -> None:
    counts = status(look(served=None)).counts
    assert (counts.target, counts.running, counts.starting, counts.draining) == (None,) * 4


def test_status_shows_each_replica_that_runs_with_its_age() -> None:
    (shown,) = status().replicas
    assert (shown.source_id, shown.age_s, shown.is_fresh) == ("new", 6, True)
    assert (shown.num_running, shown.num_waiting, shown.max_num_seqs, shown.kv_used_ratio) == (3, 1, 8, 0.25)


def test_status_shows_all_that_answered_when_serve_could_not_be_asked() -> None:
    shown = status_report(look(served=None), SETTINGS, 40, now_s=110).replicas
    assert [(r.source_id, r.is_fresh) for r in shown] == [("new", True), ("old", False)]


def test_status_tells_each_class_against_its_targets_in_seconds() -> None:
    p0, p1, p2 = status().classes
    assert (p0.priority_class, p0.long_name, p0.promised) == ("P0", "realtime", True)
    assert (p0.ttft_target_s, p0.tbt_target_s) == (0.1, 0.02)
    assert p0.ttft_p99_s == pytest.approx(0.2, rel=0.01)
    assert (p0.attainment_ratio, p0.goodput_per_s) == (0.75, pytest.approx(3 / 20))
    assert (p0.num_running, p0.num_waiting) == (2, 1)
    assert (p1.ttft_p99_s, p1.attainment_ratio, p1.goodput_per_s) == (None, None, 0)
    assert (p2.ttft_target_s, p2.promised) == (None, False)


def test_status_tells_decisions_with_their_age() -> None:
    (decision,) = status().decisions
    assert (decision.ago_s, decision.from_replicas, decision.to_replicas) == (15, 1, 2)
    assert (decision.reason, decision.detail, decision.dry_run) == ("tbt_breach", "P0 over", True)


def test_fault_of_scaling_is_told_first_like_an_alert() -> None:
    firing = evaluate(alert_rules(SETTINGS), _slow_view(), AlertBook(), 3600).book
    reported = alerts_report(replace(look(fault=Fault(95, "no flag")), book=firing), SETTINGS, now_s=105).alerts
    assert [a.name for a in reported] == [SCALING_FAILED, "tbt_breach"]
    assert {a.model for a in reported} == {"org/name"}
    assert (reported[0].state, reported[0].since_ago_s) == (AlertState.FIRING, 10)
    assert "no flag" in reported[0].message


def test_status_has_the_alerts_of_the_alerts_report() -> None:
    faulty = look(fault=Fault(95, "no flag"))
    assert status(faulty).alerts == alerts_report(faulty, SETTINGS, 105).alerts
    assert status().alerts == ()


def test_alerts_are_gauges_by_rule() -> None:
    rules = alert_rules(Settings())
    faulty = replace(look(fault=Fault(95, "no flag")))
    gauges = exposed(faulty, Settings(), rules).gauges
    assert gauges[Series(metrics.ALERT_FIRING, ("tbt_breach",))] == 0
    assert gauges[Series(metrics.ALERT_FIRING, (SCALING_FAILED,))] == 1
    assert {s.labels[0] for s in gauges if s.metric is metrics.ALERT_FIRING} == {r.name for r in rules} | {
        SCALING_FAILED
    }


def test_reports_are_valid_json_and_read_back_the_same() -> None:
    faulty = look(fault=Fault(95, 'a "quoted" <b>fault</b>'))
    assert StatusReport.model_validate_json(status(faulty).model_dump_json()) == status(faulty)
    alerts = alerts_report(faulty, SETTINGS, 105)
    assert AlertsReport.model_validate_json(alerts.model_dump_json()) == alerts


def _slow_view() -> FleetView:
    return FleetView(100, 30, {P0: ClassView(tbt_p99_s=1.0)}, None, is_complete=True)

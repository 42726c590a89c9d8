"""Every field of the report has its place on the page; a field that the contract gains fails here until it has one.

Mutations tried by hand, each seen to fail here: left out were a class's swapped requests, its arrivals, a replica's
waiting requests, an alert's severity, a decision's detail, the window.
"""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel

from slo.status import ReplicaCountsReport, StatusReport
from tests.app.status_page.conftest import OpenPage, show
from tests.app.status_page.page_server import PageServer
from tests.app.status_page.reports import alert_report, class_report, decision_report, replica_report, status_report


def field_paths(model: type[BaseModel]) -> set[str]:
    """Every field of `model` and of the models inside it, as `classes.num_running`."""
    paths: set[str] = set()
    for name, info in model.model_fields.items():
        inner = [t for t in (info.annotation, *get_args(info.annotation)) if isinstance(t, type)]
        models = [t for t in inner if issubclass(t, BaseModel)]
        paths |= {f"{name}.{path}" for m in models for path in field_paths(m)} if models else {name}
    return paths


EVERY_FIELD = status_report(
    model="model-a",
    models=("model-a", "model-b"),
    mode="dry_run",
    up_s=190_000,
    period_s=11,
    window_s=33,
    is_complete=False,
    counts=ReplicaCountsReport(target=71, running=72, starting=73, draining=74, min_replicas=75, max_replicas=76),
    replicas=(
        replica_report(
            source_id="replica-a", age_s=31, is_fresh=False, num_running=41, num_waiting=42, max_num_seqs=43,
            kv_used_ratio=0.44, saturation_ratio=0.45,
        ),
    ),
    classes=(
        class_report(
            priority_class="P7", long_name="seventh", ttft_p99_s=0.081, ttft_target_s=0.082, tbt_p99_s=0.084,
            tbt_target_s=0.083, promised=True, attainment_ratio=0.85, goodput_per_s=86, arrivals_per_s=87,
            num_running=88, num_waiting=89, num_paused=90, num_swapped=91,
        ),
        class_report(priority_class="P8", promised=False),
    ),
    preemptions_per_minute=51,
    kv_hit_ratio=0.52,
    gpu_utilisation_ratio=0.53,
    mean_batch_size=54,
    alerts=(
        alert_report(
            model="model-c", name="alert-a", severity="severity-a", priority_class="P9", value=61, threshold=62,
            unit="unit-a",
            message="message-a", since_ago_s=3_780,
        ),
    ),
    decisions=(
        decision_report(
            ago_s=3_840, from_replicas=65, to_replicas=66, reason="reason-a", detail="detail-a", dry_run=True
        ),
    ),
)  # fmt: skip

SHOWN: dict[str, tuple[str, str]] = {
    "model": ("h1", "model-a"),
    "models": ("nav", "model-a model-b"),
    "mode": ("header", "dry run: decisions are told, not applied"),
    "up_s": ("header", "up 2 d 4 h"),
    "period_s": ("footer", "evaluates every 11 s"),
    "window_s": (".classes caption", "last 33 s"),
    "is_complete": (".notice", "Incomplete."),
    "counts.target": (".column", "Target 71"),
    "counts.running": (".column", "Running 72"),
    "counts.starting": (".column", "Starting 73"),
    "counts.draining": (".column", "Draining 74"),
    "counts.min_replicas": (".column", "Bounds 75 to"),
    "counts.max_replicas": (".column", "to 76"),
    "replicas.source_id": (".replicas tbody", "replica-a"),
    "replicas.age_s": (".replicas tbody", "31 s"),
    "replicas.is_fresh": (".replicas tbody", "31 s old"),
    "replicas.num_running": (".replicas tbody", "41 / 43"),
    "replicas.max_num_seqs": (".replicas tbody", "41 / 43"),
    "replicas.num_waiting": (".replicas tbody", "42 44 %"),
    "replicas.kv_used_ratio": (".replicas tbody", "44 % 45 %"),
    "replicas.saturation_ratio": (".replicas tbody", "45 % 31 s"),
    "classes.priority_class": (".classes thead", "P7"),
    "classes.long_name": (".classes thead", "seventh"),
    "classes.promised": (".classes thead", "P8 realtime (not promised)"),
    "classes.ttft_p99_s": (".classes tbody", "TTFT P99 81 ms"),
    "classes.ttft_target_s": (".classes tbody", "of 82 ms met"),
    "classes.tbt_p99_s": (".classes tbody", "TBT P99 84 ms"),
    "classes.tbt_target_s": (".classes tbody", "of 83 ms missed"),
    "classes.attainment_ratio": (".classes tbody", "Attainment 85 %"),
    "classes.goodput_per_s": (".classes tbody", "Goodput 86 /s"),
    "classes.arrivals_per_s": (".classes tbody", "Arrivals 87 /s"),
    "classes.num_running": (".classes tbody", "Running 88"),
    "classes.num_waiting": (".classes tbody", "Waiting 89"),
    "classes.num_paused": (".classes tbody", "Paused 90"),
    "classes.num_swapped": (".classes tbody", "Swapped 91"),
    "preemptions_per_minute": (".column", "Preemptions/min 51"),
    "kv_hit_ratio": (".column", "KV hit rate 52 %"),
    "gpu_utilisation_ratio": (".column", "GPU utilisation 53 %"),
    "mean_batch_size": (".column", "Mean batch size 54"),
    "alerts.model": (".alerts", "of model-c"),
    "alerts.name": (".alerts", "alert-a"),
    "alerts.severity": (".alerts", "severity-a"),
    "alerts.state": (".alerts", "firing"),
    "alerts.priority_class": (".alerts", "alert-a P9"),
    "alerts.value": (".alerts", "value 61"),
    "alerts.threshold": (".alerts", "threshold 62"),
    "alerts.unit": (".alerts", "value 61 unit-a, threshold 62 unit-a"),
    "alerts.message": (".alerts", "message-a"),
    "alerts.since_ago_s": (".alerts", "for 1 h 3 min"),
    "decisions.ago_s": (".decisions tbody", "1 h 4 min"),
    "decisions.from_replicas": (".decisions tbody", "65 → 66"),
    "decisions.to_replicas": (".decisions tbody", "65 → 66"),
    "decisions.reason": (".decisions tbody", "reason-a"),
    "decisions.detail": (".decisions tbody", "detail-a"),
    "decisions.dry_run": (".decisions tbody", "dry run: not applied"),
}


def test_page_shows_every_field_of_the_report(open_at: OpenPage, server: PageServer) -> None:
    page = show(open_at, server, EVERY_FIELD)
    shown = {selector: page.text(selector) for selector, _ in SHOWN.values()}
    assert {path: text for path, (selector, text) in SHOWN.items() if text not in shown[selector]} == {}
    assert set(SHOWN) == field_paths(StatusReport)

"""Status reports for the tests and the screenshot, of the real model classes."""

from __future__ import annotations

from slo.settings import AlertSettings
from slo.status import (
    AlertReport,
    AlertState,
    ClassReport,
    DecisionReport,
    ReplicaCountsReport,
    ReplicaReport,
    StatusReport,
)


def class_report(**changes: object) -> ClassReport:
    """P0 that holds its targets, with `changes`."""
    values: dict[str, object] = {
        "priority_class": "P0",
        "long_name": "realtime",
        "ttft_p99_s": 0.0384,
        "ttft_target_s": 0.1,
        "tbt_p99_s": 0.0142,
        "tbt_target_s": 0.02,
        "promised": True,
        "attainment_ratio": 0.9973,
        "goodput_per_s": 11.9,
        "arrivals_per_s": 12,
        "num_running": 21,
        "num_waiting": 0,
        "num_paused": 0,
        "num_swapped": 0,
    }
    return ClassReport.model_validate(values | changes)


def replica_report(**changes: object) -> ReplicaReport:
    """A replica with work to do, with `changes`."""
    values: dict[str, object] = {
        "source_id": "7f3a91c2e4b04d6f9a0c5d1e8b27f603",
        "age_s": 0.4,
        "is_fresh": True,
        "num_running": 64,
        "num_waiting": 9,
        "max_num_seqs": 64,
        "kv_used_ratio": 0.81,
        "saturation_ratio": 1,
    }
    return ReplicaReport.model_validate(values | changes)


def alert_report(**changes: object) -> AlertReport:
    """An alert that fires, with `changes`."""
    values: dict[str, object] = {
        "model": "Llama-3.1-8B-Instruct",
        "name": "tbt_breach",
        "severity": "critical",
        "state": AlertState.FIRING,
        "priority_class": "P1",
        "value": 0.238,
        "threshold": 0.2,
        "unit": "s",
        "message": AlertSettings().tbt_breach.message,
        "since_ago_s": 74,
    }
    return AlertReport.model_validate(values | changes)


def decision_report(**changes: object) -> DecisionReport:
    """A scale-out, with `changes`."""
    values: dict[str, object] = {
        "ago_s": 72,
        "from_replicas": 2,
        "to_replicas": 3,
        "reason": "tbt_breach",
        "detail": "P1: TBT P99 238 ms, target 100 ms",
        "dry_run": False,
    }
    return DecisionReport.model_validate(values | changes)


def status_report(**changes: object) -> StatusReport:
    """A fleet that grows because batch work and chat are too much for it, with `changes`."""
    values: dict[str, object] = {
        "model": "Llama-3.1-8B-Instruct",
        "models": ("Llama-3.1-8B-Instruct",),
        "mode": "on",
        "up_s": 11_580,
        "period_s": 10,
        "window_s": 30,
        "is_complete": True,
        "counts": ReplicaCountsReport(target=3, running=2, starting=1, draining=0, min_replicas=1, max_replicas=4),
        "replicas": (
            replica_report(),
            replica_report(
                source_id="c05be8d41f7a4f2e8d93b6a02c51e7d8", age_s=0.7, num_running=59, kv_used_ratio=0.74,
                saturation_ratio=0.92,
            ),
        ),
        "classes": (
            class_report(),
            class_report(
                priority_class="P1", long_name="standard", ttft_p99_s=0.412, ttft_target_s=0.5, tbt_p99_s=0.238,
                tbt_target_s=0.1, attainment_ratio=0.9418, goodput_per_s=7.35, arrivals_per_s=7.8, num_running=38,
                num_waiting=3,
            ),
            class_report(
                priority_class="P2", long_name="batch", ttft_p99_s=8.61, ttft_target_s=None, tbt_p99_s=0.184,
                tbt_target_s=0.2, promised=False, attainment_ratio=None, goodput_per_s=0, arrivals_per_s=3.1,
                num_running=64, num_waiting=15, num_paused=5, num_swapped=2,
            ),
        ),
        "preemptions_per_minute": 7.2,
        "kv_hit_ratio": 0.983,
        "gpu_utilisation_ratio": 0.94,
        "mean_batch_size": 61.4,
        "alerts": (
            alert_report(),
            alert_report(
                name="preemption_storm", severity="warning", state=AlertState.CLEARED, priority_class=None, value=8.4,
                threshold=10, unit="a minute", message=AlertSettings().preemption_storm.message, since_ago_s=410,
            ),
        ),
        "decisions": (
            decision_report(),
            decision_report(
                ago_s=9_240, from_replicas=3, to_replicas=2, reason="spare", detail="2 would have done for 600 s"
            ),
        ),
    }  # fmt: skip
    return StatusReport.model_validate(values | changes)


def unknown_report() -> StatusReport:
    """What a controller tells that has just started: nothing is known, nothing was asked, Serve does not answer."""
    nothing = {"ttft_p99_s": None, "tbt_p99_s": None, "attainment_ratio": None, "goodput_per_s": 0, "arrivals_per_s": 0}
    return status_report(
        replicas=(),
        counts=ReplicaCountsReport(
            target=None, running=None, starting=None, draining=None, min_replicas=1, max_replicas=4
        ),
        classes=tuple(
            class_report(priority_class=name, long_name=long_name, num_running=0, **nothing)
            for name, long_name in (("P0", "realtime"), ("P1", "standard"), ("P2", "batch"))
        ),
        preemptions_per_minute=None,
        kv_hit_ratio=None,
        gpu_utilisation_ratio=None,
        mean_batch_size=None,
        alerts=(),
        decisions=(),
    )


def longest_report() -> StatusReport:
    """The widest values that a report can be expected to carry, in words without a place to break."""
    word = "unbreakable" * 9
    wide = {
        "ttft_p99_s": 123.4, "tbt_p99_s": 0.1004, "goodput_per_s": 1_234.5, "arrivals_per_s": 1_234.5,
        "num_running": 12_345, "num_waiting": 98_765, "num_paused": 1_024,
    }  # fmt: skip
    return status_report(
        model=f"organisation/{word}",
        mode="dry_run",
        up_s=9_000_000,
        is_complete=False,
        replicas=tuple(
            replica_report(
                source_id=f"{i}-{word}", num_running=1_024, max_num_seqs=1_024, num_waiting=43_210, age_s=7_260,
                is_fresh=False,
            )
            for i in range(3)
        ),
        classes=tuple(
            class_report(priority_class=name, long_name=long_name, **wide)
            for name, long_name in (("P0", "realtime"), ("P1", "standard"), ("P2", "batch"))
        ),
        alerts=(alert_report(name=word, message=word, severity=word),),
        decisions=(decision_report(reason=word, detail=word, dry_run=True, from_replicas=99, to_replicas=100),),
    )  # fmt: skip

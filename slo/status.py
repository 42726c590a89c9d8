"""What the controller tells operators, as `/v1/status` and `/v1/alerts` give it in JSON and the status page shows it.

Times are ages in seconds (`..._ago_s`): a page needs no clock that agrees with the fleet's. null means not known.
"""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel, ConfigDict

from slo.priority import PriorityClass


class Report(BaseModel):
    """A value that is made once."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AlertState(Enum):
    """Pending: its condition holds, not yet for long enough. Firing. Cleared: it fired, and does no more."""

    PENDING = "pending"
    FIRING = "firing"
    CLEARED = "cleared"


class AlertReport(Report):
    """One alert, now or lately."""

    model: str
    """Of whose fleet."""
    name: str
    severity: str
    state: AlertState
    priority_class: str | None
    """Of a rule by class; else null."""
    value: float | None
    threshold: float
    unit: str
    """Of `value` and `threshold`, such as `s`; empty for a count or a ratio."""
    message: str
    """What it says, and what to look at."""
    since_ago_s: float
    """Since it came to its state."""


class AlertsReport(Report):
    """The answer of `GET /v1/alerts`: pending and firing ones first, then those cleared lately, newest first."""

    alerts: tuple[AlertReport, ...]


class ClassReport(Report):
    """One class over the controller's window."""

    priority_class: str
    long_name: str
    ttft_p99_s: float | None
    ttft_target_s: float | None
    tbt_p99_s: float | None
    tbt_target_s: float | None
    promised: bool
    attainment_ratio: float | None
    goodput_per_s: float
    arrivals_per_s: float
    num_running: int
    num_waiting: int
    num_paused: int
    num_swapped: int


class ReplicaReport(Report):
    """One replica that answered lately."""

    source_id: str
    age_s: float
    is_fresh: bool
    num_running: int
    num_waiting: int
    max_num_seqs: int
    kv_used_ratio: float
    saturation_ratio: float


class ReplicaCountsReport(Report):
    """Replicas by state; null where Serve could not be asked."""

    target: int | None
    running: int | None
    starting: int | None
    draining: int | None
    min_replicas: int
    max_replicas: int


class DecisionReport(Report):
    """One change of the target, made or (dry run) only told."""

    ago_s: float
    from_replicas: int
    to_replicas: int
    reason: str
    detail: str
    dry_run: bool


class StatusReport(Report):
    """The answer of `GET /v1/status`: the fleet of one model."""

    model: str
    models: tuple[str, ...]
    """All that the application has: `GET /v1/status?model=` tells of another."""
    mode: str
    """Of the autoscaler: on, dry_run, off."""
    up_s: float
    """Since the controller started."""
    period_s: float
    window_s: float
    is_complete: bool
    """False: some replica or ingress process did not answer in time, so the numbers are of the others."""
    counts: ReplicaCountsReport
    replicas: tuple[ReplicaReport, ...]
    classes: tuple[ClassReport, ...]
    preemptions_per_minute: float | None
    kv_hit_ratio: float | None
    gpu_utilisation_ratio: float | None
    mean_batch_size: float | None
    alerts: tuple[AlertReport, ...]
    """Of all models."""
    decisions: tuple[DecisionReport, ...]
    """The latest first."""


def class_label(priority: PriorityClass) -> str:
    """How a class is named in reports and metric labels."""
    return priority.name

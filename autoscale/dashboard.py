"""The Grafana dashboard: what an operator looks at, made from the metrics of slo/metrics.py.

From the promise to its causes: alerts, what users feel against their targets, what became of their requests, then
queues and batches, preemption, memory, the machines and the scaling. `deploy/grafana/expresslane.json` is this, for the
repository's settings. Owns what is shown; the form is Grafana's (autoscale/grafana.py).

Every ingress process exports the same numbers of the whole fleet: `max by` takes them once, however many are scraped.
"""

from __future__ import annotations

import json
from typing import Final

from autoscale import engine_panels
from autoscale.grafana import REFERENCE, Panel, Query, Row, Unit, dashboard, label_variable
from autoscale.promql import MODEL_VARIABLE, of_model
from autoscale.queries import each as _each
from autoscale.queries import mean as _mean
from autoscale.queries import now as _now
from autoscale.queries import quantile as _quantile
from autoscale.queries import rate as _rate
from autoscale.signals import WAITING_BY_CLASS
from slo import metrics
from slo.metrics import (
    LABEL_ALERT,
    LABEL_CLASS,
    LABEL_KIND,
    LABEL_OUTCOME,
    LABEL_REASON,
    LABEL_STATE,
    Metric,
)
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.status import class_label

TITLE: Final = "Expresslane"


def render_dashboard(settings: Settings) -> str:
    """The dashboard as JSON text, with the settings' limits drawn in; of several models it shows one, by a variable."""
    shown = rows(settings)
    if len(settings.by_model) == 1:
        value = dashboard(TITLE, metrics.NAMESPACE, shown, settings.autoscale.period_s)
    else:
        of_one = [row.with_expressions(lambda e: of_model(e, f"${MODEL_VARIABLE}")) for row in shown]
        chosen = label_variable(MODEL_VARIABLE, "Model", metrics.REPLICAS.name, metrics.LABEL_MODEL)
        value = dashboard(TITLE, metrics.NAMESPACE, of_one, settings.autoscale.period_s, [chosen])
    return json.dumps(value, indent=2) + "\n"


def rows(settings: Settings) -> tuple[Row, ...]:
    """All that is shown."""
    return (
        Row("Alerts", (_alerts(),)),
        Row("Time to first token, by class", tuple(_latency("TTFT", metrics.TTFT, p) for p in PriorityClass)),
        Row("Time between tokens, by class", tuple(_latency("TBT", metrics.TBT, p) for p in PriorityClass)),
        Row("Requests", _requests()),
        Row("Queues and batches", _queues()),
        Row("Batches of lines", _batches()),
        Row("Preemption", engine_panels.preemption(settings)),
        Row("KV memory", engine_panels.memory(settings)),
        Row("Machines and scaling", _fleet()),
    )


def _alerts() -> Panel:
    return Panel(
        "Alerts",
        "What the controller's rules say. What each means: docs/alerts.md.",
        Unit.COUNT,
        (Query(_now(metrics.ALERT_FIRING, LABEL_ALERT), _each(LABEL_ALERT)),),
        is_state=True,
        width=24,
    )


def _latency(noun: str, metric: Metric, priority: PriorityClass) -> Panel:
    of_class = f'{{{LABEL_CLASS}="{class_label(priority)}"}}'
    target = {metrics.TTFT: metrics.TTFT_TARGET, metrics.TBT: metrics.TBT_TARGET}[metric]
    return Panel(
        f"{noun} of {class_label(priority)}",
        f"{metric.help} The target is for P99.",
        Unit.SECONDS,
        (
            Query(_quantile(0.5, metric, of_class), "P50"),
            Query(_quantile(0.99, metric, of_class), "P99"),
            Query(f"max({target.name}{of_class})", f"P99 {REFERENCE}"),
        ),
    )


def _requests() -> tuple[Panel, ...]:
    held, missed = _rate(metrics.HELD, LABEL_CLASS), _rate(metrics.MISSED, LABEL_CLASS)
    recoveries = Query(_rate(metrics.RECOVERIES, LABEL_KIND), _each(LABEL_KIND))
    return (
        Panel(
            "Attainment",
            "Share of ended requests, of classes with promised targets, whose every target held.",
            Unit.SHARE,
            (Query(f"{held} / ({held} + {missed})", _each(LABEL_CLASS)),),
        ),
        Panel("Goodput", metrics.HELD.help, Unit.REQUESTS_PER_S, (Query(held, _each(LABEL_CLASS)),), is_stacked=True),
        Panel(
            "Ended requests by outcome",
            "Of all classes; and those that ended before they had one.",
            Unit.REQUESTS_PER_S,
            (
                Query(_rate(metrics.REQUESTS, LABEL_OUTCOME), _each(LABEL_OUTCOME)),
                Query(_rate(metrics.UNCLASSIFIED, LABEL_OUTCOME), f"{_each(LABEL_OUTCOME)}, without a class"),
            ),
            is_stacked=True,
        ),
        Panel(
            "Arrivals",
            metrics.ARRIVALS.help,
            Unit.REQUESTS_PER_S,
            (Query(_rate(metrics.ARRIVALS, LABEL_CLASS), _each(LABEL_CLASS)),),
            is_stacked=True,
        ),
        Panel(
            "In flight",
            metrics.IN_FLIGHT.help,
            Unit.COUNT,
            (Query(_now(metrics.IN_FLIGHT, LABEL_CLASS), _each(LABEL_CLASS)),),
            is_stacked=True,
        ),
        Panel("Lost replicas", metrics.RECOVERIES.help, Unit.REQUESTS_PER_S, (recoveries,), is_stacked=True),
        Panel(
            "Whole answer, P99",
            metrics.E2E.help,
            Unit.SECONDS,
            (Query(_quantile(0.99, metrics.E2E, "", LABEL_CLASS), _each(LABEL_CLASS)),),
        ),
    )


def _queues() -> tuple[Panel, ...]:
    return (
        Panel(
            "Waiting",
            "At the gate and in the engines' queues, by class.",
            Unit.COUNT,
            (Query(WAITING_BY_CLASS, _each(LABEL_CLASS)),),
        ),
        Panel(
            "Queue wait, P99",
            metrics.QUEUE_WAIT.help,
            Unit.SECONDS,
            (Query(_quantile(0.99, metrics.QUEUE_WAIT, "", LABEL_CLASS), _each(LABEL_CLASS)),),
        ),
        Panel(
            "Running, waiting, paused, swapped",
            metrics.ENGINE_REQUESTS.help,
            Unit.COUNT,
            (Query(_now(metrics.ENGINE_REQUESTS, LABEL_STATE), _each(LABEL_STATE)),),
            is_stacked=True,
        ),
        Panel(
            "Batch size",
            metrics.BATCH_SIZE.help,
            Unit.COUNT,
            (Query(_mean(metrics.BATCH_SIZE), "mean"), Query(_quantile(0.99, metrics.BATCH_SIZE), "P99")),
        ),
        Panel(
            "Token budget used",
            "Tokens computed, of those that the steps' budgets allowed.",
            Unit.SHARE,
            (Query(f"{_rate(metrics.STEP_TOKENS)} / {_rate(metrics.BUDGET_TOKENS)}", "used"),),
        ),
        Panel("Tokens a second", metrics.STEP_TOKENS.help, Unit.COUNT, (Query(_rate(metrics.STEP_TOKENS), "tokens"),)),
    )


def _batches() -> tuple[Panel, ...]:
    return (
        Panel(
            "Lines ended a minute, by outcome; retries",
            f"{metrics.BATCH_LINES.help} {metrics.BATCH_RETRIES.help}",
            Unit.COUNT,
            (
                Query(f"60 * {_rate(metrics.BATCH_LINES, LABEL_OUTCOME)}", _each(LABEL_OUTCOME)),
                Query(f"60 * {_rate(metrics.BATCH_RETRIES)}", "tried again"),
            ),
        ),
        Panel(
            "Lines that wait and run",
            f"{metrics.BATCH_LINES_QUEUED.help} {metrics.BATCH_LINES_IN_FLIGHT.help}",
            Unit.COUNT,
            (
                Query(_now(metrics.BATCH_LINES_QUEUED), "waiting"),
                Query(_now(metrics.BATCH_LINES_IN_FLIGHT), "in flight"),
            ),
        ),
        Panel("Open batches", metrics.BATCHES_OPEN.help, Unit.COUNT, (Query(_now(metrics.BATCHES_OPEN), "open"),)),
    )


def _fleet() -> tuple[Panel, ...]:
    return (
        Panel(
            "Replicas",
            metrics.REPLICAS.help,
            Unit.COUNT,
            (Query(_now(metrics.REPLICAS, LABEL_STATE), _each(LABEL_STATE)),),
        ),
        Panel(
            "Scaling decisions a minute",
            metrics.SCALING_DECISIONS.help,
            Unit.COUNT,
            (Query(f"60 * {_rate(metrics.SCALING_DECISIONS, LABEL_REASON)}", _each(LABEL_REASON)),),
        ),
        Panel("Saturation", metrics.SATURATION.help, Unit.SHARE, (Query(_now(metrics.SATURATION), "saturation"),)),
        Panel(
            "GPU utilisation",
            metrics.GPU_UTILISATION.help,
            Unit.SHARE,
            (Query(_now(metrics.GPU_UTILISATION), "utilisation"),),
            width=12,
        ),
        Panel(
            "GPU memory",
            metrics.GPU_MEMORY_BYTES.help,
            Unit.BYTES,
            (Query(_now(metrics.GPU_MEMORY_BYTES_USED), "used"), Query(_now(metrics.GPU_MEMORY_BYTES), "size")),
            width=12,
        ),
    )

"""The Grafana dashboard: what an operator looks at, made from the metrics of slo/metrics.py.

From the promise to its causes: alerts, what users feel against their targets, what became of their requests, then
queues and batches, preemption, memory, the machines and the scaling. `deploy/grafana/expresslane.json` is this, for the
repository's settings. Owns what is shown; the form is Grafana's (autoscale/grafana.py).

Every ingress process exports the same numbers of the whole fleet: `max by` takes them once, however many are scraped.
"""

from __future__ import annotations

import json
from typing import Final

from autoscale.grafana import RATE_RANGE, REFERENCE, Panel, Query, Row, Unit, dashboard
from autoscale.signals import WAITING_BY_CLASS
from slo import metrics
from slo.metrics import (
    LABEL_ALERT,
    LABEL_CLASS,
    LABEL_DIRECTION,
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
    """The dashboard as JSON text, with the settings' limits drawn in."""
    value = dashboard(TITLE, metrics.NAMESPACE, rows(settings), settings.autoscale.period_s)
    return json.dumps(value, indent=2) + "\n"


def rows(settings: Settings) -> tuple[Row, ...]:
    """All that is shown."""
    return (
        Row("Alerts", (_alerts(),)),
        Row("Time to first token, by class", tuple(_latency("TTFT", metrics.TTFT, p) for p in PriorityClass)),
        Row("Time between tokens, by class", tuple(_latency("TBT", metrics.TBT, p) for p in PriorityClass)),
        Row("Requests", _requests()),
        Row("Queues and batches", _queues()),
        Row("Preemption", _preemption(settings)),
        Row("KV memory", _memory(settings)),
        Row("Machines and scaling", _fleet()),
    )


def _now(metric: Metric, *by: str) -> str:
    """A gauge by some of its labels, in their order, summed over the others."""
    return _summed(metric, by, metric.name)


def _rate(metric: Metric, *by: str) -> str:
    """A counter's growth a second by some of its labels, summed over the others."""
    return _summed(metric, by, f"rate({metric.name}[{RATE_RANGE}])")


def _summed(metric: Metric, by: tuple[str, ...], expression: str) -> str:
    once = f"max by ({', '.join(metric.labels)}) ({expression})" if metric.labels else f"max({expression})"
    if by == metric.labels:
        return once
    return f"sum by ({', '.join(by)}) ({once})" if by else f"sum({once})"


def _quantile(q: float, metric: Metric, selector: str = "", *by: str) -> str:
    buckets = f"rate({metric.name}_bucket{selector}[{RATE_RANGE}])"
    return f"histogram_quantile({q}, sum by ({', '.join((*by, 'le'))}) ({buckets}))"


def _mean(metric: Metric) -> str:
    return f"sum(rate({metric.name}_sum[{RATE_RANGE}])) / sum(rate({metric.name}_count[{RATE_RANGE}]))"


def _each(label: str) -> str:
    return "{{" + label + "}}"


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


def _preemption(settings: Settings) -> tuple[Panel, ...]:
    return (
        Panel(
            "Preemptions a minute",
            "By what was done to the victim. The line is the alert's, for all kinds together.",
            Unit.COUNT,
            (Query(f"60 * {_rate(metrics.PREEMPTIONS, LABEL_KIND)}", _each(LABEL_KIND)),),
            limit=settings.alerts.preemption_storm.max_per_minute,
            is_stacked=True,
        ),
        Panel(
            "Preemptions a minute, by the victim's class",
            metrics.PREEMPTIONS.help,
            Unit.COUNT,
            (Query(f"60 * {_rate(metrics.PREEMPTIONS, LABEL_CLASS)}", _each(LABEL_CLASS)),),
            is_stacked=True,
        ),
        Panel(
            "Lost tokens a second, and promotions a minute",
            f"{metrics.LOST_TOKENS.help} {metrics.PROMOTIONS.help}",
            Unit.COUNT,
            (
                Query(_rate(metrics.LOST_TOKENS), "lost tokens a second"),
                Query(f"60 * {_rate(metrics.PROMOTIONS)}", "promotions a minute"),
            ),
        ),
    )


def _memory(settings: Settings) -> tuple[Panel, ...]:
    return (
        Panel(
            "KV blocks used",
            metrics.KV_BLOCKS_USED.help,
            Unit.SHARE,
            (Query(f"{_now(metrics.KV_BLOCKS_USED)} / {_now(metrics.KV_BLOCKS)}", "used"),),
        ),
        Panel(
            "KV fragmentation",
            f"{metrics.KV_FRAGMENTATION.help} The line is the expected bound.",
            Unit.SHARE,
            (Query(_now(metrics.KV_FRAGMENTATION), "no token"),),
            limit=settings.alerts.max_fragmentation_ratio,
        ),
        Panel(
            "KV hit rate",
            "Hits among prompt blocks that the cache had held before. The line is the alert's.",
            Unit.SHARE,
            (Query(f"{_rate(metrics.KV_HIT_BLOCKS)} / {_rate(metrics.KV_REUSABLE_BLOCKS)}", "hits"),),
            limit=settings.alerts.kv_hit_low.min_ratio,
        ),
        Panel(
            "Swapped bytes a second",
            metrics.SWAP_BYTES.help,
            Unit.BYTES_PER_S,
            (Query(_rate(metrics.SWAP_BYTES, LABEL_DIRECTION), _each(LABEL_DIRECTION)),),
        ),
        Panel(
            "Time in moves, and moves refused a minute",
            f"{metrics.SWAP_SECONDS.help} {metrics.SWAP_REFUSALS.help}",
            Unit.COUNT,
            (
                Query(_rate(metrics.SWAP_SECONDS, LABEL_DIRECTION), f"seconds a second, {_each(LABEL_DIRECTION)}"),
                Query(f"60 * {_rate(metrics.SWAP_REFUSALS, LABEL_REASON)}", f"refused, {_each(LABEL_REASON)}"),
            ),
        ),
        Panel(
            "Host memory for swapped KV",
            metrics.SWAP_HOST_BYTES.help,
            Unit.BYTES,
            (Query(_now(metrics.SWAP_HOST_BYTES_USED), "used"), Query(_now(metrics.SWAP_HOST_BYTES), "size")),
        ),
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

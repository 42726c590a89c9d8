"""The dashboard's panels of what goes on inside the engines: preemption, and the memory of KV."""

from __future__ import annotations

from autoscale.grafana import Panel, Query, Unit
from autoscale.queries import each as _each
from autoscale.queries import now as _now
from autoscale.queries import rate as _rate
from slo import metrics
from slo.metrics import LABEL_CLASS, LABEL_DIRECTION, LABEL_KIND, LABEL_REASON
from slo.settings import Settings


def preemption(settings: Settings) -> tuple[Panel, ...]:
    """Who gave way, and what that cost."""
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


def memory(settings: Settings) -> tuple[Panel, ...]:
    """KV on the device and on the host, and what moves between them."""
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

"""What values the labels of each metric have: those that a scrape tells of a fleet of which everything is known. Pure.

So they are the enums' values that the exposition is made of, and the names of the alerts: there is no other list.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscale.exposition import Exposed
from autoscale.report import Look, exposed
from autoscale.rules import AlertBook, alert_rules
from autoscale.summary import ServedReplicas, fleet_view
from autoscale.window import Answer, Collection, Window
from slo.metrics import Metric
from slo.settings import Settings
from slo.snapshots import BatchSnapshot, EngineSnapshot, GpuUse, IngressSnapshot, KVUse


def label_values(settings: Settings) -> Mapping[Metric, tuple[tuple[str, ...], ...]]:
    """By metric: the values of each of its labels, in the labels' order; of every metric that is ever told.

    Args:
        settings: of one model. A rule that they disable is no alert; a class without a target has no target's series.
    """
    told = _everything(settings)
    values: dict[Metric, tuple[dict[str, None], ...]] = {}
    for series in (*told.totals.counters, *told.totals.histograms, *told.gauges):
        of_labels = values.setdefault(series.metric, tuple({} for _ in series.labels))
        for seen, value in zip(of_labels, series.labels, strict=True):
            seen[value] = None
    return {metric: tuple(tuple(seen) for seen in of_labels) for metric, of_labels in values.items()}


def _everything(settings: Settings) -> Exposed:
    """A scrape of an ingress process, a replica with a GPU, and the owner of the batches, which have done nothing."""
    kv = KVUse(num_blocks=1, num_used_blocks=1, num_allocated_slots=1, num_filled_slots=1)
    engine = EngineSnapshot("", 0, {}, max_num_seqs=1, kv=kv, gpus=(GpuUse(0, 0, 0, 0),))
    answers = Collection(
        ingresses=(Answer(IngressSnapshot("", 0, {}), 0),),
        engines=(Answer(engine, 0),),
        batches=(Answer(BatchSnapshot("", 0), 0),),
    )
    autoscale = settings.autoscale
    recent = Window(autoscale.window_s, autoscale.period_s, autoscale.stale_after_s).add(answers, 0)
    served = ServedReplicas(target=1, running=1, starting=0, draining=0)
    view = fleet_view(recent, served, autoscale.window_s)
    look = Look(recent, served, view, AlertBook(), changes=(), num_changes={}, fault=None)
    return exposed(look, settings, alert_rules(settings))

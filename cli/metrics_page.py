"""docs/metrics.md: every metric with its type, labels, unit and meaning, from slo/metrics.py, which defines them.

The values of labels are those that a scrape tells, so that nothing is told here that is not told there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from autoscale.label_values import label_values
from slo.metrics import GROUPS, LABEL_CLASS, LABEL_MODEL, Metric
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.status import class_label

_CLASSES: Final = ", ".join(f"`{class_label(priority)}`" for priority in PriorityClass)
_HEAD: Final = f"""# Metrics

`GET /metrics` on the HTTP port tells the whole fleet in Prometheus' text format, whichever ingress process answers: of
several that are scraped take each series once (`max by`), not their sum. It needs the operators' key where
`tenants.operator_key_sha256` is set ([tenants.md](tenants.md)), as a bearer token or as the password of basic
authentication. While the controller is away it is answered 503.

- A **counter** begins at zero when the controller starts. A **histogram** has the series `_bucket`, with the label
  `le`, `_sum` and `_count`; its buckets' bounds are those of [slo/histogram.py](../slo/histogram.py).
- What is not known now, such as the use of GPUs where there are none, is left out, not told as zero.
- `{LABEL_CLASS}` has the values {_CLASSES}. With several models each series has one label more, `{LABEL_MODEL}`: its
  model's first name.
- Where no unit is given, the value is a number of what the name says. A ratio is from 0 to 1.
- vLLM's own metrics, of each engine, are on Ray's metrics endpoint, with the id of their replica.
- Names are as stable as settings: until 1.0 they may change between minor versions ([changelog](../CHANGELOG.md)).

Written by `expresslane metrics` from [slo/metrics.py](../slo/metrics.py).
"""
_TABLE: Final = ("| metric | type | labels | unit | |", "| --- | --- | --- | --- | --- |")


def render_metrics() -> str:
    """The page, Markdown.

    Raises:
        KeyError: a metric is defined that no scrape tells.
    """
    values = label_values(Settings())
    sections = (
        "\n".join([f"## {group.title}\n", *_TABLE, *(_row(m, values[m]) for m in metrics)]) + "\n"
        for group, metrics in GROUPS.items()
    )
    return "\n".join([_HEAD, *sections])


def _row(metric: Metric, values: Sequence[Sequence[str]]) -> str:
    labels = "<br>".join(_labels(metric, values))
    cells = (f"`{metric.name}`", metric.kind.value, labels, metric.unit or "", metric.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _labels(metric: Metric, values: Sequence[Sequence[str]]) -> Iterator[str]:
    """The classes are told once, at the top."""
    for name, of_label in zip(metric.labels, values, strict=True):
        told = ", ".join(f"`{value}`" for value in of_label)
        yield f"`{name}`" if name == LABEL_CLASS else f"`{name}`: {told}"

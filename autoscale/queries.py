"""Questions to Prometheus about our metrics, as the dashboard asks them.

Every ingress process exports the same numbers of the whole fleet: `max by` takes them once, however many are scraped.
"""

from __future__ import annotations

from autoscale.grafana import RATE_RANGE
from slo.metrics import Metric


def now(metric: Metric, *by: str) -> str:
    """A gauge by some of its labels, in their order, summed over the others."""
    return _summed(metric, by, metric.name)


def rate(metric: Metric, *by: str) -> str:
    """A counter's growth a second by some of its labels, summed over the others."""
    return _summed(metric, by, f"rate({metric.name}[{RATE_RANGE}])")


def _summed(metric: Metric, by: tuple[str, ...], expression: str) -> str:
    once = f"max by ({', '.join(metric.labels)}) ({expression})" if metric.labels else f"max({expression})"
    if by == metric.labels:
        return once
    return f"sum by ({', '.join(by)}) ({once})" if by else f"sum({once})"


def quantile(q: float, metric: Metric, selector: str = "", *by: str) -> str:
    """A quantile of a histogram, over what the selector leaves, by some labels."""
    buckets = f"rate({metric.name}_bucket{selector}[{RATE_RANGE}])"
    return f"histogram_quantile({q}, sum by ({', '.join((*by, 'le'))}) ({buckets}))"


def mean(metric: Metric) -> str:
    """The mean of what a histogram has counted lately."""
    return f"sum(rate({metric.name}_sum[{RATE_RANGE}])) / sum(rate({metric.name}_count[{RATE_RANGE}]))"


def each(label: str) -> str:
    """A legend: the label's value."""
    return "{{" + label + "}}"

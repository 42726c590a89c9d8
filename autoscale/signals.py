"""What the alert rules measure: each number once, as the controller's view holds it and as Prometheus computes it.

Both readings of a signal stand beside each other, and are held together by a test that runs promtool on the series from
which the view is made. This file knows no threshold.

**No value.** Where the view has None, Prometheus has no sample or NaN (a quantile of nothing, 0 / 0), and a comparison
with either is false. So it is here: a bound is not crossed by what is not known.

**The range.** `$range` stands for the window and one period more, less a millisecond. Scraped once a period, a series
has exactly window / period + 1 samples in it wherever the scrapes fall between the evaluations: what they have grown by
is the growth of one window, which the controller sees. A range of the window alone would hold one sample less.

**Growth.** Quantiles and quotients are of `rate`, whose extrapolation cancels out. A count is of the samples, last less
least: `rate` and `increase` guess what lies beyond the samples, and too little where a counter is near zero. After a
restart of the controller, and so of its counters, it is what was counted since.

**Several targets.** Every ingress process gives the same numbers of the whole fleet. `max by` takes them once where a
sum would count them as often as they are scraped; in a quantile or a quotient it makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from autoscale.view import ClassView, FleetView
from slo import metrics
from slo.metrics import LABEL_CLASS, LABEL_KIND, LABEL_STATE, Metric
from slo.priority import PriorityClass
from slo.status import class_label

QUANTILE: Final = 0.99
"""Of latencies: what the targets are promised at."""

_UNITS_MS: Final = (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def duration_text(seconds: float) -> str:
    """A duration as Prometheus writes it, to the millisecond: 90.5 is 1m30s500ms."""
    left_ms, text = round(seconds * 1000), ""
    for unit, length_ms in _UNITS_MS:
        number, left_ms = divmod(left_ms, length_ms)
        text += f"{number}{unit}" if number else ""
    return text or "0s"


def number_text(value: float) -> str:
    """A number as PromQL reads it, exactly."""
    return repr(value).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Timing:
    """When conditions are evaluated, and over what; `window_s` is a multiple of `period_s`."""

    period_s: float
    window_s: float

    @property
    def range_text(self) -> str:
        """The range of PromQL that has the samples of one window; see the module."""
        return duration_text(self.window_s + self.period_s - 0.001)


@dataclass(frozen=True, slots=True)
class Signal:
    """One number about the fleet. `unit` is of the value, for people: empty for counts."""

    noun: str
    unit: str
    read: Callable[[FleetView], float | None]
    expression: str
    """PromQL for a sample without labels, with `$range` for the range and `$window_s` for the window's seconds."""

    def promql(self, timing: Timing) -> str:
        return self.expression.replace("$range", timing.range_text).replace("$window_s", number_text(timing.window_s))


class Side(Enum):
    """On which side of its limit a bound is crossed; the value is PromQL's operator."""

    ABOVE = ">"
    BELOW = "<"


@dataclass(frozen=True, slots=True)
class Bound:
    """A signal against a limit, of the signal's unit. The limit itself does not cross it."""

    signal: Signal
    side: Side
    limit: float

    def is_crossed(self, view: FleetView) -> bool:
        """False too when the value is not known."""
        value = self.signal.read(view)
        if value is None:
            return False
        return value > self.limit if self.side is Side.ABOVE else value < self.limit

    def promql(self, timing: Timing) -> str:
        return f"{self.signal.promql(timing)} {self.side.value} {number_text(self.limit)}"


def _p99(noun: str, metric: Metric, of_class: Callable[[ClassView], float | None]) -> Mapping[PriorityClass, Signal]:
    def reader(priority: PriorityClass) -> Callable[[FleetView], float | None]:
        return lambda view: of_class(view.classes[priority]) if priority in view.classes else None

    def expression(priority: PriorityClass) -> str:
        buckets = f'{metric.name}_bucket{{{LABEL_CLASS}="{class_label(priority)}"}}'
        return f"histogram_quantile({QUANTILE}, sum by (le) (rate({buckets}[$range])))"

    return {p: Signal(f"{noun} P99 of {class_label(p)}", "s", reader(p), expression(p)) for p in PriorityClass}


def _quotient(over: str, under: str) -> str:
    return f"sum(rate({over}[$range])) / sum(rate({under}[$range]))"


def _growth(counter: str) -> str:
    return f"last_over_time({counter}[$range]) - min_over_time({counter}[$range])"


TTFT_P99: Final = _p99("TTFT", metrics.TTFT, lambda c: c.ttft_p99_s)
TBT_P99: Final = _p99("TBT", metrics.TBT, lambda c: c.tbt_p99_s)

PREEMPTIONS_PER_MINUTE: Final = Signal(
    "preemptions",
    "a minute",
    lambda view: view.preemptions_per_minute,
    f"60 / $window_s * sum(max by ({LABEL_CLASS}, {LABEL_KIND}) ({_growth(metrics.PREEMPTIONS.name)}))",
)
GPU_UTILISATION: Final = Signal(
    "GPU utilisation",
    "",
    lambda view: view.gpu_utilisation_ratio,
    f"max({metrics.GPU_UTILISATION.name})",
)
WAITING_BY_CLASS: Final = (
    f'max by ({LABEL_CLASS}) ({metrics.ENGINE_REQUESTS.name}{{{LABEL_STATE}="{metrics.EngineState.WAITING.value}"}})'
)
"""PromQL: each ingress process tells the whole fleet's number, so the highest of them."""
NUM_WAITING: Final = Signal(
    "waiting requests",
    "",
    lambda view: view.num_waiting,
    f"sum({WAITING_BY_CLASS})",
)
KV_HIT_RATIO: Final = Signal(
    "KV hit rate",
    "",
    lambda view: view.kv_hit_ratio,
    _quotient(metrics.KV_HIT_BLOCKS.name, metrics.KV_REUSABLE_BLOCKS.name),
)
MEAN_BATCH_SIZE: Final = Signal(
    "mean batch size",
    "",
    lambda view: view.mean_batch_size,
    _quotient(f"{metrics.BATCH_SIZE.name}_sum", f"{metrics.BATCH_SIZE.name}_count"),
)

"""Every metric of ours: name, kind, meaning and labels, in one place. Base units; labels are enums, and a model's name.

What is exported, the Prometheus rules and the dashboard are all made from these. Each is of the whole
fleet: an engine's own metrics, by replica, are vLLM's, on Ray's metrics endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

NAMESPACE: Final = "expresslane"

LABEL_MODEL: Final = "model"
"""Of every metric where the application has several models, whose names are settings; of none where it has one."""
LABEL_CLASS: Final = "priority_class"
LABEL_OUTCOME: Final = "outcome"
LABEL_STATE: Final = "state"
LABEL_KIND: Final = "kind"
LABEL_DIRECTION: Final = "direction"
LABEL_REASON: Final = "reason"
LABEL_ALERT: Final = "alert"

UNITS: Final = ("seconds", "bytes", "tokens", "blocks", "ratio")
"""A metric that has one has it as a word of its name; one without is a number of what the name says."""


class MetricKind(Enum):
    """As Prometheus names them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class EngineState(Enum):
    """Where a request is, as a label of ENGINE_REQUESTS."""

    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    SWAPPED = "swapped"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. A counter's name ends in `_total`, as its series does."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its time series."""
        if self.kind is MetricKind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)

    @property
    def unit(self) -> str | None:
        """Of its values, one of `UNITS`. A ratio is from 0 to 1."""
        return next((word for word in self.name.split("_") if word in UNITS), None)


@dataclass(frozen=True, slots=True)
class Group:
    """What the metrics below it in this file, down to the next group, are about."""

    title: str


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{NAMESPACE}_{name}_total", MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{NAMESPACE}_{name}", MetricKind.GAUGE, text, labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{NAMESPACE}_{name}", MetricKind.HISTOGRAM, text, labels)


OF_REQUESTS: Final = Group("Requests, as the ingress sees them")
REQUESTS: Final = _counter("requests", "Ended requests.", LABEL_CLASS, LABEL_OUTCOME)
ARRIVALS: Final = _counter("requests_arrived", "Requests that arrived and got a class.", LABEL_CLASS)
UNCLASSIFIED: Final = _counter("unclassified_requests", "Requests that ended before they had a class.", LABEL_OUTCOME)
RECOVERIES: Final = _counter("recoveries", "Losses of a replica that requests met, by what became of them.", LABEL_KIND)
TTFT: Final = _histogram("ttft_seconds", "Arrival at the ingress to the first token out, streamed.", LABEL_CLASS)
TBT: Final = _histogram("tbt_seconds", "Between tokens, as they leave the ingress, streamed.", LABEL_CLASS)
E2E: Final = _histogram("e2e_seconds", "Arrival at the ingress to the end of the answer.", LABEL_CLASS)
IN_FLIGHT: Final = _gauge("requests_in_flight", "Requests that have arrived and not ended.", LABEL_CLASS)
HELD: Final = _counter("requests_held", "Ended requests whose every target held: goodput is its rate.", LABEL_CLASS)
MISSED: Final = _counter("requests_missed", "Ended requests that missed a target; shed is a miss.", LABEL_CLASS)
TTFT_TARGET: Final = _gauge("ttft_target_seconds", "The class's TTFT target at P99.", LABEL_CLASS)
TBT_TARGET: Final = _gauge("tbt_target_seconds", "The class's TBT target at P99.", LABEL_CLASS)

OF_ENGINES: Final = Group("Engines and their steps")
ENGINE_REQUESTS: Final = _gauge(
    "engine_requests",
    "Running, paused, swapped in the engines; waiting there or at the gate.",
    LABEL_CLASS,
    LABEL_STATE,
)
QUEUE_WAIT: Final = _histogram("queue_wait_seconds", "Arrival at the engine to the first step.", LABEL_CLASS)
BATCH_SIZE: Final = _histogram("batch_size", "Running requests of a step.")
STEP_TOKENS: Final = _counter("step_tokens", "Tokens computed, prefill and decode.")
BUDGET_TOKENS: Final = _counter("budget_tokens", "Tokens that the steps' budgets allowed.")
PREEMPTIONS: Final = _counter(
    "preemptions", "Preemptions, by what was done and the victim's class.", LABEL_CLASS, LABEL_KIND
)
LOST_TOKENS: Final = _counter("lost_tokens", "Tokens to be computed again because of a preemption.")
PROMOTIONS: Final = _counter("promotions", "Requests lifted by one class for having waited too long.")
SATURATION: Final = _gauge("engine_saturation_ratio", "Mean over replicas: slots, KV or token budget used.")

OF_KV_MEMORY: Final = Group("KV memory")
KV_BLOCKS: Final = _gauge("kv_blocks", "KV blocks of all engines.")
KV_BLOCKS_USED: Final = _gauge("kv_blocks_used", "KV blocks that requests hold.")
KV_FRAGMENTATION: Final = _gauge("kv_fragmentation_ratio", "Share of allocated token slots that hold no token.")
KV_REUSABLE_BLOCKS: Final = _counter("kv_reusable_blocks", "Prompt blocks that the cache had held before.")
KV_HIT_BLOCKS: Final = _counter("kv_hit_blocks", "Those of them that were still there.")

OF_SWAP: Final = Group("Swap to host memory")
SWAP_BYTES: Final = _counter("swap_bytes", "KV moved between device and host.", LABEL_DIRECTION)
SWAP_SECONDS: Final = _counter("swap_seconds", "Time that the moves took.", LABEL_DIRECTION)
SWAP_REFUSALS: Final = _counter("swap_refusals", "Moves that were not made.", LABEL_REASON)
SWAP_HOST_BYTES: Final = _gauge("swap_host_bytes", "Host memory for swapped KV.")
SWAP_HOST_BYTES_USED: Final = _gauge("swap_host_bytes_used", "Host memory that holds swapped KV.")

OF_GPUS: Final = Group("GPUs")
GPU_UTILISATION: Final = _gauge("gpu_utilisation_ratio", "Mean over all GPUs, as NVML tells it.")
GPU_MEMORY_BYTES: Final = _gauge("gpu_memory_bytes", "Memory of all GPUs.")
GPU_MEMORY_BYTES_USED: Final = _gauge("gpu_memory_bytes_used", "Memory used of all GPUs.")

OF_BATCHES: Final = Group("Batches of lines")
BATCH_LINES: Final = _counter("batch_lines", "Lines of batches that have ended, by how.", LABEL_OUTCOME)
BATCH_RETRIES: Final = _counter("batch_line_retries", "Tries of a line after which it was to be tried again.")
BATCH_LINES_QUEUED: Final = _gauge("batch_lines_queued", "Lines of open batches that wait for their turn.")
BATCH_LINES_IN_FLIGHT: Final = _gauge("batch_lines_in_flight", "Lines of batches that are being answered.")
BATCHES_OPEN: Final = _gauge("batches_open", "Batches that have not ended.")

OF_SCALING: Final = Group("Replicas, scaling and alerts")
REPLICAS: Final = _gauge("replicas", "Replicas by state: target, running, starting, draining, fresh.", LABEL_STATE)
SCALING_DECISIONS: Final = _counter("scaling_decisions", "Changes of the target, by reason.", LABEL_REASON)
ALERT_FIRING: Final = _gauge("alert_firing", "1 while the alert fires.", LABEL_ALERT)


def _grouped(defined: Iterable[object]) -> Mapping[Group, tuple[Metric, ...]]:
    groups: dict[Group, tuple[Metric, ...]] = {}
    for value in defined:
        if isinstance(value, Group):
            groups[value] = ()
        elif isinstance(value, Metric):
            groups[next(reversed(groups))] += (value,)
    return groups


GROUPS: Final = _grouped(tuple(globals().values()))
"""All metrics by what they are about, in this file's order."""
ALL: Final[tuple[Metric, ...]] = tuple(metric for group in GROUPS.values() for metric in group)

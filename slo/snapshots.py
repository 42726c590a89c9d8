"""What an ingress process and a replica tell about themselves when asked: plain values that cross processes.

Totals grow from the start of their source, and never fall while it lives. A snapshot says how old it is by its source's
own monotonic clock (`age_s`): clocks of different machines are never compared. Who collects them treats an old one as
absent, not as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from slo.histogram import BATCH_BOUNDS, LATENCY_BOUNDS_S, HistogramCounts
from slo.messages import Recovery
from slo.outcome import LineOutcome, Outcome
from slo.priority import PriorityClass


def _no_latencies() -> HistogramCounts:
    return HistogramCounts.empty(LATENCY_BOUNDS_S)


@dataclass(frozen=True, slots=True)
class ClassTraffic:
    """One class at one ingress process. TTFT and TBT are of streamed answers: of others the user sees the end only."""

    ttft: HistogramCounts = field(default_factory=_no_latencies)
    tbt: HistogramCounts = field(default_factory=_no_latencies)
    e2e: HistogramCounts = field(default_factory=_no_latencies)
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)
    num_held: int = 0
    """Ended requests, of a class with promised targets, whose every target held."""
    num_missed: int = 0
    """The other ended requests of such a class: shed, expired and failed ones too; rejected and cancelled ones not."""
    num_in_flight: int = 0
    """Requests that have arrived and not ended: a state, no total."""
    num_queued: int = 0
    """Those of them that wait at the gate, and that no engine has seen yet."""


@dataclass(frozen=True, slots=True)
class IngressSnapshot:
    """One ingress process."""

    source_id: str
    """Of this process: another after a restart."""
    age_s: float
    classes: Mapping[PriorityClass, ClassTraffic]
    num_unclassified: Mapping[Outcome, int] = field(default_factory=dict)
    """Requests that ended before they had a class."""
    recoveries: Mapping[Recovery, int] = field(default_factory=dict)
    """Totals: what became of requests whose replica was lost, once for each loss."""


class PreemptionKind(Enum):
    """What a preemption, or a loss of memory, did to its victim; a metric label."""

    PAUSED = "paused"
    SWAPPED = "swapped"
    RECOMPUTED = "recomputed"
    RECLAIMED = "reclaimed"


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """One class at one engine. States, but for the totals named so."""

    num_running: int = 0
    num_waiting: int = 0
    """Without paused and swapped ones."""
    num_paused: int = 0
    num_swapped: int = 0
    queue_wait: HistogramCounts = field(default_factory=_no_latencies)
    """Total: from the arrival at the engine to its first step, of each request that got one."""
    num_preempted: Mapping[PreemptionKind, int] = field(default_factory=dict)
    """Totals, by victim's class."""
    num_unread_tokens: int = 0
    """Of prompts, by the class that the scheduler gives them: still to be computed."""


@dataclass(frozen=True, slots=True)
class KVUse:
    """The KV cache of one engine."""

    num_blocks: int
    num_used_blocks: int
    num_allocated_slots: int
    """Token slots of the blocks that requests hold."""
    num_filled_slots: int
    """Those of them that hold a token."""
    num_reusable_blocks: int = 0
    """Total: prompt blocks of arriving requests that the cache had held before: those that could have hit."""
    num_hit_blocks: int = 0
    """Total: those of them that were still there."""


class SwapRefusal(Enum):
    """Why KV was not moved to host memory; a metric label."""

    TOO_SLOW = "too_slow"
    HOST_FULL = "host_full"
    COPY_FAILED = "copy_failed"


@dataclass(frozen=True, slots=True)
class SwapUse:
    """Moves of KV between the device and the host. Totals, but for the last two."""

    bytes_out: int = 0
    bytes_in: int = 0
    seconds_out: float = 0.0
    seconds_in: float = 0.0
    refusals: Mapping[SwapRefusal, int] = field(default_factory=dict)
    host_bytes: int = 0
    host_used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU, as NVML tells it."""

    index: int
    utilisation_ratio: float
    memory_used_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One replica's engine."""

    source_id: str
    """Of this engine: another after a restart."""
    age_s: float
    """Since the engine last said something, or since it was last known to be idle."""
    classes: Mapping[PriorityClass, ClassLoad]
    max_num_seqs: int
    kv: KVUse
    batch_sizes: HistogramCounts = field(default_factory=lambda: HistogramCounts.empty(BATCH_BOUNDS))
    """Total: running requests of each step that computed anything."""
    num_step_tokens: int = 0
    """Total: tokens computed in all steps."""
    num_budget_tokens: int = 0
    """Total: tokens that the steps' budgets would have allowed."""
    num_lost_tokens: int = 0
    """Total: tokens whose KV a preemption gave up, and that have to be computed again."""
    num_promotions: int = 0
    saturation_ratio: float = 0.0
    """The highest of: run slots used, KV blocks used, token budget used in recent steps."""
    swap: SwapUse = SwapUse()
    gpus: tuple[GpuUse, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """The owner of the batches."""

    source_id: str
    """Of this owner: another after a restart."""
    age_s: float
    num_ended: Mapping[LineOutcome, int] = field(default_factory=dict)
    """Totals: lines that have ended, by how."""
    num_retries: int = 0
    """Total: tries after which a line was to be tried again."""
    num_pending: int = 0
    """Lines of open batches that wait: neither ended nor in flight."""
    num_in_flight: int = 0
    num_open: int = 0
    """Batches that have not ended."""

"""What the rules and the scaling policy see of the fleet: plain values over a window that has just ended.

None means not known, or nothing to know: no request in the window, no GPU, a replica that did not answer. No consumer
takes None for zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slo.priority import PriorityClass


@dataclass(frozen=True, slots=True)
class ClassView:
    """One class over the window, all of the fleet together."""

    ttft_p99_s: float | None = None
    tbt_p99_s: float | None = None
    arrivals_per_s: float = 0.0
    """Requests that arrived in the window, whatever became of them."""
    completions_per_s: float = 0.0
    starts_per_s: float | None = None
    """Requests that got their first step (the counts of the engines' `queue_wait`); None: not known."""
    num_running: int = 0
    num_waiting: int = 0
    num_paused: int = 0
    num_swapped: int = 0

    @property
    def num_unfinished(self) -> int:
        return self.num_running + self.num_waiting + self.num_paused + self.num_swapped


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Replicas by state, as Serve tells them, and how many of the running ones answered freshly."""

    target: int
    running: int
    starting: int
    draining: int
    fresh: int
    """Running replicas whose snapshot is fresh enough to count."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet over the window. `now_s` is of the controller's monotonic clock."""

    now_s: float
    window_s: float
    classes: Mapping[PriorityClass, ClassView]
    replicas: ReplicaCounts | None
    """None: Serve could not be asked."""
    is_complete: bool
    """Every running replica and every ingress process answered freshly."""
    num_without_replica: int = 0
    """Requests that the ingress holds, or has just turned away, because there is no replica at all: they wake one."""
    saturation_ratio: float | None = None
    """Mean over fresh replicas of each one's saturation."""
    slots_per_replica: int | None = None
    preemptions_per_minute: float | None = None
    gpu_utilisation_ratio: float | None = None
    """Mean over all GPUs; None without any."""
    kv_hit_ratio: float | None = None
    """Hits among prompt blocks that could have hit; None when none could."""
    mean_batch_size: float | None = None
    tokens_per_s: float | None = None
    """Tokens computed, prefill and decode, by all replicas."""

    @property
    def num_waiting(self) -> int:
        return sum(c.num_waiting for c in self.classes.values())

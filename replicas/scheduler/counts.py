"""What preemption has done since start-up: plain numbers for statistics."""

from __future__ import annotations

from dataclasses import dataclass, field

from slo.priority import PriorityClass


@dataclass(slots=True)
class PreemptionCounts:
    """Running totals. One writer: the scheduler."""

    num_paused: int = 0
    """Requests that left their run slot and kept their KV."""
    num_recomputed: int = 0
    """Requests that lost slot and KV: for a waiting request, or in the engine's own preemption when KV runs out."""
    num_reclaimed: int = 0
    """Paused requests that lost their KV as well."""
    num_lost_tokens: int = 0
    """Tokens whose KV was given up by recomputed and reclaimed requests. An upper bound of what is computed again: the
    prefix cache may still have some of it."""
    num_refused: int = 0
    """Times that the engine did not admit a request for which there was room, by the plan."""
    num_promotions: int = 0
    """Times that a request was lifted by one class because it had waited too long."""
    num_capped: int = 0
    """Requests preempted so often that they yield no more."""
    num_victims: dict[PriorityClass, int] = field(default_factory=lambda: dict.fromkeys(PriorityClass, 0))
    """Paused and recomputed requests, by the class that they counted as."""

    def add_paused(self, priority: PriorityClass) -> None:
        self.num_paused += 1
        self.num_victims[priority] += 1

    def add_recomputed(self, priority: PriorityClass, num_lost_tokens: int) -> None:
        self.num_recomputed += 1
        self.num_victims[priority] += 1
        self.num_lost_tokens += num_lost_tokens

    def add_reclaimed(self, num_lost_tokens: int) -> None:
        self.num_reclaimed += 1
        self.num_lost_tokens += num_lost_tokens

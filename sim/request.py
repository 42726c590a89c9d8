"""A simulated request: what arrives, and what has become of it."""

from __future__ import annotations

from dataclasses import dataclass

from slo.outcome import Outcome
from slo.priority import PriorityClass


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as it comes to the ingress.

    Attributes:
        number: counts them, in order of time; no two are the same.
        shared_tokens: so many at the prompt's start are those of every request with this `shared_id`.
    """

    number: int
    arrived_s: float
    priority: PriorityClass
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    shared_id: int = 0

    @property
    def request_id(self) -> str:
        return f"r{self.number}"


@dataclass(slots=True)
class Track:
    """A request on its way. One writer: the log.

    Attributes:
        first_s, last_s: when its first and its latest token came.
        num_late_gaps: gaps between its tokens that were longer than its class's target.
        ended_s, outcome: None while it is under way.
    """

    arrival: Arrival
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0
    num_late_gaps: int = 0
    num_preempted: int = 0
    ended_s: float | None = None
    outcome: Outcome | None = None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrival.arrived_s

"""What one engine step computes, as far as its cost depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step.

    Attributes:
        prefill_tokens: prompt tokens, of all requests.
        prefill_pairs: for each of them the tokens that it attends to, summed.
        num_prefills: requests that these are of.
        num_decodes: requests that compute one token.
        decode_context: tokens that these attend to, summed.
        num_sampled: requests that get a token.
    """

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    num_prefills: int = 0
    num_decodes: int = 0
    decode_context: int = 0
    num_sampled: int = 0


class StepTime(Protocol):
    """How long steps take. Asked by a simulated engine, once a step; pure."""

    def step_s(self, work: StepWork) -> float:
        """Of a step with this work, seconds; of one without any, its fixed part."""
        ...

    def context_slope_s(self) -> float:
        """What each token of `decode_context` adds, seconds: a run of equal decode steps grows by it evenly."""
        ...

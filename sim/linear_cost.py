"""What a step costs by a fit to measured steps, for machines without a data sheet. Pure."""

from __future__ import annotations

from pydantic import Field

from sim.step_work import StepWork
from slo.settings.base import SettingsGroup


class LinearCost(SettingsGroup):
    """Milliseconds: `step_ms` and so much for each unit of work."""

    step_ms: float = Field(ge=0, description="Each step, milliseconds.")
    prefill_token_ms: float = Field(ge=0, description="Each prompt token, milliseconds.")
    decode_ms: float = Field(ge=0, description="Each request that computes one token, milliseconds.")
    context_token_ms: float = Field(0, ge=0, description="Each token that a decode attends to, milliseconds.")
    prefill_pair_ms: float = Field(0, ge=0, description="Each pair of a prompt token and one it attends to, ms.")

    def step_s(self, work: StepWork) -> float:
        """See `StepTime`."""
        return 1e-3 * (
            self.step_ms
            + self.prefill_token_ms * work.prefill_tokens
            + self.decode_ms * work.num_decodes
            + self.context_token_ms * work.decode_context
            + self.prefill_pair_ms * work.prefill_pairs
        )

    def context_slope_s(self) -> float:
        """See `StepTime`."""
        return 1e-3 * self.context_token_ms

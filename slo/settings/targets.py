"""Latency targets by class, and the latency profiles of a scheduling step."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from slo.priority import PriorityClass
from slo.settings.base import SettingsGroup

BUDGET_MULTIPLE_TOKENS = 256
"""Token budgets are rounded up to this: the tile size of a GPU's kernels. Source: own choice."""


class LatencyTargets(SettingsGroup):
    """What a class is promised. None: no target."""

    ttft_p99_ms: float | None = Field(None, gt=0, description="Time to first token at P99, milliseconds.")
    tbt_p99_ms: float | None = Field(None, gt=0, description="Time between tokens at P99, milliseconds.")
    promised: bool = Field(True, description="False: used for token budgets, left out of attainment.")


class ClassTargets(SettingsGroup):
    """The targets of the three classes. Source: own choice, what users of each class are promised."""

    p0: LatencyTargets = LatencyTargets(ttft_p99_ms=100, tbt_p99_ms=20)
    p1: LatencyTargets = LatencyTargets(ttft_p99_ms=500, tbt_p99_ms=100)
    p2: LatencyTargets = LatencyTargets(ttft_p99_ms=None, tbt_p99_ms=200, promised=False)

    def of(self, priority: PriorityClass) -> LatencyTargets:
        """The targets of `priority`."""
        return {PriorityClass.P0: self.p0, PriorityClass.P1: self.p1, PriorityClass.P2: self.p2}[priority]

    @model_validator(mode="after")
    def _urgent_classes_have_the_tighter_targets(self) -> Self:
        for name in ("ttft_p99_ms", "tbt_p99_ms"):
            tightest: tuple[str, float] | None = None
            for key in ("p0", "p1", "p2"):
                value: float | None = getattr(getattr(self, key), name)
                if value is None:
                    continue
                if tightest is not None and value < tightest[1]:
                    raise ValueError(
                        f"{key}.{name}={value:g} is tighter than {tightest[0]}.{name}={tightest[1]:g}: "
                        "a less urgent class cannot have the tighter target"
                    )
                tightest = (key, value)
        return self


class LatencyProfile(SettingsGroup):
    """How large a step may be while the strictest class in it has this profile."""

    tbt_below_ms: float = Field(gt=0, description="The profile is for TBT targets up to this, milliseconds.")
    token_budget: int = Field(gt=0, description="Tokens a step, rounded up to a multiple of 256.")
    chunk_tokens: int = Field(gt=0, description="Prefill tokens of one request a step.")

    @field_validator("token_budget")
    @classmethod
    def _round_up(cls, value: int) -> int:
        return -(-value // BUDGET_MULTIPLE_TOKENS) * BUDGET_MULTIPLE_TOKENS

    @model_validator(mode="after")
    def _chunk_fits_the_budget(self) -> Self:
        if self.chunk_tokens > self.token_budget:
            raise ValueError(f"chunk_tokens={self.chunk_tokens} exceeds token_budget={self.token_budget}")
        return self


class LatencyProfiles(SettingsGroup):
    """The three profiles: where the adaptive budget starts, and its bound. Source: own choice.

    A TBT target has the first of them that is for it; relaxed is for all others, and where there is no target.
    """

    strict: LatencyProfile = LatencyProfile(tbt_below_ms=50, token_budget=512, chunk_tokens=256)
    standard: LatencyProfile = LatencyProfile(tbt_below_ms=100, token_budget=1024, chunk_tokens=512)
    relaxed: LatencyProfile = LatencyProfile(tbt_below_ms=200, token_budget=2048, chunk_tokens=2048)

    @model_validator(mode="after")
    def _profiles_grow(self) -> Self:
        for name in ("tbt_below_ms", "token_budget", "chunk_tokens"):
            values = [getattr(p, name) for p in (self.strict, self.standard, self.relaxed)]
            if values != sorted(values):
                raise ValueError(f"strict, standard and relaxed {name} must not fall: {values}")
        return self

    def of(self, tbt_target_ms: float | None) -> LatencyProfile:
        """The profile for a TBT target in milliseconds: the first whose bound is not below it.

        P1 (100 ms) shall have the standard profile and P2 (200 ms) the relaxed one, so bounds are inclusive.
        """
        for profile in (self.strict, self.standard):
            if tbt_target_ms is not None and tbt_target_ms <= profile.tbt_below_ms:
                return profile
        return self.relaxed

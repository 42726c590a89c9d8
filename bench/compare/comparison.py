"""A comparison: which contenders meet which load, with what sizes, and what is claimed of it. No I/O."""

from __future__ import annotations

from typing import Final, Self

from pydantic import Field, model_validator

from bench.compare.sizes import Sizes
from slo.settings.base import SettingsGroup

ALONE: Final = "alone"
"""What a figure is compared with that was taken of the same contender, with some of the classes alone."""


class ComparisonError(ValueError):
    """A comparison that cannot be made. The message names its file, and the key at fault with its value."""


class ClaimSpec(SettingsGroup):
    """A figure of one contender, or its ratio to another figure, and the bound that it is to keep."""

    what: str = Field("", description="What the metric is, in the table. Empty: its name.")
    metric: str = Field(min_length=1, description="Such as goodput_per_s, or P0.ttft.p99_ms; see docs/bench.md.")
    of: str = Field(min_length=1, description="A contender.")
    to: str | None = Field(None, description="Another one, or `alone`: the ratio is claimed. Null: the figure itself.")
    at_most: float | None = Field(None, description="The bound.")
    at_least: float | None = Field(None, description="The bound.")

    @property
    def shown(self) -> str:
        """As the table shows it."""
        beside = {None: "", ALONE: ", to that class alone"}.get(self.to, f", to {self.to}")
        return f"{self.what or self.metric} of {self.of}{beside}"

    @property
    def bound(self) -> str:
        """As the table shows it."""
        return f"at most {self.at_most:g}" if self.at_most is not None else f"at least {self.at_least:g}"

    def holds(self, value: float) -> bool:
        """Whether a figure, or a ratio, keeps the bound."""
        if self.at_most is not None:
            return value <= self.at_most
        return self.at_least is not None and value >= self.at_least

    @model_validator(mode="after")
    def _has_one_bound(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"at_most={self.at_most}, at_least={self.at_least}: exactly one is needed")
        return self


class Comparison(SettingsGroup):
    """All of it."""

    name: str = "unnamed"
    scenario: str = Field(min_length=1, description="A load: its built-in name, or a path from this file.")
    contenders: tuple[str, ...] = Field(
        min_length=1, description="In this order: their built-in names, or paths from this file."
    )
    baseline: str | None = Field(None, description="The contender that the table's ratios are to. Null: the last one.")
    alone: tuple[str, ...] = Field((), description="Classes that are first sent alone, to compare with.")
    engine: Sizes = Sizes()
    claims: tuple[ClaimSpec, ...] = ()

    @model_validator(mode="after")
    def _claims_have_what_they_need(self) -> Self:
        for i, claim in enumerate(self.claims):
            if claim.to == ALONE and not self.alone:
                raise ValueError(f"claims.{i}.to={claim.to!r}: needs `alone`, the classes that are sent alone")
        return self

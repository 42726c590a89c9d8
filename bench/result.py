"""What a benchmark gives: its scenario, a run or several at rising rates, and what a search found. As JSON too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.measure import Figures
from bench.run import Run
from bench.scenario import Scenario
from bench.search import Search


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: how much faster than the scenario as written it came, and what it showed."""

    speed: float
    run: Run
    figures: Figures


@dataclass(frozen=True, slots=True)
class Result:
    """A whole benchmark. `model` and `seed` are those used, where the scenario left them open."""

    scenario: Scenario
    model: str
    seed: int
    measured: tuple[Measured, ...]
    search: Search | None = None

    def shown(self) -> Measured:
        """The run whose latencies are shown: the fastest at which all targets held; else the first."""
        return best_of(self.measured) or self.measured[0]

    def to_json(self) -> bytes:
        """Everything but the single answers."""
        document: dict[str, Any] = {
            "scenario": self.scenario.model_dump(mode="json"),
            "model": self.model,
            "seed": self.seed,
            "runs": [{"speed": m.speed, "figures": m.figures} for m in self.measured],
            "search": self.search,
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def best_of(measured: Sequence[Measured]) -> Measured | None:
    """The run of the highest speed at which all targets held, and the generator kept up; None: none did."""
    held = [m for m in measured if m.figures.targets_hold and m.figures.kept_up]
    return max(held, key=lambda m: m.speed, default=None)

"""Claims against what was measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.claims import Claim
from bench.compare.comparison import ALONE, ClaimSpec
from bench.compare.contest import Contest, Entry
from bench.compare.metrics import metrics_of
from bench.measure import Figures


def verdicts(contest: Contest, entries: Sequence[Entry]) -> list[Claim]:
    """One for each claim. A claim whose figures are missing does not hold."""
    by_name = {entry.contender.name: entry for entry in entries}
    return [_verdict(claim, contest, by_name) for claim in contest.comparison.claims]


def _verdict(claim: ClaimSpec, contest: Contest, by_name: Mapping[str, Entry]) -> Claim:
    metric = metrics_of(spec.name for spec in contest.scenario.classes)[claim.metric]

    def value(figures: Figures | None) -> float | None:
        return None if figures is None else metric(figures)

    figure = value(_loaded(by_name.get(claim.of)))
    if claim.to is None:
        measured, told = figure, _told(figure)
    else:
        other = _alone(by_name.get(claim.of)) if claim.to == ALONE else _loaded(by_name.get(claim.to))
        measured = _ratio(figure, value(other))
        told = f"{measured or 0:.2f} ({_told(figure)} / {_told(value(other))})"
    if measured is None:
        return Claim(claim.shown, "not measured", claim.bound, held=False)
    return Claim(claim.shown, told, claim.bound, claim.holds(measured))


def _ratio(figure: float | None, other: float | None) -> float | None:
    """Infinite to nothing at all; None where a figure is missing, and of nothing to nothing."""
    if figure is None or other is None or not (figure or other):
        return None
    return figure / other if other else math.inf


def _told(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"


def _loaded(entry: Entry | None) -> Figures | None:
    return None if entry is None or entry.measured is None else entry.measured.figures


def _alone(entry: Entry | None) -> Figures | None:
    return None if entry is None or entry.alone is None else entry.alone.figures

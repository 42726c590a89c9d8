"""Claims about a load, from figures: what is compared, and in what words. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.measure import ClassFigures, Figures, Latency, figures_of
from bench.result import Measured
from bench.scenario import Scenario, Targets
from slo.outcome import Outcome

LOOSER = 2.0
"""A target that a machine misses with a full house of P0 becomes so many times what P0 then gets at P99.

So the product's TBT stands to an H100: 20 ms are about twice a step of 64 decodes of an 8B model, by sim/roofline.py.
"""
HEADER = "| claim | measured | aim | held |\n| --- | --- | --- | --- |"


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the answer. `held`: None for a figure that has no aim."""

    what: str
    measured: str
    aim: str = ""
    held: bool | None = None

    def cells(self) -> list[str]:
        """As a table shows it."""
        return [self.what, self.measured, self.aim, {None: "", True: "yes", False: "no"}[self.held]]

    def row(self) -> str:
        """In Markdown."""
        return f"| {' | '.join(self.cells())} |"


def overload_claims(
    alone: Measured,
    loaded: Measured,
    scenario: Scenario,
    targets: Targets,
    capacity: float,
    memory_mib: tuple[float, float],
) -> list[Claim]:
    """P0 within an overload against P0 alone.

    Args:
        scenario: the one of both runs.
        targets: P0's.
        capacity: requests a second that a closed loop completes.
        memory_mib: of the ingress, before and after.
    """
    mib_before, mib_after = memory_mib
    p0_alone, p0 = (figures_of(m.run, with_targets(scenario, "P0", targets)).of("P0") for m in (alone, loaded))
    ratio = quotient(attained(p0), attained(p0_alone))
    p2 = loaded.figures.of("P2")
    return [
        Claim("overload: sent, of what a closed loop completes", f"{loaded.figures.sent_per_s / capacity:.2f}"),
        Claim("overload: P0's targets, ms TTFT / TBT", f"{targets.ttft_ms or 0:.0f} / {targets.tbt_ms or 0:.0f}"),
        Claim("overload: P0 attainment alone", f"{attained(p0_alone):.3f}"),
        Claim("overload: P0 attainment, ratio to alone", f"{ratio:.3f}", "at least 0.99", ratio >= 0.99),
        Claim("overload: P0 answered; TTFT in time; gaps in time", shares(p0)),
        Claim("overload: P0 TTFT p99, ratio to alone", f"{p99_ratio(p0.ttft, p0_alone.ttft):.2f}"),
        Claim("overload: P0 TBT p99, ratio to alone", f"{p99_ratio(p0.tbt, p0_alone.tbt):.2f}"),
        Claim("overload: P2 refused, of those sent", refused(p2), "some", num_refused(p2) > 0),
        Claim(
            "overload: memory of the ingress before / after, MiB",
            f"{mib_before:.0f} / {mib_after:.0f}",
            "flat (at most 1.05)",
            mib_after <= 1.05 * mib_before,
        ),
    ]


def flood_claims(alone: Figures, both: Figures) -> list[Claim]:
    """A quiet tenant beside a flood against the quiet one alone."""
    quiet, quiet_alone = both.of("quiet"), alone.of("quiet")
    ratio = p99_ratio(quiet.ttft, quiet_alone.ttft)
    times_ms = f"{_p50_p99(quiet_alone.ttft)} -> {_p50_p99(quiet.ttft)}"
    return [
        Claim("flood: quiet tenant's TTFT p50 / p99, ms, alone -> beside the flood", times_ms),
        Claim("flood: quiet tenant's TTFT p99, ratio to alone", f"{ratio:.2f}", "at most 2", ratio <= 2),
        Claim("flood: quiet requests refused, of those sent", refused(quiet), "none", num_refused(quiet) == 0),
        Claim("flood: flooding requests refused, of those sent", refused(both.of("flood"))),
    ]


def path_claims(our_ttft_ms: float, bare_ttft_ms: float, our_tokens_s: float, bare_tokens_s: float) -> list[Claim]:
    """Expresslane against vLLM's own server."""
    added_ms, ratio = our_ttft_ms - bare_ttft_ms, quotient(our_tokens_s, bare_tokens_s)
    return [
        Claim("path: TTFT p50 of one stream, ms, ours / bare", f"{our_ttft_ms:.1f} / {bare_ttft_ms:.1f}"),
        Claim("path: added TTFT p50, ms", f"{added_ms:.1f}", "at most 5", added_ms <= 5),
        Claim("path: tokens/s of all streams, ours / bare", f"{our_tokens_s:,.0f} / {bare_tokens_s:,.0f}"),
        Claim("path: tokens/s, ratio", f"{ratio:.3f}", "at least 0.95", ratio >= 0.95),
    ]


def reachable(promised: Targets, full_house: ClassFigures) -> Targets:
    """What is promised, or `LOOSER` times what was reached at P99 by the class filling every slot, if that is more."""
    return Targets(ttft_ms=_looser(promised.ttft_ms, full_house.ttft), tbt_ms=_looser(promised.tbt_ms, full_house.tbt))


def with_targets(scenario: Scenario, name: str, targets: Targets) -> Scenario:
    """`scenario` of the class `name` alone, with other targets."""
    (spec,) = scenario.only([name]).classes
    return scenario.model_copy(update={"classes": (spec.model_copy(update={"targets": targets}),)})


def attained(figures: ClassFigures) -> float:
    """The share of requests of which every target held."""
    return figures.attainment.every if figures.attainment is not None else 0.0


def shares(figures: ClassFigures) -> str:
    """What was attained, target by target."""
    if figures.attainment is None:
        return "nothing"
    told = (figures.attainment.answered, figures.attainment.ttft, figures.attainment.tbt)
    return "; ".join("none" if share is None else f"{share:.3f}" for share in told)


def p99_ratio(loaded: Latency | None, alone: Latency | None) -> float:
    """Infinite where nothing was answered."""
    return quotient(loaded.p99_ms, alone.p99_ms) if loaded is not None and alone is not None else math.inf


def num_refused(figures: ClassFigures) -> int:
    """Shed or expired."""
    return figures.outcomes.get(Outcome.SHED, 0) + figures.outcomes.get(Outcome.EXPIRED, 0)


def refused(figures: ClassFigures) -> str:
    """How many, of how many."""
    return f"{num_refused(figures):,} of {figures.num_requests:,}"


def quotient(part: float, whole: float) -> float:
    """0 where there is nothing to compare with: no claim holds by it that asks for at least something."""
    return part / whole if whole else 0.0


def _p50_p99(latency: Latency | None) -> str:
    return "nothing" if latency is None else f"{latency.p50_ms:,.0f} / {latency.p99_ms:,.0f}"


def _looser(promised_ms: float | None, reached: Latency | None) -> float | None:
    if promised_ms is None or reached is None:
        return promised_ms
    return max(promised_ms, LOOSER * reached.p99_ms)

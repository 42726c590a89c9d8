"""A result as tables for a terminal, and the sentences that go with it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from bench.measure import ClassFigures, Figures, Latency
from bench.result import Measured, Result, best_of
from slo.outcome import Outcome

MANY_TOKENS_AN_EVENT = 1.05
MISSING = "-"


def class_table(figures: Figures) -> Table:
    """One row a class: how its requests ended, its latencies, and what it got of its promise."""
    table = Table(
        "class",
        "requests",
        "completed",
        "shed",
        "expired",
        "failed",
        "TTFT p50 / p99, ms",
        "TBT p50 / p99, ms",
        "E2E p50 / p99, ms",
        "attained",
        "goodput/s",
        "tokens/s",
    )
    for of_class in figures.classes:
        table.add_row(*cells_of(of_class))
    return table


def cells_of(figures: ClassFigures) -> list[str]:
    """The cells of `class_table`. What was neither answered, nor shed, nor expired is failed."""
    counts = [figures.outcomes.get(outcome, 0) for outcome in (Outcome.COMPLETED, Outcome.SHED, Outcome.EXPIRED)]
    return [
        figures.name,
        f"{figures.num_requests:,}",
        *(f"{count:,}" for count in counts),
        f"{figures.num_requests - sum(counts):,}",
        *(_percentiles(latency) for latency in (figures.ttft, figures.tbt, figures.e2e)),
        MISSING if figures.attainment is None else f"{figures.attainment.every:.1%}",
        MISSING if figures.goodput_per_s is None else f"{figures.goodput_per_s:,.2f}",
        f"{figures.tokens_per_s:,.0f}",
    ]


def rate_table(result: Result) -> Table:
    """One row a run: what was sent, and what came of it."""
    table = Table("sent/s", "completed/s", "goodput/s", "tokens/s", "targets", "lag p99, ms")
    for measured in sorted(result.measured, key=lambda m: m.speed):
        figures = measured.figures
        table.add_row(
            f"{figures.sent_per_s:,.2f}",
            f"{figures.completed_per_s:,.2f}",
            MISSING if figures.goodput_per_s is None else f"{figures.goodput_per_s:,.2f}",
            f"{figures.tokens_per_s:,.0f}",
            {None: MISSING, True: "hold", False: "missed"}[figures.targets_hold],
            f"{lag_ms(figures):.1f}",
        )
    return table


def notes_of(result: Result) -> Iterator[str]:
    """What a reader must know beside the tables."""
    figures = result.shown().figures
    for of_class in figures.classes:
        if (tokens := of_class.tokens_per_event) is not None and tokens > MANY_TOKENS_AN_EVENT:
            yield f"{of_class.name}: {tokens:.2f} tokens an event: TBT is the time between events, not between tokens"
        for error in of_class.errors:
            yield f"{of_class.name}: not answered: {error}"
    if result.search is not None:
        yield _search_note(result)


def warnings_of(result: Result) -> Iterator[str]:
    """What makes figures worthless: a generator that did not keep up."""
    for measured in result.measured:
        if not measured.figures.kept_up:
            yield lag_warning(measured, result.scenario.max_lag_ms)


def lag_warning(measured: Measured, max_lag_ms: float) -> str:
    """That the generator was late, and by how much."""
    lag = measured.figures.lag
    sent = "" if lag.send_p99_ms is None else f"sent {lag.send_p99_ms:.1f} ms late and "
    return (
        f"THE GENERATOR DID NOT KEEP UP at {measured.figures.sent_per_s:,.2f} requests/s: {sent}could read "
        f"{lag.loop_p99_ms:.1f} ms late at P99, over max_lag_ms={max_lag_ms:g}. These latencies are partly its own: "
        "run it on a machine with idle cores, or at a lower rate."
    )


def lag_ms(figures: Figures) -> float:
    """The worse of sending and reading, at P99."""
    return max(figures.lag.send_p99_ms or 0.0, figures.lag.loop_p99_ms)


def _search_note(result: Result) -> str:
    best = best_of(result.measured)
    if best is None:
        return "no rate was found at which all targets hold"
    return (
        f"the highest rate found at which all targets hold: {best.figures.sent_per_s:,.2f} requests/s "
        f"(speed {best.speed:.3g})"
    )


def _percentiles(latency: Latency | None) -> str:
    return MISSING if latency is None else f"{latency.p50_ms:,.0f} / {latency.p99_ms:,.0f}"

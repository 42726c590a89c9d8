"""A comparison as one table: a row for each class and contender, and one for each contender's whole. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bench.compare.contest import Contest, Entry
from bench.compare.metrics import answered_ratio
from bench.measure import ClassFigures, Figures, Latency
from bench.table import lag_warning

MISSING = "-"
ALL = "all"


def headings(contest: Contest) -> list[str]:
    """Of the columns of `rows`."""
    to_alone = ["TTFT p50 / p99, to alone"] if contest.comparison.alone else []
    return [
        "class",
        "contender",
        "answered",
        "TTFT p50 / p99, ms (ratio)",
        *to_alone,
        "TBT p99, ms (ratio)",
        "slowest, s (ratio)",
        "attained",
        "goodput/s (ratio)",
        "tokens/s (ratio)",
    ]


def rows(contest: Contest, entries: Sequence[Entry]) -> Iterator[list[str]]:
    """Ratios in parentheses are to the baseline's figure; one that has failed has its reason in place of figures."""
    baseline = next((e.measured for e in entries if e.contender.name == contest.baseline), None)
    base = None if baseline is None else baseline.figures
    for spec in contest.scenario.classes:
        for entry in entries:
            if entry.measured is not None:
                of_base = None if base is None else base.of(spec.name)
                own = entry.measured.figures.of(spec.name)
                yield [spec.name, entry.contender.shown, *_class_cells(contest, entry, own, of_base)]
    for entry in entries:
        if entry.measured is not None:
            yield [ALL, entry.contender.shown, *_whole_cells(contest, entry.measured.figures, base)]
        else:
            blank = [""] * (len(headings(contest)) - 3)
            yield [ALL, entry.contender.shown, f"FAILED: {entry.failure}", *blank]


def warnings(contest: Contest, entries: Sequence[Entry]) -> Iterator[str]:
    """What makes figures worthless, and what was not answered."""
    for entry in entries:
        for what, measured in (("alone", entry.alone), ("under load", entry.measured)):
            if measured is not None and not measured.figures.kept_up:
                yield f"{entry.contender.shown}, {what}: {lag_warning(measured, contest.scenario.max_lag_ms)}"
        for figures in entry.measured.figures.classes if entry.measured is not None else ():
            for error in figures.errors:
                yield f"{entry.contender.shown}, {figures.name}: not answered: {error}"


def _class_cells(contest: Contest, entry: Entry, own: ClassFigures, base: ClassFigures | None) -> Iterator[str]:
    share = answered_ratio(own)
    yield MISSING if share is None else f"{share:.1%} of {own.num_requests:,}"
    yield _percentiles(own.ttft, None if base is None else base.ttft)
    if contest.comparison.alone:
        yield _to_alone(entry, own)
    yield _latency(own.tbt, None if base is None else base.tbt, lambda latency: latency.p99_ms, "{:,.0f}")
    yield _latency(own.e2e, None if base is None else base.e2e, lambda latency: latency.max_ms / 1e3, "{:,.1f}")
    yield MISSING if own.attainment is None else f"{own.attainment.every:.1%}"
    yield _figure(own.goodput_per_s, None if base is None else base.goodput_per_s, "{:,.2f}")
    yield _figure(own.tokens_per_s, None if base is None else base.tokens_per_s, "{:,.0f}")


def _whole_cells(contest: Contest, own: Figures, base: Figures | None) -> Iterator[str]:
    num_requests = sum(figures.num_requests for figures in own.classes)
    num_answered = sum((answered_ratio(figures) or 0) * figures.num_requests for figures in own.classes)
    yield MISSING if not num_requests else f"{num_answered / num_requests:.1%} of {num_requests:,}"
    yield from [""] * (3 if contest.comparison.alone else 2)
    yield _figure(own.done_s, None if base is None else base.done_s, "{:,.1f}")
    yield ""
    yield _figure(own.goodput_per_s, None if base is None else base.goodput_per_s, "{:,.2f}")
    yield _figure(own.tokens_per_s, None if base is None else base.tokens_per_s, "{:,.0f}")


def _to_alone(entry: Entry, own: ClassFigures) -> str:
    alone = None if entry.alone is None else entry.alone.figures
    found = next((f.ttft for f in alone.classes if f.name == own.name), None) if alone is not None else None
    if found is None or own.ttft is None:
        return MISSING
    ratios = f"{_quotient(own.ttft.p50_ms, found.p50_ms)} / {_quotient(own.ttft.p99_ms, found.p99_ms)}"
    return f"{ratios} of {found.p50_ms:,.0f} / {found.p99_ms:,.0f}"


def _percentiles(own: Latency | None, base: Latency | None) -> str:
    if own is None:
        return MISSING
    told = f"{own.p50_ms:,.0f} / {own.p99_ms:,.0f}"
    if base is None:
        return told
    return f"{told} ({_quotient(own.p50_ms, base.p50_ms)} / {_quotient(own.p99_ms, base.p99_ms)})"


def _latency(own: Latency | None, base: Latency | None, of: Callable[[Latency], float], form: str) -> str:
    return _figure(None if own is None else of(own), None if base is None else of(base), form)


def _figure(own: float | None, base: float | None, form: str) -> str:
    if own is None:
        return MISSING
    return form.format(own) + (f" ({_quotient(own, base)})" if base else "")


def _quotient(own: float, base: float) -> str:
    return f"{own / base:.2f}" if base else MISSING

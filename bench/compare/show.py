"""A comparison on a terminal: how it goes on, and tables, in Markdown so that they can be pasted as they are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console

from bench.compare.result import CLAIM_HEADINGS, ContestResult
from bench.compare.table import headings, rows, warnings
from bench.reply import Reply
from bench.run import Watcher
from bench.scenario import Scenario

TOLD_EVERY_S = 10.0


class ConsoleTeller:
    """Says on standard error how a comparison goes on; see `bench.compare.contest.Teller`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def watch(self, what: str, scenario: Scenario) -> Watcher:
        return _Tally(self, what, scenario.end_s)


class _Tally:
    """A line now and then: a bar would take this process's time while it measures."""

    def __init__(self, teller: ConsoleTeller, what: str, end_s: float) -> None:
        self._teller, self._what, self._end_s = teller, what, end_s
        self._begun_s = self._told_s = time.monotonic()
        self._num_sent = self._num_ended = 0
        teller.say(what)

    def sent(self) -> None:
        self._num_sent += 1
        self._tell()

    def ended(self, reply: Reply) -> None:  # noqa: ARG002, a watcher is told
        self._num_ended += 1
        self._tell()

    def _tell(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < TOLD_EVERY_S:
            return
        self._told_s = now_s
        self._teller.say(f"{self._what}: {now_s - self._begun_s:.0f} s, {self._num_ended} of {self._num_sent} ended")


def show(result: ContestResult, out: Console, errors: Console) -> None:
    """The table and the claims to `out`; what makes figures worthless to `errors`."""
    contest, entries = result.contest, result.entries
    for warning in warnings(contest, entries):
        errors.print(warning, style="bold red", markup=False, soft_wrap=True)
    scenario, sizes = contest.scenario, contest.comparison.engine
    out.print(
        f"{contest.comparison.name}: scenario {scenario.name}, seed {scenario.seed}; {sizes.slots} run slots; "
        f"ratios are to {contest.baseline}\n",
        markup=False,
        soft_wrap=True,
    )
    out.print(markdown(headings(contest), rows(contest, entries)), markup=False, soft_wrap=True)
    if result.claims:
        claims = markdown(CLAIM_HEADINGS, [claim.cells() for claim in result.claims])
        out.print(f"\n{claims}", markup=False, soft_wrap=True)


def markdown(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, its columns aligned."""
    lines = [list(heads), *([_plain(cell) for cell in row] for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")

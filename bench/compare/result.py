"""What a comparison gave: as JSON, and as one HTML file with the contenders side by side."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from bench.claims import Claim
from bench.compare.contest import Contest, Entry
from bench.compare.table import headings, rows, warnings
from bench.curves import png_of
from bench.report import html_table, scenario_parts, section_of, whole_page

CLAIM_HEADINGS = ("claim", "measured", "bound", "held")


@dataclass(frozen=True, slots=True)
class ContestResult:
    """A comparison that has ended. `is_whole`: no contender is left out because it was broken off."""

    contest: Contest
    entries: tuple[Entry, ...]
    claims: tuple[Claim, ...]
    is_whole: bool

    @property
    def all_held(self) -> bool:
        """Whether every claim was kept."""
        return all(claim.held for claim in self.claims)

    def to_json(self) -> bytes:
        """Everything but the single answers."""
        contest = self.contest
        document: dict[str, Any] = {
            "comparison": contest.comparison.model_dump(mode="json"),
            "scenario": contest.scenario.model_dump(mode="json"),
            "baseline": contest.baseline,
            "is_whole": self.is_whole,
            "contenders": [_plain(entry) for entry in self.entries],
            "claims": self.claims,
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def write_report(result: ContestResult, path: Path) -> None:
    """One HTML file that needs nothing beside it.

    Raises:
        ChartsMissing: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    path.write_text(page_of(result), encoding="utf-8")


def page_of(result: ContestResult) -> str:
    """Claims and the table, then each contender's report beside the others'. Whatever comes from outside is escaped."""
    contest, entries = result.contest, result.entries
    parts = [f"<h1>{escape(contest.comparison.name)}</h1>"]
    parts += [f'<p class="warning">{escape(warning)}</p>' for warning in warnings(contest, entries)]
    if result.claims:
        parts.append(html_table(CLAIM_HEADINGS, [claim.cells() for claim in result.claims]))
    parts += [
        f"<p>Ratios are to {escape(contest.baseline)}.</p>",
        html_table(headings(contest), rows(contest, entries)),
    ]
    parts += ['<div class="side">', *map(_side, entries), "</div>", *scenario_parts(contest.scenario)]
    return whole_page(contest.comparison.name, parts)


def _side(entry: Entry) -> str:
    head = f"<section><h2>{escape(entry.contender.shown)}</h2>"
    if entry.loaded is None:
        return f"{head}<p>{escape(entry.failure or '')}</p><pre>{escape(entry.output)}</pre></section>"
    return "\n".join([head, *section_of(entry.loaded, png_of(entry.loaded)), "</section>"])


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.contender.name,
        "title": entry.contender.shown,
        "start_s": entry.start_s,
        "failure": entry.failure,
        "output": entry.output,
        "alone": None if entry.alone is None else entry.alone.figures,
        "loaded": None if entry.measured is None else entry.measured.figures,
    }

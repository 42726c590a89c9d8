"""A result as one HTML file that needs nothing beside it, or as its picture alone."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

import yaml
from rich.table import Table

from bench.curves import png_of
from bench.result import Result
from bench.scenario import Scenario
from bench.table import class_table, notes_of, rate_table, warnings_of

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .7rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; }
.side { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(36rem, 1fr)); }
.side > section { min-width: 0; overflow-x: auto; }
.warning { background: #b00020; color: #fff; font-weight: bold; padding: .7rem 1rem; }
"""


def write_report(result: Result, path: Path) -> None:
    """A `.png` gets the picture, any other name the page.

    Raises:
        ChartsMissing: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    picture = png_of(result)
    if path.suffix.lower() == ".png":
        path.write_bytes(picture)
    else:
        path.write_text(page_of(result, picture), encoding="utf-8")


def page_of(result: Result, picture: bytes) -> str:
    """The whole page. Whatever comes from outside is escaped."""
    scenario = result.scenario
    parts = [
        f"<h1>{escape(scenario.name)}</h1>",
        f"<p>{escape(result.model)} at {escape(scenario.url)}, seed {result.seed}</p>",
        *section_of(result, picture),
    ]
    if len(result.measured) > 1:
        parts += ["<h2>All rates</h2>", _html_table(rate_table(result))]
    return whole_page(scenario.name, [*parts, *scenario_parts(scenario)])


def section_of(result: Result, picture: bytes) -> Iterator[str]:
    """What one run showed: warnings, picture, figures by class and notes."""
    shown = result.shown()
    source = base64.b64encode(picture).decode()
    yield from (f'<p class="warning">{escape(warning)}</p>' for warning in warnings_of(result))
    yield f'<p><img alt="TTFT and TBT by class, and goodput against the rate" src="data:image/png;base64,{source}"></p>'
    yield f"<h2>At {shown.figures.sent_per_s:,.2f} requests a second</h2>"
    yield _html_table(class_table(shown.figures))
    yield from (f"<p>{escape(note)}</p>" for note in notes_of(result))


def scenario_parts(scenario: Scenario) -> list[str]:
    """The scenario with every key."""
    settings = yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False)
    return ["<h2>Scenario</h2>", f"<pre>{escape(settings)}</pre>"]


def whole_page(title: str, parts: Iterable[str]) -> str:
    """A page of these parts, that needs nothing beside it."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def html_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of these cells, escaped."""
    return f"<table>{_row('th', headings)}{''.join(_row('td', row) for row in rows)}</table>"


def _html_table(table: Table) -> str:
    rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    return html_table((str(column.header) for column in table.columns), rows)


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

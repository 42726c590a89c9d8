"""docs/metrics.md is what slo/metrics.py says, and names every metric.

Mutations tried by hand, each found by a test here: a group left out; the help of another metric; a counter without
`_total`; the values of a label left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.metrics_page import render_metrics
from slo.metrics import ALL, GROUPS, Metric

DOCS = Path(__file__).parents[2] / "docs"
RUN = CliRunner()


@pytest.fixture(scope="module")
def rendered() -> str:
    return render_metrics()


def test_page_in_the_docs_is_the_one_that_the_command_writes(rendered: str) -> None:
    assert (DOCS / "metrics.md").read_text() == rendered, "expresslane metrics --output docs/metrics.md"


def test_page_names_every_metric_once_in_the_order_of_the_groups(rendered: str) -> None:
    assert re.findall(r"^\| `([^`]+)` \|", rendered, re.MULTILINE) == [metric.name for metric in ALL]
    assert re.findall(r"^## (.+)$", rendered, re.MULTILINE) == [group.title for group in GROUPS]


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_row_tells_type_labels_unit_and_help(rendered: str, metric: Metric) -> None:
    (row,) = [line for line in rendered.splitlines() if line.startswith(f"| `{metric.name}` |")]
    _, kind, labels, unit, text = (cell.strip() for cell in row.strip("|").split("|"))
    assert (kind, unit or None, text) == (metric.kind.value, metric.unit, metric.help)
    assert [re.findall("`([^`]+)`", label)[0] for label in labels.split("<br>") if label] == list(metric.labels)


@pytest.mark.parametrize(
    "row",
    [
        "| `expresslane_batch_lines_total` | counter | `outcome`: `completed`, `failed`, `expired`, `cancelled` |  | ",
        "| `expresslane_preemptions_total` | counter | `priority_class`<br>`kind`: `paused`, `swapped`, ",
        "| `expresslane_ttft_seconds` | histogram | `priority_class` | seconds | ",
        "| `expresslane_kv_blocks` | gauge |  | blocks | ",
    ],
)
def test_row_tells_the_values_of_labels(rendered: str, row: str) -> None:
    assert any(line.startswith(row) for line in rendered.splitlines())


def test_pages_links_lead_to_files(rendered: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", rendered)
    assert links
    assert all((DOCS / link).is_file() for link in links)


def test_command_writes_the_page(rendered: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.md"
    assert RUN.invoke(app, ["metrics", "--output", str(file)]).output == ""
    assert file.read_text() == RUN.invoke(app, ["metrics"]).output == rendered


def test_command_fails_with_the_reason_when_it_cannot_write(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["metrics", "--output", str(tmp_path)])
    assert (result.exit_code, "error: " in result.output) == (1, True)

"""docs/settings.md is what the models say, and names every key that a config may have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from cli.settings_page import render_settings
from slo.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture(scope="module")
def rendered() -> str:
    return render_settings()


def keys_of(group: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key that a config may set, such as `scheduler.targets.p0.promised`."""
    for name, field in group.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys_of(kind, f"{path}{name}.")
            continue
        items = [item for item in get_args(kind) if isinstance(item, type) and issubclass(item, BaseModel)]
        if path or not items:  # a list of the whole has a section of its own
            yield path + name
        for item in items:
            yield from keys_of(item, f"{path}{name}[].")


def keys_in(page: str) -> Iterator[str]:
    for section in re.split(r"^#+ (?=`)", page, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        for path in re.findall("`([^`]+)`", heading):
            for name in re.findall(r"^\| `([^`]+)` \|", body, re.MULTILINE):
                yield f"{path}.{name}"


def test_page_in_the_docs_is_the_one_that_the_command_writes(rendered: str) -> None:
    assert PAGE.read_text() == rendered, "expresslane settings --output docs/settings.md"


def test_page_names_every_key_once(rendered: str) -> None:
    assert sorted(keys_in(rendered)) == sorted(keys_of(Settings))


@pytest.mark.parametrize(
    "row",
    [
        "| `max_body_bytes` | integer, over 0 | `8388608` | A larger request body is answered 413, bytes. |",
        "| `default_class` | `P0`, `P1`, `P2` | `P1` | ",
        "| `ttft_p99_ms` | number, over 0 or null | p0: `100.0`<br>p1: `500.0`<br>p2: `null` | ",
        "| `priority` | `P0`, `P1`, `P2` | needed | The class given. |",
        "| `severity` | `critical`, `warning` | ",
        r"| `endpoint` | string, matching `^(chat\|completion)$` or null | `null` | ",
    ],
)
def test_row_tells_values_and_default(rendered: str, row: str) -> None:
    assert any(line.startswith(row) for line in rendered.splitlines())

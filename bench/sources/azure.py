"""The Azure LLM inference traces of 2023: when requests came, and how long prompts and answers were. Text is made."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime

import numpy as np

from bench.scenario import Azure
from bench.sources.synthetic import new_key
from bench.words import Piece
from bench.workload import Ask, Row

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MICROSECOND_DIGITS = 6


def azure_rows(source: Azure, random: np.random.Generator) -> Iterator[Row]:
    """In the file's order, from its first time on.

    Raises:
        OSError, ValueError: it cannot be read, or a line is not of this format; the message names both.
    """
    first: datetime | None = None
    with source.path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{source.path}: its columns are {lines.fieldnames}, not {', '.join(COLUMNS)}")
        for line in lines:
            try:
                at = timestamp_of(line["TIMESTAMP"])
                prompt_tokens, output_tokens = int(line["ContextTokens"]), int(line["GeneratedTokens"])
            except (TypeError, ValueError) as error:
                raise ValueError(f"{source.path}, line {lines.line_num}: {error}") from None
            first = first or at
            piece = Piece(new_key(random), cut(prompt_tokens, source.max_prompt_tokens))
            ask = Ask((piece,), output_tokens=cut(output_tokens, source.max_output_tokens))
            yield Row(ask, (at - first).total_seconds())


def timestamp_of(text: str) -> datetime:
    """The trace writes seven digits after the point; Python's own reader takes six."""
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:_MICROSECOND_DIGITS] or '0'}")


def cut(tokens: int, most: int | None) -> int:
    """At least one token, and no more than `most`."""
    return max(1, tokens if most is None else min(tokens, most))

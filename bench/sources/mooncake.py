"""Mooncake's traces: times, lengths, and a hash for each block of a prompt. Equal hashes become equal text.

A block's hash stands for all blocks before it too, so two prompts whose first hashes are equal share that prefix, and a
server with a prefix cache finds it as the traced one did.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bench.scenario import Mooncake
from bench.sources.azure import cut
from bench.sources.json_lines import json_lines
from bench.words import Piece
from bench.workload import Ask, Row


class MooncakeLine(msgspec.Struct):
    """One line of the file; `timestamp` is in milliseconds."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def mooncake_rows(source: Mooncake) -> Iterator[Row]:
    """In the file's order, from its first time on.

    Raises:
        OSError, ValueError: it cannot be read, or a line is not of this format; the message names both.
    """
    first_ms: float | None = None
    for _, line in json_lines(source.path, MooncakeLine):
        first_ms = line.timestamp if first_ms is None else first_ms
        prompt_tokens = cut(line.input_length, source.max_prompt_tokens)
        pieces = blocks_of(line.hash_ids, prompt_tokens, source.block_tokens)
        ask = Ask(pieces, output_tokens=cut(line.output_length, source.max_output_tokens))
        yield Row(ask, (line.timestamp - first_ms) / 1e3)


def blocks_of(hash_ids: list[int], prompt_tokens: int, block_tokens: int) -> tuple[Piece, ...]:
    """Whole blocks, and a part of the last. Hashes beyond the prompt's length are left out, a tail without one too."""
    starts = range(0, prompt_tokens, block_tokens)
    return tuple(
        Piece(hash_id, min(block_tokens, prompt_tokens - start))
        for hash_id, start in zip(hash_ids, starts, strict=False)
    ) or (Piece(0, prompt_tokens),)

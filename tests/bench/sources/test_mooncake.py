import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scenario import Mooncake
from bench.sources.mooncake import blocks_of, mooncake_rows
from bench.words import Piece, text_of
from bench.workload import Row


def line(at_ms: int, num: int, hash_ids: list[int], output: int = 5) -> str:
    return json.dumps({"timestamp": at_ms, "input_length": num, "output_length": output, "hash_ids": hash_ids})


def rows(directory: Path, *lines: str, **values: Any) -> list[Row]:
    path = directory / "mooncake.jsonl"
    path.write_text("\n".join(lines))
    return list(mooncake_rows(Mooncake(kind="mooncake", path=path, **values)))


def test_rows_have_times_from_the_first_and_lengths(tmp_path: Path) -> None:
    read = rows(tmp_path, line(500, 700, [1, 2]), "", line(2000, 30, [3], output=9))
    assert [(row.at_s, row.ask.prompt_tokens, row.ask.output_tokens) for row in read] == [(0, 700, 5), (1.5, 30, 9)]


def test_prompts_share_text_as_far_as_their_hashes_are_the_same(tmp_path: Path) -> None:
    one, two = rows(tmp_path, line(0, 1100, [0, 1, 2]), line(1, 1500, [0, 1, 9]))
    words, others = (text_of(row.ask.pieces, salt=3).split() for row in (one, two))
    assert (len(words), len(others)) == (1100, 1500)
    assert words[:1024] == others[:1024]
    assert words[1024:1040] != others[1024:1040]


def test_rows_are_cut_to_the_most_that_a_model_takes(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, line(0, 1100, [0, 1, 2], output=50), max_prompt_tokens=600, max_output_tokens=8)
    assert row.ask.pieces == (Piece(0, 512), Piece(1, 88))
    assert row.ask.output_tokens == 8


@given(st.integers(1, 5000), st.integers(1, 600))
def test_blocks_come_to_the_prompt_when_there_is_a_hash_for_each(prompt_tokens: int, block_tokens: int) -> None:
    hash_ids = list(range(-(-prompt_tokens // block_tokens)))
    pieces = blocks_of(hash_ids, prompt_tokens, block_tokens)
    assert sum(piece.num_tokens for piece in pieces) == prompt_tokens
    assert all(piece.num_tokens == block_tokens for piece in pieces[:-1])
    assert [piece.key for piece in pieces] == hash_ids


def test_prompt_is_there_when_it_has_no_hash() -> None:
    assert sum(piece.num_tokens for piece in blocks_of([], 40, 512)) == 40


@pytest.mark.parametrize("text", ["{", '{"timestamp": 1}', '{"timestamp": 1, "input_length": "x"}'])
def test_line_of_another_format_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"mooncake\.jsonl, line 2: "):
        rows(tmp_path, line(0, 5, [0]), text)

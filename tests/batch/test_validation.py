"""Mutations tried by hand, each found by a test here: a start that is one off after a blank line; a line across two
chunks taken for two; a long line kept; the last line without its end left out; `stream: false` refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch.validation import MAX_FAULTS, MAX_ID_CHARS, Expected, body_of, check_lines
from tests.batch.scene import CHAT, MODEL, jsonl, line

EXPECTED = Expected(CHAT, (MODEL, "other"), max_lines=100, max_line_bytes=1000)


def codes(content: bytes) -> list[tuple[int | None, str, str | None]]:
    return [(fault.line, fault.code, fault.param) for fault in check_lines([content], EXPECTED).faults]


def body(**fields: Any) -> dict[str, Any]:
    return line("a", body=fields)


def test_good_lines_are_told_with_where_they_lie() -> None:
    content = (
        b"\xef\xbb\xbf" + jsonl(line("a")) + b"\n \r\n" + jsonl(line("b")).replace(b"\n", b"\r\n") + jsonl(line("c"))
    )
    checked = check_lines([content.removesuffix(b"\n")], EXPECTED)
    assert not checked.faults
    assert [each.custom_id for each in checked.lines] == ["a", "b", "c"]
    for each in checked.lines:
        raw = content[each.start : each.start + each.num_bytes]
        assert json.loads(body_of(raw)) == line(each.custom_id)["body"]


@given(st.lists(st.sampled_from(["", "a", "bb", "ü" * 20]), max_size=12), st.integers(1, 70))
def test_where_lines_lie_does_not_depend_on_chunks(prompts: list[str], size: int) -> None:
    lines = [b"" if not p else jsonl(line(f"{n}", body={"prompt": p}))[:-1] for n, p in enumerate(prompts)]
    content = b"\n".join(lines)
    chunks = [content[n : n + size] for n in range(0, len(content), size)]
    checked = check_lines(chunks, EXPECTED)
    assert [content[c.start :][: c.num_bytes] for c in checked.lines] == [each for each in lines if each]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", [(None, "empty_file", None)]),
        (b"\n\n", [(None, "empty_file", None)]),
        (b"{", [(1, "invalid_json_line", None)]),
        (b"\xff\xfe", [(1, "invalid_json_line", None)]),
        (b"[1]", [(1, "invalid_json_line", None)]),
        (b'{"custom_id": NaN}', [(1, "invalid_json_line", None)]),
        (b"[" * 900, [(1, "invalid_json_line", None)]),
        (b"\n{}", [(2, "missing_required_parameter", "custom_id")]),
        (jsonl(line("")), [(1, "invalid_custom_id", "custom_id")]),
        (jsonl(line("a\0")), [(1, "invalid_custom_id", "custom_id")]),
        (jsonl(line("a" * (MAX_ID_CHARS + 1), body={})), [(1, "invalid_custom_id", "custom_id")]),
        (jsonl(line("a") | {"custom_id": 1}), [(1, "invalid_custom_id", "custom_id")]),
        (jsonl(line("a"), line("b"), line("a")), [(3, "duplicate_custom_id", "custom_id")]),
        (jsonl(line("a", method="GET")), [(1, "invalid_method", "method")]),
        (jsonl(line("a", url="/v1/completions")), [(1, "invalid_url", "url")]),
        (jsonl(line("a", body=[])), [(1, "invalid_body", "body")]),
        (jsonl(body(stream=True)), [(1, "stream_not_supported", "body.stream")]),
        (jsonl(body(stream=False)), []),
        (jsonl(body(model=1)), [(1, "invalid_model", "body.model")]),
        (jsonl(body(model="none")), [(1, "model_not_found", "body.model")]),
        (jsonl(body(model=None)), []),
        (jsonl(line("a", body={"prompt": "x" * 1000}), line("b")), [(1, "line_too_large", None)]),
        (jsonl(*(line(str(n), body={}) for n in range(101))), [(101, "too_many_lines", None)]),
    ],
)
def test_bad_lines_are_told_with_number_code_and_field(
    content: bytes, expected: list[tuple[int | None, str, str | None]]
) -> None:
    assert codes(content) == expected


def test_so_many_faults_are_told_and_no_more() -> None:
    assert len(codes(b"{\n" * 10 * MAX_FAULTS)) == MAX_FAULTS


def test_line_without_end_is_not_held() -> None:
    chunks = (b"x" * 500 for _ in range(1000))
    assert [fault.code for fault in check_lines(chunks, EXPECTED).faults] == ["line_too_large"]


def test_number_beyond_all_bounds_is_left_for_the_ingress_to_refuse() -> None:
    assert body_of(b'{"body": {"temperature": 1e999, "n": 123456789012345678901234567890}}') == (
        b'{"temperature":Infinity,"n":123456789012345678901234567890}'
    )


@pytest.mark.parametrize(("name", "is_taken"), [("red", True), ("other", True), ("../red", False), ("org/red", False)])
def test_line_may_name_an_adapter_that_could_lie_in_a_directory(name: str, is_taken: bool) -> None:
    """Its own answer tells whether it is there."""
    expected = replace(EXPECTED, takes_adapters=True)
    content = jsonl(body(model=name))
    codes_told = [fault.code for fault in check_lines([content], expected).faults]
    assert codes_told == ([] if is_taken else ["model_not_found"])
    assert bool(codes(content)) is (name != "other"), "without a directory only what the settings name"

"""Mutations tried by hand, each found by a test here: a body cut off taken for whole; a part's header kept for the
next; no bound of parts; a quoted name read with its quotes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.form import MAX_PARTS, FormEvent, FormReader, PartBegins, PartContent, PartEnds
from slo.errors import Rejected

KIND = "multipart/form-data; boundary=b"
NAMELESS = b"--b\r\nX: y\r\n\r\nx\r\n--b--\r\n"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"'
    head += "" if filename is None else f'; filename="{filename}"'
    return head.encode() + b"\r\n\r\n" + content + b"\r\n"


def read(body: bytes, size: int = 7) -> list[FormEvent]:
    reader = FormReader(KIND)
    events = [event for n in range(0, len(body), size) for event in reader.feed(body[n : n + size])]
    reader.finish()
    return events


@given(content=st.binary(max_size=60), size=st.integers(1, 80))
def test_form_is_read_the_same_however_it_comes(content: bytes, size: int) -> None:
    if b"--b" in content:
        return
    events = read(part("file", content, "a b.jsonl") + part("purpose", b"batch") + b"--b--\r\n", size)
    begins = [event for event in events if isinstance(event, PartBegins)]
    assert begins == [PartBegins("file", "a b.jsonl"), PartBegins("purpose", None)]
    ends = events.index(PartEnds())
    assert b"".join(e.content for e in events[:ends] if isinstance(e, PartContent)) == content
    assert b"".join(e.content for e in events[ends:] if isinstance(e, PartContent)) == b"batch"


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=b",
    ],
)
def test_other_content_types_are_refused(kind: str | None) -> None:
    with pytest.raises(Rejected, match="multipart/form-data") as refusal:
        FormReader(kind)
    assert refusal.value.param == "content-type"


@pytest.mark.parametrize(
    "body",
    [b"", part("file", b"x"), part("file", b"x") + b"--b", b"nonsense", NAMELESS, part("file", b"x") + NAMELESS],
)
def test_bodies_that_are_no_whole_form_are_refused(body: bytes) -> None:
    with pytest.raises(Rejected):
        read(body)


def test_so_many_parts_are_read_and_no_more() -> None:
    end = b"--b--\r\n"
    assert len(read(part("a", b"") * MAX_PARTS + end)) == 2 * MAX_PARTS
    with pytest.raises(Rejected, match=f"more than {MAX_PARTS} parts"):
        read(part("a", b"") * (MAX_PARTS + 1) + end)


def test_header_without_end_is_refused() -> None:
    with pytest.raises(Rejected):
        read(b"--b\r\nContent-Disposition: " + b"x" * 100_000, size=1000)

"""Files of one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

Line = TypeVar("Line")


def json_lines(path: Path, of: type[Line]) -> Iterator[tuple[int, Line]]:
    """Each line that is not blank, with its number from 1.

    Raises:
        OSError, ValueError: it cannot be read, or a line is not of this format; the message names both.
    """
    decoder = msgspec.json.Decoder(of)
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = decoder.decode(text)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            yield number, line

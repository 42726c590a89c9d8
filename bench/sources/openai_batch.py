"""The input file of OpenAI's batch API: one request a line, with its own body and endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from bench.scenario import Endpoint, OpenAIBatch
from bench.sources.json_lines import json_lines
from bench.workload import Ask, Row

_ENDPOINTS = {endpoint.path: endpoint for endpoint in Endpoint}


class BatchLine(msgspec.Struct):
    """One line of the file."""

    url: str
    body: dict[str, Any]
    custom_id: str = ""
    method: str = "POST"


def openai_batch_rows(source: OpenAIBatch) -> Iterator[Row]:
    """Each line once, in the file's order.

    Raises:
        OSError, ValueError: it cannot be read, or a line is not of this format; the message names both.
    """
    for number, line in json_lines(source.path, BatchLine):
        if line.url not in _ENDPOINTS:
            raise ValueError(f"{source.path}, line {number}: url={line.url!r}: one of {', '.join(_ENDPOINTS)}")
        yield Row(Ask(body=line.body, endpoint=_ENDPOINTS[line.url]))

import json
from pathlib import Path
from typing import Any

import pytest

from bench.scenario import Endpoint, OpenAIBatch
from bench.sources.openai_batch import openai_batch_rows
from bench.workload import Row

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def line(url: str = "/v1/chat/completions", **body: Any) -> str:
    return json.dumps({"custom_id": "1", "method": "POST", "url": url, "body": body or CHAT})


def rows(directory: Path, *lines: str) -> list[Row]:
    path = directory / "batch.jsonl"
    path.write_text("\n".join(lines))
    return list(openai_batch_rows(OpenAIBatch(kind="openai_batch", path=path)))


def test_rows_are_the_lines_bodies_in_their_order(tmp_path: Path) -> None:
    read = rows(tmp_path, line(), "", line("/v1/completions", prompt="p"))
    assert [row.ask.body for row in read] == [CHAT, {"prompt": "p"}]
    assert [row.ask.endpoint for row in read] == [Endpoint.CHAT, Endpoint.COMPLETIONS]
    assert {row.at_s for row in read} == {None}


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "line 2: "), ('{"url": "/v1/completions"}', "`body`"), (line("/v1/embeddings"), "url='/v1/embeddings'")],
)
def test_line_of_another_format_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"batch\.jsonl, line 2: ") as refused:
        rows(tmp_path, line(), text)
    assert message in str(refused.value)

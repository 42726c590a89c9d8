"""Files and batches as they are told: OpenAI's own client must read them."""

from __future__ import annotations

import pickle

import pytest
from openai.types import Batch
from openai.types import FileObject as OpenAIFile

from slo.batch import MAX_WINDOW_S, BatchObject, BatchStatus, FileObject, LineFault, LineFaults, RequestCounts, window_s

BATCH = BatchObject(
    id="batch_1",
    endpoint="/v1/completions",
    errors=LineFaults(data=(LineFault(code="invalid_url", message="url: wrong", param="url", line=2),)),
    input_file_id="file-1",
    completion_window="24h",
    status=BatchStatus.FAILED,
    output_file_id=None,
    error_file_id=None,
    created_at=1,
    in_progress_at=None,
    expires_at=2,
    finalizing_at=None,
    completed_at=None,
    failed_at=3,
    expired_at=None,
    cancelling_at=None,
    cancelled_at=None,
    request_counts=RequestCounts(total=0, completed=0, failed=0),
    metadata={"a": "b"},
)
FILE = FileObject(id="file-1", bytes=3, created_at=1, expires_at=None, filename="a.jsonl", purpose="batch_output")


def test_openais_client_reads_what_is_told() -> None:
    batch = Batch.model_validate_json(BATCH.model_dump_json(), strict=True)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert (batch.status, batch.errors.data[0].line, batch.metadata) == ("failed", 2, {"a": "b"})
    file = OpenAIFile.model_validate_json(FILE.model_dump_json(), strict=True)
    assert (file.purpose, file.bytes) == ("batch_output", 3)


def test_what_is_told_crosses_processes() -> None:
    assert pickle.loads(pickle.dumps((BATCH, FILE))) == (BATCH, FILE)


@pytest.mark.parametrize("status", BatchStatus)
def test_status_is_open_or_is_told_as_ended(status: BatchStatus) -> None:
    assert status.is_open == (status.value in ("validating", "in_progress", "cancelling"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86_400),
        ("1m", 60),
        ("7d", MAX_WINDOW_S),
        ("8d", None),
        ("169h", None),
        ("0h", None),
        ("24", None),
        ("h", None),
        ("24h ", None),
        ("-1h", None),
        ("999999h", None),
        ("", None),
    ],
)
def test_window_is_a_number_and_a_unit(text: str, seconds: int | None) -> None:
    assert window_s(text) == seconds

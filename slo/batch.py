"""What the ingress and the owner of files and batches say to each other.

Files and batches have OpenAI's form, as its clients read them. A line of a batch goes the other way: its owner hands it
to an ingress process, which treats it as it would a request of its tenant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from slo.errors import Rejected, RejectReason, ServingError
from slo.messages import Endpoint

BATCH_ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETION,
}
"""What the lines of a batch may ask, by path."""
CHUNK_BYTES: Final = 2**18
"""A file is sent, kept and read in pieces of this size; the last one may be shorter. Larger ones would make each line
that is read cost more, smaller ones make a file of 200 MB cost more calls (800 now)."""
MAX_BATCHES: Final = 100
DEFAULT_BATCHES: Final = 20
MAX_FILES: Final = 10_000
DEFAULT_FILES: Final = 10_000
"""Of a page, as OpenAI has them."""
MIN_EXPIRY_S: Final = 3_600
MAX_EXPIRY_S: Final = 30 * 86_400
"""Of files, as OpenAI has it."""
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNIT_S: Final = {"m": 60, "h": 3_600, "d": 86_400}
MAX_WINDOW_S: Final = 7 * 86_400


class Form(BaseModel):
    """What goes over HTTP, in OpenAI's form; made once."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileObject(Form):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileDeleted(Form):
    """A file that is no more."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FilePage(Form):
    """Some of the files of a tenant."""

    object: Literal["list"] = "list"
    data: tuple[FileObject, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class LineFault(Form):
    """Why a batch was not begun; `line` counts from 1, null where no line is at fault."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineFaults(Form):
    """All of them, or the first ones of many."""

    object: Literal["list"] = "list"
    data: tuple[LineFault, ...]


class RequestCounts(Form):
    """The lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchStatus(Enum):
    """Where a batch is."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether something is still to be done."""
        return self in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)


class BatchObject(Form):
    """A batch. Times are Unix seconds; null: it has not come to that."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: LineFaults | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchPage(Form):
    """Some of the batches of a tenant, the latest first."""

    object: Literal["list"] = "list"
    data: tuple[BatchObject, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Expiry(Form):
    """When a file goes by itself: so long after it was made."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)


Key = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Value = Annotated[str, StringConstraints(max_length=512)]


class NewBatch(Form):
    """What a client sends to begin a batch."""

    input_file_id: str = Field(description="A file uploaded with the purpose `batch`.")
    endpoint: Literal[tuple(BATCH_ENDPOINTS)]  # type: ignore[valid-type]
    completion_window: str = Field(
        description="What has not run when it is over expires: a number and m, h or d, of 7 days at most; `24h`.",
        pattern=rf"^{_WINDOW.pattern}$",
    )
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    output_expires_after: Expiry | None = None


def window_s(text: str) -> int | None:
    """A completion window in seconds; None: it is none, or longer than allowed."""
    found = _WINDOW.fullmatch(text)
    if found is None:
        return None
    seconds = int(found[1]) * _UNIT_S[found[2]]
    return seconds if seconds <= MAX_WINDOW_S else None


def file_too_large(max_bytes: int) -> Rejected:
    """The refusal of an upload: before it has come, where its length is told, or while it comes."""
    return Rejected(
        f"the file is larger than the limit of {max_bytes} bytes", param="file", reason=RejectReason.TOO_LARGE
    )


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is about to be uploaded."""

    tenant: str
    filename: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What of a list is wanted: after which id, how many, and the order by age."""

    after: str | None
    limit: int
    newest_first: bool = True


@dataclass(frozen=True, slots=True)
class ContentPage:
    """Some of a file's content. `next_cursor` asks for what follows; None: there is no more."""

    content: bytes
    next_cursor: int | None


@dataclass(frozen=True, slots=True)
class LineCall:
    """One line, as its owner hands it to an ingress process.

    Attributes:
        tenant: the name of whom it belongs to.
        body: the request's JSON.
    """

    request_id: str
    endpoint: Endpoint
    tenant: str
    body: bytes


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What became of it there.

    Attributes:
        status: of HTTP, with which a client would have been answered; `body` likewise, JSON.
        error: what kept it from being answered; None: it is answered.
        num_replicas: of the line's model, running as this process knows.
    """

    status: int
    body: str
    error: ServingError | None
    num_replicas: int

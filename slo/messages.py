"""What the ingress and a replica say to each other. Plain values: unpickling one imports neither vLLM nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from slo.errors import ServingError
from slo.priority import PriorityClass


class Endpoint(Enum):
    """An OpenAI endpoint that an engine answers."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One request, as the ingress hands it to a replica.

    Attributes:
        body: the client's JSON body, without any field that could set the engine's priority.
        request_id: the client's own or a new one; two calls may share one.
    """

    endpoint: Endpoint
    body: dict[str, Any]
    priority: PriorityClass
    request_id: str


@dataclass(frozen=True, slots=True)
class Document:
    """A whole answer: one JSON document."""

    json: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a streamed answer: one or more whole server-sent events, ready to be written.

    Attributes:
        has_tokens: whether it shows the user a token. The role before the answer, the usage after it, and `[DONE]` do
            not; counted as tokens, they would make the time between tokens look shorter than it is.
    """

    events: str
    has_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """The request ended here with `error`. Sent as a value: an exception would cost a traceback and its pickling."""

    error: ServingError


Reply = Document | Chunk | Failure
"""An item of the stream that a replica answers with: one `Document`, or `Chunk`s; a `Failure` ends either."""

"""What the ingress and a replica say to each other. Plain values: unpickling one imports neither vLLM nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from slo.errors import ServingError
from slo.priority import PriorityClass

DELAY_ARGUMENT: Final = "expresslane_delay_s"
"""Among the engine's arguments of a request (vLLM's `extra_args`): it counts as having come so many seconds later, 0 to
`MAX_DELAY_S`, among equals that wait."""
MAX_DELAY_S: Final = 1.0
"""Long beside an engine's step, so that it orders those that come in one; short beside a client's patience: who comes
later than that passes nobody."""


class Endpoint(Enum):
    """An OpenAI endpoint that an engine answers."""

    CHAT = "chat"
    COMPLETION = "completion"


class Recovery(Enum):
    """What became of a request whose replica was lost; a metric label."""

    RETRIED = "retried"
    """Nothing had been sent: asked again from the start."""
    FROM_TOKENS = "from_tokens"
    """Continued: the tokens that the client has became part of the prompt."""
    AGAIN = "again"
    """Continued: generated from the start, and sent from where it had stopped."""
    NOT_POSSIBLE = "not_possible"
    """Ended with an error."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """How far an answer had come when its replica was lost.

    Attributes:
        token_ids: the generated tokens that the client has, in order.
        created: the answer's time, as its events tell it; None: none was read.
        finish_reason: why it ended, when the client has its last token.
        num_closing: events that the client has had after that one (usage).
    """

    token_ids: tuple[int, ...]
    created: int | None = None
    finish_reason: str | None = None
    num_closing: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """How a request stands to those of other tenants in its class, once it is admitted.

    Attributes:
        is_surplus: its tenant has its share of the run slots without it (`app.gate.shares`).
        delay_s: the more of its share its tenant had in use then, the later it counts as having come, among equals that
            wait in an engine; 0 to `MAX_DELAY_S`.
    """

    is_surplus: bool = False
    delay_s: float = 0.0

    def counts_as(self, priority: PriorityClass) -> PriorityClass:
        """What a request of `priority` is to routers and engines."""
        return priority.demoted() if self.is_surplus else priority


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One request, as the ingress hands it to a replica.

    Attributes:
        body: the client's JSON body, without any field that could set the engine's priority.
        priority: the class that it was granted.
        request_id: the client's own or a new one; two calls may share one.
        resumption: set when the answer has begun on a replica that was lost: only what the client lacks is sent.
        standing: among those of its class.
    """

    endpoint: Endpoint
    body: dict[str, Any]
    priority: PriorityClass
    request_id: str
    resumption: Resumption | None = None
    standing: Standing = Standing()

    @property
    def counts_as(self) -> PriorityClass:
        """The class that routers and engines treat it as."""
        return self.standing.counts_as(self.priority)


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
        token_ids: the tokens that have been read into the events up to this one, since the last chunk that had some.
            Empty where an answer cannot be continued from its tokens.
        finish_reason: set with the last token.
    """

    events: str
    has_tokens: bool = True
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first reply to a call with a resumption: how it goes on. The ingress keeps it.

    Attributes:
        num_kept: of the resumption's tokens, those that stay; the others are generated anew, as nothing shows them.
    """

    recovery: Recovery
    num_kept: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The request ended here with `error`. Sent as a value: an exception would cost a traceback and its pickling."""

    error: ServingError


Reply = Document | Chunk | Resumed | Failure
"""An item of the stream that a replica answers with: one `Document`, or `Chunk`s; a `Failure` ends either."""

"""What one request of a load is: what its source asks for, when it arrives, and the body that is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.scenario import ClassSpec, Endpoint, Scenario
from bench.words import Piece, text_of


@dataclass(frozen=True, slots=True)
class Ask:
    """What a source asks for.

    Attributes:
        pieces: of a prompt that is made when it is sent; none where `body` has a prompt.
        body: fields of the body as the source has them.
        output_tokens: of the answer, at most; None: as `body` says.
        endpoint: None: the scenario's.
    """

    pieces: tuple[Piece, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    output_tokens: int | None = None
    endpoint: Endpoint | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """As wanted; None where the source gave text."""
        return sum(piece.num_tokens for piece in self.pieces) if self.pieces else None


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of a source; `at_s` is None where it has no time."""

    ask: Ask
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is to be sent, and when, from the start of the run."""

    at_s: float
    spec: ClassSpec
    ask: Ask


def endpoint_of(arrival: Arrival, scenario: Scenario) -> Endpoint:
    """Where it is sent to."""
    return arrival.ask.endpoint or scenario.endpoint


def payload_of(arrival: Arrival, scenario: Scenario, model: str, salt: int) -> bytes:
    """The body that is sent, as JSON. The class's fields go before the scenario's, both before the source's."""
    ask = arrival.ask
    fields: dict[str, Any] = {}
    if ask.pieces:
        text = text_of(ask.pieces, salt)
        is_chat = endpoint_of(arrival, scenario) is Endpoint.CHAT
        fields = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    if ask.output_tokens is not None:
        fields["max_tokens"] = ask.output_tokens
    fields |= {**ask.body, **scenario.body, **arrival.spec.body}
    fields |= {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(fields)

"""The bodies of the HTTP API, as its OpenAPI document shows them.

They describe and do not check: vLLM validates what a client sends, in the replica. So a request names OpenAI's main
fields and lets others pass, and an answer names what every one has.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.classify import SERVICE_TIERS


class _Open(BaseModel):
    """Further fields may be there."""

    model_config = ConfigDict(extra="allow")


class StreamOptions(_Open):
    """What a stream holds besides the answer."""

    include_usage: bool | None = Field(None, description="One more event before the end, with the token counts.")


class SamplingFields(_Open):
    """What both ways to ask have in common."""

    model: str | None = Field(None, description="A name that GET /v1/models tells; null: the model that is served.")
    max_tokens: int | None = Field(None, ge=1, description="Tokens of the answer, at most; null: what the context has.")
    stream: bool | None = Field(None, description="Answer by server-sent events, token by token, then `[DONE]`.")
    stream_options: StreamOptions | None = Field(None, description="Refused unless `stream` is true.")
    temperature: float | None = Field(None, ge=0, description="0: the most likely token each time.")
    top_p: float | None = Field(None, gt=0, le=1, description="Probability mass that tokens are sampled from.")
    n: int | None = Field(None, ge=1, description="Answers to each prompt.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="The same seed gives the same samples.")
    stop: str | list[str] | None = Field(None, description="Texts that end the answer.")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(None, description="Token id to what is added to its logit.")
    user: str | None = Field(None, description="Taken and not used.")
    service_tier: Literal[tuple(SERVICE_TIERS)] | None = Field(  # type: ignore[valid-type]
        None, description="OpenAI's name of a class; read when no header names one."
    )


class ContentPart(_Open):
    """A part of a message."""

    type: str = Field(description="`text`, or what else the model takes.")


class Message(_Open):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None


class ChatRequest(SamplingFields):
    """A conversation to be continued. vLLM's further fields are taken too."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=1, description="Newer name of `max_tokens`; goes first.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    response_format: dict[str, Any] | None = Field(None, description="`text`, `json_object` or `json_schema`.")
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class CompletionRequest(SamplingFields):
    """A text to be continued, or several. vLLM's further fields are taken too."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(description="Text or token ids.")
    echo: bool | None = Field(None, description="The prompt before the answer.")
    logprobs: int | None = Field(None, ge=0)


class Usage(_Open):
    """Tokens counted."""

    prompt_tokens: int
    completion_tokens: int | None = None
    total_tokens: int


class AnswerMessage(_Open):
    """What the model says."""

    role: str
    content: str | None = None


class ChatChoice(_Open):
    """One of `n` answers."""

    index: int
    message: AnswerMessage
    finish_reason: str | None = None


class ChatCompletion(_Open):
    """A whole answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class TextChoice(_Open):
    """One of `n` answers to one of the prompts."""

    index: int
    text: str
    finish_reason: str | None = None


class Completion(_Open):
    """A whole answer to one or more texts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class Model(_Open):
    """A model that is served."""

    id: str
    object: Literal["model"]


class ModelList(_Open):
    """All models that are served."""

    object: Literal["list"]
    data: list[Model]


class ErrorObject(BaseModel):
    """What went wrong, in OpenAI's form."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(description="For people.")
    type: str
    param: str | None = Field(description="The field or header at fault.")
    code: str | None = Field(description="For programs.")


class ErrorBody(BaseModel):
    """The body of every answer that is an error; in a stream, its last event."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorObject

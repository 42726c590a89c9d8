"""Mutations tried by hand, each found by a test here: the role, an empty end, the usage or `[DONE]` taken for a token;
another choice's token taken for the first one's."""

import json
import pickle
from typing import Any, Self

import pytest
from pydantic import BaseModel, ValidationError, model_validator
from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
)
from vllm.entrypoints.openai.completion.protocol import (
    CompletionRequest,
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
)
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, UsageInfo
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

from replicas.openai import (
    _ERROR_EVENT,
    ENGINE_OVERLOAD_RETRY_S,
    _from_event,
    _request,
    blamed,
    from_validation_error,
    has_tokens,
    to_serving_error,
)
from slo.errors import EngineFailed, Rejected, RejectReason, ReplicaLost, ServingError, Shed

MESSAGES = [{"role": "user", "content": "x"}]


class AtFault(BaseModel):
    """Refuses everything, for a reason that is in no single field."""

    a: int

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        raise ValueError("a and b do not go together")


def validation_error(**fields: Any) -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        ChatCompletionRequest(**{"messages": MESSAGES, **fields})
    return raised.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"messages": "hello"}, "messages"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": "perhaps"}, "stream"),
        ({"stream_options": {"include_usage": "perhaps"}, "stream": True}, "stream_options.include_usage"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
    ],
)
def test_from_validation_error_names_the_field_as_the_client_wrote_it(fields: dict[str, Any], param: str) -> None:
    rejected = from_validation_error(validation_error(**fields))
    assert (rejected.param, rejected.reason) == (param, RejectReason.INVALID)
    assert rejected.message.startswith(f"{param}: ")


def test_from_validation_error_leaves_out_names_of_types_and_functions() -> None:
    rejected = from_validation_error(validation_error(messages=[{"role": "user", "content": 5}]))
    assert rejected.param is not None
    assert rejected.param.startswith("messages.0")
    assert not any(part[0].isupper() or "[" in part for part in rejected.param.split("."))


def test_from_validation_error_names_no_field_when_the_request_as_a_whole_is_at_fault() -> None:
    with pytest.raises(ValidationError) as raised:
        AtFault(a=1)
    rejected = from_validation_error(raised.value)
    assert (rejected.message, rejected.param) == ("a and b do not go together", None)


def test_from_validation_error_keeps_the_clients_words_and_vllms_types_out() -> None:
    rejected = from_validation_error(validation_error(temperature="a secret prompt"))
    assert "secret" not in rejected.message
    assert pickle.loads(pickle.dumps(rejected)).message == rejected.message


@pytest.mark.parametrize(
    ("code", "expected", "reason"),
    [
        (400, Rejected, RejectReason.INVALID),
        (404, Rejected, RejectReason.UNKNOWN_MODEL),
        (413, Rejected, RejectReason.INVALID),
        (422, Rejected, RejectReason.INVALID),
        (499, Rejected, RejectReason.INVALID),
        (501, Rejected, RejectReason.NOT_SUPPORTED),
        (429, Shed, None),
        (503, Shed, None),
        (500, EngineFailed, None),
        (504, EngineFailed, None),
        (200, EngineFailed, None),
    ],
)
def test_to_serving_error_says_whose_fault_it_is(
    code: int, expected: type[ServingError], reason: RejectReason | None
) -> None:
    error = to_serving_error(ErrorInfo(message="vLLM's words", type="SomeError", param="n", code=code))
    assert type(error) is expected
    assert getattr(error, "reason", None) is reason
    if isinstance(error, Rejected):
        assert (error.message, error.param) == ("vLLM's words", "n")


def test_to_serving_error_keeps_the_engines_inner_words_from_the_client() -> None:
    error = to_serving_error(ErrorInfo(message="CUDA error at 0x1", type="InternalServerError", code=500))
    assert error.message == "the engine failed on this request"


def test_to_serving_error_tells_how_long_to_wait_when_the_engine_is_overloaded() -> None:
    error = to_serving_error(ErrorInfo(message="full", type="ServiceUnavailableError", code=503))
    assert isinstance(error, Shed)
    assert (error.message, error.retry_after_s) == ("full", ENGINE_OVERLOAD_RETRY_S)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("too long"), Rejected),
        (TypeError("no"), Rejected),
        (NotImplementedError("no"), Rejected),
        (RuntimeError("no"), EngineFailed),
        (KeyError("no"), EngineFailed),
    ],
    ids=repr,
)
def test_to_serving_error_takes_what_vllm_makes_of_an_exception(
    raised: Exception, expected: type[ServingError]
) -> None:
    assert type(to_serving_error(create_error_response(raised).error)) is expected


def test_from_event_reads_vllms_own_error_event_also_when_done_follows() -> None:
    event = create_error_response(ValueError("too long"), param="prompt").model_dump_json()
    events = f"data: {event}\n\ndata: [DONE]\n\n"
    assert events.startswith(_ERROR_EVENT)
    error = _from_event(events)
    assert (type(error), error.message) == (Rejected, "too long")


def test_from_event_reads_an_error_event_as_json_dumps_writes_it() -> None:
    info = {"message": "gone", "type": "InternalServerError", "param": None, "code": 500}
    events = "data: " + json.dumps({"error": info}) + "\n\n"
    assert events.startswith(_ERROR_EVENT)
    assert type(_from_event(events)) is EngineFailed


def chat_event(delta: DeltaMessage, index: int = 0, **choice: Any) -> str:
    """An event as vLLM's chat stream makes one."""
    choices = [ChatCompletionResponseStreamChoice(index=index, delta=delta, logprobs=None, **choice)]
    chunk = ChatCompletionStreamResponse(id="id", created=1, choices=choices, model="tiny")
    return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"


def completion_event(text: str, index: int = 0, **choice: Any) -> str:
    choices = [CompletionResponseStreamChoice(index=index, text=text, logprobs=None, **choice)]
    chunk = CompletionStreamResponse(id="id", created=1, choices=choices, model="tiny")
    return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"


def usage_events() -> list[str]:
    usage = UsageInfo(prompt_tokens=1, completion_tokens=2, total_tokens=3)
    chat = ChatCompletionStreamResponse(id="id", created=1, choices=[], model="tiny", usage=usage)
    completion = CompletionStreamResponse(id="id", created=1, choices=[], model="tiny", usage=usage)
    texts = (
        chat.model_dump_json(exclude_unset=True, exclude_none=True),
        completion.model_dump_json(exclude_unset=False, exclude_none=True),
    )
    return [f"data: {text}\n\n" for text in texts]


CALL_DELTA = DeltaMessage(tool_calls=[DeltaToolCall(index=0, function=DeltaFunctionCall(arguments='{"content":""'))])
WITH_TOKENS = {
    "content": chat_event(DeltaMessage(content=" Paris"), finish_reason=None),
    "last content": chat_event(DeltaMessage(content="."), finish_reason="length", stop_reason=None),
    "space": chat_event(DeltaMessage(content=" ")),
    "reasoning": chat_event(DeltaMessage(reasoning="so")),
    "tool call": chat_event(CALL_DELTA),
    "text": completion_event(" Paris", finish_reason=None),
    "last text": completion_event(".", finish_reason="stop", stop_reason=None),
    "text that looks like an empty delta": completion_event('{"content":"","text":"","delta":{}}'),
    "content that looks like another choice": chat_event(DeltaMessage(content='"choices":[{"index":1,')),
}
WITHOUT_TOKENS = {
    "role": chat_event(DeltaMessage(role="assistant", content=""), finish_reason=None),
    "end of text": chat_event(DeltaMessage(content=""), finish_reason="stop", stop_reason=None),
    "end of a tool call": chat_event(DeltaMessage(), finish_reason="tool_calls"),
    "end of a completion": completion_event("", finish_reason="stop"),
    "second choice": chat_event(DeltaMessage(content=" Paris"), index=1),
    "second prompt": completion_event(" Paris", index=1),
    "second choice that looks like the first": chat_event(DeltaMessage(content='"choices":[{"index":0,'), index=1),
    "usage of a chat": usage_events()[0],
    "usage of a completion": usage_events()[1],
    "done": "data: [DONE]\n\n",
}


@pytest.mark.parametrize("event", WITH_TOKENS)
def test_has_tokens_holds_for_what_vllm_sends_when_there_is_something_to_read(event: str) -> None:
    assert has_tokens(WITH_TOKENS[event])


@pytest.mark.parametrize("event", WITHOUT_TOKENS)
def test_has_tokens_does_not_hold_for_what_vllm_sends_beside_the_text(event: str) -> None:
    assert not has_tokens(WITHOUT_TOKENS[event])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"structured_outputs": {"grammar": "root ::= root"}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_blamed_is_the_caller_when_the_engine_fails_on_a_grammar_of_his(body: dict[str, Any], param: str) -> None:
    told = blamed(EngineFailed("inside"), body)
    assert isinstance(told, Rejected)
    assert told.param == param


@pytest.mark.parametrize("body", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
def test_blamed_is_the_engine_when_no_grammar_was_asked_for(body: dict[str, Any]) -> None:
    error = EngineFailed("inside")
    assert blamed(error, body) is error


def test_blamed_leaves_other_errors_as_they_are() -> None:
    error = ReplicaLost("gone")
    assert blamed(error, {"structured_outputs": {"json": {}}}) is error


def test_request_is_refused_when_vllms_own_validator_stumbles_over_it() -> None:
    with pytest.raises(Rejected, match="wrong type"):
        _request(CompletionRequest, {"prompt": "x", "structured_outputs": 5})


def test_request_leaves_vllms_own_refusals_alone() -> None:
    """They name what is wrong."""
    with pytest.raises(Exception, match="prompt") as raised:
        _request(CompletionRequest, {})
    assert not isinstance(raised.value, Rejected)

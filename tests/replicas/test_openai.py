import json
import pickle
from typing import Any, Self

import pytest
from pydantic import BaseModel, ValidationError, model_validator
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorInfo
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

from replicas.openai import _ERROR_EVENT, ENGINE_OVERLOAD_RETRY_S, _from_event, from_validation_error, to_serving_error
from slo.errors import EngineFailed, Rejected, RejectReason, ServingError, Shed

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

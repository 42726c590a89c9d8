"""The one file that touches vLLM's OpenAI serving classes.

Takes a `GenerateCall`, gives `Reply`s. No exception and no type of vLLM's leaves here: unpickling one would import vLLM
and torch in the ingress.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import State
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from slo.errors import EngineFailed, Rejected, RejectReason, ReplicaLost, ServingError, Shed
from slo.messages import Chunk, Document, Endpoint, Failure, GenerateCall, Reply

logger = logging.getLogger("expresslane.replica")

ENGINE_OVERLOAD_RETRY_S = 1.0
ENGINE_DEAD = "the engine that answered has died"
_ERROR_EVENT = 'data: {"error"'
_FIRST_CHOICE = '"choices":[{"index":0,'
_NO_CONTENT, _NO_TEXT, _NO_DELTA = '"content":""', '"text":""', '"delta":{}'


class OpenAIFrontend:
    """vLLM's serving classes over one engine. Made by `create`; lives in the replica's process."""

    def __init__(self, engine: AsyncLLM, state: State) -> None:
        self._engine = engine
        self._state = state

    @classmethod
    async def create(cls, engine: AsyncLLM, engine_args: AsyncEngineArgs, frontend: dict[str, Any]) -> OpenAIFrontend:
        """Makes the serving classes. `frontend`: vLLM's frontend arguments that differ from their defaults."""
        state = State()
        arguments = argparse.Namespace(**(vars(FrontendArgs(**frontend)) | vars(engine_args)))
        await init_app_state(engine, state, arguments, supported_tasks=await engine.get_supported_tasks())
        return cls(engine, state)

    async def models(self) -> list[dict[str, Any]]:
        """OpenAI's model objects of what is served."""
        listed = await self._state.openai_serving_models.show_available_models()
        models: list[dict[str, Any]] = listed.model_dump(mode="json")["data"]
        return models

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        """Answers `call`: one `Document` or several `Chunk`s, or a `Failure` at any point, which ends it.

        Closing the generator aborts the request in the engine.
        """
        try:
            answer = await self._create(call)
            if isinstance(answer, ErrorResponse):
                yield Failure(to_serving_error(answer.error))
            elif hasattr(answer, "__aiter__"):
                async with aclosing(answer):
                    async for events in answer:
                        if events.startswith(_ERROR_EVENT):
                            # vLLM calls the death of its engine an internal error like others.
                            yield Failure(ReplicaLost(ENGINE_DEAD) if self._engine.errored else _from_event(events))
                            return
                        yield Chunk(events, has_tokens(events))
            else:
                yield Document(answer.model_dump_json())
        except Exception as error:  # vLLM raises of any type, and none of them may cross to the ingress
            yield Failure(self._translated(error, call))

    async def _create(self, call: GenerateCall) -> Any:
        fields = {**call.body, "priority": call.priority.level, "request_id": call.request_id}
        match call.endpoint:
            case Endpoint.CHAT:
                return await self._state.openai_serving_chat.create_chat_completion(ChatCompletionRequest(**fields))
            case Endpoint.COMPLETION:
                return await self._state.openai_serving_completion.create_completion(CompletionRequest(**fields))

    def _translated(self, error: Exception, call: GenerateCall) -> ServingError:
        if isinstance(error, ValidationError):
            return from_validation_error(error)
        if isinstance(error, EngineDeadError) or self._engine.errored:
            return ReplicaLost(ENGINE_DEAD)
        translated = to_serving_error(create_error_response(error).error)
        if isinstance(translated, EngineFailed):
            logger.error("request_id=%s reason=unexpected", call.request_id, exc_info=error)
        return translated


def has_tokens(events: str) -> bool:
    """Whether one of vLLM's streamed events shows the user a token of the first choice.

    The role, an end without text, the usage and `[DONE]` show none. Of several choices the first stands for all: their
    tokens come in one step, a moment apart. Looks at vLLM's JSON as text, which costs 0.4 us: quotes inside a JSON
    string are escaped, so that no generated text looks like these marks.
    """
    is_of_first_choice = _FIRST_CHOICE in events
    return is_of_first_choice and not (_NO_CONTENT in events or _NO_TEXT in events or _NO_DELTA in events)


def from_validation_error(error: ValidationError) -> Rejected:
    """The first fault that pydantic found, with the name of its field; the rest are often its echoes in a union."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # Union members and validators put the names of types and functions into the path: fields are plain words.
    path = [str(part) for part in first["loc"] if isinstance(part, int) or str(part).isidentifier()]
    path = [part for part in path if not part[0].isupper()]
    param = ".".join(path) or None
    message = first["msg"].removeprefix("Value error, ")
    return Rejected(f"{param}: {message}" if param else message, param=param)


def to_serving_error(error: ErrorInfo) -> ServingError:
    """vLLM's error object, in our words."""
    match error.code:
        case HTTPStatus.NOT_FOUND:
            return Rejected(error.message, error.param, RejectReason.UNKNOWN_MODEL)
        case HTTPStatus.NOT_IMPLEMENTED:
            return Rejected(error.message, error.param, RejectReason.NOT_SUPPORTED)
        case HTTPStatus.SERVICE_UNAVAILABLE | HTTPStatus.TOO_MANY_REQUESTS:
            return Shed(error.message, ENGINE_OVERLOAD_RETRY_S)
        case code if 400 <= code < 500:
            return Rejected(error.message, error.param)
        case _:
            return EngineFailed("the engine failed on this request")


def _from_event(events: str) -> ServingError:
    first = events.split("\n\n", 1)[0].removeprefix("data: ")
    return to_serving_error(ErrorInfo(**json.loads(first)["error"]))

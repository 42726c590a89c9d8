"""The one file that touches vLLM's OpenAI serving classes.

Takes a `GenerateCall`, gives `Reply`s. No exception and no type of vLLM's leaves here: unpickling one would import vLLM
and torch in the ingress.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.datastructures import State
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse, ModelCard, ModelPermission
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from replicas.adapters.files import CONFIG_FILE, AdapterFiles, BrokenAdapter, read_config, read_through
from replicas.adapters.shelf import AdapterShelf
from replicas.engine import CPU_ADAPTERS_EXTENSION
from replicas.resumption.engine_client import ResumableEngine
from replicas.resumption.events import EventFilter
from replicas.resumption.progress import CallProgress, current, not_continued
from slo.errors import EngineFailed, Rejected, RejectReason, ReplicaLost, ServingError, Shed
from slo.messages import Document, Endpoint, Failure, GenerateCall, Reply

Asked = TypeVar("Asked", ChatCompletionRequest, CompletionRequest)
logger = logging.getLogger("expresslane.replica")

ENGINE_OVERLOAD_RETRY_S = 1.0
ENGINE_DEAD = "the engine that answered has died"
_ERROR_EVENT = 'data: {"error"'
_FIRST_CHOICE = '"choices":[{"index":0,'
_NO_CONTENT, _NO_TEXT, _NO_DELTA = '"content":""', '"text":""', '"delta":{}'
_NOT_RESUMABLE = ("echo", "use_beam_search")
"""Fields of a body whose answer cannot be continued, whatever the rest: it shows more than the tokens of one choice."""


class OpenAIFrontend:
    """vLLM's serving classes over one engine. Made by `create`; lives in the replica's process."""

    def __init__(self, engine: AsyncLLM, state: State, shelf: AdapterShelf | None = None) -> None:
        self._engine = engine
        self._state = state
        self._shelf = shelf
        self._fixed_names = {*_base_names(state), *state.openai_serving_models.lora_requests}

    @classmethod
    async def create(
        cls,
        engine: AsyncLLM,
        engine_args: AsyncEngineArgs,
        frontend: dict[str, Any],
        adapters_dir: str | None = None,
    ) -> OpenAIFrontend:
        """Makes the serving classes.

        Args:
            frontend: vLLM's frontend arguments that differ from their defaults.
            adapters_dir: where adapters lie that requests may name; None: nowhere.

        Raises:
            ValueError: `adapters_dir` is no directory, or vLLM refuses an argument.
        """
        if engine_args.worker_extension_cls == CPU_ADAPTERS_EXTENSION:
            await engine.collective_rpc("pass_base_tokens_over")
        state = State()
        arguments = argparse.Namespace(**(vars(FrontendArgs(**frontend)) | vars(engine_args)))
        client: Any = ResumableEngine(engine)
        await init_app_state(client, state, arguments, supported_tasks=await engine.get_supported_tasks())
        shelf = None if adapters_dir is None else make_shelf(engine, state.openai_serving_models, Path(adapters_dir))
        return cls(engine, state, shelf)

    async def models(self) -> list[dict[str, Any]]:
        """OpenAI's model objects of what is served. Raises EngineFailed: the adapters cannot be listed."""
        listed = await self._state.openai_serving_models.show_available_models()
        cards = [card for card in listed.data if card.id in self._fixed_names]
        if self._shelf is not None:
            base = _base_names(self._state)[0]
            names = [name for name in await self._shelf.names() if name not in self._fixed_names]
            cards += [ModelCard(id=name, parent=base, permission=[ModelPermission()]) for name in names]
        return [card.model_dump(mode="json") for card in cards]

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        """Answers `call`: one `Document` or several `Chunk`s, or a `Failure` at any point, which ends it.

        Closing the generator aborts the request in the engine.
        """
        try:
            async with self._adapter_of(call) as adapter, aclosing(self._answer(call, adapter)) as replies:
                async for reply in replies:
                    yield reply
        except ServingError as error:  # of the adapter
            yield Failure(error)

    @asynccontextmanager
    async def _adapter_of(self, call: GenerateCall) -> AsyncIterator[LoRARequest | None]:
        """What `call` needs of the directory, loaded and told to the serving classes; None: nothing."""
        name = call.body.get("model")
        if self._shelf is None or not isinstance(name, str) or name in self._fixed_names:
            yield None
            return
        async with self._shelf.lend(name) as adapter:
            told = LoRARequest(name, adapter.lora_int_id, adapter.lora_path)
            self._state.openai_serving_models.lora_requests[name] = told
            yield adapter

    async def _answer(self, call: GenerateCall, adapter: LoRARequest | None) -> AsyncGenerator[Reply, None]:
        is_chat = call.endpoint is Endpoint.CHAT
        has_parser = is_chat and self._state.openai_serving_chat.parser_cls is not None
        progress = CallProgress(call.resumption, has_parser)
        progress.adapter, progress.delay_s = adapter, call.standing.delay_s
        try:
            answer = await self._create(call, progress)
            if isinstance(answer, ErrorResponse):
                yield Failure(blamed(to_serving_error(answer.error), call.body))
            elif hasattr(answer, "__aiter__"):
                if progress.resumed is not None:
                    yield progress.resumed
                sent = EventFilter(progress, begins_with_role=is_chat)
                async with aclosing(answer):
                    async for events in answer:
                        if events.startswith(_ERROR_EVENT):
                            # vLLM calls the death of its engine an internal error like others.
                            is_dead = self._engine.errored
                            yield Failure(
                                ReplicaLost(ENGINE_DEAD) if is_dead else blamed(_from_event(events), call.body)
                            )
                            return
                        chunk = sent.chunk(events, has_tokens(events))
                        if progress.failure is not None:
                            yield Failure(progress.failure)
                            return
                        if chunk is not None:
                            yield chunk
            else:
                yield Document(answer.model_dump_json())
        except Exception as error:  # vLLM raises of any type, and none of them may cross to the ingress
            yield Failure(blamed(self._translated(error, call), call.body))

    async def _create(self, call: GenerateCall, progress: CallProgress) -> Any:
        if call.resumption is not None and (refused := [name for name in _NOT_RESUMABLE if call.body.get(name)]):
            raise not_continued(f"it has {refused[0]}")
        fields = {**call.body, "priority": call.counts_as.level, "request_id": call.request_id}
        with current(progress):
            match call.endpoint:
                case Endpoint.CHAT:
                    chat = _request(ChatCompletionRequest, fields)
                    return await self._state.openai_serving_chat.create_chat_completion(chat)
                case Endpoint.COMPLETION:
                    completion = _request(CompletionRequest, fields)
                    return await self._state.openai_serving_completion.create_completion(completion)

    def _translated(self, error: Exception, call: GenerateCall) -> ServingError:
        if isinstance(error, ServingError):
            return error
        if isinstance(error, ValidationError):
            return from_validation_error(error)
        if isinstance(error, EngineDeadError) or self._engine.errored:
            return ReplicaLost(ENGINE_DEAD)
        translated = to_serving_error(create_error_response(error).error)
        if isinstance(translated, EngineFailed):
            logger.error("request_id=%s reason=unexpected", call.request_id, exc_info=error)
        return translated


def make_shelf(engine: AsyncLLM, models: OpenAIServingModels, directory: Path) -> AdapterShelf:
    """The adapters of `directory`, in the places that those loaded at the start leave. Raises ValueError."""
    if not directory.is_dir():
        raise ValueError(f"engine.adapters_dir={str(directory)!r} is no directory on this machine")
    config = engine.vllm_config.lora_config
    hidden_size = engine.vllm_config.model_config.get_hidden_size()

    def check(files: AdapterFiles) -> None:
        try:
            PEFTHelper.from_dict(read_config(files)).validate_legal(config)
        except (ArithmeticError, AttributeError, LookupError, TypeError):
            raise BrokenAdapter(f"{CONFIG_FILE}: a field has a value of the wrong type") from None
        except ValueError as error:
            raise BrokenAdapter(f"{CONFIG_FILE}: {error}") from None
        read_through(files, config.max_lora_rank, hidden_size)

    num_places = config.max_cpu_loras - len(models.lora_requests)
    return AdapterShelf(engine, directory, num_places, check, lambda: models.lora_id_counter.inc(1))


def _base_names(state: State) -> list[str]:
    return [model.name for model in state.openai_serving_models.base_model_paths]


def _request(model: type[Asked], fields: dict[str, Any]) -> Asked:
    """vLLM's own request. Its validators look into fields before their types are checked, and stumble over some."""
    try:
        return model(**fields)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise Rejected("a field has a value of the wrong type") from error


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


def blamed(error: ServingError, body: Mapping[str, Any]) -> ServingError:
    """`error` as it is told. vLLM calls it a fault of its own when it can make nothing of a grammar, or when no text
    meets it, and says no more; the engine lives on, so it is taken for the caller's."""
    asked = body.get("response_format")
    format_type = asked.get("type") if isinstance(asked, Mapping) else None
    if isinstance(error, EngineFailed):
        if body.get("structured_outputs"):
            return Rejected("structured_outputs: the engine could not follow it", param="structured_outputs")
        if format_type not in (None, "text"):
            return Rejected("response_format: the engine could not follow it", param="response_format")
    return error


def _from_event(events: str) -> ServingError:
    first = events.split("\n\n", 1)[0].removeprefix("data: ")
    return to_serving_error(ErrorInfo(**json.loads(first)["error"]))

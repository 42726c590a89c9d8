"""A small real server that answers as it is told: streams tokens, sheds, cuts a stream, holds its answers back.

python -m tests.bench.scripted_server PORT    # by itself: as many tokens as are asked for
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

START_LIMIT_S = 60


@dataclass(frozen=True)
class Script:
    """One answer.

    Attributes:
        error: with a status that is not 200, the body's; else an event in place of the rest of the stream.
        cut_after: ends the stream after so many tokens, without an end.
        delay_s: before each token.
    """

    status: int = 200
    num_tokens: int = 3
    error: Mapping[str, Any] | None = None
    cut_after: int | None = None
    delay_s: float = 0.0
    has_usage: bool = True
    tokens_per_event: int = 1


@dataclass
class ScriptedServer:
    """What it is told, and what it was asked.

    Attributes:
        script: the answer to a request, by its body and headers.
        hold_until: no answer is begun before so many requests have come; 0: none is held.
    """

    url: str = ""
    script: Callable[[dict[str, Any], Mapping[str, str]], Script] = lambda _body, _headers: Script()
    hold_until: int = 0
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    model_headers: dict[str, str] = field(default_factory=dict)
    models: Any = field(default_factory=lambda: {"data": [{"id": "first"}, {"id": "second"}]})
    models_status: int = 200
    ends_with_done: bool = True
    in_one_write: bool = False

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._answer, methods=["POST"]),
                Route("/v1/completions", self._answer, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", lambda _request: Response("ready")),
            ]
        )

    async def _models(self, request: Request) -> Response:
        self.model_headers = dict(request.headers)
        return JSONResponse(self.models, status_code=self.models_status)

    async def _answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append((request.url.path, body, dict(request.headers)))
        while len(self.asked) < self.hold_until:  # noqa: ASYNC110, the test's thread may change it
            await asyncio.sleep(0.001)
        script = self.script(body, dict(request.headers))
        if script.status != 200:
            return JSONResponse({"error": script.error or {"message": "no"}}, status_code=script.status)
        events = self._events(script, "messages" in body)
        if self.in_one_write:
            return Response("".join([e async for e in events]), media_type="text/event-stream")
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, script: Script, is_chat: bool) -> AsyncIterator[str]:
        if is_chat:
            yield event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for i in range(script.num_tokens):
            if i == script.cut_after:
                raise ConnectionResetError
            await asyncio.sleep(script.delay_s)
            token = {"delta": {"content": f"t{i} "}} if is_chat else {"text": f"t{i} "}
            yield event({"choices": [{"index": 0, **token, "finish_reason": None}]})
        if script.error is not None:
            yield event({"error": script.error})
            return
        if script.has_usage:
            output_tokens = script.num_tokens * script.tokens_per_event
            yield event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": output_tokens}})
        if self.ends_with_done:
            yield "data: [DONE]\n\n"


def event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


@contextlib.contextmanager
def running_server() -> Iterator[ScriptedServer]:
    """On a port of its own, in a thread."""
    scripted = ScriptedServer()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        scripted.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(scripted.app(), log_level="critical", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not server.started:
                assert time.monotonic() < deadline, "the scripted server did not start"
                time.sleep(0.005)
            yield scripted
        finally:
            server.should_exit = True
            thread.join(timeout=60)


if __name__ == "__main__":
    scripted = ScriptedServer(script=lambda body, _headers: Script(num_tokens=body["max_tokens"]))
    uvicorn.run(scripted.app(), port=int(sys.argv[1]), log_level="warning", ws="none")

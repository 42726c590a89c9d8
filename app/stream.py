"""Turning a replica's replies into an HTTP answer.

The first reply is awaited before anything is sent, so that a refusal has its real status; what goes wrong after that
ends the stream with an error event, without `[DONE]`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.errors import to_http
from app.record import RequestRecord
from slo.errors import EngineFailed, ServingError
from slo.messages import Chunk, Document, Failure, Reply


async def answer(replies: AsyncGenerator[Reply, None], record: RequestRecord, headers: Mapping[str, str]) -> Response:
    """The response for `replies`. Takes over `record`: it is closed when the response has been sent, or here.

    Raises:
        ServingError: the replica refused; `record` is left open for the caller to close.
    """
    first = await anext(replies, None)
    if isinstance(first, Chunk):
        return EventStream(first, replies, record, headers)
    await replies.aclose()
    document = document_of(first)
    record.close(None)
    return Response(document, media_type="application/json", headers=dict(headers))


def document_of(first: Reply | None) -> str:
    """The whole answer, in the first reply to a request that is not streamed. Raises ServingError: it holds none."""
    match first:
        case Document(json=document):
            return document
        case Failure(error=error):
            raise error
        case _:
            raise EngineFailed("the replica ended without an answer")


def error_response(error: ServingError, headers: Mapping[str, str]) -> JSONResponse:
    """`error` as OpenAI's error object."""
    http = to_http(error)
    return JSONResponse(http.body, status_code=http.status, headers={**headers, **http.headers})


class EventStream(StreamingResponse):
    """A stream of server-sent events. Closes its replies and its record, however it ends."""

    def __init__(
        self,
        first: Chunk,
        replies: AsyncGenerator[Reply, None],
        record: RequestRecord,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(
            self._events(first),
            media_type="text/event-stream",
            headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._replies = replies
        self._record = record
        self._ended_with: BaseException | None = ClientLeft()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream. The record is closed exactly once, also when the client leaves before the first event."""
        try:
            async with aclosing(self._replies):
                await super().__call__(scope, receive, send)
        except ClientDisconnect:
            pass  # how Starlette tells that the client left to a server of ASGI 2.4 or later; nobody is left to answer
        except Exception as error:
            self._ended_with = error
            raise
        finally:
            self._record.close(self._ended_with)

    async def _events(self, first: Chunk) -> AsyncGenerator[str, None]:
        yield self._leaving(first)
        async for reply in self._replies:
            match reply:
                case Chunk():
                    yield self._leaving(reply)
                case Failure(error=error):
                    self._ended_with = error
                    yield f"data: {json.dumps(to_http(error).body)}\n\n"
                    return
                case Document():
                    raise AssertionError("a replica answered a stream with a document")
        self._ended_with = None

    def _leaving(self, chunk: Chunk) -> str:
        if chunk.has_tokens:
            self._record.tokens_out()
        return chunk.events


class ClientLeft(BaseException):
    """The client closed its connection before the answer was complete. No error of ours: never raised, only told."""

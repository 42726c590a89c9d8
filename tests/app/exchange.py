"""One HTTP request to an ASGI application, driven by hand: each message in and out when the test says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Scope

PATIENCE_S = 30
"""After this a test that waits for a message has failed; no rule depends on it."""


class Exchange:
    """A request, sent when made unless `body` is None; then the test sends it itself."""

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        spec_version: str = "2.3",  # uvicorn's
    ) -> None:
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()
        self._gone = False
        self._reads = asyncio.Event()
        self._reads.set()
        self._send_fails_when_gone = spec_version >= "2.4"
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec_version},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        if body is not None:
            self.put_body(json.dumps(body).encode())
        self.task = asyncio.create_task(self._run(app, scope))

    def put_body(self, part: bytes, more: bool = False) -> None:
        self._to_app.put_nowait({"type": "http.request", "body": part, "more_body": more})

    def disconnect(self) -> None:
        """The client leaves. What is sent to it from now on is lost in silence, or fails from ASGI 2.4 on."""
        self._gone = True
        self._to_app.put_nowait({"type": "http.disconnect"})

    def stop_reading(self) -> None:
        """The client reads no more: what the application sends next does not return."""
        self._reads.clear()

    async def next_message(self) -> Message:
        async with asyncio.timeout(PATIENCE_S):
            return await self._from_app.get()

    async def next_events(self) -> str:
        message = await self.next_message()
        assert message["type"] == "http.response.body"
        return str(message["body"].decode())

    async def ended(self) -> None:
        """Waits for the application to return; raises what it raised."""
        async with asyncio.timeout(PATIENCE_S):
            await self.task

    def left_over(self) -> list[dict[str, Any]]:
        """What the application has sent and nobody has read."""
        messages = []
        while not self._from_app.empty():
            messages.append(dict(self._from_app.get_nowait()))
        return messages

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        await app(scope, self._to_app.get, self._send)

    async def _send(self, message: Message) -> None:
        if self._gone and self._send_fails_when_gone:
            raise OSError("the client is gone")
        if not self._gone:
            self._from_app.put_nowait(message)
        await self._reads.wait()

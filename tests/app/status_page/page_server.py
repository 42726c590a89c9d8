"""A small HTTP server that answers as the ingress does: the page with its headers, and the report, under a prefix.

It adds one policy to those of the ingress: no text can become markup or code, whatever the script tries.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from app.operator import NO_STORE, STATUS_PAGE, page_headers
from slo.status import StatusReport

PREFIX = "/fleet/blue"
NO_MARKUP_FROM_TEXT = "require-trusted-types-for 'script'; trusted-types 'none'"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    content_type: str
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, report: StatusReport) -> Answer:
        """What `GET /v1/status` gives."""
        return cls(200, "application/json", report.model_dump_json())

    @classmethod
    def refused(cls, status: int, message: str) -> Answer:
        """In OpenAI's error shape."""
        return cls(status, "application/json", json.dumps({"error": {"message": message, "type": "server_error"}}))


class PageServer:
    """Serves the page and `answer` on a port of its own; `stop` and `start` keep the port."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.page = STATUS_PAGE.read_text()
        self.strangers: list[str] = []
        """Paths that were asked for and are neither the page nor the report."""
        self.may_answer = threading.Event()
        """Cleared: the report is not answered until it is set."""
        self.may_answer.set()
        self.port = 0
        self._connections: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PREFIX}/status"

    def start(self) -> None:
        """Listens, on the port of the last time if there was one."""
        assert self._server is None
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Listens no more, and answers no more on connections that the browser opened in advance."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        for connection in tuple(self._connections):
            with suppress(OSError):  # closed by now
                connection.shutdown(socket.SHUT_RDWR)

    def answer_to(self, path: str) -> Answer:
        """The answer to a GET of `path`."""
        if path == f"{PREFIX}/status":
            return Answer(200, "text/html; charset=utf-8", self.page, page_headers(self.page))
        if path == f"{PREFIX}/v1/status":
            self.may_answer.wait(60)
            return self.answer
        self.strangers.append(path)
        return Answer.refused(404, "no such path")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = server.answer_to(self.path)
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Security-Policy", NO_MARKUP_FROM_TEXT)
                for name, value in (NO_STORE | dict(answer.headers)).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body.encode())

            def log_message(self, *args: object) -> None:
                """Nothing: the tests look at what the page shows."""

            def handle(self) -> None:
                server._connections.add(self.connection)
                with suppress(ConnectionError):  # the page gave the request up
                    super().handle()
                server._connections.discard(self.connection)

        return Handler

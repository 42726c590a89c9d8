"""One streamed request to an OpenAI-compatible server, and what was seen of its answer.

aiohttp, whose parser is in C: 25 us of CPU an event where httpx takes 80 (measured, 80 streams at once, two cores); its
cost becomes lag. A read's events share its time: they came together.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp

from bench.reply import Reply
from bench.sse import EventReader, StreamError, error_in_body
from slo.outcome import Outcome

KEEP_ALIVE_S = 4.0
"""Idle connections are dropped before the server drops them (uvicorn does after 5 s), or a request would meet a closed
one and be counted as failed."""
MAX_ERROR_CHARS = 200
_BY_STATUS = {408: Outcome.EXPIRED, 429: Outcome.SHED, 503: Outcome.REPLICA_LOST, 504: Outcome.EXPIRED}
_BY_CODE = {
    "overloaded": Outcome.SHED,
    "rate_limit_exceeded": Outcome.SHED,
    "deadline_exceeded": Outcome.EXPIRED,
    "replica_lost": Outcome.REPLICA_LOST,
}


class Client:
    """Sends requests to one server. `clock`: monotonic seconds."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._clock = clock

    async def send(self, path: str, payload: bytes, headers: Mapping[str, str]) -> Reply:
        """Sends one request and reads its answer to the end. Every way in which it can fail is an outcome."""
        seen = _Seen(self._clock())
        try:
            async with self._session.post(
                self._url + path, data=payload, headers={"Content-Type": "application/json", **headers}
            ) as answer:
                if answer.status != 200:
                    return seen.ended(
                        outcome_of_status(answer.status), self._clock(), error_in_body(await answer.read())
                    )
                return await self._read(answer, seen)
        except TimeoutError:
            return seen.ended(Outcome.EXPIRED, self._clock(), StreamError(None, "given up: timeout_s passed"))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            message = f"{type(error).__name__}: {error}"
            return seen.ended(Outcome.FAILED, self._clock(), StreamError(None, message))

    async def _read(self, answer: aiohttp.ClientResponse, seen: _Seen) -> Reply:
        reader = EventReader()
        async for received in answer.content.iter_any():
            now_s = self._clock()
            heard = reader.feed(received)
            seen.token_times_s.extend([now_s] * heard.num_token_events)
            if heard.error is not None:
                return seen.ended(_BY_CODE.get(heard.error.code or "", Outcome.FAILED), now_s, heard.error)
            if heard.output_tokens is not None:
                seen.prompt_tokens, seen.output_tokens = heard.prompt_tokens, heard.output_tokens
            if heard.is_done:
                return seen.completed(now_s)
        return seen.ended(
            Outcome.FAILED, self._clock(), StreamError(None, "the stream was cut: it ended without [DONE]")
        )


class _Seen:
    """What has come of an answer so far."""

    def __init__(self, sent_s: float) -> None:
        self.sent_s = sent_s
        self.token_times_s: list[float] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None

    def completed(self, now_s: float) -> Reply:
        if not self.token_times_s:
            return self.ended(Outcome.FAILED, now_s, StreamError(None, "an answer without a token"))
        return self._reply(Outcome.COMPLETED, now_s, None)

    def ended(self, outcome: Outcome, now_s: float, error: StreamError) -> Reply:
        return self._reply(outcome, now_s, error.message[:MAX_ERROR_CHARS])

    def _reply(self, outcome: Outcome, now_s: float, error: str | None) -> Reply:
        tokens = tuple(self.token_times_s)
        return Reply(outcome, self.sent_s, now_s, tokens, self.prompt_tokens, self.output_tokens, error)


def outcome_of_status(status: int) -> Outcome:
    """What a status other than 200 means: shed (429), expired (408, 504), none to serve (503), the caller's fault."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Outcome.REJECTED if 400 <= status < 500 else Outcome.FAILED


@asynccontextmanager
async def open_session(timeout_s: float) -> AsyncGenerator[aiohttp.ClientSession, None]:
    """Connections without a bound on their number. A request that takes longer than `timeout_s` is given up."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    timeout = aiohttp.ClientTimeout(total=timeout_s, connect=timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
        yield session


class ServerUnreachable(RuntimeError):
    """The server cannot be asked for its models; the message tells why."""


async def first_model(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> str:
    """The first model that the server lists.

    Raises:
        ServerUnreachable: it cannot be asked, or lists none.
    """
    target = f"{url.rstrip('/')}/v1/models"
    try:
        async with session.get(target, headers=dict(headers)) as answer:
            if answer.status != 200:
                raise ServerUnreachable(f"{target}: {answer.status}: {error_in_body(await answer.read()).message}")
            models = (await answer.json())["data"]
            return str(models[0]["id"])
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        raise ServerUnreachable(f"{target}: {type(error).__name__}: {error}") from None

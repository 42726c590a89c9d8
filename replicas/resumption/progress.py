"""How far one call has come: shared by the frontend, which sees events, and the engine client, which sees tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from slo.errors import NotContinued
from slo.messages import Resumed, Resumption


class CallProgress:
    """One call in this replica. Used on the replica's event loop only.

    Args:
        resumption: of the call.
        has_parser: the serving class hands the text to parsers of reasoning or tool calls.

    Attributes:
        resumed: how the engine client goes on; None in a call without a resumption.
        is_replaying: the serving class is being told what was delivered; its events were sent by the lost replica.
        delay_s: see `slo.messages.Standing`.
        adapter: vLLM's LoRA request in place of the serving class's own, see `replicas.adapters.shelf`.
        failure: why the answer ended before its end. vLLM would turn an exception into an event of its own.
    """

    __slots__ = (
        "_finish_reason",
        "_token_ids",
        "adapter",
        "delay_s",
        "failure",
        "has_parser",
        "is_replaying",
        "resumed",
        "resumption",
    )

    def __init__(self, resumption: Resumption | None = None, has_parser: bool = False) -> None:
        self.resumption = resumption
        self.has_parser = has_parser
        self.resumed: Resumed | None = None
        self.is_replaying = resumption is not None
        self.delay_s = 0.0
        self.adapter: Any = None
        self.failure: NotContinued | None = None
        self._token_ids: list[int] = []
        self._finish_reason: str | None = None

    def note(self, token_ids: Sequence[int], finish_reason: str | None) -> None:
        """The serving class is handed these tokens now; the next event shows them."""
        self._token_ids += token_ids
        self._finish_reason = finish_reason

    def take(self) -> tuple[tuple[int, ...], str | None]:
        """An event leaves: the tokens noted since the last one, and why the answer ended, if it has."""
        if not self._token_ids and self._finish_reason is None:
            return (), None
        taken = tuple(self._token_ids), self._finish_reason
        self._token_ids.clear()
        self._finish_reason = None
        return taken


_CURRENT: ContextVar[CallProgress | None] = ContextVar("call_progress", default=None)


@contextmanager
def current(progress: CallProgress) -> Iterator[None]:
    """What is asked of the engine in this block belongs to `progress`."""
    token = _CURRENT.set(progress)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_progress() -> CallProgress | None:
    """Of the call in whose block this runs."""
    return _CURRENT.get()


def not_continued(reason: str) -> NotContinued:
    """The error of an answer that cannot be continued."""
    return NotContinued(f"the replica that answered was lost, and the answer could not be continued: {reason}")

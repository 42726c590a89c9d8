"""Which of vLLM's events the client lacks, and the tokens that each of them shows."""

from __future__ import annotations

import re

from replicas.resumption.progress import CallProgress, not_continued
from slo.messages import Chunk

_CREATED = re.compile(r'"created":\d+')
_TOOL_CALL = '"tool_calls":[{'
"""As vLLM writes them; quotes inside a JSON string are escaped, so that no generated text looks like these."""


class EventFilter:
    """The events of one streamed call. In a call without a resumption it drops none and changes none.

    Args:
        progress: of the call.
        begins_with_role: vLLM's first event tells the role; the tokens that it waited for come with the next one.
    """

    def __init__(self, progress: CallProgress, begins_with_role: bool) -> None:
        self._progress = progress
        self._role_is_due = begins_with_role
        resumption = progress.resumption
        self._num_to_drop = resumption.num_closing if resumption is not None else 0

    def chunk(self, events: str, has_tokens: bool) -> Chunk | None:
        """What is sent for one of vLLM's events; None: nothing. It may set the call's failure."""
        role_was_due, self._role_is_due = self._role_is_due, False
        progress, resumption = self._progress, self._progress.resumption
        if progress.is_replaying:
            if _TOOL_CALL in events and resumption is not None and resumption.finish_reason is None:
                progress.failure = not_continued("a tool call had begun")
            return None
        if resumption is not None:
            if self._num_to_drop:
                self._num_to_drop -= 1
                return None
            if resumption.created is not None:
                events = _CREATED.sub(f'"created":{resumption.created}', events, count=1)
        if role_was_due:
            return Chunk(events, has_tokens)
        return Chunk(events, has_tokens, *progress.take())

"""A dispatcher that answers every call in OpenAI's shape, at the seam `app.dispatch.Dispatcher`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from slo.messages import Chunk, Document, Endpoint, GenerateCall, Reply

MODEL = "tiny"
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class AnsweringDispatcher:
    """Streams when it is asked to, and takes any body.

    Attributes:
        num_answered: calls answered, streamed and whole.
    """

    def __init__(self) -> None:
        self.num_answered = {"whole": 0, "streamed": 0}

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        answer = _answer(call)
        if call.body.get("stream") is True:
            self.num_answered["streamed"] += 1
            yield Chunk(f"data: {json.dumps(answer)}\n\n")
            yield Chunk("data: [DONE]\n\n", has_tokens=False)
        else:
            self.num_answered["whole"] += 1
            yield Document(json.dumps(answer))

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": MODEL, "object": "model"}]


def _answer(call: GenerateCall) -> dict[str, Any]:
    common = {"id": call.request_id, "created": 1, "model": MODEL, "usage": _USAGE}
    match call.endpoint:
        case Endpoint.CHAT:
            choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "x"}}
            return common | {"object": "chat.completion", "choices": [choice]}
        case Endpoint.COMPLETION:
            return common | {
                "object": "text_completion",
                "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}],
            }

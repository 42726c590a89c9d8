"""A dispatcher that answers from a script, at the seam `app.dispatch.Dispatcher`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from slo.messages import GenerateCall, Reply

Step = Reply | asyncio.Event | BaseException

MODELS: list[dict[str, Any]] = [{"id": name, "object": "model"} for name in ("tiny", "org/other")]


class FakeDispatcher:
    """Yields each reply of `script`, waits for each event, raises each exception.

    Attributes:
        calls: what was asked, in order.
        called: set once something was asked.
        ends: how each generator ended: None when it was exhausted, else the type raised into it or by it.
    """

    def __init__(self, *script: Step, models: list[dict[str, Any]] | Exception = MODELS) -> None:
        self._script = script
        self._models = models
        self.calls: list[GenerateCall] = []
        self.called = asyncio.Event()
        self.ends: list[type[BaseException] | None] = []

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        self.calls.append(call)
        self.called.set()
        try:
            for step in self._script:
                match step:
                    case asyncio.Event():
                        await step.wait()
                    case BaseException():
                        raise step
                    case _:
                        yield step
        except BaseException as error:
            self.ends.append(type(error))
            raise
        self.ends.append(None)

    async def models(self) -> list[dict[str, Any]]:
        if isinstance(self._models, Exception):
            raise self._models
        return self._models

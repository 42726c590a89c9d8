"""The Serve deployment around one engine: start, answer, health, end. Everything it does is in the files beside it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from replicas.engine import engine_arguments, engine_environment, is_cpu_build, start_engine
from replicas.gpu import VISIBLE_DEVICES_VARIABLE, GpuReader
from replicas.kv_swap.host_memory import available_host_bytes
from replicas.models.default import resolve_model
from replicas.statistics import EngineStatistics
from slo.logs import configure_logging
from slo.messages import GenerateCall, Reply
from slo.settings import Settings
from slo.snapshots import EngineSnapshot

logger = logging.getLogger("expresslane.replica")


class Replica:
    """One vLLM engine behind OpenAI's protocol. Called by the ingress over a Serve handle."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        configure_logging()
        model = resolve_model(settings.model.source)
        names = settings.model.served_names
        cpu = is_cpu_build()
        swap = settings.swap.resolve(cpu, available_host_bytes())
        arguments = engine_arguments(model.path, names, settings.engine, settings.scheduler, cpu, swap)
        environment = engine_environment(settings.engine, model.is_local, cpu, os.cpu_count() or 1)
        self._gpus = GpuReader("" if cpu else os.environ.get(VISIBLE_DEVICES_VARIABLE))
        self._statistics = EngineStatistics()
        self._engine, engine_args = start_engine(arguments, environment, self._statistics)

        from replicas.openai import OpenAIFrontend  # imports vLLM, which must see the environment just set

        frontend: dict[str, Any] = {}
        if settings.engine.tool_call_parser is not None:
            frontend = {"enable_auto_tool_choice": True, "tool_call_parser": settings.engine.tool_call_parser}
        self._openai = await OpenAIFrontend.create(self._engine, engine_args, frontend)
        logger.info("model=%s names=%s reason=started", model.path, ",".join(names))

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        """The replies to `call`. Cancelling it aborts the request in the engine."""
        self._note_if_idle()
        answered = False
        try:
            async with aclosing(self._openai.generate(call)) as replies:
                async for reply in replies:
                    yield reply
            answered = True
        finally:
            if not answered:
                logger.info(
                    "request_id=%s class=%s reason=client_left unfinished=%d",
                    call.request_id,
                    call.priority.name,
                    self._engine.get_num_unfinished_requests(),
                )

    async def models(self) -> list[dict[str, Any]]:
        """OpenAI's model objects. An answer also means that this replica can serve.

        Raises:
            RuntimeError: the engine is dead.
        """
        await self.check_health()
        return await self._openai.models()

    async def snapshot(self) -> EngineSnapshot:
        """What the engine has done, and is doing. Called by the controller over a Serve handle, every few seconds.

        Raises:
            RuntimeError: the engine is dead.
        """
        await self.check_health()
        gpus = await asyncio.to_thread(self._gpus.read)  # It may wait for the driver.
        self._note_if_idle()
        return self._statistics.snapshot(gpus)

    def _note_if_idle(self) -> None:
        """An idle engine says nothing, and what it said last is not old."""
        if self._engine.get_num_unfinished_requests() == 0:
            self._statistics.note_idle()

    async def check_health(self) -> None:
        """Called by Serve. Raises RuntimeError (no type of vLLM's: it crosses processes) when the engine is dead."""
        if self._engine.errored:
            raise RuntimeError("the engine core has died")

    def __del__(self) -> None:
        """Called by Serve at the end of a graceful shutdown: ends the engine's processes."""
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.shutdown()

"""The Serve deployment around one engine: start, answer, health, end. Everything it does is in the files beside it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from replicas.calls import Calls
from replicas.engine import engine_arguments, engine_environment, frontend_arguments, is_cpu_build, start_engine
from replicas.engine_processes import EngineProcesses, child_processes
from replicas.gpu import VISIBLE_DEVICES_VARIABLE, GpuReader
from replicas.kv_swap.host_memory import available_host_bytes
from replicas.models.default import resolve_model
from replicas.routing_stats import RoutingLedger
from replicas.statistics import EngineStatistics
from replicas.watchdog import Loss, Watchdog
from slo.errors import ReplicaLost
from slo.logs import configure_logging
from slo.messages import Failure, GenerateCall, Reply
from slo.settings import Settings
from slo.snapshots import EngineSnapshot

logger = logging.getLogger("expresslane.replica")

FAREWELL_LIMIT_S = 2.0
"""How long a replica whose engine is lost waits until its calls have their failures. vLLM ends them at once; should it
not, they end with the process."""
LEAVING_S = 0.2
"""For the last failures on their way to the ingress; one that comes too late is told by Ray that the replica died."""
HOLD_S = FAREWELL_LIMIT_S + LEAVING_S + 1.0
"""How long a call that comes to a lost engine is held: the end of the process ends it before. So Serve's router learns
that the replica is dead; failed at once, the request would be sent here again and again, as to the least busy one."""


class Replica:
    """One vLLM engine behind OpenAI's protocol. Called by the ingress over a Serve handle.

    A replica whose engine is lost ends its process: Serve sees a dead actor at its next look and starts another, where
    a failing health check has to fail three times, and a replica that fails fast attracts requests until then.
    """

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
        before = child_processes()
        self._engine, engine_args = start_engine(arguments, environment, self._statistics)
        self._processes = EngineProcesses.started_since(before)
        self._processes.guard()

        from replicas.openai import OpenAIFrontend  # imports vLLM, which must see the environment just set

        frontend = frontend_arguments(settings.engine)
        adapters_dir = settings.engine.adapters_dir
        self._openai = await OpenAIFrontend.create(self._engine, engine_args, frontend, adapters_dir)
        self._calls = Calls()
        self._ledger = RoutingLedger(self._statistics, arguments["block_size"])
        self._loss: Loss | None = None
        self._watchdog = Watchdog(self._engine, self._statistics, settings.faults.stall_timeout_s)
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watchdog")
        logger.info("model=%s names=%s reason=started", model.path, ",".join(names))

    async def generate(self, call: GenerateCall, router_id: str = "") -> AsyncGenerator[Reply, None]:
        """The replies to `call`, which the router of that id sent. Cancelling it aborts the request in the engine."""
        if (fault := self._loss_told()) is not None:
            self._watchdog.look_now()
            await asyncio.sleep(HOLD_S)
            yield Failure(ReplicaLost(fault))
            return
        self._note_if_idle()
        answered = False
        try:
            with self._calls.one(), self._ledger.under_way(call, router_id):
                async with aclosing(self._openai.generate(call)) as replies:
                    async for reply in replies:
                        yield reply
            answered = True
        finally:
            if self._engine.errored:
                self._watchdog.look_now()
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
            ReplicaLost: the engine is lost. Serve's gRPC transport raises it in the ingress as it is.
        """
        if (fault := self._loss_told()) is not None:
            raise ReplicaLost(fault)
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

    def record_routing_stats(self) -> dict[str, Any]:
        """What the request routers are told, see `slo.routing`. Called by Serve every `routing.stats_period_s`."""
        return self._ledger.tell(is_serving=self._loss is None and not self._engine.errored)

    def _note_if_idle(self) -> None:
        """An idle engine says nothing, and what it said last is not old."""
        if self._engine.get_num_unfinished_requests() == 0:
            self._statistics.note_idle()

    async def check_health(self) -> None:
        """Called by Serve. Raises RuntimeError (no type of vLLM's: it crosses processes) when the engine is lost."""
        if (fault := self._loss_told()) is not None:
            raise RuntimeError(fault)
        if self._watching.done():
            raise RuntimeError("the watchdog has ended")

    def _loss_told(self) -> str | None:
        """How the engine is lost, for whoever asks; None: it is not."""
        if self._engine.errored:
            return "the engine core has died"
        if self._loss is not None:
            return f"the engine does not answer: {self._loss.reason.value}"
        return None

    async def _watch(self) -> None:
        """Ends this process once its engine is lost, after its calls have been told."""
        loss = self._loss = await self._watchdog.until_lost()
        logger.error(
            "reason=%s silent_s=%.1f calls=%d pids=%s",
            loss.reason.value,
            loss.silent_s,
            self._calls.num,
            ",".join(map(str, self._processes.pids)),
        )
        self._processes.kill()  # So vLLM learns of it, and ends its calls.
        await self._calls.until_over(FAREWELL_LIMIT_S)
        await asyncio.sleep(LEAVING_S)
        logger.error("reason=replica_ends calls=%d", self._calls.num)
        os._exit(1)

    def __del__(self) -> None:
        """Called by Serve at the end of a graceful shutdown: ends the engine's processes."""
        if (watching := getattr(self, "_watching", None)) is not None:
            watching.cancel()
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.shutdown()
        if (processes := getattr(self, "_processes", None)) is not None:
            processes.release()

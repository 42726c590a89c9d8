"""The adapters of a directory that one engine holds: loaded when first asked for, given up when others need the place.

A call borrows its adapter for as long as it runs. The engine never holds more adapters than it has places
(`max_cpu_loras`): past that it would load one again from disk in the middle of a step, and end if it lay there no more.
So one that a call uses is never given up, and one that has no place is refused.

Each version of an adapter is another one to the engine, by name and id: neither cached KV nor weights of an older
version are used for a newer one, and calls that began with the older one end with it.

Used on the replica's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from vllm.lora.request import LoRARequest

from replicas.adapters.files import AdapterFiles, BrokenAdapter, find_adapter, list_adapters
from slo.errors import EngineFailed, Rejected, RejectReason, ReplicaLost, ServingError, Shed

logger = logging.getLogger("expresslane.replica")

LOOK_PERIOD_S: Final = 1.0
"""What lies in the directory is looked up again after so long: a removed adapter is served for no longer."""
BROKEN_KEPT_S: Final = 10.0
"""One that cannot be loaded is not tried again before, unless its files have changed: each try holds the engine up."""
NO_PLACE_RETRY_S: Final = 1.0


class AdapterEngine(Protocol):
    """As much of vLLM's `AsyncLLM` as is used."""

    @property
    def errored(self) -> bool: ...

    async def add_lora(self, lora_request: LoRARequest) -> bool: ...

    async def remove_lora(self, lora_id: int) -> bool: ...


@dataclass(eq=False, slots=True)
class _Adapter:
    """One version, from its load on. `loading` gives what went wrong, or None."""

    files: AdapterFiles
    request: LoRARequest
    loading: asyncio.Task[ServingError | None] = field(init=False)
    num_calls: int = 0
    used_s: float = 0.0
    failed_s: float | None = None


class AdapterShelf:
    """One engine's.

    Args:
        num_places: adapters of the directory that the engine may hold.
        check: raises BrokenAdapter or OSError; called in a thread.
        new_id: an adapter id that the engine has not had.
    """

    def __init__(
        self,
        engine: AdapterEngine,
        directory: Path,
        num_places: int,
        check: Callable[[AdapterFiles], None],
        new_id: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._directory = directory
        self._num_places = num_places
        self._check = check
        self._new_id = new_id
        self._clock = clock
        self._current: dict[str, _Adapter] = {}
        self._held: list[_Adapter] = []
        self._turn = asyncio.Lock()
        self._looked: dict[str, tuple[float, AdapterFiles]] = {}
        self._listed: tuple[float, tuple[str, ...]] | None = None

    async def names(self) -> tuple[str, ...]:
        """The adapters that lie in the directory, a moment ago. Raises EngineFailed: it cannot be read."""
        if self._listed is None or self._clock() - self._listed[0] > LOOK_PERIOD_S:
            self._listed = self._clock(), await self._read(list_adapters, self._directory)
        return self._listed[1]

    @asynccontextmanager
    async def lend(self, name: str) -> AsyncIterator[LoRARequest]:
        """The adapter of that name, loaded, as the engine is to be told of it; kept for the block.

        Raises:
            Rejected: there is none, or it is broken.
            Shed: others that calls use have all places.
            EngineFailed, ReplicaLost: the directory cannot be read; the engine is lost.
        """
        adapter = self._version(await self._find(name))
        adapter.num_calls += 1
        try:
            if (fault := await asyncio.shield(adapter.loading)) is not None:
                raise copy(fault)  # each call its own: raising one adds to its traceback
            yield adapter.request
        finally:
            adapter.num_calls -= 1
            adapter.used_s = self._clock()

    async def _find(self, name: str) -> AdapterFiles:
        looked = self._looked.get(name)
        if looked is not None and self._clock() - looked[0] <= LOOK_PERIOD_S:
            return looked[1]
        files = await self._read(find_adapter, self._directory, name)
        if files is None:
            self._looked.pop(name, None)
            self._current.pop(name, None)
            raise Rejected(f"the model {name!r} does not exist", param="model", reason=RejectReason.UNKNOWN_MODEL)
        self._looked[name] = self._clock(), files
        return files

    async def _read(self, read: Callable[..., Any], *arguments: object) -> Any:
        try:
            return await asyncio.to_thread(read, *arguments)
        except OSError as error:
            logger.error("directory=%r reason=adapters_unreadable error=%r", str(self._directory), str(error))
            raise EngineFailed("the directory of adapters cannot be read") from None

    def _version(self, files: AdapterFiles) -> _Adapter:
        current = self._current.get(files.name)
        if current is not None and current.files == files and not self._is_to_be_tried_again(current):
            return current
        number = self._new_id()
        adapter = _Adapter(files, LoRARequest(f"{files.name}@{number}", number, str(files.path)))
        self._current[files.name] = adapter
        adapter.loading = asyncio.create_task(self._load(adapter), name=f"adapter {files.name}")
        return adapter

    def _is_to_be_tried_again(self, adapter: _Adapter) -> bool:
        return adapter.failed_s is not None and self._clock() - adapter.failed_s > BROKEN_KEPT_S

    async def _load(self, adapter: _Adapter) -> ServingError | None:
        """Goes on when whoever asked for it has left. One at a time: the engine loads no two at once either."""
        async with self._turn:
            began_s = self._clock()
            fault = await self._try_to_load(adapter)
        name, number = adapter.files.name, adapter.request.lora_int_id
        if fault is None:
            logger.info("adapter=%s id=%d seconds=%.3f reason=loaded", name, number, self._clock() - began_s)
        else:
            adapter.failed_s = self._clock()
            if not isinstance(fault, Rejected) and self._current.get(name) is adapter:
                del self._current[name]
            logger.warning("adapter=%s id=%d reason=not_loaded error=%r", name, number, fault.message)
        return fault

    async def _try_to_load(self, adapter: _Adapter) -> ServingError | None:
        try:
            await asyncio.to_thread(self._check, adapter.files)
        except BrokenAdapter as error:
            return _broken(adapter, str(error))
        except OSError as error:
            return _broken(adapter, f"its files cannot be read ({type(error).__name__})")
        if not await self._make_place():
            return Shed(
                f"model: no place for the adapter {adapter.files.name!r}: requests use {self._num_places} others "
                "(max_cpu_loras in engine.extra_args)",
                NO_PLACE_RETRY_S,
            )
        try:
            await self._engine.add_lora(adapter.request)
        except Exception:  # of vLLM, of any type; what it leaves half done is removed
            if self._engine.errored:
                return ReplicaLost("the engine died while it loaded an adapter")
            logger.exception("adapter=%s reason=engine_refused", adapter.files.name)
            await self._remove(adapter)
            return _broken(adapter, "the engine cannot load it; is it made for this model?")
        self._held.append(adapter)
        return None

    async def _make_place(self) -> bool:
        """Gives up those that no call uses, the longest unused first, until there is a place; False: none can go."""
        while len(self._held) >= self._num_places:
            idle = min((a for a in self._held if not a.num_calls), key=lambda a: a.used_s, default=None)
            if idle is None:
                return False
            self._held.remove(idle)
            if self._current.get(idle.files.name) is idle:
                del self._current[idle.files.name]
            await self._remove(idle)
        return True

    async def _remove(self, adapter: _Adapter) -> None:
        with contextlib.suppress(Exception):  # a dead engine: who uses it next is told
            await self._engine.remove_lora(adapter.request.lora_int_id)

    def check_invariants(self) -> None:
        """For tests, while nothing is loaded: no more than there are places, and each that is lent is held."""
        assert len(self._held) <= self._num_places
        assert len({a.request.lora_int_id for a in self._held}) == len(self._held)
        assert all(a in self._held or a.failed_s is not None for a in self._current.values())


def _broken(adapter: _Adapter, reason: str) -> Rejected:
    return Rejected(f"model: the adapter {adapter.files.name!r} cannot be used: {reason}", param="model")

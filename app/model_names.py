"""Which names of one model a request's `model` may have: those of the settings, and the adapters beside its replicas.

What lies there is asked of a replica, so that the ingress needs no such directory on its machine. Names that were seen
pass at once: a replica refuses one that is gone. Others cause one question a second, however many ask.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from slo.adapters import is_adapter_name
from slo.errors import ServingError

FRESH_S: Final = 1.0
"""What a look has brought is used for so long before a name that is not in it causes another."""


class ModelNames:
    """The names, as one ingress process knows them.

    Args:
        fixed: those of the settings.
        list_models: OpenAI's model objects, from a replica; raises ServingError. None: there are no others.
    """

    def __init__(
        self,
        fixed: Sequence[str],
        list_models: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = tuple(fixed)
        self._list_models = list_models
        self._clock = clock
        self._listed: frozenset[str] = frozenset()
        self._is_silent = False
        """No replica answered at the last look."""
        self._looked_s: float | None = None
        self._turn = asyncio.Lock()

    @property
    def known(self) -> tuple[str, ...]:
        """Those of the settings, and those seen."""
        return (*self._fixed, *sorted(self._listed.difference(self._fixed)))

    def has(self, name: str) -> bool:
        """Whether `name` is one of these."""
        return name in self._fixed or name in self._listed

    async def look(self, name: str) -> bool | None:
        """Whether `name`, which is none of these, is there since the last look; None: no replica can be asked."""
        if self._list_models is None or not is_adapter_name(name):
            return False
        async with self._turn:
            if self._looked_s is None or self._clock() - self._looked_s > FRESH_S:
                await self._ask(self._list_models)
        if name in self._listed:
            return True
        return None if self._is_silent else False

    async def _ask(self, list_models: Callable[[], Awaitable[list[dict[str, Any]]]]) -> None:
        try:
            self._listed = frozenset(model["id"] for model in await list_models())
            self._is_silent = False
        except ServingError:
            self._is_silent = True
        self._looked_s = self._clock()

"""How many calls a replica is answering, and waiting for them to be over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Calls:
    """Calls under way. Used on one event loop."""

    def __init__(self) -> None:
        self._num = 0
        self._over = asyncio.Event()
        self._over.set()

    @property
    def num(self) -> int:
        """Those under way."""
        return self._num

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """One call, from its start to its end."""
        self._num += 1
        self._over.clear()
        try:
            yield
        finally:
            self._num -= 1
            if self._num == 0:
                self._over.set()

    async def until_over(self, limit_s: float) -> None:
        """Returns when none is under way, or after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), limit_s)

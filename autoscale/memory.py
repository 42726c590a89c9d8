"""What the controller remembers across its own restarts, in the cluster's key-value store (Ray's GCS).

Ray has no documented store for applications; `ray.experimental.internal_kv` is what its own libraries use, and it lives
as long as the cluster does. It is known here only, and a contract test holds it.
"""

from __future__ import annotations

import asyncio

from ray.experimental import internal_kv

NAMESPACE = "expresslane"


class RayMemory:
    """One value under one key. Called by the control loop; the calls block on the network, so they run in a thread."""

    def __init__(self, fleet: str) -> None:
        """Args: fleet: whose; of no other one in the cluster."""
        self._key = f"autoscale/{fleet}"

    async def load(self) -> bytes | None:
        """What was saved last; None when nothing ever was."""
        value: bytes | None = await asyncio.to_thread(internal_kv._internal_kv_get, self._key, namespace=NAMESPACE)
        return value

    async def save(self, value: bytes) -> None:
        """Replaces what was saved."""
        await asyncio.to_thread(internal_kv._internal_kv_put, self._key, value, overwrite=True, namespace=NAMESPACE)

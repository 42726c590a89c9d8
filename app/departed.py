"""Answers of replicas that Serve has taken out of the choice: which drain, and which are gone without a word.

A connection to a machine that has lost its power, or its network, does not break: who reads from it waits without end.
A replica that drains looks the same, but it answers; the other one is dead to Ray, once that has given its machine up.
Mechanism alone, on the router's event loop; Serve pickles this module with the router.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakSet

from ray.exceptions import ActorDiedError, RayError
from ray.serve.request_router import ReplicaID, RunningReplica

LOOK_S: Final = 2.0
"""Between two questions to a replica that was taken out, and the longest wait for its answer."""


class Departed:
    """Ends the answers of a replica that is dead, so that whoever waits for them can go on elsewhere."""

    def __init__(self, look_s: float = LOOK_S) -> None:
        self._look_s = look_s
        self._answers: dict[ReplicaID, WeakSet[Any]] = {}
        self._looks: dict[ReplicaID, asyncio.Task[None]] = {}

    def answering(self, replica_id: ReplicaID, answer: Any) -> None:
        """The replica has taken a call, and answers it by `answer` (Serve's `ReplicaResult`): known while in use."""
        self._answers.setdefault(replica_id, WeakSet()).add(answer)

    def has_died(self, replica_id: ReplicaID) -> None:
        """The replica is dead to Ray."""
        for answer in self._answers.pop(replica_id, ()):
            answer.cancel()

    def taken_out(self, replica: RunningReplica) -> None:
        """Serve gives it no new requests. It is looked after until its answers have ended."""
        replica_id = replica.replica_id
        if replica_id in self._answers and replica_id not in self._looks:
            look = self._looks[replica_id] = asyncio.get_running_loop().create_task(self._look_after(replica))
            look.add_done_callback(lambda _: self._looks.pop(replica_id, None))

    async def _look_after(self, replica: RunningReplica) -> None:
        while self._answers.get(replica.replica_id):
            if await self._is_dead(replica):
                self.has_died(replica.replica_id)
                return
            await asyncio.sleep(self._look_s)
        self._answers.pop(replica.replica_id, None)

    async def _is_dead(self, replica: RunningReplica) -> bool:
        """Who does not answer is not dead: Ray says so of those that are."""
        try:
            async with asyncio.timeout(self._look_s):
                await replica.get_queue_len(deadline_s=self._look_s)
        except ActorDiedError:
            return True
        except (TimeoutError, RayError):
            pass
        return False

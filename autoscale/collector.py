"""Asks every replica and every ingress process for its snapshot, through Ray Serve's handles.

Owns the time limit and the stamp of receipt. One that is slow, dead or raises is counted as silent and holds nobody up;
none is ever taken for zero.

Serve's own `results_async(timeout_s=...)` gives up all answers when one is late, so the results are taken one by one:
`DeploymentBroadcastResponse._fetch_replica_results_async` is the one private point used here, and a contract test holds
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException

from autoscale.window import Answer, Collection, Snapshot
from slo.snapshots import BatchSnapshot, EngineSnapshot, IngressSnapshot

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

METHOD = "snapshot"
"""Of the ingress, which takes a model's name, of the replica and of the owner of the batches: returns its snapshot."""


class ServeCollector:
    """Collects over the handles of the deployments. Called by the control loop, on its event loop.

    Args:
        replicas: gives the handle of the replica deployment; `ingresses` that of the ingress. Called when first needed:
            Serve may not know a deployment yet while the application starts.
        batches: likewise; None: there are none.
        timeout_s: how long all of a period's answers may take.
        model: the ingress is asked for what concerns this one.
    """

    def __init__(
        self,
        replicas: Callable[[], DeploymentHandle[Any]],
        ingresses: Callable[[], DeploymentHandle[Any]],
        timeout_s: float,
        model: str,
        clock: Callable[[], float] = time.monotonic,
        batches: Callable[[], DeploymentHandle[Any]] | None = None,
    ) -> None:
        self._replicas = replicas
        self._model = model
        self._ingresses = ingresses
        self._timeout_s = timeout_s
        self._clock = clock
        self._batches = batches

    async def collect(self) -> Collection:
        """What answers within the time limit. Raises nothing of Ray's: who cannot be asked has not answered."""
        (ingresses, silent_ingresses), (engines, silent_engines), (batches, silent_batches) = await asyncio.gather(
            self._ask(self._ingresses, IngressSnapshot, self._model),
            self._ask(self._replicas, EngineSnapshot),
            self._ask(self._batches, BatchSnapshot),
        )
        return Collection(ingresses, engines, silent_ingresses, silent_engines, batches, silent_batches)

    async def _ask(
        self, handle: Callable[[], DeploymentHandle[Any]] | None, kind: type[Snapshot], *arguments: str
    ) -> tuple[tuple[Answer[Snapshot], ...], int]:
        """The answers of every process behind `handle`, and how many gave none."""
        if handle is None:
            return (), 0
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                results = await handle().broadcast(METHOD, *arguments)._fetch_replica_results_async()
        except (DeploymentUnavailableError, RayServeException):
            return (), 0  # nobody is there to be asked
        except (TimeoutError, RayError):
            return (), 1
        outcomes = await asyncio.gather(*(self._answer(r, kind, deadline_s) for r in results), return_exceptions=True)
        answers = tuple(o for o in outcomes if isinstance(o, Answer))
        return answers, len(outcomes) - len(answers)

    async def _answer(self, result: Any, kind: type[Snapshot], deadline_s: float) -> Answer[Snapshot]:
        try:
            async with asyncio.timeout_at(deadline_s):
                snapshot = await result.get_async()
        except TimeoutError:
            result.cancel()
            raise
        if not isinstance(snapshot, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(snapshot).__name__}")
        return Answer(snapshot, self._clock() - snapshot.age_s)

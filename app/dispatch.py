"""The seam between the HTTP side and the replicas.

`Dispatcher` is what the API needs of them; `ServeDispatcher` is the real one, over a Ray Serve handle, and turns Ray's
failures into ours. Nothing else in this room knows Ray, apart from `main.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Protocol

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from slo.errors import EngineFailed, Expired, ReplicaLost, ServingError, Shed
from slo.messages import Failure, GenerateCall, Reply

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

    from slo.settings.gate import AdmissionSettings

BACK_PRESSURE_RETRY_S = 1.0
"""What a caller is told to wait when a replica's queue is full. No estimate: admission gives one of its own."""


class Dispatcher(Protocol):
    """What the API asks of the replicas. Called in the ingress process, on its event loop."""

    def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        """Sends `call` to a replica and yields its replies; the last may be a `Failure`.

        Never raises a `ServingError`: it yields it. Closing the generator stops the engine's work.
        """
        ...

    async def models(self) -> list[dict[str, Any]]:
        """The models served, as OpenAI's model objects. Raises ReplicaLost when no replica can tell."""
        ...


class ServeDispatcher:
    """Dispatches over a handle to the replica deployment.

    Args:
        answer_timeout_s: for a short question.
        admission: its classes' time-outs bound how long a call waits until a replica has taken it. Serve itself waits
            without end: while no replica runs, while all are full, and for one that does not say whether it takes it.
    """

    def __init__(self, replica: DeploymentHandle[Any], answer_timeout_s: float, admission: AdmissionSettings) -> None:
        self._replica = replica
        self._streaming = replica.options(stream=True)
        self._answer_timeout_s = answer_timeout_s
        self._admission = admission

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        """See `Dispatcher.generate`."""
        replies = self._streaming.generate.remote(call)
        try:
            timeout_s = self._admission.of(call.priority).queue_timeout_s
            if not await _is_taken(replies, timeout_s):
                name = call.priority.name
                yield Failure(
                    Expired(f"no replica took the request in {timeout_s:g} s, as long as class {name} may wait")
                )
                return
            async for reply in replies:
                yield reply
        except (RayError, BackPressureError, DeploymentUnavailableError) as error:
            yield Failure(from_ray(error))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            yield Failure(ReplicaLost("the replica that answered does not exist any more"))  # see app.departed
        finally:
            replies.cancel()

    async def models(self) -> list[dict[str, Any]]:
        """See `Dispatcher.models`; bounded by `answer_timeout_s`."""
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                listed: list[dict[str, Any]] = await self._replica.models.remote()
                return listed
        except TimeoutError:
            raise ReplicaLost("no replica answered in time") from None
        except (RayError, BackPressureError, DeploymentUnavailableError) as error:
            raise from_ray(error) from None


def _is_cancelled() -> bool:
    """Whether it is this task that was cancelled, not the call for which it waited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _is_taken(replies: DeploymentResponseGenerator[Any], timeout_s: float) -> bool:
    """Waits until a replica has taken the call, or it is certain that none will; False: neither in time.

    By an attribute that is Serve's own, held by a test; it has no public sign of it before the first reply, which a
    whole answer gives at its end.
    """
    taken = asyncio.wrap_future(replies._replica_result_future)
    done, _ = await asyncio.wait([taken], timeout=timeout_s)
    return bool(done)


def from_ray(error: Exception) -> ServingError:
    """A failure of Ray or Serve, in our words."""
    match error:
        case BackPressureError():
            return Shed("every replica's queue is full", BACK_PRESSURE_RETRY_S)
        case RayTaskError(cause=ServingError() as cause):
            return cause
        case RayTaskError():
            return EngineFailed("the replica failed while answering")
        case RayActorError() | DeploymentUnavailableError():
            return ReplicaLost("the replica that answered was lost")
        case _:
            return ReplicaLost("no replica could be reached")

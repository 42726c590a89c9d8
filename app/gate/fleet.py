"""How many replicas run, as the gate is told."""

from __future__ import annotations

from typing import Protocol

from app.dispatch import Dispatcher
from slo.errors import ControllerAway, ReplicaLost, ServingError


class Fleet(Protocol):
    """Who counts the replicas. Called in the ingress process, on its event loop."""

    async def num_running_replicas(self, model: str) -> int | None:
        """Those of one model. Some seconds old; None when it could not be told. Raises ControllerAway."""
        ...


async def num_running(fleet: Fleet, model: str, dispatcher: Dispatcher) -> int | None:
    """The running replicas of `model` by the controller's count; None when it is not known.

    The controller's count is some seconds old. Where it is 0, the replicas are asked themselves: nobody is refused for
    want of a replica while one answers.
    """
    try:
        running = await fleet.num_running_replicas(model)
    except ControllerAway:
        return None
    if running != 0:
        return running
    try:
        await dispatcher.models()
    except ReplicaLost:
        return 0
    except ServingError:
        return 1  # it answered, if not well
    return 1

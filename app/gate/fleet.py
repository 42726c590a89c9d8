"""How many replicas run, as the gate is told."""

from __future__ import annotations

from app.dispatch import Dispatcher
from app.operator import Operator
from slo.errors import ControllerAway, ReplicaLost, ServingError


async def num_running(operator: Operator, dispatcher: Dispatcher) -> int | None:
    """The running replicas by the controller's count; None when it is not known.

    The controller's count is some seconds old. Where it is 0, the replicas are asked themselves: nobody is refused for
    want of a replica while one answers.
    """
    try:
        running = (await operator.status()).counts.running
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

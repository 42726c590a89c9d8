from typing import Any

import pytest

from app.gate.fleet import num_running
from slo.errors import ControllerAway, EngineFailed, ReplicaLost
from tests.app.fake_dispatcher import MODELS, FakeDispatcher


class Controller:
    """Tells so many running replicas, or that it is away."""

    def __init__(self, running: int | Exception | None) -> None:
        self._running = running

    async def num_running_replicas(self, model: str) -> int | None:
        assert model == "tiny"
        if isinstance(self._running, Exception):
            raise self._running
        return self._running


@pytest.mark.parametrize(
    ("told", "models", "expected"),
    [
        (3, ReplicaLost("never asked"), 3),
        (None, ReplicaLost("never asked"), None),
        (ControllerAway("away"), ReplicaLost("never asked"), None),
        (0, ReplicaLost("gone"), 0),
        (0, MODELS, 1),  # the controller's count is old: a replica answers
        (0, EngineFailed("fault"), 1),
    ],
)
async def test_num_running_is_the_controllers_count_and_never_0_while_a_replica_answers(
    told: Any, models: Any, expected: int | None
) -> None:
    assert await num_running(Controller(told), "tiny", FakeDispatcher(models=models)) == expected

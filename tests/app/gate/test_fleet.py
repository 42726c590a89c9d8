from typing import Any

import pytest

from app.gate.fleet import num_running
from slo.errors import ControllerAway, EngineFailed, ReplicaLost
from slo.status import AlertsReport, ReplicaCountsReport, StatusReport
from tests.app.fake_dispatcher import MODELS, FakeDispatcher


class Controller:
    """Tells so many running replicas, or that it is away."""

    def __init__(self, running: int | Exception | None) -> None:
        self._running = running

    async def metrics(self) -> str:
        raise AssertionError("nobody asks for this")

    async def alerts(self) -> AlertsReport:
        raise AssertionError("nobody asks for this")

    async def status(self) -> StatusReport:
        if isinstance(self._running, Exception):
            raise self._running
        counts = ReplicaCountsReport(
            target=1, running=self._running, starting=0, draining=0, min_replicas=1, max_replicas=4
        )
        return StatusReport(
            model="tiny",
            mode="on",
            up_s=10,
            period_s=10,
            window_s=30,
            is_complete=True,
            counts=counts,
            replicas=(),
            classes=(),
            preemptions_per_minute=None,
            kv_hit_ratio=None,
            gpu_utilisation_ratio=None,
            mean_batch_size=None,
            alerts=(),
            decisions=(),
        )


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
    assert await num_running(Controller(told), FakeDispatcher(models=models)) == expected

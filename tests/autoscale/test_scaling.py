"""The real policy behind a fake of Serve.

Mutations tried, each seen by a test here: the state saved after the change; a dry run applied; `off` deciding; the
fault never cleared; a repeated decision counted again; the state never recalled; a decision not remembered."""

from __future__ import annotations

import logging

import pytest

from autoscale.policy import ScalingReason
from autoscale.scaling import ActuatorError, ScalerDisabled, Scaling
from autoscale.scaling_state import load_state
from autoscale.view import ClassView, FleetView, ReplicaCounts
from slo.settings import Settings, parse_settings
from tests.autoscale.fleet import P0, FakeClock, FakeMemory, FakeServe

BREACH = frozenset({P0})


def settings(mode: str = "on") -> Settings:
    return parse_settings({"autoscale": {"mode": mode, "max_replicas": 3}})


class Fleet:
    """A scaling over fakes, and the view that it is shown each period: P0's tokens are slow while `slow` is set."""

    def __init__(self, mode: str = "on", serve: FakeServe | None = None, memory: FakeMemory | None = None) -> None:
        self.clock = FakeClock()
        self.serve = serve or FakeServe()
        self.memory = memory or FakeMemory()
        self.scaling = Scaling(settings(mode), self.serve, self.memory, self.clock)

    async def period(self, slow: bool) -> None:
        self.clock.now_s += 10
        served = await self.scaling.read()
        counts = None
        if served is not None:
            counts = ReplicaCounts(served.target, served.running, served.starting, served.draining, served.running)
        of_p0 = ClassView(tbt_p99_s=0.5 if slow else 0.001, arrivals_per_s=5, completions_per_s=5, num_running=4)
        view = FleetView(
            self.clock.now_s, 30, {P0: of_p0}, counts, counts is not None, saturation_ratio=0.9, slots_per_replica=8
        )
        await self.scaling.act(view, BREACH if slow else frozenset())


async def test_breach_sets_a_higher_target_and_is_remembered() -> None:
    fleet = Fleet()
    await fleet.period(slow=True)
    assert fleet.serve.targets == [2]
    (change,) = fleet.scaling.changes
    assert (change.from_replicas, change.to_replicas, change.reason, change.dry_run) == (
        1,
        2,
        ScalingReason.TBT_BREACH,
        False,
    )
    assert change.at_s == fleet.clock.now_s
    assert fleet.scaling.num_changes == {ScalingReason.TBT_BREACH: 1}


async def test_nothing_is_set_while_all_is_well() -> None:
    fleet = Fleet()
    for _ in range(5):
        await fleet.period(slow=False)
    assert fleet.serve.targets == []
    assert not fleet.scaling.changes


async def test_target_that_serve_has_not_come_round_to_is_set_again_and_told_once() -> None:
    fleet = Fleet()
    await fleet.period(slow=True)
    fleet.serve.target = 1
    await fleet.period(slow=True)
    assert fleet.serve.targets == [2, 2]
    assert len(fleet.scaling.changes) == 1
    assert fleet.scaling.num_changes == {ScalingReason.TBT_BREACH: 1}


async def test_dry_run_tells_once_and_sets_nothing() -> None:
    fleet = Fleet("dry_run")
    for _ in range(4):
        await fleet.period(slow=True)
    assert fleet.serve.targets == []
    (change,) = fleet.scaling.changes
    assert change.dry_run
    assert fleet.scaling.num_changes == {ScalingReason.TBT_BREACH: 1}


async def test_off_decides_nothing_and_keeps_nothing() -> None:
    fleet = Fleet("off")
    await fleet.period(slow=True)
    assert fleet.serve.targets == []
    assert not fleet.scaling.changes
    assert fleet.memory.value is None


async def test_state_is_kept_before_the_target_is_set() -> None:
    fleet = Fleet()
    fleet.serve.set_error = ActuatorError("died in between")
    await fleet.period(slow=True)
    assert fleet.memory.value is not None
    assert load_state(fleet.memory.value.decode()).target == 2
    assert fleet.serve.targets == []


async def test_target_is_not_set_when_the_state_cannot_be_kept() -> None:
    fleet = Fleet()
    fleet.memory.error = OSError("no store")
    with pytest.raises(OSError, match="no store"):
        await fleet.period(slow=True)
    assert fleet.serve.targets == []


async def test_restarted_controller_sets_the_target_that_its_predecessor_had_decided() -> None:
    first = Fleet()
    first.serve.set_error = ActuatorError("killed before it could")
    await first.period(slow=True)
    first.serve.set_error = None
    second = Fleet(serve=first.serve, memory=first.memory)
    await second.period(slow=True)
    assert second.serve.targets == [2]


async def test_redeploy_that_reset_the_target_is_put_right() -> None:
    fleet = Fleet()
    await fleet.period(slow=True)
    fleet.serve.start()
    await fleet.period(slow=False)
    fleet.serve.target = fleet.serve.running = 1
    await fleet.period(slow=False)
    assert fleet.serve.targets == [2, 2]
    assert fleet.scaling.changes[0].reason is ScalingReason.RESTORED


async def test_redeploy_is_put_right_by_a_controller_that_was_redeployed_too() -> None:
    first = Fleet()
    await first.period(slow=True)
    first.serve.start()
    await first.period(slow=False)
    second = Fleet(serve=FakeServe(running=1, target=1), memory=first.memory)
    await second.period(slow=False)
    assert second.serve.targets == [2]


async def test_state_that_is_not_understood_is_dropped_and_told(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(memory=FakeMemory(b"{nonsense"))
    with caplog.at_level(logging.WARNING, logger="expresslane.autoscale"):
        await fleet.period(slow=False)
    assert "reason=state_not_understood" in caplog.text
    assert fleet.memory.value != b"{nonsense"


@pytest.mark.parametrize("error", [ScalerDisabled("without the flag"), ActuatorError("Serve answered 503")])
async def test_target_that_cannot_be_set_is_a_fault_told_once_and_tried_again(
    error: ActuatorError, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet()
    fleet.serve.set_error = error
    for _ in range(3):
        await fleet.period(slow=True)
    assert fleet.scaling.fault is not None
    assert fleet.scaling.fault.message == str(error)
    assert fleet.scaling.fault.since_s == 1010
    assert not fleet.scaling.changes
    assert caplog.text.count("reason=scaling_failed") == 1
    fleet.serve.set_error = None
    await fleet.period(slow=True)
    assert fleet.serve.targets == [2]
    assert fleet.scaling.fault is None


async def test_serve_that_cannot_be_asked_is_a_fault_while_it_lasts() -> None:
    fleet = Fleet()
    fleet.serve.read_error = ActuatorError("the dashboard cannot be reached")
    await fleet.period(slow=True)
    assert fleet.scaling.fault is not None
    assert fleet.serve.targets == []
    fleet.serve.read_error = None
    await fleet.period(slow=True)
    assert fleet.scaling.fault is None
    assert fleet.serve.targets == [2]


async def test_decision_and_replicas_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    with caplog.at_level(logging.INFO, logger="expresslane.autoscale"):
        await fleet.period(slow=True)
        await fleet.period(slow=True)
        fleet.serve.start()
        await fleet.period(slow=True)
    lines = [r.getMessage() for r in caplog.records]
    messages = [line.removesuffix(" model=SmolLM2-135M-Instruct") for line in lines]
    assert messages != lines
    assert messages[0] == "replicas target=1 running=1 starting=0 draining=0"
    assert messages[1].startswith("decision from=1 to=2 reason=tbt_breach mode=on detail=")
    assert messages[2] == "replicas target=2 running=1 starting=1 draining=0"
    assert messages[3] == "replicas target=2 running=2 starting=0 draining=0"

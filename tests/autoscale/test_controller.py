"""The whole loop over fakes of what it asks: the real window, rules and policy, a fake clock, no Ray.

Mutations tried, each seen by a test here: the loop ending at an exception; failed periods taken for good ones; breaches
not handed to the policy; the look not kept when scaling fails; pending alerts logged each period."""

from __future__ import annotations

import asyncio
import logging

import pytest

from autoscale.controller import ControlLoop
from autoscale.exposition import render
from autoscale.rules import SCALING_FAILED
from autoscale.scaling import ActuatorError
from slo.errors import ControllerAway
from slo.settings import Settings, parse_settings
from slo.snapshots import ClassLoad
from slo.status import AlertState
from tests.autoscale.fleet import P0, FakeClock, FakeCollector, FakeMemory, FakeServe, completed, engine, ingress

PERIOD_S = 10


def settings(**autoscale: object) -> Settings:
    return parse_settings({"autoscale": {"max_replicas": 2, **autoscale}})


class Fleet:
    """A control loop over fakes, driven period by period; each period brings P0 some gaps between tokens."""

    def __init__(self, settings: Settings, serve: FakeServe | None = None, memory: FakeMemory | None = None) -> None:
        self.clock = FakeClock()
        self.serve = serve or FakeServe()
        self.memory = memory or FakeMemory()
        self.collector = FakeCollector(self.clock)
        self.gaps_s: list[float] = []
        self.loop = ControlLoop(settings, self.collector, self.serve, self.memory, self.clock, self.sleep)
        self.sleeps_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.sleeps_s.append(seconds)
        self.clock.now_s += seconds
        await asyncio.sleep(0)

    async def period(self, gap_s: float | None = None) -> None:
        """A period in which P0's gaps between tokens are `gap_s`; None: nobody asks for anything."""
        self.clock.now_s += PERIOD_S
        if gap_s is not None:
            self.gaps_s += [gap_s] * 100
        number, busy = len(self.gaps_s), gap_s is not None
        self.collector.ingresses = [ingress(classes={P0: completed(number, tbt_s=self.gaps_s)})]
        load = ClassLoad(num_running=6 if busy else 0)
        self.collector.engines = [
            engine(f"engine {i}", {P0: load}, saturation=0.8 if busy else 0) for i in range(self.serve.running)
        ]
        await self.loop.tick()
        self.loop.check_invariants()

    async def periods(self, number: int, gap_s: float | None = None) -> None:
        for _ in range(number):
            await self.period(gap_s)


SLOW_S = 0.1
FAST_S = 0.005


async def test_log_tells_the_story_of_a_breach(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(settings())
    with caplog.at_level(logging.INFO, logger="expresslane.autoscale"):
        await fleet.periods(2, FAST_S)
        await fleet.periods(3, SLOW_S)
        fleet.serve.start()
        await fleet.periods(8, FAST_S)
        await fleet.periods(60)
    fleet.serve.drained()
    told = [r.getMessage().split(" detail=")[0] for r in caplog.records]
    expected = (
        "replicas target=1 running=1",
        "alert=tbt_breach class=P0 state=pending",
        "alert=tbt_breach class=P0 state=firing",
        "decision from=1 to=2 reason=tbt_breach mode=on",
        "replicas target=2 running=2",
        "alert=tbt_breach class=P0 state=cleared",
        "decision from=2 to=1 reason=",
        "replicas target=1 running=1 starting=0 draining=1",
    )
    assert len(told) == len(expected), told
    for line, beginning in zip(told, expected, strict=True):
        assert line.startswith(beginning)
    assert fleet.serve.targets == [2, 1]


async def test_breach_scales_out_in_its_third_period() -> None:
    fleet = Fleet(settings())
    await fleet.periods(2, FAST_S)
    targets = []
    for _ in range(3):
        await fleet.period(SLOW_S)
        targets.append(fleet.serve.target)
    assert targets == [1, 1, 2]


async def test_breach_that_lasts_while_a_replica_starts_gives_one_step() -> None:
    fleet = Fleet(settings(max_replicas=8))
    await fleet.periods(2, FAST_S)
    await fleet.periods(30, SLOW_S)
    assert fleet.serve.targets == [2]


async def test_restarted_controller_finishes_the_job() -> None:
    first = Fleet(settings())
    await first.periods(2, FAST_S)
    await first.periods(2, SLOW_S)
    second = Fleet(settings(), serve=first.serve, memory=first.memory)
    await second.periods(5, SLOW_S)
    assert second.serve.targets == [2]


async def test_restart_does_not_take_the_past_for_a_burst() -> None:
    """A source's whole history arrives in the first period after a restart: none of it is of the window."""
    first = Fleet(settings())
    await first.periods(10, SLOW_S)
    second = Fleet(settings(), serve=FakeServe(running=1), memory=FakeMemory())
    second.gaps_s = first.gaps_s
    await second.periods(5)
    assert second.loop.status().classes[0].tbt_p99_s is None
    assert second.serve.targets == []


@pytest.mark.parametrize(("mode", "alerts_fire", "targets"), [("dry_run", True, []), ("off", True, [])])
async def test_alerts_fire_and_nothing_changes_unless_the_mode_is_on(
    mode: str, alerts_fire: bool, targets: list[int]
) -> None:
    fleet = Fleet(settings(mode=mode))
    await fleet.periods(2, FAST_S)
    await fleet.periods(4, SLOW_S)
    assert any(a.state is AlertState.FIRING for a in fleet.loop.alerts().alerts) is alerts_fire
    assert fleet.serve.targets == targets
    assert bool(fleet.loop.status().decisions) is (mode == "dry_run")


@pytest.mark.parametrize("ask", ["status", "alerts", "exposed", "num_running_replicas"])
async def test_nothing_is_told_before_the_first_look(ask: str) -> None:
    with pytest.raises(ControllerAway, match="has not looked"):
        getattr(Fleet(settings()).loop, ask)()


async def test_answers_are_of_the_latest_look() -> None:
    fleet = Fleet(settings())
    await fleet.periods(3, FAST_S)
    status = fleet.loop.status()
    assert fleet.loop.num_running_replicas() == status.counts.running == 1
    assert status.up_s == 30
    assert status.is_complete
    assert status.counts.running == 1
    assert [r.source_id for r in status.replicas] == ["engine 0"]
    assert "expresslane_replicas" in render(fleet.loop.exposed())
    fleet.clock.now_s += 7
    assert fleet.loop.status().replicas[0].age_s == 7


async def test_fault_of_scaling_is_shown_and_the_loop_goes_on() -> None:
    fleet = Fleet(settings())
    await fleet.periods(2, FAST_S)
    fleet.serve.set_error = ActuatorError("no flag")
    await fleet.periods(3, SLOW_S)
    assert fleet.loop.alerts().alerts[0].name == SCALING_FAILED
    assert fleet.loop.status().counts.target == 1


async def test_look_is_kept_when_the_state_cannot_be_saved() -> None:
    fleet = Fleet(settings())
    fleet.memory.error = OSError("no store")
    with pytest.raises(OSError, match="no store"):
        await fleet.period(FAST_S)
    assert fleet.loop.status().counts.running == 1


async def run_for(fleet: Fleet, periods: int) -> None:
    task = asyncio.create_task(fleet.loop.run())
    while len(fleet.sleeps_s) < periods:
        assert not task.done()
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_loop_survives_whatever_goes_wrong_in_a_period(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(settings())
    fleet.collector.error = ZeroDivisionError("a fault of ours")
    await run_for(fleet, 3)
    assert fleet.loop.num_failed_periods >= 3
    assert "reason=period_failed num_failed=1" in caplog.text
    assert "a fault of ours" in caplog.text
    fleet.collector.error = None
    await run_for(fleet, 5)
    assert fleet.loop.status().counts.running == 1


async def test_loop_keeps_its_period_when_a_look_takes_long() -> None:
    fleet = Fleet(settings())
    took_s = iter((3.0, 25.0, 0.0))
    collect = fleet.collector.collect

    async def slowly():  # type: ignore[no-untyped-def]
        fleet.clock.now_s += next(took_s, 0.0)
        return await collect()

    fleet.collector.collect = slowly  # type: ignore[method-assign]
    await run_for(fleet, 3)
    assert fleet.sleeps_s[:3] == [7, 0, 10]


async def test_loop_is_alive_while_it_gets_through_and_stuck_when_it_does_not() -> None:
    fleet = Fleet(settings())
    await run_for(fleet, 20)
    fleet.loop.check_alive()
    fleet.clock.now_s += 60  # beside the period that the last sleep took
    fleet.loop.check_alive()
    fleet.clock.now_s += 1
    with pytest.raises(RuntimeError, match="no period was got through for"):
        fleet.loop.check_alive()


async def test_loop_is_stuck_when_every_period_fails() -> None:
    fleet = Fleet(settings())
    fleet.collector.error = ZeroDivisionError("always")
    await run_for(fleet, 9)
    with pytest.raises(RuntimeError, match="no period was got through for"):
        fleet.loop.check_alive()

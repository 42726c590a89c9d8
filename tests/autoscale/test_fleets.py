"""Two models' control loops over fakes, as one.

Mutations tried by hand, each found by a test here: the first model's status for any; the model's label left out
of a metric; one loop's alerts alone; a loop that is stuck hidden by one that is not."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscale.controller import ControlLoop
from autoscale.exposition import render
from autoscale.fleets import Fleets
from slo.errors import ControllerAway, Rejected
from slo.settings import parse_settings
from slo.snapshots import ClassLoad
from slo.status import AlertState
from tests.autoscale.fleet import P0, FakeClock, FakeCollector, FakeMemory, FakeServe, completed, engine, ingress

PERIOD_S = 10
SETTINGS = parse_settings(
    {
        "models": [
            {"model": {"source": "org/one"}, "autoscale": {"max_replicas": 2}},
            {"model": {"source": "org/two"}, "scheduler": {"targets": {"p0": {"tbt_p99_ms": 90}}}},
        ]
    }
)


class Scene:
    """Each period brings the same gaps between tokens of P0 to both models."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.serves = {model: FakeServe() for model in SETTINGS.by_model}
        self.collectors = {model: FakeCollector(self.clock) for model in SETTINGS.by_model}
        self.loops = {
            model: ControlLoop(
                settings,
                self.collectors[model],
                self.serves[model],
                FakeMemory(),
                self.clock,
                lambda _: asyncio.sleep(0),
            )
            for model, settings in SETTINGS.by_model.items()
        }
        self.fleets = Fleets(self.loops)
        self._gaps_s: list[float] = []

    async def period(self, gap_s: float) -> None:
        self.clock.now_s += PERIOD_S
        self._gaps_s += [gap_s] * 100
        for model, loop in self.loops.items():
            collector = self.collectors[model]
            collector.ingresses = [ingress(classes={P0: completed(len(self._gaps_s), tbt_s=self._gaps_s)})]
            collector.engines = [engine(f"engine of {model}", {P0: ClassLoad(num_running=6)}, saturation=0.8)]
            await loop.tick()


async def breach() -> Scene:
    """P0 is slow, which only the first model's targets forbid."""
    scene = Scene()
    for _ in range(6):
        await scene.period(0.1)
    return scene


async def test_each_fleet_is_scaled_by_its_own_targets() -> None:
    scene = await breach()
    assert scene.serves["org/one"].targets == [2]
    assert scene.serves["org/two"].targets == []


async def test_status_is_of_one_model_with_the_alerts_of_all() -> None:
    fleets = (await breach()).fleets
    one, two = fleets.status("org/one"), fleets.status("org/two")
    assert fleets.status(None).model == one.model == "org/one"
    assert one.models == two.models == ("org/one", "org/two")
    assert (one.counts.max_replicas, two.counts.max_replicas) == (2, 1)
    assert [r.source_id for r in two.replicas] == ["engine of org/two"]
    assert one.alerts == two.alerts == fleets.alerts().alerts
    assert [(a.model, a.name, a.state) for a in one.alerts] == [("org/one", "tbt_breach", AlertState.FIRING)]
    assert (fleets.num_running_replicas("org/one"), fleets.num_running_replicas("org/two")) == (1, 1)


@pytest.mark.parametrize("ask", ["status", "num_running_replicas"])
async def test_model_that_is_not_there_is_refused(ask: str) -> None:
    fleets = (await breach()).fleets
    with pytest.raises(Rejected, match="there are: org/one, org/two"):
        getattr(fleets, ask)("three")


async def test_metrics_have_the_models_name_as_a_label_and_are_else_the_same() -> None:
    scene = await breach()
    told = {
        (family.name, sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(scene.fleets.metrics())
        for sample in family.samples
    }
    alone = {
        (family.name, sample.name, tuple(sorted({**sample.labels, "model": model}.items()))): sample.value
        for model, loop in scene.loops.items()
        for family in text_string_to_metric_families(render(loop.exposed()))
        for sample in family.samples
    }
    assert told == alone


async def test_metrics_of_one_model_have_no_such_label() -> None:
    scene = await breach()
    assert "model=" not in Fleets({"org/one": scene.loops["org/one"]}).metrics()


async def test_nothing_is_told_before_each_fleet_has_been_looked_at() -> None:
    scene = Scene()
    await scene.loops["org/one"].tick()
    for ask in (scene.fleets.metrics, scene.fleets.alerts, lambda: scene.fleets.status(None)):
        with pytest.raises(ControllerAway):
            ask()


async def test_all_loops_run_and_one_that_is_stuck_is_told() -> None:
    scene = Scene()
    running = asyncio.create_task(scene.fleets.run())
    async with asyncio.timeout(30):
        while any(loop._look is None for loop in scene.loops.values()):  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0)
    scene.fleets.check_alive()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    scene.clock.now_s += 1000
    await scene.loops["org/one"].tick()
    scene.loops["org/one"]._got_through_s = scene.clock.now_s
    with pytest.raises(RuntimeError, match="no period was got through"):
        scene.fleets.check_alive()

"""The shelf over an engine that only keeps account. The files are real, and looked up at once when the clock is set.

Mutations tried by hand, each found by a test here: a lent adapter given up; one load for each call; a failure kept for
ever, or not at all; an older version given to a later call; a load ended when who asked for it leaves.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from vllm.lora.request import LoRARequest

from replicas.adapters.files import AdapterFiles, BrokenAdapter
from replicas.adapters.shelf import BROKEN_KEPT_S, LOOK_PERIOD_S, AdapterShelf
from slo.errors import EngineFailed, Rejected, RejectReason, ReplicaLost, ServingError, Shed

NUM_PLACES = 2


class AccountingEngine:
    """Holds the adapters it was told of, and no more than its places."""

    def __init__(self) -> None:
        self.errored = False
        self.held: dict[int, LoRARequest] = {}
        self.added: list[str] = []
        self.failure: Exception | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        await self.may_go_on.wait()
        self.added.append(lora_request.lora_name)
        self.held[lora_request.lora_int_id] = lora_request
        assert len(self.held) <= NUM_PLACES
        if self.failure is not None:
            raise self.failure
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        return self.held.pop(lora_id, None) is not None


class Scene:
    """A shelf over the directory, and a clock that is set."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engine = AccountingEngine()
        self.now_s = 100.0
        self.checked: list[str] = []
        self.fault: Exception | None = None
        numbers = iter(range(1, 1000))
        self.shelf = AdapterShelf(
            self.engine, directory, NUM_PLACES, self._check, lambda: next(numbers), lambda: self.now_s
        )

    def put(self, *names: str) -> None:
        for name in names:
            (self.directory / name).mkdir(exist_ok=True)
            (self.directory / name / "adapter_config.json").write_text(json.dumps({"at": self.now_s}))

    def later(self, seconds: float = 2 * LOOK_PERIOD_S) -> None:
        self.now_s += seconds

    async def use(self, name: str) -> LoRARequest:
        """A call that has ended."""
        async with self.shelf.lend(name) as adapter:
            assert adapter.lora_int_id in self.engine.held
        self.shelf.check_invariants()
        return adapter

    async def fails(self, name: str) -> ServingError:
        with pytest.raises(ServingError) as raised:
            await self.use(name)
        self.shelf.check_invariants()
        return raised.value

    def _check(self, files: AdapterFiles) -> None:
        self.checked.append(files.name)
        if self.fault is not None:
            raise self.fault


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.put("red", "blue", "green")
    return scene


async def test_adapter_is_loaded_once_for_all_calls(scene: Scene) -> None:
    first, second = await asyncio.gather(scene.use("red"), scene.use("red"))
    scene.later()
    third = await scene.use("red")
    assert first is second is third
    assert (first.lora_name, first.lora_path) == ("red@1", str(scene.directory / "red"))
    assert scene.engine.added == ["red@1"]


async def test_adapter_that_is_unused_for_longest_gives_its_place_up(scene: Scene) -> None:
    for name in ("red", "blue", "red", "green"):
        await scene.use(name)
        scene.later(0.1)
    assert [adapter.lora_name for adapter in scene.engine.held.values()] == ["red@1", "green@3"]
    await scene.use("blue")
    assert [adapter.lora_name for adapter in scene.engine.held.values()] == ["green@3", "blue@4"]


async def test_adapter_that_is_lent_keeps_its_place(scene: Scene) -> None:
    async with AsyncExitStack() as calls:
        red = await calls.enter_async_context(scene.shelf.lend("red"))
        for name in ("blue", "green", "blue"):
            await scene.use(name)
        assert red.lora_int_id in scene.engine.held
        await calls.enter_async_context(scene.shelf.lend("blue"))
        refused = await scene.fails("green")
        assert isinstance(refused, Shed)
        assert "max_cpu_loras" in refused.message
    await scene.use("green")


async def test_changed_adapter_is_another_one_to_the_engine_and_calls_end_with_the_one_they_began_with(
    scene: Scene,
) -> None:
    async with scene.shelf.lend("red") as before:
        scene.later()
        scene.put("red")
        async with scene.shelf.lend("red") as after:
            assert (before.lora_name, after.lora_name) == ("red@1", "red@2")
            assert set(scene.engine.held) == {1, 2}
    await scene.use("blue")
    await scene.use("green")
    scene.shelf.check_invariants()


async def test_adapter_that_is_gone_is_unknown_soon_and_a_call_that_uses_it_goes_on(scene: Scene) -> None:
    async with scene.shelf.lend("red") as red:
        shutil.rmtree(scene.directory / "red")
        scene.later()
        gone = await scene.fails("red")
        assert isinstance(gone, Rejected)
        assert (gone.reason, gone.param) == (RejectReason.UNKNOWN_MODEL, "model")
        assert red.lora_int_id in scene.engine.held
    scene.put("red")
    assert (await scene.use("red")).lora_name == "red@2"


@pytest.mark.parametrize("fault", [BrokenAdapter("it has no weights"), PermissionError("secret path")], ids=repr)
async def test_broken_adapter_never_reaches_the_engine_and_is_tried_again_later(scene: Scene, fault: Exception) -> None:
    scene.fault = fault
    for _ in range(3):
        broken = await scene.fails("red")
        assert isinstance(broken, Rejected)
        assert (broken.reason, broken.param) == (RejectReason.INVALID, "model")
        assert "'red' cannot be used: it" in broken.message
        assert "secret" not in broken.message
        scene.later()
    assert scene.checked == ["red"]
    assert scene.engine.added == []
    scene.later(BROKEN_KEPT_S)
    scene.fault = None
    await scene.use("red")


async def test_broken_adapter_is_tried_at_once_when_it_has_changed(scene: Scene) -> None:
    scene.fault = BrokenAdapter("it is half copied")
    await scene.fails("red")
    scene.fault = None
    scene.later()
    scene.put("red")
    await scene.use("red")


async def test_adapter_that_the_engine_refuses_takes_no_place(scene: Scene) -> None:
    scene.engine.failure = RuntimeError("The size of tensor a (64) must match")
    refused = await scene.fails("red")
    assert isinstance(refused, Rejected)
    assert "tensor" not in refused.message
    assert scene.engine.held == {}
    scene.engine.failure = None
    await scene.use("blue")


async def test_lost_engine_is_told_as_such_and_not_kept_against_the_adapter(scene: Scene) -> None:
    scene.engine.failure, scene.engine.errored = RuntimeError("dead"), True
    assert isinstance(await scene.fails("red"), ReplicaLost)
    scene.engine.failure, scene.engine.errored = None, False
    scene.engine.held.clear()
    await scene.use("red")


async def test_load_goes_on_when_who_asked_for_it_leaves(scene: Scene) -> None:
    scene.engine.may_go_on.clear()
    call = asyncio.create_task(scene.use("red"))
    await until(lambda: scene.checked == ["red"])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    scene.engine.may_go_on.set()
    assert (await scene.use("red")).lora_int_id == 1
    assert scene.engine.added == ["red@1"]


async def test_names_are_read_once_a_period(scene: Scene) -> None:
    assert await scene.shelf.names() == ("blue", "green", "red")
    scene.put("yellow")
    assert "yellow" not in await scene.shelf.names()
    scene.later()
    assert "yellow" in await scene.shelf.names()


async def test_directory_that_cannot_be_read_is_told(scene: Scene) -> None:
    shutil.rmtree(scene.directory)
    with pytest.raises(EngineFailed, match="directory of adapters"):
        await scene.shelf.names()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # a thread announces it
            await asyncio.sleep(0.001)

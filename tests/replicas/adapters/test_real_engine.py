"""Adapters on a real engine with the tiny model, as a replica serves them. In float32, where a token does not depend on
what else is in the batch.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import save_file

from replicas.adapters.files import WEIGHTS_FILE
from replicas.engine import engine_arguments, engine_environment, frontend_arguments, start_engine
from replicas.openai import OpenAIFrontend
from replicas.statistics import EngineStatistics
from slo.errors import Rejected, RejectReason, Shed
from slo.messages import Chunk, Document, Endpoint, Failure, GenerateCall, Resumed
from slo.priority import PriorityClass
from slo.settings import EngineSettings, SchedulerSettings
from slo.snapshots import PreemptionKind
from tests.replicas.resumption.answers import cut, put_together, replies_to, resume
from tests.tiny_adapter import make_tiny_adapter
from tests.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    # vLLM leaves a ZeroMQ context open; it is collected here, so that it does not fail a later test.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

P0, P1, P2 = PriorityClass
NUM_HELD = 3
"""One of the settings, two of the directory."""
SLOTS = 2
PROMPT = "a list of the ships that wait outside the breakwater "
LIMIT_S = 120


@dataclass(frozen=True)
class Served:
    """The engine as a replica has it; asks and checks."""

    frontend: OpenAIFrontend
    statistics: EngineStatistics
    directory: Path

    async def answer(self, asked: GenerateCall) -> str:
        (reply,) = [reply async for reply in self.frontend.generate(asked)]
        assert isinstance(reply, Document), reply
        document = json.loads(reply.json)
        assert document["model"] == asked.body["model"]
        return str(document["choices"][0]["text"])

    async def failure(self, model: str) -> Rejected:
        (reply,) = [reply async for reply in self.frontend.generate(call(model))]
        assert isinstance(reply, Failure), reply
        assert isinstance(reply.error, Rejected), reply.error
        assert reply.error.param == "model"
        return reply.error

    def look_again(self) -> None:
        """What lies in the directory is looked up with the next call."""
        shelf = self.frontend._shelf
        assert shelf is not None
        shelf._looked.clear()
        shelf._listed = None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    directory = tmp_path_factory.mktemp("adapters")
    environment = dict(os.environ)
    model = make_tiny_model(directory / "model")
    settings = EngineSettings(
        max_num_seqs=SLOTS,
        max_model_len=512,
        dtype="float32",
        kv_cache_bytes=32 * 2**20,
        adapters={"static": str(make_tiny_adapter(directory / "static", seed=9))},
        adapters_dir=str(directory / "shelf"),
        extra_args={"max_loras": 2, "max_cpu_loras": NUM_HELD},
    )
    (directory / "shelf").mkdir()
    arguments = engine_arguments(str(model), ("tiny",), settings, SchedulerSettings(), cpu=True)
    statistics = EngineStatistics()
    engine, engine_args = start_engine(
        arguments, engine_environment(settings, True, True, os.cpu_count() or 1), statistics
    )
    frontend = await OpenAIFrontend.create(engine, engine_args, frontend_arguments(settings), settings.adapters_dir)
    yield Served(frontend, statistics, directory / "shelf")
    engine.shutdown()
    del frontend._engine, frontend._state, frontend._shelf, engine
    gc.collect()
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def served(engine: Served) -> Served:
    """With the adapters `red` and `blue` in the directory, and no other."""
    for old in engine.directory.iterdir():
        shutil.rmtree(old)
    for seed, name in enumerate(("red", "blue")):
        make_tiny_adapter(engine.directory / name, seed=seed)
    engine.look_again()
    return engine


def call(model: str, priority: PriorityClass = P1, num_tokens: int = 12, **more: Any) -> GenerateCall:
    body = {"model": model, "prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, **more}
    return GenerateCall(Endpoint.COMPLETION, body, priority, f"{model}-{priority.name}")


async def test_model_and_adapters_answer_each_in_its_own_way_alone_and_together(served: Served) -> None:
    """More adapters than the engine holds; beside an adapter the model itself stays as it is."""
    names = ("tiny", "static", "red", "blue")
    alone = {name: await served.answer(call(name)) for name in names}
    assert len(set(alone.values())) == len(names)
    for first, second in itertools.permutations(names, 2):
        together = await asyncio.gather(served.answer(call(first)), served.answer(call(second)))
        assert together == [alone[first], alone[second]], (first, second)
    assert [await served.answer(call(name)) for name in names] == [alone[name] for name in names]


async def test_models_are_listed_with_those_of_the_directory(served: Served) -> None:
    models = await served.frontend.models()
    assert [model["id"] for model in models] == ["tiny", "static", "blue", "red"]
    assert [model["parent"] for model in models] == [None, "tiny", "tiny", "tiny"]


async def test_urgent_request_overtakes_batch_ones_of_other_adapters_and_they_end_as_if_alone(served: Served) -> None:
    """Both run slots, and both places for adapters, are taken."""
    batch = [call(name, P2, num_tokens=300) for name in ("red", "static")]
    alone = [await served.answer(asked) for asked in batch]
    urgent_alone = await served.answer(call("blue", P0))
    before = paused(served)
    running = [asyncio.create_task(served.answer(asked)) for asked in batch]
    async with asyncio.timeout(LIMIT_S):
        while served.statistics.snapshot(()).classes[P2].num_running < SLOTS:  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.001)
    assert await served.answer(call("blue", P0)) == urgent_alone
    assert not any(task.done() for task in running)
    assert await asyncio.gather(*running) == alone
    assert paused(served) > before


def paused(served: Served) -> int:
    return served.statistics.snapshot(()).classes[P2].num_preempted.get(PreemptionKind.PAUSED, 0)


@pytest.mark.parametrize("num_events", [1, 4])
async def test_answer_of_an_adapter_is_continued_with_it(served: Served, num_events: int) -> None:
    asked = call("red", stream=True, stream_options={"include_usage": True})
    replies = await replies_to(served.frontend, asked)
    undisturbed = put_together([reply.events for reply in replies if isinstance(reply, Chunk)])
    assert undisturbed.text == await served.answer(call("red"))
    lost = cut(asked, replies, num_events)
    for other in ("static", "blue"):
        await served.answer(call(other))
    assert isinstance(await resume(served.frontend, lost), Resumed)
    assert put_together(lost.events) == undisturbed


async def test_changed_adapter_answers_as_a_new_one_would(served: Served) -> None:
    """No KV of the old one is used: the prompt is the same, and the prefix cache is on."""
    old, blue = await served.answer(call("red")), await served.answer(call("blue"))
    make_tiny_adapter(served.directory / "red", seed=1)
    served.look_again()
    assert await served.answer(call("red")) == blue != old


async def test_removed_adapter_is_unknown(served: Served) -> None:
    await served.answer(call("red"))
    shutil.rmtree(served.directory / "red")
    served.look_again()
    assert (await served.failure("red")).reason is RejectReason.UNKNOWN_MODEL
    assert [model["id"] for model in await served.frontend.models()] == ["tiny", "static", "blue"]


def truncate(adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def narrow(adapter: Path) -> None:
    """For a model whose attention has fewer heads: nothing but the engine itself can see it."""
    key = "base_model.model.model.layers.0.self_attn.o_proj"
    weights = {f"{key}.lora_A.weight": torch.zeros(4, 999), f"{key}.lora_B.weight": torch.zeros(64, 4)}
    save_file(weights, adapter / "adapter_model.safetensors")


def rename(adapter: Path) -> None:
    save_file({"base_model.model.model.layers.0.other.lora_A.weight": torch.zeros(4, 64)}, adapter / WEIGHTS_FILE)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "rank": (lambda adapter: make_tiny_adapter(adapter, rank=64), "rank 64 is greater than max_lora_rank 16"),
    "rank of weights": (lambda a: make_tiny_adapter(a, rank=64, r=8), "rank 64, and max_lora_rank is 16"),
    "another method": (lambda a: make_tiny_adapter(a, use_dora=True), "DoRA"),
    "wrong type": (lambda a: make_tiny_adapter(a, r="many"), "adapter_config.json: a field has a value of the wrong"),
    "no rank": (lambda a: (a / "adapter_config.json").write_text('{"peft_type": "LORA"}'), "Missing required"),
    "truncated": (truncate, "is damaged"),
    "half copied": (lambda a: (a / WEIGHTS_FILE).unlink(), "has no adapter_model.safetensors"),
    "another model's": (narrow, "is it made for this model?"),
    "unknown layers": (rename, "is it made for this model?"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_adapter_is_told_and_harms_nobody(served: Served, name: str) -> None:
    break_it, reason = BROKEN[name]
    broken = make_tiny_adapter(served.directory / "broken")
    break_it(broken)
    names = ("tiny", "static", "red")
    before = [await served.answer(call(name)) for name in names]
    running = asyncio.create_task(served.answer(call("static", P2, num_tokens=100)))
    refused = await served.failure("broken")
    assert refused.reason is RejectReason.INVALID
    assert refused.message.startswith("model: the adapter 'broken' cannot be used: ")
    assert reason in refused.message
    assert str(served.directory) not in refused.message
    await running
    assert [await served.answer(call(name)) for name in names] == before
    assert served.frontend._shelf is not None
    served.frontend._shelf.check_invariants()


async def test_request_for_more_adapters_than_are_held_is_shed_while_all_are_in_use(served: Served) -> None:
    make_tiny_adapter(served.directory / "green", seed=3)
    running = [asyncio.create_task(served.answer(call(name, P2, num_tokens=300))) for name in ("red", "blue")]
    async with asyncio.timeout(LIMIT_S):
        while served.statistics.snapshot(()).classes[P2].num_running < SLOTS:  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.001)
    (reply,) = [reply async for reply in served.frontend.generate(call("green"))]
    assert isinstance(reply, Failure)
    assert isinstance(reply.error, Shed)
    await asyncio.gather(*running)
    await served.answer(call("green"))

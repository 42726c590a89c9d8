"""The deployment with a real engine: what it streams, what its snapshot says of it, and its end. No Serve, no Ray.

Mutations tried by hand, each found by a test here: the engine not asked for statistics; an event without a token marked
as one with; surplus served as its own class; a watchdog that asks nothing; a frozen engine that is not killed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from replicas import deployment
from replicas.deployment import Replica
from slo.errors import ReplicaLost
from slo.messages import Chunk, Document, Endpoint, Failure, GenerateCall, Standing
from slo.priority import PriorityClass
from slo.settings import parse_settings
from tests.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.engine,
    # vLLM leaves a ZeroMQ context open: it is closed and collected here, so that it does not fail a later test.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

P0, P1, P2 = PriorityClass
PROMPT = "a list of the ships that wait outside the breakwater " * 4
NUM_TOKENS = 9
GENEROUS_S = 120.0
STALL_S = 2.0


@asynccontextmanager
async def started(directory: Path, **groups: dict[str, Any]) -> AsyncIterator[Replica]:
    """A replica of the tiny model, with these settings too."""
    environment = dict(os.environ)
    settings: dict[str, dict[str, Any]] = {
        "model": {"source": str(make_tiny_model(directory / "tiny"))},
        "engine": {"max_num_seqs": 4, "max_model_len": 512, "dtype": "float32", "kv_cache_bytes": 32 * 2**20},
    }
    for name, group in groups.items():
        settings[name] = settings.get(name, {}) | group
    replica = Replica.__new__(Replica)
    await replica.__init__(parse_settings(settings))  # type: ignore[misc]  # as Serve does
    try:
        yield replica
    finally:
        replica.__del__()
        await asyncio.sleep(0)  # vLLM closes its sockets from the event loop.
        replica._engine.engine_core.resources.ctx.destroy(linger=0)
        del replica._engine, replica._openai, replica._watchdog, replica._watching
        gc.collect()
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    async with started(tmp_path) as replica:
        yield replica


def chat(priority: PriorityClass, stream: bool) -> GenerateCall:
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }
    return GenerateCall(Endpoint.CHAT, body, priority, f"id-{priority.name}")


async def test_replica_marks_tokens_and_tells_what_its_engine_has_done(replica: Replica) -> None:
    assert len(replica._processes.pids) == 1, "a worker of its own, which the core awaits by polling"
    before = await replica.snapshot()
    assert (before.num_step_tokens, before.max_num_seqs, before.kv.num_used_blocks) == (0, 4, 0)
    assert before.kv.num_blocks > 100

    replies = [reply async for reply in replica.generate(chat(P0, stream=True))]
    assert all(isinstance(reply, Chunk) for reply in replies)
    marks = [reply.has_tokens for reply in replies if isinstance(reply, Chunk)]
    role, *tokens, usage, done = marks
    assert (role, usage, done) == (False, False, False)
    assert all(tokens)
    assert 1 <= len(tokens) <= NUM_TOKENS, "a token that comes while another is on its way shares its event"

    first = await replica.snapshot()
    assert first.classes[P0].queue_wait.count == 1
    assert first.batch_sizes.count == NUM_TOKENS
    assert (first.kv.num_reusable_blocks, first.kv.num_hit_blocks) == (0, 0)

    surplus = replace(chat(P1, stream=False), standing=Standing(is_surplus=True))
    (document,) = [reply async for reply in replica.generate(surplus)]
    assert isinstance(document, Document)
    second = await replica.snapshot()
    waits = {priority: load.queue_wait.count for priority, load in second.classes.items()}
    assert waits == {P0: 1, P1: 0, P2: 1}
    assert second.kv.num_hit_blocks == second.kv.num_reusable_blocks > 0
    assert second.num_step_tokens < 2 * first.num_step_tokens, "the second one's prompt was in the cache"
    assert second.source_id == before.source_id
    assert (second.classes[P2].num_running, second.saturation_ratio, second.kv.num_used_blocks) == (0, 0.0, 0)
    assert second.gpus == ()


async def test_frozen_engine_is_found_while_it_is_idle_and_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a request pays for it. `tests/e2e/test_faults.py` has one that is frozen under load."""
    exits: asyncio.Queue[int] = asyncio.Queue()
    monkeypatch.setattr(deployment.os, "_exit", exits.put_nowait)
    faults, engine = {"stall_timeout_s": STALL_S}, {"tensor_parallel_size": 2}
    async with started(tmp_path, faults=faults, engine=engine) as replica:
        processes = [psutil.Process(pid) for pid in replica._processes.pids]
        (core,) = [p for p in processes if p.ppid() == os.getpid()]
        assert len(core.children()) >= 2, "the engine has workers"
        assert set(core.children()) < set(processes)
        assert exits.empty()
        core.send_signal(signal.SIGSTOP)
        assert await asyncio.wait_for(exits.get(), GENEROUS_S) == 1
        (refused,) = [reply async for reply in replica.generate(chat(P0, stream=True))]
        assert isinstance(refused, Failure)
        assert isinstance(refused.error, ReplicaLost)
        assert [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []

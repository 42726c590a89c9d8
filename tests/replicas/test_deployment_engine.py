"""The deployment with a real engine: what it streams, and what its snapshot says of it. No Serve, no Ray.

Mutations tried by hand, each found by a test here: the engine not asked for statistics; an event without a token marked
as one with.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replicas.deployment import Replica
from slo.messages import Chunk, Document, Endpoint, GenerateCall
from slo.priority import PriorityClass
from slo.settings import parse_settings
from tests.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.engine,
    # vLLM leaves a ZeroMQ context open; it is collected here, so that it does not fail a later test.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

P0, P1, P2 = PriorityClass
PROMPT = "a list of the ships that wait outside the breakwater " * 4
NUM_TOKENS = 9


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    environment = dict(os.environ)
    settings = {
        "model": {"source": str(make_tiny_model(tmp_path / "tiny"))},
        "engine": {"max_num_seqs": 4, "max_model_len": 512, "dtype": "float32", "kv_cache_bytes": 32 * 2**20},
    }
    replica = Replica.__new__(Replica)
    await replica.__init__(parse_settings(settings))  # type: ignore[misc]  # as Serve does
    yield replica
    replica.__del__()
    del replica._engine, replica._openai
    gc.collect()
    os.environ.clear()
    os.environ.update(environment)


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

    (document,) = [reply async for reply in replica.generate(chat(P2, stream=False))]
    assert isinstance(document, Document)
    second = await replica.snapshot()
    waits = {priority: load.queue_wait.count for priority, load in second.classes.items()}
    assert waits == {P0: 1, P1: 0, P2: 1}
    assert second.kv.num_hit_blocks == second.kv.num_reusable_blocks > 0
    assert second.num_step_tokens < 2 * first.num_step_tokens, "the second one's prompt was in the cache"
    assert second.source_id == before.source_id
    assert (second.classes[P2].num_running, second.saturation_ratio, second.kv.num_used_blocks) == (0, 0.0, 0)
    assert second.gpus == ()

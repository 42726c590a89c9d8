from __future__ import annotations

import asyncio

from replicas.resumption.progress import CallProgress, current, current_progress, not_continued
from slo.messages import Resumption


def test_progress_gives_each_token_to_one_event() -> None:
    progress = CallProgress()
    progress.note([1, 2], None)
    progress.note([3], None)
    assert progress.take() == ((1, 2, 3), None)
    assert progress.take() == ((), None)
    progress.note([], "stop")
    assert progress.take() == ((), "stop")
    assert progress.take() == ((), None)


def test_progress_keeps_the_tokens_as_they_were_noted() -> None:
    progress, tokens = CallProgress(), [1]
    progress.note(tokens, None)
    tokens.append(2)
    assert progress.take() == ((1,), None)


def test_progress_replays_only_with_a_resumption() -> None:
    assert not CallProgress().is_replaying
    assert CallProgress(Resumption(())).is_replaying


async def test_current_progress_is_of_the_call_in_whose_task_this_runs() -> None:
    async def ask(progress: CallProgress) -> None:
        with current(progress):
            await asyncio.sleep(0)
            assert current_progress() is progress
        assert current_progress() is None

    await asyncio.gather(*(ask(CallProgress()) for _ in range(3)))


def test_not_continued_tells_the_reason() -> None:
    assert not_continued("no way").message.endswith("could not be continued: no way")

from __future__ import annotations

import asyncio

import pytest

from replicas.calls import Calls

GENEROUS_S = 60.0


def test_calls_are_counted_however_they_end() -> None:
    calls = Calls()
    with calls.one(), calls.one():
        assert calls.num == 2
    with pytest.raises(KeyError), calls.one():
        raise KeyError
    assert calls.num == 0


async def test_until_over_waits_for_the_last_one() -> None:
    calls = Calls()
    with calls.one():
        with calls.one():
            waiting = asyncio.create_task(calls.until_over(GENEROUS_S))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, GENEROUS_S)


async def test_until_over_gives_up_after_its_limit() -> None:
    calls = Calls()
    with calls.one():
        await asyncio.wait_for(calls.until_over(0.0), GENEROUS_S)
        assert calls.num == 1


async def test_until_over_returns_at_once_when_there_is_none() -> None:
    await asyncio.wait_for(Calls().until_over(1e9), GENEROUS_S)

"""Mutations tried by hand, each found by a test here: a transaction for each result; a fault told to nobody; one that
has left told all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from batch import keeper, lines
from batch.keeper import MAX_PAUSE_S, Keeper
from batch.lines import LineResult
from slo.errors import StorageFull
from slo.outcome import LineOutcome


class FakeDatabase:
    """Takes transactions one by one, each when the test lets it; `faults` are raised first."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.num_transactions = 0
        self.gate = asyncio.Event()

    async def write(self, act: Callable[[Any], Any]) -> Any:
        self.num_transactions += 1
        await self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        return act(None)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    numbers: list[int] = []

    def settle(_: object, batch: int, ends: list[LineResult]) -> int:
        assert batch == 1
        numbers.extend(end.number for end in ends)
        return len(ends) if numbers.count(ends[0].number) == 1 else 0

    monkeypatch.setattr(lines, "settle", settle)
    return numbers


def result(number: int) -> LineResult:
    return LineResult(number, LineOutcome.COMPLETED, b"")


def started(database: FakeDatabase, pauses: list[float], *numbers: int) -> tuple[Keeper, list[asyncio.Task[bool]]]:
    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    kept = Keeper(database, sleep)  # type: ignore[arg-type]
    return kept, [asyncio.create_task(kept.keep(1, result(n))) for n in numbers]


async def test_results_that_come_meanwhile_go_together(settled: list[int]) -> None:
    database = FakeDatabase()
    kept, first = started(database, [], 1)
    await asyncio.sleep(0.01)
    more = [asyncio.create_task(kept.keep(1, result(n))) for n in (2, 3, 4, 2)]
    await asyncio.sleep(0.01)
    database.gate.set()
    assert await asyncio.gather(*first, *more) == [True, True, True, True, False]
    assert settled == [1, 2, 3, 4, 2]
    assert database.num_transactions == 2


async def test_results_wait_for_room_with_growing_pauses(settled: list[int]) -> None:
    pauses: list[float] = []
    database = FakeDatabase(*(StorageFull("full") for _ in range(7)))
    database.gate.set()
    _, tasks = started(database, pauses, 1, 2)
    assert await asyncio.gather(*tasks) == [True, True]
    assert pauses == [1, 2, 4, 8, 16, MAX_PAUSE_S, MAX_PAUSE_S]
    assert settled == [1, 2]


async def test_unknown_fault_is_told_to_those_whose_it_is_and_the_next_go_on(settled: list[int]) -> None:
    database = FakeDatabase(ZeroDivisionError())
    kept, tasks = started(database, [], 1, 2)
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    database.gate.set()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in told] == [asyncio.CancelledError, ZeroDivisionError]
    assert await kept.keep(1, result(3))
    assert settled == [3]


async def test_close_ends_what_is_under_way(settled: list[int]) -> None:
    kept, tasks = started(FakeDatabase(), [], 1)
    await asyncio.sleep(0.01)
    kept.close()
    await asyncio.sleep(0.01)
    assert not settled
    assert keeper.FIRST_PAUSE_S < MAX_PAUSE_S
    tasks[0].cancel()

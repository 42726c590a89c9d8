from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from bench.reply import Reply
from bench.run import Loop, Unwatched
from bench.workload import Arrival, Ask
from slo.outcome import Outcome
from tests.bench.answers import scenario

SPEC = scenario().classes[0]
FAR_S = 1e9
CLOCK_S = 1e-6
"""An event loop may wake a sleeper early by its clock's resolution."""


def arrivals(*times_s: float) -> Iterator[Arrival]:
    return (Arrival(time_s, SPEC, Ask()) for time_s in times_s)


@dataclass
class Sender:
    """Answers nothing before so many requests are in flight at once."""

    release_at: int = 0
    num_in_flight: int = 0
    most_in_flight: int = 0
    sent: list[bytes] = field(default_factory=list)

    async def __call__(self, payload: bytes, _arrival: Arrival) -> Reply:
        sent_s = asyncio.get_running_loop().time()
        self.sent.append(payload)
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        while self.most_in_flight < self.release_at:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        self.num_in_flight -= 1
        return Reply(Outcome.COMPLETED, sent_s, asyncio.get_running_loop().time(), (sent_s,))


def loop(sender: Sender) -> Loop:
    return Loop(sender, lambda _: b"p", Unwatched(), clock=asyncio.get_running_loop().time)


async def test_open_loop_sends_each_request_without_waiting_for_those_before_it() -> None:
    sender = Sender(release_at=20)  # the first is not answered before the twentieth is sent
    run = await loop(sender).run_open(arrivals(*(i / 1000 for i in range(20))), 0, FAR_S)
    assert sender.most_in_flight == 20
    assert len(run.answers) == 20
    assert run.is_open


async def test_open_loop_never_sends_before_the_time() -> None:
    times_s = [0.0, 0.0, 0.01, 0.03, 0.03]
    run = await loop(Sender()).run_open(arrivals(*times_s), 0, FAR_S)
    assert [answer.at_s for answer in run.answers] == times_s
    assert all(answer.reply.sent_s >= answer.at_s - CLOCK_S for answer in run.answers)


async def test_open_loop_starts_requests_also_when_it_is_late_for_all() -> None:
    sender = Sender(release_at=3)
    run = await loop(sender).run_open(arrivals(-3, -2, -1), -5, FAR_S)
    assert len(run.answers) == 3


async def test_open_loop_ends_where_it_is_told_and_waits_for_the_answers() -> None:
    sender = Sender()
    run = await loop(sender).run_open(arrivals(0, 0.01, 0.02, 0.03), 0.005, 0.02)
    assert len(sender.sent) == len(run.answers) == 2
    assert (run.counted_from_s, run.counted_to_s, run.window_s) == (0.005, 0.02, pytest.approx(0.015))
    assert [answer.at_s for answer in run.counted()] == [0.01]


async def test_open_loops_window_ends_with_the_last_answer_when_the_arrivals_end_early() -> None:
    run = await loop(Sender()).run_open(arrivals(0, 0.01), 0, FAR_S)
    assert run.counted_to_s == max(answer.reply.ended_s for answer in run.answers) < FAR_S


async def test_open_loop_of_nothing_is_an_empty_run() -> None:
    run = await loop(Sender()).run_open(arrivals(), 1, 2)
    assert (run.answers, run.window_s) == ((), 1)


async def test_open_loop_drops_what_is_in_flight_when_its_source_breaks_off() -> None:
    def broken() -> Iterator[Arrival]:
        yield from arrivals(0)
        raise ValueError("line 2")

    with pytest.raises(ValueError, match="line 2"):
        await loop(Sender(release_at=5)).run_open(broken(), 0, FAR_S)
    await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(others, timeout=60) if others else None
    assert all(task.done() for task in others)


async def test_closed_loop_keeps_as_many_streams_as_told() -> None:
    sender = Sender(release_at=4)
    run = await loop(sender).run_closed(arrivals(*range(40)), 4, 0, FAR_S)
    assert (sender.most_in_flight, len(run.answers)) == (4, 40)
    assert not run.is_open
    assert [answer.at_s for answer in run.answers] == sorted(answer.reply.sent_s for answer in run.answers)


async def test_closed_loop_starts_nothing_after_its_end() -> None:
    run = await loop(Sender()).run_closed(arrivals(*range(10)), 2, 0, 0)
    assert run.answers == ()
    assert run.window_s >= 0


async def test_watcher_is_told_of_each_request_and_its_end() -> None:
    told: list[object] = []

    class Told:
        def sent(self) -> None:
            told.append("sent")

        def ended(self, reply: Reply) -> None:
            told.append(reply.outcome)

    watched = Loop(Sender(), lambda _: b"", Told(), clock=asyncio.get_running_loop().time)
    await watched.run_open(arrivals(0, 0.001), 0, FAR_S)
    assert sorted(map(str, told)) == sorted(map(str, ["sent", "sent", Outcome.COMPLETED, Outcome.COMPLETED]))


async def test_run_samples_how_late_its_event_loop_is() -> None:
    run = await loop(Sender()).run_open(arrivals(0, 0.2), 0, FAR_S)
    assert run.loop_lags_s
    assert min(run.loop_lags_s) >= 0

"""Mutations tried by hand, each found by a test here: another failure retried; attempts not counted; tokens not kept
from one attempt to the next; a replica not looked for; `Resumed` sent to the client; a closing event not counted; an
attempt left open when the next one begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from app.metrics import IngressMetrics
from app.survive import MAX_PAUSE_S, Sent, SurvivingDispatcher
from slo.errors import EngineFailed, NotContinued, Rejected, ReplicaLost, ServingError, Shed
from slo.messages import Chunk, Document, Endpoint, Failure, GenerateCall, Recovery, Reply, Resumed, Resumption
from slo.priority import PriorityClass
from slo.settings import ClassTargets
from slo.settings.faults import FaultSettings
from tests.app.fake_dispatcher import MODELS, FakeDispatcher

CALL = GenerateCall(Endpoint.CHAT, {"messages": []}, PriorityClass.P1, "id-1")
LOST = Failure(ReplicaLost("gone"))
ROLE = Chunk('data: {"created":1700,"role":1}\n\n', has_tokens=False)
A, B, C = (Chunk(f"data: {name}\n\n", token_ids=(n,)) for n, name in enumerate("abc"))
END = Chunk("data: end\n\n", token_ids=(9,), finish_reason="stop")
USAGE, DONE = Chunk("data: usage\n\n", has_tokens=False), Chunk("data: [DONE]\n\n", has_tokens=False)
FROM_TOKENS, AGAIN = Recovery.FROM_TOKENS, Recovery.AGAIN


class Fleet:
    """Each attempt is answered by the next script; `looks`: what each look for a replica finds, then always one."""

    def __init__(self, *scripts: tuple[Any, ...], looks: tuple[ServingError | None, ...] = ()) -> None:
        self.attempts = [FakeDispatcher(*script) for script in scripts]
        self._looks = list(looks)
        self.calls: list[GenerateCall] = []
        self.num_looks = 0
        self.open = 0

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        assert self.open == 0, "two attempts at once"
        self.calls.append(call)
        self.open += 1
        try:
            async for reply in self.attempts[len(self.calls) - 1].generate(call):
                yield reply
        finally:
            self.open -= 1

    async def models(self) -> list[dict[str, Any]]:
        self.num_looks += 1
        if self._looks and (error := self._looks.pop(0)) is not None:
            raise error
        return MODELS

    @property
    def resumptions(self) -> list[Resumption | None]:
        return [call.resumption for call in self.calls]


class Ingress:
    """A dispatcher that survives over `fleet`, with pauses that are noted instead of slept."""

    def __init__(self, fleet: Fleet, **faults: float) -> None:
        self.metrics = IngressMetrics(ClassTargets())
        self.pauses: list[float] = []
        self.dispatcher = SurvivingDispatcher(fleet, FaultSettings.model_validate(faults), self.metrics, self._pause)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def replies(self) -> list[Reply]:
        return [reply async for reply in self.dispatcher.generate(CALL)]

    @property
    def recoveries(self) -> dict[Recovery, int]:
        return dict(self.metrics.snapshot({}).recoveries)


async def test_request_is_passed_on_when_nothing_is_lost() -> None:
    fleet = Fleet((ROLE, A, END, DONE))
    ingress = Ingress(fleet)
    assert await ingress.replies() == [ROLE, A, END, DONE]
    assert (fleet.calls, fleet.num_looks, ingress.recoveries) == ([CALL], 0, {})


@pytest.mark.parametrize("answer", [(Document("{}"),), (ROLE, A, END, DONE)], ids=["whole", "streamed"])
async def test_request_without_a_reply_is_asked_again(answer: tuple[Reply, ...]) -> None:
    fleet = Fleet((LOST,), answer)
    ingress = Ingress(fleet)
    assert await ingress.replies() == list(answer)
    assert fleet.calls == [CALL, CALL]
    assert ingress.recoveries == {Recovery.RETRIED: 1}
    assert ingress.pauses == [], "at once"


@pytest.mark.parametrize("recovery", [FROM_TOKENS, AGAIN])
async def test_stream_goes_on_from_the_tokens_that_were_sent(recovery: Recovery) -> None:
    fleet = Fleet((ROLE, A, B, LOST), (Resumed(recovery, 2), C, END, DONE))
    ingress = Ingress(fleet)
    assert await ingress.replies() == [ROLE, A, B, C, END, DONE]
    assert fleet.resumptions == [None, Resumption((0, 1), 1700)]
    assert ingress.recoveries == {recovery: 1}


async def test_stream_goes_on_when_only_the_role_was_sent() -> None:
    fleet = Fleet((ROLE, LOST), (Resumed(AGAIN, 0), A, END, DONE))
    assert await Ingress(fleet).replies() == [ROLE, A, END, DONE]
    assert fleet.resumptions == [None, Resumption((), 1700)]


async def test_stream_goes_on_twice_with_all_tokens() -> None:
    fleet = Fleet((A, LOST), (Resumed(FROM_TOKENS, 1), B, LOST), (Resumed(FROM_TOKENS, 2), C, END, DONE))
    assert await Ingress(fleet).replies() == [A, B, C, END, DONE]
    assert fleet.resumptions == [None, Resumption((0,)), Resumption((0, 1))]


async def test_stream_forgets_the_tokens_that_are_generated_anew() -> None:
    fleet = Fleet((A, B, LOST), (Resumed(FROM_TOKENS, 1), C, LOST), (Resumed(FROM_TOKENS, 2), END, DONE))
    await Ingress(fleet).replies()
    assert fleet.resumptions[2] == Resumption((0, 2))


@pytest.mark.parametrize(("closing", "num_closing"), [((), 0), ((USAGE,), 1), ((USAGE, DONE), 2)])
async def test_stream_that_had_its_last_token_tells_how_much_follows(
    closing: tuple[Reply, ...], num_closing: int
) -> None:
    fleet = Fleet((A, END, *closing, LOST), (Resumed(FROM_TOKENS, 2), DONE))
    assert await Ingress(fleet).replies() == [A, END, *closing, DONE]
    assert fleet.resumptions[1] == Resumption((0, 9), None, "stop", num_closing)


async def test_stream_that_cannot_go_on_ends_with_the_reason() -> None:
    refused = Failure(NotContinued("a tool call had begun"))
    fleet = Fleet((A, LOST), (refused,), (END,))
    ingress = Ingress(fleet)
    assert await ingress.replies() == [A, refused]
    assert len(fleet.calls) == 2
    assert ingress.recoveries == {Recovery.NOT_POSSIBLE: 1}


@pytest.mark.parametrize(
    "error", [Shed("full", 1), EngineFailed("fault"), Rejected("bad"), ServingError("other")], ids=repr
)
async def test_other_failures_end_the_request(error: ServingError) -> None:
    fleet = Fleet((A, Failure(error)), (END,))
    ingress = Ingress(fleet)
    assert await ingress.replies() == [A, Failure(error)]
    assert (len(fleet.calls), ingress.recoveries) == (1, {})


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_request_ends_when_its_attempts_are_used_up(max_attempts: int) -> None:
    fleet = Fleet(*[(LOST,)] * 5)
    ingress = Ingress(fleet, max_attempts=max_attempts)
    assert await ingress.replies() == [LOST]
    assert len(fleet.calls) == max_attempts
    counted = {Recovery.RETRIED: max_attempts - 1, Recovery.NOT_POSSIBLE: 1}
    assert ingress.recoveries == {recovery: n for recovery, n in counted.items() if n}


async def test_request_waits_for_a_replica_with_growing_pauses() -> None:
    dead = (ReplicaLost("none"), EngineFailed("its engine is dead"))
    fleet = Fleet((A, LOST), (Resumed(FROM_TOKENS, 1), END, DONE), looks=(*dead * 4, None))
    ingress = Ingress(fleet)
    assert await ingress.replies() == [A, END, DONE]
    assert ingress.pauses == sorted(ingress.pauses)
    assert len(ingress.pauses) == 8
    assert ingress.pauses[0] < ingress.pauses[-1] == MAX_PAUSE_S


async def test_request_ends_when_no_replica_comes_in_time() -> None:
    fleet = Fleet((A, LOST), looks=(ReplicaLost("none"),) * 5)
    ingress = Ingress(fleet, replacement_timeout_s=0)
    assert await ingress.replies() == [A, LOST]
    assert (fleet.num_looks, len(fleet.calls)) == (1, 1)
    assert ingress.recoveries == {Recovery.NOT_POSSIBLE: 1}


@pytest.mark.parametrize("sent", [(), (A,)], ids=["before a token", "after one"])
async def test_client_that_leaves_during_another_attempt_ends_it(sent: tuple[Reply, ...]) -> None:
    never = asyncio.Event()
    fleet = Fleet((*sent, LOST), (never,))
    replies = Ingress(fleet).dispatcher.generate(CALL)
    for reply in sent:
        assert await anext(replies) == reply
    waiting = asyncio.ensure_future(anext(replies))
    await fleet.attempts[1].called.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await replies.aclose()
    assert fleet.open == 0


async def test_client_that_leaves_while_a_replica_is_looked_for_ends_the_looking() -> None:
    class Silent(Fleet):
        looked = asyncio.Event()

        async def models(self) -> list[dict[str, Any]]:
            self.looked.set()
            await asyncio.Event().wait()
            raise AssertionError

    fleet = Silent((LOST,))
    waiting = asyncio.ensure_future(anext(Ingress(fleet).dispatcher.generate(CALL)))
    await fleet.looked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (fleet.open, len(fleet.calls)) == (0, 1)


async def test_client_that_leaves_in_the_first_attempt_ends_it() -> None:
    fleet = Fleet((A, B))
    replies = Ingress(fleet).dispatcher.generate(CALL)
    assert await anext(replies) == A
    await replies.aclose()
    assert fleet.open == 0


async def test_each_loss_is_logged_with_what_was_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "expresslane.ingress")
    fleet = Fleet((A, B, LOST), (LOST,))
    await Ingress(fleet, max_attempts=2).replies()
    assert [record.getMessage() for record in caplog.records] == [
        "request_id=id-1 attempt=1 tokens_kept=2 goes_on=True reason='gone'",
        "request_id=id-1 attempt=2 tokens_kept=2 goes_on=False reason='gone'",
    ]


async def test_models_are_asked_once() -> None:
    fleet = Fleet(looks=(ReplicaLost("none"),))
    with pytest.raises(ReplicaLost):
        await Ingress(fleet).dispatcher.models()
    assert await Ingress(fleet).dispatcher.models() == MODELS


def test_nothing_is_resumed_when_nothing_was_sent() -> None:
    assert Sent().resumption() is None

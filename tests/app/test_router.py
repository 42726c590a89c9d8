"""Our router inside Serve's own: what it is asked, when, and with what it gets along.

Mutations tried by hand, each found by a test here: Serve's order of pending requests; its limit of routing tasks; the
replica given that was found for another request; own requests counted when they were accepted; a request counted for
ever whose client left before it was sent, or that was refused; who says that it does not serve asked all the same; the
queue length not taken from what was told; the router's name not sent; a prefix noted nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.serve._private.request_router.common import PendingRequest

from slo.priority import PriorityClass
from slo.routing import NOTHING
from tests.app.serve_scene import FOREVER_S, LIMIT_S, ServeScene

P0, P1, P2 = PriorityClass
Stage = Callable[..., ServeScene]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Makes a scene, and checks at the end that it leaves nothing behind."""
    scenes: list[ServeScene] = []

    def make(*names: str, **options: Any) -> ServeScene:
        scenes.append(ServeScene(*names, **options))
        return scenes[-1]

    yield make
    for scene in scenes:
        await scene.over()


async def test_urgent_request_goes_where_a_slot_is_free_and_batch_work_where_room_is_idle(stage: Stage) -> None:
    scene = stage("full", "free")
    scene.tell("full", others=(0, 0, 4))
    scene.tell("free", others=(3, 0, 0))
    await scene.sent(("urgent", P0))
    assert scene.where("urgent") == "free"
    await scene.sent(("second", P0))
    assert scene.where("second") == "full", "there the batch work yields"
    scene.tell("full", others=(0, 0, 8))
    await scene.sent(("batch", P2))
    assert scene.where("batch") == "free"


async def test_burst_is_spread_before_any_of_it_was_sent(stage: Stage) -> None:
    scene = stage("a", "b", "c", "d")
    for name in scene.replicas:
        scene.tell(name)
    await scene.sent(*((f"urgent-{i}", P0) for i in range(16)))
    assert {name: len(replica.accepted) for name, replica in scene.replicas.items()} == dict.fromkeys("abcd", 4)


async def test_batch_work_of_this_ingress_is_seen_before_it_is_told(stage: Stage) -> None:
    scene = stage("a", "b")
    scene.tell("a")
    scene.tell("b", others=(0, 0, 3))
    await scene.sent(*((f"batch-{i}", P2) for i in range(4)))
    assert Counter(scene.where(f"batch-{i}") for i in range(4)) == {"a": 4} or Counter(
        scene.where(f"batch-{i}") for i in range(4)
    ) == {"a": 3, "b": 1}


async def test_what_was_told_too_long_ago_counts_no_more(stage: Stage) -> None:
    scene = stage("a", "b")
    scene.tell("a", others=(9, 0, 0))
    scene.tell("b")
    await scene.sent(("first", P0))
    assert scene.where("first") == "b"
    scene.now_s += 4
    await scene.sent(("second", P0))
    assert scene.where("second") == "a", "own requests alone decide then"


async def test_refused_request_goes_to_the_next_replica(stage: Stage) -> None:
    scene = stage("full", "other", max_ongoing=10)
    scene.tell("full")
    scene.tell("other", others=(3, 0, 0))
    scene.replicas["full"].num_ongoing = 10  # others' requests, not told yet
    await scene.sent(("urgent", P0))
    assert scene.where("urgent") == "other"
    assert [result.accepted for result in scene.replicas["full"].results] == [False]
    assert scene.router._loads[scene.replicas["full"].replica_id].is_idle
    scene.replicas["full"].num_ongoing = 0


async def test_request_goes_to_the_next_replica_when_the_first_has_died(stage: Stage) -> None:
    scene = stage("dead", "other")
    scene.tell("dead")
    scene.tell("other", others=(3, 0, 0))
    scene.replicas["dead"].has_died = True
    await scene.sent(("first", P0), ("second", P0))
    assert [scene.where("first"), scene.where("second")] == ["other", "other"]
    assert list(scene.router.curr_replicas) == [scene.replicas["other"].replica_id]


async def test_replica_that_drains_gets_nothing(stage: Stage) -> None:
    scene = stage("drains", "other")
    scene.tell("drains")
    scene.tell("other", others=(9, 9, 9))
    drains = scene.replicas.pop("drains")
    scene.update()  # Serve takes out who drains, and who was found unhealthy.
    await scene.sent(("urgent", P0), ("batch", P2), ("models", None))
    assert drains.results == []
    assert len(scene.replicas["other"].accepted) == 3


async def test_answers_of_a_replica_that_is_gone_without_a_word_end_and_those_of_one_that_drains_go_on(
    stage: Stage,
) -> None:
    """Serve takes both out. The first one's machine has lost its power: nothing comes from it, not even an end."""
    scene = stage("gone", "drains", "other")
    await scene.sent(*((f"urgent-{i}", P0) for i in range(3)))
    gone, drains = scene.replicas.pop("gone"), scene.replicas.pop("drains")
    scene.update()
    await scene.until(lambda: min(gone.num_probes, drains.num_probes) > 5)
    assert not any(result.is_over for result in gone.results + drains.results), "Ray has not given it up yet"
    gone.has_died = True
    await scene.until(lambda: all(result.is_cancelled for result in gone.results))
    num_probes = drains.num_probes
    await scene.until(lambda: drains.num_probes > num_probes + 5)
    assert gone.results != []
    assert drains.results != []
    assert not any(result.is_over for result in drains.results)
    drains.end_one()


async def test_replica_that_drains_is_looked_after_as_long_as_it_answers(stage: Stage) -> None:
    scene = stage("drains", "other")
    await scene.sent(*((f"urgent-{i}", P0) for i in range(2)))
    drains = scene.replicas.pop("drains")
    scene.update()
    await scene.until(lambda: drains.num_probes > 3)
    drains.end_one()
    drains.results.clear()
    scene.tasks.clear()
    await scene.until(lambda: not scene.router._departed._looks)


async def test_answers_of_a_replica_end_when_ray_says_that_it_died(stage: Stage) -> None:
    scene = stage("dead", "other")
    await scene.sent(*((f"urgent-{i}", P0) for i in range(2)))
    dead = scene.replicas["dead"]
    scene.router.on_replica_actor_died(dead.replica_id)
    assert [result.is_cancelled for result in dead.results] == [True]


async def test_replica_whose_engine_is_dead_gets_nothing(stage: Stage) -> None:
    scene = stage("dead", "other")
    scene.tell("dead", is_serving=False)
    scene.tell("other", others=(9, 9, 9))
    await scene.sent(*((f"{priority}-{i}", priority) for priority in (P0, P1, P2, None) for i in range(3)))
    assert scene.replicas["dead"].results == []


async def test_requests_wait_while_no_replica_serves(stage: Stage) -> None:
    scene = stage("a")
    scene.tell("a", is_serving=False)
    task = scene.send("urgent", P0)
    await asyncio.sleep(0.02)
    assert not task.done()
    scene.tell("a")
    await asyncio.wait_for(task, LIMIT_S)


async def test_ray_55473_urgent_request_is_not_stuck_behind_batch_work_in_the_gateway(stage: Stage) -> None:
    """Every replica is full, 40 P2s wait in the router; what comes after them goes as its class does."""
    scene = stage("a", "b", max_ongoing=1)
    await scene.sent(("running-a", P2), ("running-b", P2))
    for i in range(40):
        scene.send(f"batch-{i}", P2)
    await scene.settled()
    for request_id, priority in (("standard", P1), ("urgent", P0), ("later", P0)):
        scene.send(request_id, priority)
    await scene.settled()
    order: list[str] = []
    for number in range(10):
        replica = scene.replicas["ab"[number % 2]]
        num_accepted = len(replica.accepted)
        replica.end_one()
        await scene.until(lambda r=replica, n=num_accepted: len(r.accepted) > n)  # type: ignore[misc]
        order += replica.accepted[num_accepted:]
    assert order == ["urgent", "later", "standard", *(f"batch-{i}" for i in range(7))]


async def test_urgent_request_does_not_wait_out_the_pauses_of_batch_work(stage: Stage) -> None:
    scene = stage("a", max_ongoing=1, pause_s=FOREVER_S)
    await scene.sent(("running", P2))
    for i in range(10):
        scene.send(f"batch-{i}", P2)
    await scene.until(lambda: scene.router.num_routing_tasks_in_backoff == 2)
    scene.replicas["a"].results[0].end()
    await scene.settled()
    assert scene.replicas["a"].accepted == ["running"], "all tasks pause"
    await asyncio.wait_for(scene.send("urgent", P0), LIMIT_S)
    assert scene.where("urgent") == "a"


async def test_choice_is_made_for_the_request_that_gets_it(stage: Stage) -> None:
    """A task that looks for a place for batch work finds one for the urgent request that came meanwhile."""
    scene = stage("p2s", "p0s", max_ongoing=4)
    scene.tell("p2s", others=(0, 0, 4))
    scene.tell("p0s", others=(4, 0, 0))
    for replica in scene.replicas.values():
        replica.num_ongoing = 4
        scene.router.on_new_queue_len_info(replica.replica_id, 4)
    for i in range(8):
        scene.send(f"batch-{i}", P2)
    await scene.settled()
    urgent = scene.send("urgent", P0)
    for replica in scene.replicas.values():
        replica.num_ongoing = 3
    await asyncio.wait_for(urgent, LIMIT_S)
    assert scene.where("urgent") == "p2s"
    for replica in scene.replicas.values():
        replica.num_ongoing = 0


async def test_ray_59681_a_lone_request_is_not_held_up_by_a_question_to_a_replica(stage: Stage) -> None:
    """Serve asks a replica for its queue before it sends to it, where it last sent there over 10 s ago; the request
    would wait for that. What the replica has told answers it."""
    scene = stage("a", "b")
    await scene.settled()
    probes = [replica.num_probes for replica in scene.replicas.values()]
    for number in range(5):
        scene.now_s += 60
        for name in scene.replicas:
            scene.tell(name)
        await scene.sent((f"lone-{number}", P0))
    assert [replica.num_probes for replica in scene.replicas.values()] == probes


async def test_replica_that_says_nothing_does_not_hold_up_a_request(stage: Stage) -> None:
    """It is asked only where no other is known to have room."""
    scene = stage("silent", "other")
    await scene.settled()
    scene.now_s += 60
    scene.tell("other", others=(9, 0, 0))
    probes = scene.replicas["silent"].num_probes
    await scene.sent(("urgent", P0))
    assert scene.where("urgent") == "other"
    assert scene.replicas["silent"].num_probes == probes


async def test_request_whose_client_leaves_before_it_is_sent_is_counted_no_more(stage: Stage) -> None:
    scene = stage("a")
    await scene.settled()
    task = scene.send("left", P0)
    load = scene.router._loads[scene.replicas["a"].replica_id]
    async with asyncio.timeout(LIMIT_S):
        while load.is_idle:  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0)
    assert scene.replicas["a"].results == [], "it has its replica, and is not sent yet"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert load.is_idle


async def test_request_whose_client_leaves_while_it_waits_is_passed_over(stage: Stage) -> None:
    scene = stage("a", max_ongoing=1)
    await scene.sent(("running", P0))
    left, stays = scene.send("left", P0), scene.send("stays", P1)
    await scene.settled()
    left.cancel()
    await scene.settled()
    scene.replicas["a"].results[0].end()
    await asyncio.wait_for(stays, LIMIT_S)
    assert scene.replicas["a"].accepted == ["running", "stays"]


async def test_request_that_ends_makes_room_at_once(stage: Stage) -> None:
    scene = stage("a", "b", slots=1)
    for name in scene.replicas:
        scene.tell(name)
    await scene.sent(("one", P0), ("two", P0))
    free = scene.where("one")
    scene.replicas[free].results[0].end()
    await scene.settled()
    await scene.sent(("three", P0))
    assert scene.where("three") == free


async def test_conversation_returns_to_where_its_prefix_lies(stage: Stage) -> None:
    scene = stage(*(f"replica-{i}" for i in range(8)))
    for name in scene.replicas:
        scene.tell(name)
    talk, at = "A question. " * 100, set()
    for turn in range(6):
        await asyncio.wait_for(scene.send(f"turn-{turn}", P1, talk), LIMIT_S)
        at.add(scene.where(f"turn-{turn}"))
        scene.replicas[scene.where(f"turn-{turn}")].results[-1].end()
        await scene.settled()
        talk += f"Answer {turn}. " * 100
    assert len(at) == 1


async def test_conversation_does_not_return_to_a_wait(stage: Stage) -> None:
    scene = stage("a", "b")
    for name in scene.replicas:
        scene.tell(name)
    talk = "A question. " * 100
    await asyncio.wait_for(scene.send("turn-0", P1, talk), LIMIT_S)
    first = scene.where("turn-0")
    scene.tell(first, others=(0, 0, 4))
    await asyncio.wait_for(scene.send("turn-1", P1, talk + "More. " * 100), LIMIT_S)
    assert scene.where("turn-1") != first


async def test_prompt_that_a_replica_has_read_is_not_to_be_read_again(stage: Stage) -> None:
    scene = stage("a")
    scene.tell("a")
    talk = "A question. " * 300
    for request_id in ("first", "again"):
        await asyncio.wait_for(scene.send(request_id, P1, talk), LIMIT_S)
    told = scene.router._loads[scene.replicas["a"].replica_id].view(scene.now_s).told
    assert told is not None
    assert told.unread_tokens == (0, len(talk) / 4, len(talk) / 4)


async def test_question_goes_to_any_replica_and_counts_for_none(stage: Stage) -> None:
    scene = stage("a", "b")
    scene.tell("a", others=(9, 9, 9))
    scene.tell("b")
    for i in range(20):
        await scene.sent((f"models-{i}", None))
        for replica in scene.replicas.values():
            for result in replica.results:
                result.end()
        await scene.settled()
    assert all(replica.accepted for replica in scene.replicas.values())
    assert all(load.is_idle for load in scene.router._loads.values())
    assert {i for replica in scene.replicas.values() for i in replica.router_ids} == {None}


async def test_question_that_ends_is_not_taken_for_the_generation_of_the_same_http_request(stage: Stage) -> None:
    scene = stage("a")
    for request_id, priority in (("models", None), ("urgent", P0)):
        await asyncio.wait_for(scene.send(request_id, priority, internal_id="same"), LIMIT_S)
    load = scene.router._loads[scene.replicas["a"].replica_id]
    scene.replicas["a"].end_one()
    await scene.settled()
    assert load.view(scene.now_s).own == (1, 1, 1)
    scene.replicas["a"].end_one()
    await scene.settled()
    assert load.view(scene.now_s).own == (0, 0, 0)


async def test_generation_tells_the_replica_who_sent_it(stage: Stage) -> None:
    scene, other = stage("a"), stage("a")
    await scene.sent(("one", P0), ("two", P2))
    await other.sent(("three", P0))
    (mine,), (others,) = (set(s.replicas["a"].router_ids) for s in (scene, other))
    assert mine is not None
    assert mine != others
    ongoing = {mine: (1, 0, 1), others: (1, 0, 0)}
    stats = {"number": 1, "ongoing": ongoing, "free_kv_tokens": 9, "unread_tokens": NOTHING, "step_s": None}
    scene.replicas["a"].routing_stats = stats
    scene.update()
    view = scene.router._loads[scene.replicas["a"].replica_id].view(scene.now_s)
    assert view.own == (1, 1, 2)
    assert view.told is not None
    assert view.told.others == (1, 1, 1)


async def test_replica_that_is_gone_is_forgotten_when_its_last_request_has_ended(stage: Stage) -> None:
    scene = stage("a", "b")
    await scene.sent(*((f"urgent-{i}", P0) for i in range(4)))
    gone = scene.replicas.pop("a")
    scene.update()
    assert gone.replica_id in scene.router._loads
    for result in gone.results:
        result.end()
    await scene.settled()
    scene.update()
    assert list(scene.router._loads) == [scene.replicas["b"].replica_id]


async def test_choice_is_logged_with_its_reason_and_without_the_prompt(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    scene = stage("a")
    with caplog.at_level(logging.INFO, "expresslane.router"):
        await asyncio.wait_for(scene.send("urgent", P0, "a secret"), LIMIT_S)
    (record,) = (r for r in caplog.records if r.name == "expresslane.router")
    assert record.getMessage() == "request_id=urgent class=P0 replica=a reason=free_slot"


def test_serve_has_the_points_that_the_router_overrides() -> None:
    from app.router import ClassAwareRouter

    for name in (
        "_choose_replica_for_request",
        "_fulfill_next_pending_request",
        "_insert_pending_request_sorted",
        "max_num_routing_tasks",
        "max_num_routing_tasks_cap",
        "choose_replicas",
        "update_replicas",
        "on_replica_actor_died",
        "on_request_completed",
        "on_new_queue_len_info",
        "initialize_state",
    ):
        assert any(name in vars(base) for base in ClassAwareRouter.__mro__[1:]), name
    assert {"args", "kwargs", "metadata", "created_at", "future", "routing_context"} <= set(
        PendingRequest.__dataclass_fields__
    )

"""The plan of a step, as tables and properties. Who yields to whom is in `test_victims.py`."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.scheduler.policy import Prefill, plan_step, plan_tokens
from replicas.scheduler.views import Asker, Holder, Room, StepPlan, Yielding
from slo.priority import PriorityClass
from slo.settings.scheduling import PreemptionSettings

P0, P1, P2 = PriorityClass
NO_PREFILLS = dict.fromkeys(PriorityClass, 0)


def make_room(
    slots=1, blocks=10, tokens=512, num_running=2, prefills=None, watermark=0, freeing=0, defers=False
) -> Room:
    return Room(
        slots=slots,
        blocks=blocks,
        freeing_blocks=freeing,
        defers_frees=defers,
        tokens=tokens,
        prefill_tokens={**NO_PREFILLS, **(prefills or {})},
        num_running=num_running,
        watermark_blocks=watermark,
    )


def asker(request_id="asker", priority=P0, blocks=2, tokens=32) -> Asker:
    return Asker(request_id, priority, blocks, tokens)


def holder(request_id, priority=P2, tokens=100, **rest) -> Holder:
    return Holder(request_id, priority, 0.0, tokens, **{"decode_tokens": 1, **rest})


def plan(askers, room, holders=(), blocks=None, **preemption) -> StepPlan:
    """`blocks`: how many each holder has, shared with nobody."""
    held = {h.request_id: (blocks or {}).get(h.request_id, 5) for h in holders}
    return plan_step(
        askers,
        room,
        lambda: list(holders),
        lambda request_id: {hash((request_id, i)): 1 for i in range(held[request_id])},
        PreemptionSettings(**preemption),
    )


def joined(step: StepPlan) -> list[str]:
    return [a.request_id for a in step.joins]


def test_plan_step_asks_for_nobody_while_there_is_room() -> None:
    def list_holders():
        raise AssertionError("asked")

    step = plan_step([asker("a"), asker("b")], make_room(slots=2), list_holders, {}.get, PreemptionSettings())
    assert joined(step) == ["a", "b"]
    assert step.ahead == {"a", "b"}
    assert step.yielding == Yielding()


@pytest.mark.parametrize(
    ("room", "pause", "recompute", "reclaim"),
    [
        (make_room(slots=0), ["running"], [], []),
        (make_room(slots=0, blocks=1), ["running"], [], ["paused"]),
        (make_room(slots=1, blocks=1), [], [], ["paused"]),
        (make_room(slots=0, blocks=-4), [], ["running"], ["paused"]),
    ],
)
def test_plan_step_pauses_for_slots_and_takes_kv_for_blocks(room, pause, recompute, reclaim) -> None:
    step = plan([asker()], room, [holder("running"), holder("paused", is_paused=True)])
    assert joined(step) == ["asker"]
    assert (list(step.yielding.pause), list(step.yielding.recompute), list(step.yielding.reclaim)) == (
        pause,
        recompute,
        reclaim,
    )


@pytest.mark.parametrize(("pause", "can_pause"), [(False, True), (True, False)])
def test_plan_step_recomputes_when_it_may_not_pause(pause, can_pause) -> None:
    step = plan([asker()], make_room(slots=0), [holder("a", can_pause=can_pause)], pause=pause)
    assert step.yielding.recompute == ("a",)


def test_plan_step_takes_nobody_when_switched_off() -> None:
    step = plan([asker()], make_room(slots=0), [holder("a")], enabled=False)
    assert step == StepPlan()


def test_plan_step_takes_no_slot_when_the_blocks_cannot_be_had() -> None:
    assert plan([asker(blocks=99)], make_room(slots=0), [holder("a")]) == StepPlan()


def test_plan_step_takes_no_blocks_when_the_slot_cannot_be_had() -> None:
    step = plan([asker(blocks=12)], make_room(slots=0), [holder("paused", is_paused=True)])
    assert step == StepPlan()


def test_plan_step_takes_at_most_the_allowed_number_and_goes_on_next_time() -> None:
    holders = [holder(f"h{i}") for i in range(5)]
    step = plan([asker("big", blocks=30), asker("next")], make_room(slots=4, num_running=5), holders)
    assert len(step.yielding.victims) == 2
    assert joined(step) == []
    assert step.ahead == {"big"}


def test_plan_step_serves_several_askers_up_to_the_allowed_number() -> None:
    holders = [holder(f"h{i}") for i in range(5)]
    step = plan([asker(f"a{i}") for i in range(4)], make_room(slots=0, blocks=99), holders)
    assert joined(step) == ["a0", "a1"]
    assert step.yielding.pause == ("h0", "h1")


def test_plan_step_stops_at_the_first_that_it_cannot_serve() -> None:
    step = plan([asker("big", blocks=99), asker("small")], make_room())
    assert step == StepPlan()


@pytest.mark.parametrize(
    ("tokens", "prefills", "slots", "is_served"),
    [
        (10, {}, 1, True),
        (0, {}, 1, False),
        (0, {}, 0, True),
        (10, {P0: 10}, 1, False),
        (10, {P0: 10}, 0, True),
        (10, {P0: 11}, 0, False),
        (10, {P2: 900}, 1, True),
    ],
)
def test_plan_step_asks_only_for_whom_the_budget_reaches(tokens, prefills, slots, is_served) -> None:
    room = make_room(slots=slots, tokens=tokens, prefills=prefills)
    assert bool(joined(plan([asker()], room, [holder("a")]))) == is_served


def test_plan_step_gets_no_tokens_from_a_prefill() -> None:
    assert plan([asker()], make_room(slots=0, tokens=0), [holder("prefill", decode_tokens=0)]) == StepPlan()


def test_plan_step_counts_the_tokens_of_those_that_join() -> None:
    step = plan([asker("a", tokens=512), asker("b")], make_room(slots=2))
    assert joined(step) == ["a"]


def test_plan_step_counts_blocks_of_two_victims_that_share_them() -> None:
    shared = {"a": {1: 2, 2: 2}, "b": {1: 2, 2: 2}}
    step = plan_step(
        [asker("x", blocks=2)],
        make_room(slots=0, blocks=0),
        lambda: [holder("a"), holder("b")],
        shared.__getitem__,
        PreemptionSettings(),
    )
    assert joined(step) == ["x"]
    assert set(step.yielding.recompute) == {"a", "b"}


def test_plan_step_counts_a_shared_block_as_needed_once_its_holders_have_yielded() -> None:
    """The first asker takes the blocks of `a`; the second had counted on one of them."""
    held = {"a": {1: 1, 2: 1}, "b": {3: 1}}
    step = plan_step(
        [asker("first", blocks=2), Asker("second", P0, 0, 16, shared_blocks={1: 1})],
        make_room(slots=1, blocks=0),
        lambda: [holder("a"), holder("b", tokens=900)],
        held.__getitem__,
        PreemptionSettings(),
    )
    assert joined(step) == ["first", "second"]
    assert step.yielding.recompute == ("a", "b")


def test_plan_step_holds_the_place_while_blocks_are_being_freed() -> None:
    room = make_room(blocks=0, freeing=5, defers=True)
    step = plan([asker(blocks=5)], room, [holder("a")])
    assert step == StepPlan(ahead=frozenset({"asker"}))


def test_plan_step_admits_nobody_on_blocks_that_come_later() -> None:
    step = plan([asker(blocks=12)], make_room(defers=True), [holder("a")])
    assert step.yielding.recompute == ("a",)
    assert joined(step) == []
    assert step.ahead == {"asker"}


@pytest.mark.parametrize(
    ("prefills", "joins", "tokens", "expected"),
    [
        ([Prefill("a", P2, 900)], [], 512, {}),
        ([Prefill("a", P2, 900)], [asker(tokens=100)], 512, {"a": 412}),
        ([Prefill("a", P2, 900)], [asker(tokens=900)], 512, {"a": 0}),
        ([Prefill("a", P0, 900)], [asker(tokens=100)], 512, {}),
        ([Prefill("a", P0, 300), Prefill("b", P2, 300)], [asker(tokens=100)], 512, {"b": 112}),
        ([Prefill("a", P1, 300), Prefill("b", P2, 300)], [asker(tokens=100)], 512, {"a": 300, "b": 112}),
        ([Prefill("a", P1, 300), Prefill("b", P2, 300)], [asker(priority=P1, tokens=100)], 512, {"b": 112}),
    ],
)
def test_plan_tokens_reserves_for_more_urgent_askers(prefills, joins, tokens, expected) -> None:
    assert plan_tokens(prefills, StepPlan(joins=tuple(joins)), make_room(tokens=tokens)) == expected


def test_plan_tokens_leaves_nothing_to_those_that_yield() -> None:
    prefills = [Prefill("victim", P2, 300), Prefill("stays", P2, 300)]
    step = StepPlan(Yielding(pause=("victim",)), joins=(asker(tokens=100),))
    assert plan_tokens(prefills, step, make_room(tokens=400)) == {"stays": 300}


HOLDERS = st.lists(
    st.builds(
        Holder,
        request_id=st.uuids().map(str),
        priority=st.sampled_from(PriorityClass),
        arrival_s=st.floats(0, 9),
        num_computed_tokens=st.integers(1, 99),
        growth_blocks=st.just(0),
        is_paused=st.booleans(),
        can_pause=st.booleans(),
        can_yield=st.booleans(),
    ),
    max_size=6,
)
ASKERS = st.lists(
    st.builds(
        Asker,
        request_id=st.uuids().map(str),
        priority=st.sampled_from(PriorityClass),
        need_blocks=st.integers(0, 12),
        need_tokens=st.integers(1, 200),
    ),
    max_size=4,
).map(lambda askers: sorted(askers, key=lambda a: a.priority.level))


@settings(derandomize=True, deadline=None, database=None, max_examples=300)
@given(
    holders=HOLDERS,
    askers=ASKERS,
    slots=st.integers(0, 2),
    blocks=st.integers(-2, 8),
    most=st.integers(1, 3),
    seed=st.randoms(use_true_random=False),
)
def test_plan_step_keeps_its_promises_whatever_the_step(holders, askers, slots, blocks, most, seed) -> None:
    pool = {h.request_id: {seed.randrange(12) for _ in range(seed.randrange(1, 5))} for h in holders}
    num_holders = Counter(block for held in pool.values() for block in held)
    by_id = {h.request_id: h for h in holders}
    step = plan_step(
        askers,
        make_room(slots=slots, blocks=blocks, num_running=sum(not h.is_paused for h in holders)),
        lambda: list(holders),
        lambda request_id: {block: num_holders[block] for block in pool[request_id]},
        PreemptionSettings(max_victims_per_step=most),
    )
    yielding = step.yielding
    everybody = [*yielding.pause, *yielding.recompute, *yielding.reclaim]
    assert len(everybody) == len(set(everybody))
    assert len(yielding.victims) <= most
    assert not everybody or step.ahead
    urgent = min((a.priority.level for a in askers if a.request_id in step.ahead), default=0)
    for request_id in everybody:
        assert by_id[request_id].can_yield
        assert PriorityClass.from_level(urgent).outranks(by_id[request_id].priority)
        assert by_id[request_id].is_paused == (request_id in yielding.reclaim)
    gone = Counter(block for i in (*yielding.recompute, *yielding.reclaim) for block in pool[i])
    num_freed = sum(count == num_holders[block] for block, count in gone.items())
    assert sum(a.need_blocks for a in step.joins) <= max(blocks + num_freed, 0)
    assert len(step.joins) <= slots + len(yielding.victims)

"""The rules as tables.

Mutations tried by hand, each found by a test here: P0 counted behind P2s; who cannot preempt sent to those that could
yield; KV not looked at; a slow step before a free slot; slow steps that matter to P2; backlog of less urgent classes
counted; a prefix preferred that lengthens the wait, or on a replica that is much fuller; a replica that tells nothing
taken for empty; one that does not serve ranked; ties not drawn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from app.routing_policy import CallView, Choice, Reason, ReplicaView, RoutingRules, ToldView, at_least, choose_replica
from slo.priority import PriorityClass
from slo.routing import ByClass

P0, P1, P2 = PriorityClass
SLOTS = 8
RULES = RoutingRules(SLOTS, True, 0.05, 2048, 256, 0.25)
NO_PREEMPTION = RoutingRules(SLOTS, False, 0.05, 2048, 256, 0.25)


def view(
    name: str,
    own: ByClass = (0, 0, 0),
    others: ByClass = (0, 0, 0),
    *,
    kv: float = 10_000,
    unread: ByClass = (0, 0, 0),
    step_s: float | None = None,
    is_serving: bool = True,
) -> ReplicaView:
    told = ToldView(at_least(others), kv, at_least(unread), step_s, is_serving)
    return ReplicaView(name, at_least(own), told)


def silent(name: str, own: ByClass = (0, 0, 0)) -> ReplicaView:
    """One that tells nothing, or told it too long ago."""
    return ReplicaView(name, at_least(own))


def choose(
    priority: PriorityClass,
    *replicas: ReplicaView,
    rules: RoutingRules = RULES,
    prompt_tokens: int = 100,
    prefix: Mapping[str, int] | None = None,
    seed: int = 1,
) -> Choice:
    lots = random.Random(seed)
    return choose_replica(CallView(priority, 1, prompt_tokens), replicas, rules, prefix or {}, lots.random)


CASES = {
    "P0 goes where a slot is free, not where P2s would yield": (P0, view("a", (0, 0, 8)), view("b", (7, 0, 0)), "b"),
    "P0 goes where P2s yield, not behind P0s": (P0, view("a", (8, 0, 0)), view("b", (7, 0, 9)), "b"),
    "P0 goes where fewer are before it": (P0, view("a", (9, 0, 0)), view("b", (8, 0, 30)), "b"),
    "P0 does not wait for P1s that yield": (P0, view("a", (8, 0, 0)), view("b", (0, 8, 0)), "b"),
    "P1 does not get P0s to yield": (P1, view("a", (8, 0, 0)), view("b", (0, 1, 7)), "b"),
    "P1 goes behind fewer P0s and P1s": (P1, view("a", (4, 5, 0)), view("b", (4, 4, 9)), "b"),
    "P2 goes where room is idle": (P2, view("a", (0, 0, 8)), view("b", (7, 0, 0)), "b"),
    "P2 goes where more room is idle": (P2, view("a", (0, 0, 5)), view("b", (2, 1, 1)), "b"),
    "P2 goes behind fewer of any class": (P2, view("a", (8, 0, 9)), view("b", (0, 0, 16)), "b"),
    "others count as own ones": (P0, view("a", others=(8, 0, 0)), view("b", (5, 0, 0), (2, 0, 0)), "b"),
    "P0 goes where KV has room for its prompt": (P0, view("a", (0, 0, 1), kv=99), view("b", (0, 0, 4)), "b"),
    "P0 goes where KV can be given up for it": (P0, view("a", (1, 0, 0), kv=99), view("b", (0, 0, 2), kv=99), "b"),
    "P2 goes where KV has room for its prompt": (P2, view("a", kv=99), view("b", (0, 0, 7)), "b"),
    "P0 does not wait for a long step": (P0, view("a", (0, 0, 1), step_s=0.06), view("b", (0, 0, 7), step_s=0.05), "b"),
    "P1 does not wait for a long step": (P1, view("a", (0, 0, 1), step_s=0.06), view("b", (0, 0, 7), step_s=0.05), "b"),
    "no step is in flight where nothing runs": (P0, view("a", (0, 0, 1), step_s=0.01), view("b", step_s=5.0), "b"),
    "nothing is unread where nothing runs": (P0, view("a", (0, 0, 1)), view("b", unread=(9_999, 0, 0)), "b"),
    "a free slot beats a short step": (P0, view("a", (0, 0, 8), step_s=0.01), view("b", step_s=5.0), "b"),
    "P2 may wait for a long step": (P2, view("a", (0, 0, 2)), view("b", (0, 0, 1), step_s=5.0), "b"),
    "P0 goes where fewer prompts are read before": (
        P0,
        view("a", (1, 0, 0), unread=(2048, 0, 0)),
        view("b", (7, 0, 0)),
        "b",
    ),
    "P0's prompt is read before P2's": (P0, view("a", (0, 0, 3)), view("b", (0, 0, 2), unread=(0, 0, 99_999)), "b"),
    "P2's prompt is read after all": (P2, view("a", (0, 0, 1), unread=(9_999, 0, 0)), view("b", (0, 0, 2)), "b"),
    "a few unread tokens do not matter": (P0, view("a", (2, 0, 0)), view("b", (1, 0, 0), unread=(2047, 0, 0)), "b"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("swapped", [False, True])
def test_choice(case: tuple[PriorityClass, ReplicaView, ReplicaView, str], swapped: bool) -> None:
    priority, first, second, chosen = case
    replicas = (second, first) if swapped else (first, second)
    choice = choose(priority, *replicas)
    assert choice.ranked[0] == chosen
    assert sorted(choice.ranked) == ["a", "b"]


@pytest.mark.parametrize(
    ("priority", "replica", "reason"),
    [
        (P0, view("a", (0, 0, 7)), Reason.FREE),
        (P0, view("a", (0, 0, 8)), Reason.YIELD),
        (P0, view("a", (8, 0, 8)), Reason.TURN),
        (P2, view("a", (0, 0, 8)), Reason.TURN),
        (P0, view("a", (2, 0, 0), kv=99), Reason.TURN),
        (P0, silent("a"), Reason.FREE),
    ],
)
def test_choice_tells_why(priority: PriorityClass, replica: ReplicaView, reason: Reason) -> None:
    assert choose(priority, replica) == Choice(("a",), reason)


def test_choice_where_nothing_preempts_is_by_those_ahead() -> None:
    choice = choose(P0, view("a", (2, 0, 8)), view("b", (1, 0, 30)), rules=NO_PREEMPTION)
    assert choice == Choice(("b", "a"), Reason.TURN)


def test_choice_is_none_where_nobody_serves() -> None:
    assert choose(P0, view("a", is_serving=False)) == Choice((), Reason.NONE_SERVES)
    assert choose(P0) == Choice((), Reason.NONE_SERVES)


def test_choice_leaves_out_who_does_not_serve() -> None:
    assert choose(P0, view("a", is_serving=False), view("b", (9, 0, 0))).ranked == ("b",)


def test_choice_is_by_own_requests_alone_where_nobody_tells() -> None:
    choice = choose(P0, silent("a", (3, 0, 0)), silent("b", (2, 0, 0)), silent("c", (8, 0, 0)))
    assert choice.ranked == ("b", "a", "c")


def test_replica_that_tells_nothing_is_taken_for_as_loaded_as_the_others() -> None:
    replicas = (view("a", others=(4, 0, 0)), view("b", others=(6, 0, 0)), silent("c", (0, 0, 0)))
    assert choose(P0, *replicas).ranked == ("a", "c", "b")


def test_replica_that_tells_nothing_draws_not_everything_to_it() -> None:
    replicas = [view(f"told-{i}", others=(6, 0, 0)) for i in range(4)] + [silent("new", (2, 0, 0))]
    assert choose(P0, *replicas).ranked[-1] == "new"


@pytest.mark.parametrize("own", [(0, 0, 0), (0, 0, 9), (9, 0, 0)])
def test_ties_are_drawn(own: ByClass) -> None:
    names = [f"replica-{i}" for i in range(5)]
    replicas = [view(name, own) for name in names]
    first = Counter(choose(P0, *replicas, seed=seed).ranked[0] for seed in range(1000))
    assert set(first) == set(names)
    assert min(first.values()) > 120


PREFIX_CASES = {
    "a prefix decides where it waits alike": ((view("a"), view("b")), {"b": 256}, "b"),
    "the longest prefix decides": ((view("a"), view("b"), view("c")), {"a": 300, "b": 900, "c": 600}, "b"),
    "a prefix decides though it is a little fuller": ((view("a"), view("b", (2, 0, 0))), {"b": 5000}, "b"),
    "a prefix does not decide where it is much fuller": ((view("a"), view("b", (3, 0, 0))), {"b": 5000}, "a"),
    "a short prefix does not decide": ((view("a"), view("b", (1, 0, 0))), {"b": 255}, "a"),
    "a prefix is not worth a wait": ((view("a", (7, 0, 0)), view("b", (0, 0, 8))), {"b": 5000}, "a"),
    "a prefix is not worth a long step": ((view("a"), view("b", (1, 0, 0), step_s=0.06)), {"b": 5000}, "a"),
    "a prefix is not worth a backlog": ((view("a"), view("b", (1, 0, 0), unread=(2048, 0, 0))), {"b": 5000}, "a"),
    "who does not serve has no prefix": ((view("a"), view("b", is_serving=False)), {"b": 5000}, "a"),
    "a prefix of who is gone does not matter": ((view("a"), view("b", (1, 0, 0))), {"gone": 5000}, "a"),
}


@pytest.mark.parametrize("case", PREFIX_CASES.values(), ids=PREFIX_CASES.keys())
def test_prefix(case: tuple[tuple[ReplicaView, ...], dict[str, int], str]) -> None:
    replicas, prefix, chosen = case
    for seed in range(20):
        choice = choose(P0, *replicas, prefix=prefix, seed=seed)
        assert choice.ranked[0] == chosen
        assert (choice.reason is Reason.PREFIX) == (chosen in prefix)
        assert sorted(choice.ranked) == sorted(r.replica_id for r in replicas if r.told is None or r.told.is_serving)

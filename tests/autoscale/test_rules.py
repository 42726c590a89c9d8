"""The life of an alert, and which rules there are. That Prometheus does the same: test_prometheus_rules.py.

Mutations that were tried by hand, and are caught here: fires one evaluation early or late; clears one early or late; a
failing evaluation while pending forgives; a true one while firing does not reset the recovery; `since_s` of the latest
evaluation; `provided` left out; rules for classes without a promise; a cleared alert that is kept for ever, or still
listed when it fires again; a disabled rule that is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscale.rules import (
    BATCH_SIZE_LOW,
    KV_HIT_LOW,
    LOW_BATCHING,
    PREEMPTION_STORM,
    TBT_BREACH,
    TTFT_HIGH,
    Alert,
    AlertBook,
    AlertRule,
    Evaluation,
    alert_rules,
    evaluate,
)
from autoscale.signals import KV_HIT_RATIO, NUM_WAITING, Bound, Side
from autoscale.view import ClassView, FleetView
from slo.priority import PriorityClass
from slo.settings import Settings, parse_settings
from slo.status import AlertState

P0, P1, P2 = PriorityClass
PERIOD_S = 10.0
KEPT_S = 100.0


def view(now_s: float = 0, kv_hit_ratio: float | None = None, **values: Any) -> FleetView:
    return FleetView(
        now_s=now_s,
        window_s=30,
        classes=values.pop("classes", {}),
        replicas=None,
        is_complete=True,
        kv_hit_ratio=kv_hit_ratio,
        **values,
    )


def rule(hold: int = 3, recovery: int = 2, name: str = "rule", priority: PriorityClass | None = None) -> AlertRule:
    return AlertRule(name, priority, Bound(KV_HIT_RATIO, Side.BELOW, 0.5), (), hold, recovery, "warning", "look")


def evaluated(
    rules: Sequence[AlertRule], ratios: Sequence[float | None], kept_s: float = KEPT_S, book: AlertBook | None = None
) -> list[Evaluation]:
    book, evaluations = book or AlertBook(), []
    for index, ratio in enumerate(ratios):
        evaluation = evaluate(rules, view(index * PERIOD_S, ratio), book, kept_s)
        book = evaluation.book
        book.check_invariants()
        evaluations.append(evaluation)
    return evaluations


def states(text: str, hold: int = 3, recovery: int = 2) -> str:
    """The state after each evaluation: of one whose condition holds (x), fails (.) or is not known (?)."""
    letters = {None: ".", AlertState.PENDING: "p", AlertState.FIRING: "F", AlertState.CLEARED: "c"}
    ratios = [{"x": 0.1, ".": 0.9, "?": None}[letter] for letter in text]
    return "".join(
        letters[next((a.state for a in (*e.book.active, *e.cleared)), None)]
        for e in evaluated((rule(hold, recovery),), ratios)
    )


@pytest.mark.parametrize(
    ("hold", "recovery", "conditions", "expected"),
    [
        (3, 2, "..xxx....", "..ppFFc.."),
        (3, 2, "xx.xx.xxx", "pp.pp.ppF"),
        (3, 2, "xxx.x.x..", "ppFFFFFFc"),
        (3, 2, "xxx..xx.xxx", "ppFFcpp.ppF"),
        (1, 1, "x.xx.", "FcFFc"),
        (1, 3, "x..x...", "FFFFFFc"),
        (4, 1, "xxxx.", "pppFc"),
        (3, 2, "xx?xxx??.", "pp.ppFFc."),
        (3, 2, "xxx?x?x", "ppFFFFF"),
        (1, 2, "???", "..."),
    ],
)
def test_alert_goes_through_its_states(hold: int, recovery: int, conditions: str, expected: str) -> None:
    assert states(conditions, hold, recovery) == expected


@given(
    conditions=st.text("x.?", max_size=60),
    hold=st.integers(1, 5),
    recovery=st.integers(1, 5),
)
def test_alert_fires_after_holding_in_a_row_and_clears_after_failing_in_a_row(
    conditions: str, hold: int, recovery: int
) -> None:
    told = states(conditions, hold, recovery)
    for index, state in enumerate(told):
        was_firing = index > 0 and told[index - 1] == "F"
        if state == "F" and not was_firing:
            assert conditions[index - hold + 1 : index + 1] == "x" * hold
        if state == "c":
            assert was_firing
            assert "x" not in conditions[index - recovery + 1 : index + 1]
        if state == "F" and was_firing:
            assert recovery > 1 or conditions[index] == "x"
        if not was_firing:
            assert state != "." or conditions[index] != "x"


def test_alert_tells_once_that_it_fired_and_once_that_it_cleared() -> None:
    evaluations = evaluated((rule(),), [0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9])
    assert [len(e.fired) for e in evaluations] == [0, 0, 1, 0, 0, 0, 0]
    assert [len(e.cleared) for e in evaluations] == [0, 0, 0, 0, 0, 1, 0]


def test_alert_says_since_when_it_is_in_its_state() -> None:
    evaluations = evaluated((rule(),), [0.9, 0.1, 0.1, 0.1, 0.1, 0.9, 0.9])
    (pending,), (firing,), (cleared,) = (
        evaluations[2].book.active,
        evaluations[4].book.active,
        evaluations[6].book.cleared,
    )
    assert (pending.state, pending.since_s) == (AlertState.PENDING, 10)
    assert (firing.state, firing.since_s) == (AlertState.FIRING, 30)
    assert (cleared.state, cleared.since_s) == (AlertState.CLEARED, 60)


def test_alert_has_the_value_of_the_latest_evaluation() -> None:
    evaluations = evaluated((rule(hold=1, recovery=3),), [0.1, 0.2, 0.8, None])
    assert [e.book.active[0].value for e in evaluations] == [0.1, 0.2, 0.8, None]


def test_rule_needs_what_it_is_provided_with() -> None:
    guarded = replace(rule(), provided=(Bound(NUM_WAITING, Side.ABOVE, 5),))
    waiting = {P0: ClassView(num_waiting=2), P2: ClassView(num_waiting=4)}
    assert guarded.is_true(view(kv_hit_ratio=0.1, classes=waiting))
    assert not guarded.is_true(view(kv_hit_ratio=0.1, classes={P0: ClassView(num_waiting=5)}))
    assert not guarded.is_true(view(kv_hit_ratio=0.9, classes=waiting))
    assert not guarded.is_true(view(kv_hit_ratio=None, classes=waiting))


def test_classes_of_one_rule_are_alerts_of_their_own() -> None:
    rules = tuple(rule(hold=1, priority=p) for p in (P0, P1))
    apart = (rules[0], replace(rules[1], bound=Bound(KV_HIT_RATIO, Side.BELOW, 0.05)))
    book = evaluated(apart, [0.1])[-1].book
    assert [alert.rule.priority for alert in book.firing] == [P0]
    assert book.firing_classes("rule") == {P0}
    assert (book.is_firing("rule"), book.is_firing("rule", P0), book.is_firing("rule", P1)) == (True, True, False)
    assert not book.is_firing("other")
    assert book.firing_classes("other") == frozenset()


def test_pending_alert_does_not_fire() -> None:
    book = evaluated((rule(hold=2, priority=P0),), [0.1])[-1].book
    assert [alert.state for alert in book.active] == [AlertState.PENDING]
    assert book.firing == ()
    assert not book.is_firing("rule")
    assert book.firing_classes("rule") == frozenset()


def test_cleared_alert_is_kept_for_a_time() -> None:
    evaluations = evaluated((rule(hold=1, recovery=1),), [0.1, *[0.9] * 4], kept_s=20)
    assert [len(e.book.cleared) for e in evaluations] == [0, 1, 1, 1, 0]


def test_cleared_alert_is_listed_no_more_when_it_fires_again_but_while_it_is_pending() -> None:
    evaluations = evaluated((rule(hold=2, recovery=1),), [0.1, 0.1, 0.9, 0.1, 0.1])
    assert [len(e.book.cleared) for e in evaluations] == [0, 0, 1, 1, 0]


def test_alert_that_clears_again_is_listed_once() -> None:
    (latest,) = evaluated((rule(hold=1, recovery=1),), [0.1, 0.9, 0.1, 0.9])[-1].book.cleared
    assert latest.since_s == 30


def test_alert_is_dropped_with_its_rule() -> None:
    book = evaluated((rule(hold=1),), [0.1])[-1].book
    evaluation = evaluate((), view(10, 0.1), book, KEPT_S)
    assert evaluation == Evaluation(AlertBook())


def test_alert_goes_on_under_changed_terms() -> None:
    book = evaluated((rule(hold=1, recovery=5),), [0.1, 0.9])[-1].book
    longer = evaluate((rule(hold=1, recovery=6),), view(20, 0.9), book, KEPT_S)
    assert [alert.rule.recovery_periods for alert in longer.book.firing] == [6]
    shorter = evaluate((rule(hold=1, recovery=2),), view(20, 0.9), book, KEPT_S)
    assert [alert.rule.recovery_periods for alert in shorter.cleared] == [2]


def test_reports_are_firing_then_pending_then_cleared_with_the_newest_first() -> None:
    rules = (
        rule(hold=9, name="pending"),
        rule(hold=1, name="firing", priority=P1),
        replace(rule(hold=1, recovery=1, name="old"), bound=Bound(KV_HIT_RATIO, Side.BELOW, 0.2)),
        replace(rule(hold=1, recovery=1, name="new"), bound=Bound(KV_HIT_RATIO, Side.BELOW, 0.3)),
    )
    book = evaluated(rules, [0.1, 0.25, 0.4])[-1].book
    reports = book.reports("tiny", now_s=24)
    assert [(r.name, r.state.value, r.since_ago_s) for r in reports] == [
        ("firing", "firing", 24),
        ("pending", "pending", 24),
        ("new", "cleared", 4),
        ("old", "cleared", 14),
    ]
    assert {r.model for r in reports} == {"tiny"}
    firing = reports[0]
    assert (firing.priority_class, reports[1].priority_class) == ("P1", None)
    assert (firing.severity, firing.value, firing.threshold, firing.message) == ("warning", 0.4, 0.5, "look")


@pytest.mark.parametrize(
    ("name", "unit"), [("tbt_breach", "s"), ("preemption_storm", "a minute"), ("kv_hit_low", ""), ("ttft_high", "s")]
)
def test_report_tells_the_unit_of_value_and_threshold(name: str, unit: str) -> None:
    rule = next(rule for rule in alert_rules(Settings()) if rule.name == name)
    assert Alert(rule, AlertState.FIRING, 0.0, 1, 0.5).report("tiny", 1.0).unit == unit


def test_book_is_refused_when_it_does_not_hold_together() -> None:
    firing = Alert(rule(), AlertState.FIRING, 0, 0.1, 0)
    cleared = replace(firing, state=AlertState.CLEARED, num_periods=2)
    for broken in (
        AlertBook((firing, firing)),
        AlertBook((firing,), (cleared,)),
        AlertBook((cleared,)),
        AlertBook((), (firing,)),
        AlertBook((replace(firing, num_periods=2),)),
        AlertBook((replace(firing, state=AlertState.PENDING, num_periods=3),)),
        AlertBook((), (cleared, replace(cleared, rule=rule(name="other"), since_s=5))),
    ):
        with pytest.raises(AssertionError):
            broken.check_invariants()


def test_rules_are_the_design_tables() -> None:
    told = [
        (r.name, r.priority, r.bound.side.name, r.bound.limit, [(b.side.name, b.limit) for b in r.provided])
        for r in alert_rules(Settings())
    ]
    assert told == [
        (TBT_BREACH, P0, "ABOVE", 0.04, []),
        (TBT_BREACH, P1, "ABOVE", 0.2, []),
        (PREEMPTION_STORM, None, "ABOVE", 10, []),
        (LOW_BATCHING, None, "BELOW", 0.6, [("ABOVE", 100)]),
        (TTFT_HIGH, P0, "ABOVE", 1, []),
        (TTFT_HIGH, P1, "ABOVE", 1, []),
        (KV_HIT_LOW, None, "BELOW", 0.95, []),
        (BATCH_SIZE_LOW, None, "BELOW", 8, [("ABOVE", 0)]),
    ]


@pytest.mark.parametrize(
    ("targets", "tbt_limits", "ttft_limits"),
    [
        ({"p0": {"promised": False}}, {P1: 0.2}, {P1: 1}),
        ({"p0": {"tbt_p99_ms": None}}, {P1: 0.2}, {P0: 1, P1: 1}),
        ({"p1": {"ttft_p99_ms": None}}, {P0: 0.04, P1: 0.2}, {P0: 1}),
        ({"p2": {"ttft_p99_ms": 60_000, "promised": True}}, {P0: 0.04, P1: 0.2, P2: 0.4}, {P0: 1, P1: 1, P2: 1}),
        ({"p0": {"tbt_p99_ms": 5}}, {P0: 0.01, P1: 0.2}, {P0: 1, P1: 1}),
    ],
)
def test_rules_by_class_are_of_classes_with_promised_targets(
    targets: dict[str, Any], tbt_limits: dict[PriorityClass, float], ttft_limits: dict[PriorityClass, float]
) -> None:
    rules = alert_rules(parse_settings({"scheduler": {"targets": targets}}))
    assert {r.priority: r.bound.limit for r in rules if r.name == TBT_BREACH} == tbt_limits
    assert {r.priority: r.bound.limit for r in rules if r.name == TTFT_HIGH} == ttft_limits


def test_rules_take_their_terms_from_the_settings() -> None:
    terms = {"hold_periods": 7, "recovery_periods": 8, "severity": "critical", "message": "Call Ada."}
    settings = parse_settings(
        {
            "engine": {"max_num_seqs": 10},
            "alerts": {
                TBT_BREACH: {"target_ratio": 3},
                PREEMPTION_STORM: {"max_per_minute": 4},
                LOW_BATCHING: {"min_gpu_ratio": 0.5, "max_waiting": 6},
                TTFT_HIGH: {"max_ms": 50},
                KV_HIT_LOW: {"min_ratio": 0.7, **terms},
                BATCH_SIZE_LOW: {"min_slots_ratio": 0.5, "max_waiting": 9},
            },
        }
    )
    rules = {r.key: r for r in alert_rules(settings)}
    assert {key: [b.limit for b in (r.bound, *r.provided)] for key, r in rules.items()} == {
        (TBT_BREACH, P0): [0.06],
        (TBT_BREACH, P1): [0.3],
        (PREEMPTION_STORM, None): [4],
        (LOW_BATCHING, None): [0.5, 6],
        (TTFT_HIGH, P0): [0.05],
        (TTFT_HIGH, P1): [0.05],
        (KV_HIT_LOW, None): [0.7],
        (BATCH_SIZE_LOW, None): [5, 9],
    }
    hits = rules[KV_HIT_LOW, None]
    assert (hits.hold_periods, hits.recovery_periods, hits.severity, hits.message) == tuple(terms.values())


@pytest.mark.parametrize("name", [TBT_BREACH, PREEMPTION_STORM, LOW_BATCHING, TTFT_HIGH, KV_HIT_LOW, BATCH_SIZE_LOW])
def test_rule_is_left_out_when_it_is_disabled(name: str) -> None:
    rules = alert_rules(parse_settings({"alerts": {name: {"enabled": False}}}))
    assert {r.name for r in alert_rules(Settings())} - {r.name for r in rules} == {name}

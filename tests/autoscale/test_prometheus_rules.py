"""One source: the rule file fires and clears where the controller does, judged by promtool on the same series.

The latencies are such that no value lies on a limit, nor between two numbers of four digits.

Mutations that were tried by hand, and are caught here: a signal's two readings apart (another quantile, another metric,
`state="running"`, 30 * for 60 *); `for` or `keep_firing_for` of as many periods as the settings say; a range of the
window alone, or of one period more; None as true, in `Bound.is_crossed`; hysteresis that counts failing periods that
are not in a row; a pending alert that outlives a failing period.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoscale.prometheus_rules import render_rules, rule_file
from autoscale.rules import AlertBook, AlertKey, alert_rules, evaluate
from autoscale.signals import duration_text
from cli.config import load_config, settings_of
from slo.priority import PriorityClass
from slo.settings import Settings, parse_settings
from tests.autoscale.alert_series import NUM_SLOTS, Moment, Period, input_series, play
from tests.promtool import check_rules, run_rule_tests

P0, P1, P2 = PriorityClass
ROOT = Path(__file__).parents[2]
RULES = ("tbt_breach", "preemption_storm", "low_batching", "ttft_high", "kv_hit_low", "batch_size_low")
VALUE = re.compile(r"\{\{ printf \"%\.4g\" \$value \}\}")

GOOD = Period()
SILENT = Period(ttft_s={}, tbt_s={}, num_reusable_blocks=0, num_hit_blocks=0, batch_size=None, gpu_ratio=None)
SLOW_TOKENS = Period(tbt_s={P0: {0.015: 470, 0.06: 30}, P1: {0.015: 470, 0.06: 30}, P2: {0.9: 500}})
SLOWER_TOKENS = Period(tbt_s={P0: {0.015: 500}, P1: {0.015: 400, 0.3: 100}})
SLOW_FIRST_TOKENS = Period(ttft_s={P0: {0.03: 50}, P1: {0.4: 35, 1.2: 15}, P2: {30.0: 50}})
STORM = Period(num_preempted=6)
IDLE_GPUS = Period(gpu_ratio=0.4, num_waiting=150)
MISSES = Period(num_hit_blocks=800)
SMALL_BATCHES = Period(batch_size=2, num_waiting=1)

TABLE: dict[str, tuple[list[Period], dict[AlertKey, list[tuple[int, int]]]]] = {
    # One bad period rules three windows, so it is enough: it fires in the third, and clears three after the last.
    "tbt_breach": ([GOOD] * 4 + [SLOW_TOKENS] + [GOOD] * 6, {("tbt_breach", P0): [(6, 9)]}),
    "tbt_breach_of_another_class": ([GOOD] * 4 + [SLOWER_TOKENS] + [GOOD] * 6, {("tbt_breach", P1): [(6, 9)]}),
    "tbt_breach_that_pauses": (
        [GOOD] * 4 + [SLOW_TOKENS] + [GOOD] * 4 + [SLOW_TOKENS] + [GOOD] * 6,
        {("tbt_breach", P0): [(6, 14)]},
    ),
    "preemption_storm": ([GOOD] * 4 + [STORM] * 2 + [GOOD] * 6, {("preemption_storm", None): [(6, 10)]}),
    "low_batching": (
        [GOOD] * 4 + [IDLE_GPUS] * 2 + [GOOD] + [IDLE_GPUS] * 3 + [GOOD] * 2 + [IDLE_GPUS] + [GOOD] * 4,
        {("low_batching", None): [(9, 15)]},
    ),
    "ttft_high": ([GOOD] * 4 + [SLOW_FIRST_TOKENS] * 3 + [GOOD] * 6, {("ttft_high", P1): [(6, 11)]}),
    "kv_hit_low": ([GOOD] * 4 + [MISSES] * 4 + [GOOD] * 10, {("kv_hit_low", None): [(9, 15)]}),
    "kv_hit_low_too_short": ([GOOD] * 4 + [MISSES] * 3 + [GOOD] * 10, {}),
    "batch_size_low": ([GOOD] * 4 + [SMALL_BATCHES] * 32 + [GOOD] * 4, {("batch_size_low", None): [(35, 38)]}),
    # Missing data counts as false, on both sides.
    "tbt_breach_then_silence": ([GOOD] * 4 + [SLOW_TOKENS] + [SILENT] * 6, {("tbt_breach", P0): [(6, 9)]}),
    "low_batching_then_silence": ([GOOD] * 4 + [IDLE_GPUS] * 3 + [SILENT] * 4, {("low_batching", None): [(6, 9)]}),
    "low_batching_broken_by_silence": (
        [GOOD] * 4 + [IDLE_GPUS] * 2 + [SILENT] + [IDLE_GPUS] * 2 + [GOOD] * 3,
        {},
    ),
    "all_at_once_then_silence": (
        [GOOD] * 4
        + [Period(SLOW_FIRST_TOKENS.ttft_s, SLOW_TOKENS.tbt_s, 6, 1000, 800, 2, 150, 0.4)] * 36
        + [SILENT] * 10,
        {
            ("tbt_breach", P0): [(6, 44)],
            ("preemption_storm", None): [(6, 44)],
            ("low_batching", None): [(6, 42)],
            ("ttft_high", P1): [(6, 44)],
            ("kv_hit_low", None): [(9, 47)],
            ("batch_size_low", None): [(35, 42)],
        },
    ),
}


def with_periods(period_s: float, **alerts: Any) -> Settings:
    autoscale = {"period_s": period_s, "window_s": 3 * period_s, "stale_after_s": 2.5 * period_s}
    return parse_settings({"engine": {"max_num_seqs": NUM_SLOTS}, "autoscale": autoscale, "alerts": alerts})


DEFAULTS = with_periods(10)


def judged(moments: Sequence[Moment], of: Settings) -> tuple[list[AlertBook], dict[AlertKey, list[tuple[int, int]]]]:
    """The controller's book after each period, and in which periods each alert fired and cleared."""
    rules, book, books = alert_rules(of), AlertBook(), []
    fired: dict[AlertKey, list[int]] = {}
    spans: dict[AlertKey, list[tuple[int, int]]] = {}
    for index, moment in enumerate(moments):
        evaluation = evaluate(rules, moment.view, book, of.alerts.cleared_kept_s)
        book = evaluation.book
        book.check_invariants()
        books.append(book)
        for alert in evaluation.fired:
            fired.setdefault(alert.rule.key, []).append(index)
        for alert in evaluation.cleared:
            spans.setdefault(alert.rule.key, []).append((fired[alert.rule.key][-1], index))
    return books, spans


def expectations(moments: Sequence[Moment], books: Sequence[AlertBook], of: Settings, late: int) -> list[Any]:
    """promtool's `alert_rule_test`: what fires in each period, with labels and texts, `late` periods after.

    An alert keeps in Prometheus the value that it had when its condition last held.
    """
    annotations = {
        (rule["alert"], rule["labels"].get("priority_class")): rule["annotations"]
        for rule in rule_file(of)["groups"][0]["rules"]
    }
    values: dict[AlertKey, float | None] = {}
    tests = []
    for index, (moment, book) in enumerate(zip(moments, books, strict=True)):
        for rule in alert_rules(of):
            if rule.is_true(moment.view):
                values[rule.key] = rule.bound.signal.read(moment.view)
        for name in dict.fromkeys(rule.name for rule in alert_rules(of)):
            alerts = []
            for alert in book.firing:
                if alert.rule.name == name:
                    label = None if alert.rule.priority is None else alert.rule.priority.name
                    texts = annotations[name, label]
                    alerts.append(
                        {
                            "exp_labels": {"severity": alert.rule.severity}
                            | ({} if label is None else {"priority_class": label}),
                            "exp_annotations": texts
                            | {"summary": VALUE.sub(f"{values[alert.rule.key]:.4g}", texts["summary"])},
                        }
                    )
            at = duration_text((index + late) * of.autoscale.period_s)
            tests.append({"eval_time": at, "alertname": name, "exp_alerts": alerts})
    return tests


def promtool_agrees(directory: Path, of: Settings, scenarios: Sequence[Sequence[Period]], *, between: bool) -> None:
    period_s = of.autoscale.period_s
    tests = []
    for periods in scenarios:
        moments = play(periods, of)
        books, _ = judged(moments, of)
        tests.append(
            {
                "interval": duration_text(period_s / 2 if between else period_s),
                "input_series": input_series(moments, between=between),
                "alert_rule_test": expectations(moments, books, of, late=between),
            }
        )
    assert "SUCCESS" in run_rule_tests(directory, rule_file(of), duration_text(period_s), tests)


@pytest.mark.parametrize("case", TABLE)
def test_controller_fires_and_clears_each_alert_in_its_periods(case: str) -> None:
    periods, expected = TABLE[case]
    _, spans = judged(play(periods, DEFAULTS), DEFAULTS)
    assert spans == expected


@pytest.mark.parametrize(
    ("period_s", "between"),
    [(10, False), (10, True), (0.5, True)],
    ids=["scraped when evaluated", "scraped between evaluations", "two periods a second"],
)
def test_prometheus_fires_and_clears_each_alert_in_the_same_periods(
    tmp_path: Path, period_s: float, between: bool
) -> None:
    promtool_agrees(tmp_path, with_periods(period_s), [periods for periods, _ in TABLE.values()], between=between)


def any_period() -> st.SearchStrategy[Period]:
    return st.builds(
        Period,
        ttft_s=st.sampled_from([GOOD.ttft_s, SLOW_FIRST_TOKENS.ttft_s, {}]),
        tbt_s=st.sampled_from([GOOD.tbt_s, SLOW_TOKENS.tbt_s, SLOWER_TOKENS.tbt_s, {}]),
        num_preempted=st.sampled_from([0, 4, 9]),
        num_hit_blocks=st.sampled_from([1000, 860, 700]),
        batch_size=st.sampled_from([48, 9, 2, None]),
        num_waiting=st.sampled_from([0, 1, 150]),
        gpu_ratio=st.sampled_from([0.9, 0.4, None]),
    )


def any_alerts() -> st.SearchStrategy[dict[str, Any]]:
    periods = st.fixed_dictionaries({"hold_periods": st.integers(1, 5), "recovery_periods": st.integers(1, 5)})
    return st.fixed_dictionaries(dict.fromkeys(RULES, periods))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    alerts=any_alerts(),
    stretches=st.lists(st.tuples(any_period(), st.integers(1, 7)), min_size=3, max_size=9),
    between=st.booleans(),
)
def test_prometheus_agrees_with_the_controller_whatever_happens(
    tmp_path: Path, alerts: dict[str, Any], stretches: list[tuple[Period, int]], between: bool
) -> None:
    periods = [GOOD] * 4 + [period for period, times in stretches for _ in range(times)]
    promtool_agrees(tmp_path, with_periods(10, **alerts), [periods], between=between)


def test_promtool_disagrees_when_the_rules_are_others(tmp_path: Path) -> None:
    periods, _ = TABLE["tbt_breach"]
    moments = play(periods, DEFAULTS)
    books, _ = judged(moments, DEFAULTS)
    test = {
        "interval": "10s",
        "input_series": input_series(moments, between=False),
        "alert_rule_test": expectations(moments, books, DEFAULTS, late=0),
    }
    others = with_periods(10, tbt_breach={"hold_periods": 4})
    with pytest.raises(AssertionError, match="alertname: tbt_breach, time: 1m,"):
        run_rule_tests(tmp_path, rule_file(others), "10s", [test])


def test_preemptions_are_not_counted_again_when_the_controller_restarts(tmp_path: Path) -> None:
    """Its totals then begin with those of the sources that still live: `increase` would take all of them for new."""
    series = 'expresslane_preemptions_total{priority_class="P2",kind="paused"}'
    test = {
        "interval": "10s",
        "input_series": [{"series": series, "values": "1000x9 900x9"}],
        "alert_rule_test": [
            {"eval_time": f"{at_s}s", "alertname": "preemption_storm", "exp_alerts": []} for at_s in range(0, 190, 10)
        ],
    }
    assert "SUCCESS" in run_rule_tests(tmp_path, rule_file(DEFAULTS), "10s", [test])


def test_committed_rule_file_is_what_the_repositorys_settings_give() -> None:
    committed = (ROOT / "deploy" / "prometheus" / "rules.yaml").read_text()
    assert committed == render_rules(settings_of(load_config(ROOT / "serve.yaml"))), (
        "run: expresslane rules --output deploy/prometheus/rules.yaml"
    )


@pytest.mark.parametrize("of", [DEFAULTS, with_periods(0.5), with_periods(7.25)], ids=["10s", "500ms", "7s250ms"])
def test_rule_file_is_valid(tmp_path: Path, of: Settings) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(render_rules(of))
    assert f"SUCCESS: {len(alert_rules(of)) + 1} rules found" in check_rules(file), "and scaling_failed"


def test_rule_file_has_one_group_that_is_evaluated_once_a_period() -> None:
    (group,) = rule_file(with_periods(7.25))["groups"]
    assert (group["name"], group["interval"]) == ("expresslane", "7s250ms")


def test_rule_holds_for_one_period_less_than_it_has_evaluations() -> None:
    of = with_periods(10, kv_hit_low={"hold_periods": 1, "recovery_periods": 13})
    (rule,) = [r for r in rule_file(of)["groups"][0]["rules"] if r["alert"] == "kv_hit_low"]
    assert (rule["for"], rule["keep_firing_for"]) == ("0s", "2m")


def test_rule_file_leaves_out_what_is_disabled() -> None:
    of = with_periods(10, tbt_breach={"enabled": False}, low_batching={"enabled": False})
    names = [rule["alert"] for rule in rule_file(of)["groups"][0]["rules"]]
    assert names == ["preemption_storm", "ttft_high", "ttft_high", "kv_hit_low", "batch_size_low", "scaling_failed"]


def test_scaling_that_failed_is_told_at_once_however_many_ingresses_are_scraped(tmp_path: Path) -> None:
    series = [
        {"series": f'expresslane_alert_firing{{alert="{alert}",instance="{instance}"}}', "values": values}
        for instance in ("a", "b")
        for alert, values in (("scaling_failed", "0 0 1 1 0"), ("kv_hit_low", "1 1 1 1 1"))
    ]
    (rule,) = [r for r in rule_file(DEFAULTS)["groups"][0]["rules"] if r["alert"] == "scaling_failed"]
    fires = {"exp_labels": {"severity": "critical"}, "exp_annotations": rule["annotations"]}
    test = {
        "interval": "10s",
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": f"{10 * i}s", "alertname": "scaling_failed", "exp_alerts": [fires] if i in (2, 3) else []}
            for i in range(5)
        ],
    }
    assert "SUCCESS" in run_rule_tests(tmp_path, rule_file(DEFAULTS), "10s", [test])


def test_message_is_told_as_it_is_written(tmp_path: Path) -> None:
    message = "See {{ runbook }} of \u201ctokens\u201d: 100 % $value"
    of = with_periods(10, tbt_breach={"message": message})
    moments = play(TABLE["tbt_breach"][0], of)
    alert = {
        "exp_labels": {"severity": "critical", "priority_class": "P0"},
        "exp_annotations": {"summary": "TBT P99 of P0 0.0575 s, above 0.04 s", "description": message},
    }
    test = {
        "interval": "10s",
        "input_series": input_series(moments, between=False),
        "alert_rule_test": [{"eval_time": "1m", "alertname": "tbt_breach", "exp_alerts": [alert]}],
    }
    assert "SUCCESS" in run_rule_tests(tmp_path, rule_file(of), "10s", [test])


def test_rules_of_several_models_look_at_the_series_of_each_alone(tmp_path: Path) -> None:
    models = [
        {"model": {"source": "org/one"}},
        {"model": {"source": "org/two"}, "alerts": {"preemption_storm": {"max_per_minute": 1}}},
    ]
    of = parse_settings({"models": models})
    groups = rule_file(of)["groups"]
    assert [group["name"] for group in groups] == ["expresslane-org-one", "expresslane-org-two"]
    file = tmp_path / "rules.yaml"
    file.write_text(render_rules(of))
    assert f"SUCCESS: {sum(len(group['rules']) for group in groups)} rules found" in check_rules(file)
    labels = 'priority_class="P2",kind="paused"'
    series = [
        {"series": f'expresslane_preemptions_total{{model="{model}",{labels}}}', "values": "0+1x30"}
        for model in ("org/one", "org/two")
    ]
    fired = {"exp_labels": {"severity": "warning", "model": "org/two"}, "exp_annotations": _annotations(groups[1], 6)}
    test = {
        "interval": "10s",
        "input_series": series,
        "alert_rule_test": [{"eval_time": "4m", "alertname": "preemption_storm", "exp_alerts": [fired]}],
    }
    assert "SUCCESS" in run_rule_tests(tmp_path, rule_file(of), "10s", [test])


def _annotations(group: dict[str, Any], value: float) -> dict[str, str]:
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == "preemption_storm"]
    return {key: VALUE.sub(f"{value:.4g}", text) for key, text in rule["annotations"].items()}

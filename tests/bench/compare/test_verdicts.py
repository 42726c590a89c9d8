from __future__ import annotations

from typing import Any

import pytest

from bench.compare.comparison import Comparison, ComparisonError
from bench.compare.comparison_file import COMPARISONS
from bench.compare.contender import Contender
from bench.compare.contest import Contest, Entry, open_contest
from bench.compare.table import headings, rows, warnings
from bench.compare.verdicts import verdicts
from bench.measure import figures_of
from bench.result import Measured, Result
from bench.scenario import ScenarioError
from tests.bench.answers import answers, reply, run, scenario

LOAD = scenario(name="load", seed=1)
OURS, THEIRS = (Contender(name=name, url="http://127.0.0.1:9") for name in ("ours", "theirs"))


def comparison(*claims: dict[str, Any], **values: Any) -> Comparison:
    usual = {"scenario": "load", "contenders": ["ours", "theirs"], "alone": ["a"]}
    return COMPARISONS.parse({**usual, "claims": list(claims), **values})


def contest(*claims: dict[str, Any], **values: Any) -> Contest:
    return open_contest(comparison(*claims, **values), LOAD, (OURS, THEIRS), {})


def measured(ttft_s: float, lag_s: float = 0.0) -> Measured:
    told = run(answers(reply(0, ttft_s, ttft_s + 0.01)), loop_lags_s=(lag_s,))
    return Measured(1, told, figures_of(told, LOAD))


def entry(contender: Contender, alone_s: float, loaded_s: float, **values: float) -> Entry:
    loaded = Result(LOAD, "m", 1, (measured(loaded_s, **values),))
    return Entry(contender, 1.0, measured(alone_s), loaded)


MET = (entry(OURS, 0.1, 0.15), entry(THEIRS, 0.1, 1.5))


@pytest.mark.parametrize(
    ("claim", "told", "held"),
    [
        ({"of": "ours", "at_most": 150.1}, "150", True),
        ({"of": "ours", "at_most": 149}, "150", False),
        ({"of": "ours", "to": "theirs", "at_most": 0.11}, "0.10 (150 / 1,500)", True),
        ({"of": "ours", "to": "theirs", "at_least": 0.11}, "0.10 (150 / 1,500)", False),
        ({"of": "theirs", "to": "ours", "at_least": 9.9}, "10.00 (1,500 / 150)", True),
        ({"of": "ours", "to": "alone", "at_most": 1.4}, "1.50 (150 / 100)", False),
    ],
)
def test_claim_is_judged_by_its_bound(claim: dict[str, Any], told: str, held: bool) -> None:
    (verdict,) = verdicts(contest({"metric": "a.ttft.p50_ms", **claim}), MET)
    assert (verdict.measured, verdict.held) == (told, held)


@pytest.mark.parametrize(("ours_s", "told", "held"), [(0.15, "inf (0.1 / 0)", True), (1.5, "not measured", False)])
def test_something_exceeds_nothing_and_nothing_does_not(ours_s: float, told: str, held: bool) -> None:
    claim = {"metric": "goodput_per_s", "of": "ours", "to": "theirs", "at_least": 2}
    (verdict,) = verdicts(contest(claim), (entry(OURS, 0.1, ours_s), entry(THEIRS, 0.1, 1.5)))
    assert (verdict.measured, verdict.held) == (told, held)


def test_claim_does_not_hold_when_a_contender_failed_or_was_not_met() -> None:
    claim = {"metric": "goodput_per_s", "of": "ours", "to": "theirs", "at_most": 9}
    for entries in ((MET[0], Entry(THEIRS, failure="no device")), (MET[0],)):
        (verdict,) = verdicts(contest(claim), entries)
        assert (verdict.measured, verdict.held) == ("not measured", False)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (
            {"metric": "a.tfft.p50_ms", "of": "ours", "at_most": 1},
            r"claims\.0\.metric='a\.tfft.*like it: a\.ttft",
        ),
        ({"metric": "goodput_per_s", "of": "nobody", "at_most": 1}, r"claims\.0\.of='nobody': is none of"),
        ({"metric": "goodput_per_s", "of": "ours", "to": "nobody", "at_most": 1}, r"claims\.0\.to='nobody'"),
        ({"metric": "goodput_per_s", "of": "ours"}, "at_most=None, at_least=None: exactly one"),
        ({"metric": "goodput_per_s", "of": "ours", "at_most": 1, "at_least": 1}, "exactly one"),
        ({"metric": "goodput_per_s", "of": "alone", "at_most": 1}, r"claims\.0\.of='alone'"),
    ],
)
def test_claim_of_what_is_not_there_is_refused_by_its_key(claim: dict[str, Any], message: str) -> None:
    with pytest.raises(ComparisonError, match=message):
        contest(claim)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"baseline": "nobody"}, "baseline='nobody'"),
        ({"engine": {"slots": 0}}, r"engine\.slots=0"),
        ({"engine": {"speed": 1}}, r"engine\.speed: unknown key"),
        ({"contenders": []}, "contenders"),
    ],
)
def test_comparison_that_does_not_hold_together_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ComparisonError, match=message):
        contest(**values)


def test_claim_to_a_class_alone_needs_that_class_alone() -> None:
    claim = {"metric": "a.ttft.p50_ms", "of": "ours", "to": "alone", "at_most": 1}
    with pytest.raises(ComparisonError, match="needs `alone`"):
        contest(claim, alone=[])
    with pytest.raises(ScenarioError, match="no class is called b"):
        contest(claim, alone=["b"])


def test_contest_wants_each_contender_once_and_its_keys_set() -> None:
    with pytest.raises(ComparisonError, match="two are called ours"):
        open_contest(comparison(), LOAD, (OURS, OURS), {})
    keyed = OURS.model_copy(update={"api_key_env": "THE_KEY"})
    with pytest.raises(ScenarioError, match="'THE_KEY': the variable is not set"):
        open_contest(comparison(), LOAD, (keyed, THEIRS), {})


def test_seed_is_drawn_once_for_all() -> None:
    assert open_contest(comparison(), scenario(), (OURS, THEIRS), {}).scenario.seed is not None


def test_table_has_ratios_to_the_baseline_and_to_the_class_alone() -> None:
    told = list(rows(contest(baseline="theirs"), MET))
    ours = dict(zip(headings(contest()), told[0], strict=True))
    assert ours["TTFT p50 / p99, ms (ratio)"] == "150 / 150 (0.10 / 0.10)"
    assert ours["TTFT p50 / p99, to alone"] == "1.50 / 1.50 of 100 / 100"
    assert [row[:2] for row in told] == [["a", "ours"], ["a", "theirs"], ["all", "ours"], ["all", "theirs"]]


def test_table_tells_who_failed_and_goes_on_without_ratios() -> None:
    told = list(rows(contest(baseline="theirs"), (MET[0], Entry(THEIRS, failure="no device"))))
    assert told[0][3] == "150 / 150"
    assert told[-1][:3] == ["all", "theirs", "FAILED: no device"]
    assert {len(row) for row in told} == {len(headings(contest()))}


def test_warnings_tell_a_generator_that_did_not_keep_up() -> None:
    assert list(warnings(contest(), MET)) == []
    (warning,) = warnings(contest(), (entry(OURS, 0.1, 0.1, lag_s=1.0),))
    assert warning.startswith("ours, under load: THE GENERATOR DID NOT KEEP UP")

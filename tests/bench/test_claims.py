from __future__ import annotations

import math

import pytest

from bench.claims import Claim, flood_claims, overload_claims, path_claims, quotient, reachable
from bench.measure import figures_of
from bench.reply import Reply
from bench.result import Measured
from bench.scenario import Targets
from slo.outcome import Outcome
from tests.bench.answers import answers, reply, run, scenario

OVERLOAD = scenario(
    {"name": "P0", "rate": 1, "targets": {"ttft_ms": 100, "tbt_ms": 20}},
    {"name": "P2", "rate": 1},
)
TARGETS = OVERLOAD.classes[0].targets
FLOOD = scenario({"name": "quiet", "rate": 1}, {"name": "flood", "rate": 1})
SHED = reply(1, outcome=Outcome.SHED)


def measured(p0: list[Reply], p2: list[Reply]) -> Measured:
    told = run([*answers(*p0, name="P0"), *answers(*p2, name="P2")])
    return Measured(1, told, figures_of(told, OVERLOAD))


def held(claims: list[Claim]) -> dict[str, bool]:
    return {claim.what.split(",")[0]: claim.held for claim in claims if claim.held is not None}


def p0(*ttfts_s: float) -> list[Reply]:
    return [reply(i, i + ttft_s, i + ttft_s + 0.01) for i, ttft_s in enumerate(ttfts_s)]


@pytest.mark.parametrize(
    ("loaded", "p2", "mib_after", "expected"),
    [
        (p0(0.05, 0.06), [SHED], 100, (True, True, True)),
        (p0(0.05, 0.2), [SHED], 100, (False, True, True)),
        ([*p0(0.05), reply(2, outcome=Outcome.EXPIRED)], [SHED], 100, (False, True, True)),
        (p0(0.05), [reply(1)], 100, (True, False, True)),
        (p0(0.05), [SHED], 106, (True, True, False)),
    ],
)
def test_overload_claims_hold_when_p0_is_served_as_alone_batch_is_refused_and_memory_is_flat(
    loaded: list[Reply], p2: list[Reply], mib_after: float, expected: tuple[bool, bool, bool]
) -> None:
    alone = measured(p0(0.05, 0.05), [])
    claims = overload_claims(alone, measured(loaded, p2), OVERLOAD, TARGETS, 0.1, (100, mib_after))
    verdicts = held(claims)
    assert tuple(verdicts.values()) == expected, verdicts


def test_overload_claims_tell_each_targets_share() -> None:
    loaded = measured([*p0(0.05, 0.2), reply(3, outcome=Outcome.EXPIRED)], [SHED])
    claims = overload_claims(measured(p0(0.05, 0.05), []), loaded, OVERLOAD, TARGETS, 0.1, (100, 100))
    told = {claim.what: claim.measured for claim in claims}
    assert told["overload: P0 answered; TTFT in time; gaps in time"] == "0.667; 0.333; 1.000"


def test_overload_claims_do_not_hold_when_nothing_was_attained_alone() -> None:
    none = measured([SHED], [SHED])
    assert held(overload_claims(none, none, OVERLOAD, TARGETS, 1, (1, 1)))["overload: P0 attainment"] is False


def test_target_is_loosened_where_the_machine_misses_it_with_every_slot_taken() -> None:
    slow = measured(p0(0.3, 0.3), []).figures.of("P0")
    loosened = reachable(Targets(ttft_ms=100, tbt_ms=20), slow)
    assert (loosened.ttft_ms, loosened.tbt_ms) == (pytest.approx(600), pytest.approx(20))
    assert reachable(Targets(tbt_ms=20), slow).ttft_ms is None
    assert reachable(Targets(ttft_ms=100), measured([SHED], []).figures.of("P0")).ttft_ms == 100


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ([reply(0, 0.19)], (True, True)),
        ([reply(0, 0.21)], (False, True)),
        ([reply(0, 0.1), SHED], (True, False)),
        ([SHED], (False, False)),
    ],
)
def test_flood_claims_hold_when_the_quiet_tenant_is_served_as_alone(
    beside: list[Reply], expected: tuple[bool, bool]
) -> None:
    alone = figures_of(run(answers(reply(0, 0.1), name="quiet")), FLOOD)
    both = figures_of(run([*answers(*beside, name="quiet"), *answers(SHED, name="flood")]), FLOOD)
    claims = flood_claims(alone, both)
    assert tuple(held(claims).values()) == expected
    assert claims[0].measured.startswith("100 / 100 -> ")


@pytest.mark.parametrize(
    ("figures", "expected"),
    [((14, 10, 960, 1000), (True, True)), ((15.1, 10, 940, 1000), (False, False)), ((9, 10, 0, 0), (True, False))],
)
def test_path_claims_hold_when_little_is_added(
    figures: tuple[float, float, float, float], expected: tuple[bool, bool]
) -> None:
    assert tuple(held(path_claims(*figures)).values()) == expected


def test_claim_is_a_row_of_markdown() -> None:
    assert Claim("a", "1", "at most 2", True).row() == "| a | 1 | at most 2 | yes |"
    assert Claim("a", "1", "at most 2", False).row() == "| a | 1 | at most 2 | no |"
    assert Claim("a", "1").row() == "| a | 1 |  |  |"


def test_quotient_of_nothing_holds_no_claim() -> None:
    assert quotient(1, 0) == 0
    assert not math.isnan(quotient(0, 0))

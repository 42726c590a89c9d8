from __future__ import annotations

import pytest

from bench.batch_beside_urgent import AIM, Ended, claims
from bench.measure import ClassFigures, figures_of
from slo.outcome import Outcome
from tests.bench.answers import answers, reply, run, scenario

SCENARIO = scenario({"name": "P0", "rate": 1})


def p0(*ttfts_ms: float, num_shed: int = 0) -> ClassFigures:
    replies = [*(reply(0, ms / 1e3) for ms in ttfts_ms), *[reply(0, outcome=Outcome.SHED)] * num_shed]
    return figures_of(run(answers(*replies, name="P0")), SCENARIO).of("P0")


def told(alone: ClassFigures, beside: list[ClassFigures], batch: Ended) -> dict[str, tuple[str, bool | None]]:
    return {claim.what: (claim.measured, claim.held) for claim in claims(alone, beside, batch, 5)}


@pytest.mark.parametrize(("median_ms", "held"), [(100 * AIM, True), (100 * AIM + 1, False)])
def test_claim_is_of_the_rounds_in_the_middle(median_ms: float, held: bool) -> None:
    rounds = [p0(100), p0(median_ms), p0(900)]
    lines = told(p0(100), rounds, Ended("completed", 5, 0, 2.0))
    assert lines["the same: TTFT p99, ratio to alone, each round"][0] == f"1.00 {median_ms / 100:.2f} 9.00"
    assert lines["the same: the median round"] == (f"{median_ms / 100:.2f}", held)
    assert lines["the batch of 5 lines: completed / failed"] == ("5 / 0", True)
    assert lines["the same: lines a second"][0] == "2.50"


@pytest.mark.parametrize("batch", [Ended("expired", 5, 0, 1.0), Ended("completed", 4, 1, 1.0)])
def test_batch_that_is_not_whole_is_told(batch: Ended) -> None:
    assert told(p0(100), [p0(100)], batch)["the batch of 5 lines: completed / failed"][1] is False


def test_urgent_requests_that_are_not_answered_are_told() -> None:
    lines = told(p0(100), [p0(100, num_shed=1), p0(num_shed=2)], Ended("completed", 5, 0, 1.0))
    assert lines["P0 answered, of those sent"][0] == "1 of 4"
    assert lines["the same: the median round"] == ("inf", False)

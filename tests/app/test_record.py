"""Mutations tried by hand, each found by a test here or in `test_stream.py`: an event without a token counted as one;
TTFT taken anew at every event; the record counted at each close that fails; a request without a class counted as one of
a class; the tenant's name without quotes."""

import asyncio
from collections.abc import Iterator

import pytest

from app.classify import Classification
from app.metrics import IngressMetrics
from app.record import RequestRecord
from slo.errors import Shed
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import ClassTargets
from tests.app.conftest import RecordLines

P0 = PriorityClass.P0


class Clock:
    """Gives the next of `times` at each reading."""

    def __init__(self, *times: float) -> None:
        self._times: Iterator[float] = iter(times)

    def __call__(self) -> float:
        return next(self._times)


def make_record(*times: float, metrics: IngressMetrics | None = None) -> RequestRecord:
    """`times`: of the arrival, and of what is told to the record after it."""
    return RequestRecord("id-1", "/v1/completions", metrics or IngressMetrics(ClassTargets()), Clock(*times))


def test_record_writes_one_line_with_its_times_when_closed(records: RecordLines) -> None:
    record = make_record(10.0, 10.25, 10.5, 11.25, 12.0)
    record.asked_by("team-a")
    record.classified(Classification(P0, "header x-priority"))
    for _ in range(3):
        record.tokens_out()
    record.close(None)
    assert records.all_text == [
        "request_id=id-1 route=/v1/completions class=P0 tenant='team-a' reason='header x-priority' "
        "outcome=completed ttft_ms=250.0 tbt_max_ms=750.0 e2e_ms=2000.0"
    ]


def test_record_says_so_when_nothing_was_decided_or_answered(records: RecordLines) -> None:
    make_record(10.0, 10.0015).close(Shed("full", 1.0))
    assert records.all_text == [
        "request_id=id-1 route=/v1/completions class=none tenant=none reason='not classified' "
        "outcome=shed ttft_ms=none tbt_max_ms=none e2e_ms=1.5"
    ]


def test_record_quotes_its_tenant_so_that_none_can_be_a_name(records: RecordLines) -> None:
    record = make_record(1.0, 2.0)
    record.asked_by("none")
    record.close(None)
    assert " tenant='none' reason=" in records.all_text[0]


def test_record_is_counted_in_its_class_once() -> None:
    metrics = IngressMetrics(ClassTargets())
    record = make_record(10.0, 10.05, 10.06, 11.0, 12.0, metrics=metrics)
    record.classified(Classification(P0, "default"))
    record.tokens_out()
    record.tokens_out()
    record.close(None)
    with pytest.raises(AssertionError):
        record.close(None)
    metrics.check_invariants()
    traffic = metrics.snapshot({}).classes[P0]
    assert (traffic.ttft.count, traffic.tbt.count, traffic.e2e.count) == (1, 1, 1)
    assert (traffic.outcomes, traffic.num_held, traffic.num_in_flight) == ({Outcome.COMPLETED: 1}, 1, 0)


def test_record_is_counted_apart_when_it_ends_without_a_class() -> None:
    metrics = IngressMetrics(ClassTargets())
    make_record(10.0, 10.1, metrics=metrics).close(Shed("full", 1.0))
    metrics.check_invariants()
    snapshot = metrics.snapshot({})
    assert snapshot.num_unclassified == {Outcome.SHED: 1}
    assert not any(traffic.outcomes for traffic in snapshot.classes.values())


def test_vllm_13169_ttft_is_unchanged_by_a_later_preemption_and_the_stall_shows_in_tbt_and_e2e(
    records: RecordLines,
) -> None:
    """The request loses its slot after two tokens and is computed again: the next token comes five seconds later."""
    metrics = IngressMetrics(ClassTargets())
    record = make_record(100.0, 100.08, 100.09, 105.09, 105.1, 105.1, metrics=metrics)
    record.classified(Classification(P0, "default"))
    for _ in range(4):
        record.tokens_out()
    record.close(None)
    traffic = metrics.snapshot({}).classes[P0]
    assert (traffic.ttft.count, traffic.ttft.sum) == (1, pytest.approx(0.08))
    assert (traffic.tbt.count, traffic.tbt.quantile(0.99)) == (3, pytest.approx(5.0, rel=0.2))
    assert traffic.e2e.sum == pytest.approx(5.1)
    assert "ttft_ms=80.0 tbt_max_ms=5000.0 e2e_ms=5100.0" in records.all_text[0]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, Outcome.COMPLETED), (asyncio.CancelledError(), Outcome.CANCELLED), (KeyError("x"), Outcome.FAILED)],
    ids=repr,
)
def test_record_keeps_the_outcome_of_how_it_was_closed(error: BaseException | None, expected: Outcome) -> None:
    record = make_record(1.0, 2.0)
    assert record.outcome is None
    record.close(error)
    assert record.outcome is expected


def test_record_refuses_to_be_closed_twice_and_keeps_its_outcome(records: RecordLines) -> None:
    record = make_record(1.0, 2.0, 3.0)
    record.close(None)
    with pytest.raises(AssertionError, match="request id-1 ended twice: completed, then Shed"):
        record.close(Shed("full", 1.0))
    assert record.outcome is Outcome.COMPLETED
    assert records.outcomes == ["completed"]

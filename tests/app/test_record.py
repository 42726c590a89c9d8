import asyncio
from collections.abc import Iterator

import pytest

from app.classify import Classification
from app.record import RequestRecord
from slo.errors import Shed
from slo.outcome import Outcome
from slo.priority import PriorityClass
from tests.app.conftest import RecordLines


class Clock:
    """Gives the next of `times` at each reading."""

    def __init__(self, *times: float) -> None:
        self._times: Iterator[float] = iter(times)

    def __call__(self) -> float:
        return next(self._times)


def test_record_writes_one_line_with_its_times_when_closed(records: RecordLines) -> None:
    record = RequestRecord("id-1", "/v1/completions", Clock(10.0, 10.25, 12.0))
    record.classification = Classification(PriorityClass.P0, "header x-priority")
    record.first_reply()
    record.close(None)
    assert records.all_text == [
        "request_id=id-1 route=/v1/completions class=P0 reason='header x-priority' outcome=completed "
        "ttft_ms=250.0 e2e_ms=2000.0"
    ]


def test_record_says_so_when_nothing_was_decided_or_answered(records: RecordLines) -> None:
    RequestRecord("id-1", "/v1/completions", Clock(10.0, 10.0015)).close(Shed("full", 1.0))
    assert records.all_text == [
        "request_id=id-1 route=/v1/completions class=none reason='not classified' outcome=shed ttft_ms=none e2e_ms=1.5"
    ]


def test_first_reply_keeps_the_first_time_when_called_again() -> None:
    record = RequestRecord("id-1", "/", Clock(1.0, 2.0, 3.0))
    record.first_reply()
    record.first_reply()
    assert (record.arrived_s, record.first_reply_s) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, Outcome.COMPLETED), (asyncio.CancelledError(), Outcome.CANCELLED), (KeyError("x"), Outcome.FAILED)],
    ids=repr,
)
def test_record_keeps_the_outcome_of_how_it_was_closed(error: BaseException | None, expected: Outcome) -> None:
    record = RequestRecord("id-1", "/", Clock(1.0, 2.0))
    assert record.outcome is None
    record.close(error)
    assert record.outcome is expected


def test_record_refuses_to_be_closed_twice_and_keeps_its_outcome(records: RecordLines) -> None:
    record = RequestRecord("id-1", "/", Clock(1.0, 2.0, 3.0))
    record.close(None)
    with pytest.raises(AssertionError, match="request id-1 ended twice: completed, then Shed"):
        record.close(Shed("full", 1.0))
    assert record.outcome is Outcome.COMPLETED
    assert records.outcomes == ["completed"]

import asyncio

import pytest

from slo.errors import EngineFailed, Expired, OverQuota, Rejected, ReplicaLost, ServingError, Shed
from slo.outcome import Outcome, outcome_of


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, Outcome.COMPLETED),
        (Rejected("bad"), Outcome.REJECTED),
        (OverQuota("used up", 1.0), Outcome.REJECTED),
        (Shed("full", 1.0), Outcome.SHED),
        (Expired("late"), Outcome.EXPIRED),
        (ReplicaLost("gone"), Outcome.REPLICA_LOST),
        (EngineFailed("fault"), Outcome.FAILED),
        (ServingError("broken"), Outcome.FAILED),
        (ValueError("ours"), Outcome.FAILED),
        (asyncio.CancelledError(), Outcome.CANCELLED),
        (GeneratorExit(), Outcome.CANCELLED),
    ],
    ids=repr,
)
def test_outcome_of_names_how_a_request_ended(error: BaseException | None, expected: Outcome) -> None:
    assert outcome_of(error) is expected


def test_outcomes_are_distinct_metric_labels() -> None:
    labels = [outcome.value for outcome in Outcome]
    assert len(set(labels)) == len(labels) == 7
    assert all(label == label.lower() and label.isidentifier() for label in labels)

import pickle

import pytest

from slo.errors import (
    BatchesAway,
    ControllerAway,
    EngineFailed,
    Expired,
    NotAdmitted,
    NotContinued,
    OverQuota,
    Rejected,
    RejectReason,
    ReplicaLost,
    ServingError,
    Shed,
    StorageFull,
)

ERRORS = [
    ServingError("broken", "field"),
    Rejected("bad", "messages.0", RejectReason.TOO_LARGE),
    Shed("full", 2.5),
    OverQuota("used up", 2.5),
    Expired("late", "timeout"),
    ReplicaLost("gone", "replica"),
    NotContinued("half gone", "replica"),
    NotAdmitted("none runs", "replica"),
    BatchesAway("not there", "batches"),
    StorageFull("no room", "file"),
    ControllerAway("not there", "controller"),
    EngineFailed("fault", "engine"),
]


def every_error_type(base: type[ServingError] = ServingError) -> set[type[ServingError]]:
    """Of ours: Ray derives its own from each that a task raises."""
    ours = (child for child in base.__subclasses__() if child.__module__ == ServingError.__module__)
    return {base}.union(*map(every_error_type, ours))


def test_errors_under_test_are_all_there_are() -> None:
    assert {type(error) for error in ERRORS} == every_error_type()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_survives_pickling(error: ServingError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == error.message


@pytest.mark.parametrize("reason", RejectReason)
def test_rejected_keeps_its_reason_when_pickled(reason: RejectReason) -> None:
    assert pickle.loads(pickle.dumps(Rejected("bad", reason=reason))).reason is reason


def test_rejected_is_invalid_and_names_no_field_unless_told() -> None:
    assert (Rejected("bad").reason, Rejected("bad").param) == (RejectReason.INVALID, None)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_is_a_serving_error_that_reads_as_its_message(error: ServingError) -> None:
    with pytest.raises(ServingError, match=f"^{error.message}$"):
        raise error

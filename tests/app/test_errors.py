import pytest

from app.errors import HttpError, quoted, to_http
from slo.errors import (
    BatchesAway,
    ControllerAway,
    EngineFailed,
    Expired,
    NotAdmitted,
    OverQuota,
    Rejected,
    RejectReason,
    ReplicaLost,
    ServingError,
    Shed,
    StorageFull,
)


def openai_error(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Rejected("bad", "n"), HttpError(400, openai_error("bad", "invalid_request_error", "n"))),
        (
            Shed("full", 3),
            HttpError(429, openai_error("full", "rate_limit_error", None, "overloaded"), {"retry-after": "3"}),
        ),
        (
            OverQuota("used up", 2.1),
            HttpError(
                429, openai_error("used up", "rate_limit_error", None, "rate_limit_exceeded"), {"retry-after": "3"}
            ),
        ),
        (Expired("late"), HttpError(504, openai_error("late", "timeout_error", None, "deadline_exceeded"))),
        (
            ReplicaLost("gone"),
            HttpError(503, openai_error("gone", "service_unavailable", None, "replica_lost"), {"retry-after": "1"}),
        ),
        (
            ControllerAway("away"),
            HttpError(503, openai_error("away", "service_unavailable", None, "controller_away"), {"retry-after": "1"}),
        ),
        (
            BatchesAway("away"),
            HttpError(503, openai_error("away", "service_unavailable", None, "batches_away"), {"retry-after": "1"}),
        ),
        (
            NotAdmitted("none"),
            HttpError(503, openai_error("none", "service_unavailable", None, "replica_lost"), {"retry-after": "1"}),
        ),
        (StorageFull("full"), HttpError(507, openai_error("full", "server_error", None, "storage_full"))),
        (EngineFailed("fault"), HttpError(500, openai_error("fault", "server_error", None, "engine_failed"))),
        (ServingError("broken"), HttpError(500, openai_error("broken", "server_error", None, "internal_error"))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_to_http_gives_status_object_and_headers(error: ServingError, expected: HttpError) -> None:
    assert to_http(error) == expected


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (RejectReason.INVALID, 400, None),
        (RejectReason.TOO_LARGE, 413, "request_too_large"),
        (RejectReason.UNKNOWN_MODEL, 404, "model_not_found"),
        (RejectReason.UNKNOWN_ROUTE, 404, "unknown_url"),
        (RejectReason.WRONG_METHOD, 405, "method_not_allowed"),
        (RejectReason.NOT_FOUND, 404, "not_found"),
        (RejectReason.IN_USE, 409, "in_use"),
        (RejectReason.NOT_SUPPORTED, 501, "not_supported"),
        (RejectReason.CLASS_NOT_ALLOWED, 403, "class_not_allowed"),
    ],
)
def test_to_http_gives_each_rejection_its_status_and_code(reason: RejectReason, status: int, code: str | None) -> None:
    assert to_http(Rejected("bad", reason=reason)) == HttpError(
        status, openai_error("bad", "invalid_request_error", None, code)
    )


def test_to_http_asks_for_a_key_when_there_is_no_good_one() -> None:
    assert to_http(Rejected("no key", "authorization", RejectReason.INVALID_KEY)) == HttpError(
        401,
        openai_error("no key", "invalid_request_error", "authorization", "invalid_api_key"),
        {"www-authenticate": "Bearer"},
    )


@pytest.mark.parametrize("reason", RejectReason)
def test_to_http_has_a_status_of_the_callers_fault_for_every_reason(reason: RejectReason) -> None:
    assert to_http(Rejected("bad", reason=reason)).status in {*range(400, 500), 501}


@pytest.mark.parametrize(("retry_after_s", "header"), [(0, "1"), (0.2, "1"), (1, "1"), (1.01, "2"), (30, "30")])
def test_to_http_rounds_retry_after_up_to_whole_seconds(retry_after_s: float, header: str) -> None:
    assert to_http(Shed("full", retry_after_s)).headers == {"retry-after": header}


def test_quoted_shows_a_short_value_whole_and_cuts_a_long_one() -> None:
    assert quoted("P9") == "'P9'"
    assert len(quoted("x" * 10_000)) < 120

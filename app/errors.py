"""How errors look over HTTP: OpenAI's error object and a status. The only place that knows both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slo.errors import (
    BatchesAway,
    ControllerAway,
    EngineFailed,
    Expired,
    OverQuota,
    Rejected,
    RejectReason,
    ReplicaLost,
    ServingError,
    Shed,
    StorageFull,
)

MAX_QUOTED = 100
_REJECT_STATUS: Mapping[RejectReason, int] = {
    RejectReason.INVALID: 400,
    RejectReason.INVALID_KEY: 401,
    RejectReason.CLASS_NOT_ALLOWED: 403,
    RejectReason.TOO_LARGE: 413,
    RejectReason.UNKNOWN_MODEL: 404,
    RejectReason.UNKNOWN_ROUTE: 404,
    RejectReason.WRONG_METHOD: 405,
    RejectReason.NOT_SUPPORTED: 501,
    RejectReason.NOT_FOUND: 404,
    RejectReason.IN_USE: 409,
}


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as it is sent: status, OpenAI's error object, and headers beside the usual ones."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def quoted(value: object) -> str:
    """`value` as an error message shows it: what the client sent, and no more than a line of it."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


def to_http(error: ServingError) -> HttpError:
    """The HTTP form of `error`."""
    match error:
        case Rejected(reason=reason):
            code = None if reason is RejectReason.INVALID else reason.value
            headers = {"www-authenticate": "Bearer"} if reason is RejectReason.INVALID_KEY else {}
            return HttpError(_REJECT_STATUS[reason], _error_object(error, "invalid_request_error", code), headers)
        case OverQuota(retry_after_s=retry_after_s):
            return HttpError(
                429, _error_object(error, "rate_limit_error", "rate_limit_exceeded"), _retry_after(retry_after_s)
            )
        case Shed(retry_after_s=retry_after_s):
            return HttpError(429, _error_object(error, "rate_limit_error", "overloaded"), _retry_after(retry_after_s))
        case Expired():
            return HttpError(504, _error_object(error, "timeout_error", "deadline_exceeded"))
        case ReplicaLost():
            return HttpError(503, _error_object(error, "service_unavailable", "replica_lost"), {"retry-after": "1"})
        case ControllerAway():
            return HttpError(503, _error_object(error, "service_unavailable", "controller_away"), {"retry-after": "1"})
        case BatchesAway():
            return HttpError(503, _error_object(error, "service_unavailable", "batches_away"), {"retry-after": "1"})
        case StorageFull():
            return HttpError(507, _error_object(error, "server_error", "storage_full"))
        case EngineFailed():
            return HttpError(500, _error_object(error, "server_error", "engine_failed"))
        case _:
            return HttpError(500, _error_object(error, "server_error", "internal_error"))


def _error_object(error: ServingError, kind: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}


def _retry_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, math.ceil(seconds)))}

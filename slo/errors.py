"""What can go wrong with a request, as one tree. How it looks over HTTP is decided in `app/errors.py` alone.

Each error can be pickled, so that it may cross an actor boundary. None carries prompt text of its own accord.
"""

from __future__ import annotations

from enum import Enum


class RejectReason(Enum):
    """Why a request is the caller's fault."""

    INVALID = "invalid_request_error"
    INVALID_KEY = "invalid_api_key"
    CLASS_NOT_ALLOWED = "class_not_allowed"
    TOO_LARGE = "request_too_large"
    UNKNOWN_MODEL = "model_not_found"
    UNKNOWN_ROUTE = "unknown_url"
    WRONG_METHOD = "method_not_allowed"
    NOT_SUPPORTED = "not_supported"
    NOT_FOUND = "not_found"
    IN_USE = "in_use"


class ServingError(Exception):
    """Base of every way in which a request ends without its answer.

    Args:
        message: one sentence for the caller.
        param: the field, header or key at fault, or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.param))


class Rejected(ServingError):
    """The request itself is at fault; the same request would fail again."""

    def __init__(self, message: str, param: str | None = None, reason: RejectReason = RejectReason.INVALID) -> None:
        super().__init__(message, param)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.param, self.reason))


class OverQuota(ServingError):
    """The caller has used what its key may use; the fleet's load has no part in it. `retry_after_s` is in seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.retry_after_s))


class Shed(ServingError):
    """Refused for load. The same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.retry_after_s))


class Expired(ServingError):
    """The request's deadline passed before it was answered."""


class ReplicaLost(ServingError):
    """The replica or its engine died, or none can be reached. Another attempt may succeed."""


class NotContinued(ReplicaLost):
    """The replica died after the answer had begun, and no other one can go on from there."""


class NotAdmitted(ReplicaLost):
    """No replica runs, or this process shuts down: the request was not sent to any."""


class ControllerAway(ServingError):
    """The controller cannot tell: it is being started again, or does not answer. Requests are served all the same."""


class BatchesAway(ServingError):
    """Files and batches cannot be reached: their owner is being started again, or its database does not answer."""


class StorageFull(ServingError):
    """There is no room for what was to be kept. Nothing that was kept before is lost."""


class EngineFailed(ServingError):
    """The engine answered with a fault of its own; neither load nor the caller is to blame."""

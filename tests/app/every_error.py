"""One of each error that a client may be told."""

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

ERRORS: tuple[ServingError, ...] = (
    *(Rejected("", reason=reason) for reason in RejectReason),
    OverQuota("", 1),
    Shed("", 1),
    Expired(""),
    ReplicaLost(""),
    ControllerAway(""),
    EngineFailed(""),
    BatchesAway(""),
    StorageFull(""),
)

"""What became of one request: made on arrival, closed exactly once by its owner, written as one log line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.classify import Classification
from slo.outcome import Outcome, outcome_of

logger = logging.getLogger("expresslane.ingress")


@dataclass(slots=True)
class RequestRecord:
    """One request from arrival to its outcome. Times are of a monotonic clock, seconds."""

    request_id: str
    route: str
    clock: Callable[[], float] = time.monotonic
    arrived_s: float = field(init=False)
    first_reply_s: float | None = None
    classification: Classification | None = None
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.arrived_s = self.clock()

    def first_reply(self) -> None:
        """The first item of the answer is here; later calls change nothing."""
        if self.first_reply_s is None:
            self.first_reply_s = self.clock()

    def close(self, error: BaseException | None) -> None:
        """The request ended: answered in full (None), or with `error`. Logs one line; never prompt text."""
        if self.outcome is not None:
            raise AssertionError(f"request {self.request_id} ended twice: {self.outcome.value}, then {error!r}")
        self.outcome = outcome_of(error)
        decided = self.classification
        logger.info(
            "request_id=%s route=%s class=%s reason=%r outcome=%s ttft_ms=%s e2e_ms=%.1f",
            self.request_id,
            self.route,
            decided.priority.name if decided else "none",
            decided.reason if decided else "not classified",
            self.outcome.value,
            "none" if self.first_reply_s is None else f"{(self.first_reply_s - self.arrived_s) * 1e3:.1f}",
            (self.clock() - self.arrived_s) * 1e3,
        )

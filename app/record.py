"""What became of one request: made on arrival, closed exactly once by its owner, then counted and logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.classify import Classification
from app.metrics import IngressMetrics, RequestMeter
from slo.outcome import Outcome, outcome_of

logger = logging.getLogger("expresslane.ingress")


@dataclass(slots=True)
class RequestRecord:
    """One request from arrival to its outcome. Times are of a monotonic clock, seconds."""

    request_id: str
    route: str
    metrics: IngressMetrics
    clock: Callable[[], float] = time.monotonic
    arrived_s: float = field(init=False)
    tenant: str | None = field(init=False, default=None)
    """The name of who asks, never a key; None: not known yet."""
    classification: Classification | None = field(init=False, default=None)
    outcome: Outcome | None = field(init=False, default=None)
    _meter: RequestMeter | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.arrived_s = self.clock()

    def asked_by(self, tenant: str) -> None:
        """The request is of the tenant of this name. Called once at most."""
        self.tenant = tenant

    def classified(self, decision: Classification, metrics: IngressMetrics | None = None) -> None:
        """The request has its class, and is counted in `metrics` if it came to another model. Called once at most, and
        before any token."""
        self.classification = decision
        self.metrics = metrics or self.metrics
        self._meter = self.metrics.begin(decision.priority, self.arrived_s)

    def tokens_out(self) -> None:
        """An event that carries tokens leaves the ingress now. Called for each one: it costs about 1 us."""
        if self._meter is not None:
            self._meter.tokens_out(self.clock())

    def close(self, error: BaseException | None) -> None:
        """The request ended: answered in full (None), or with `error`. Logs one line; never prompt text."""
        if self.outcome is not None:
            raise AssertionError(f"request {self.request_id} ended twice: {self.outcome.value}, then {error!r}")
        self.outcome = outcome_of(error)
        now_s = self.clock()
        if self._meter is None:
            self.metrics.end_unclassified(self.outcome)
        else:
            self._meter.end(self.outcome, now_s)
        self._log(self.outcome, now_s)

    def _log(self, outcome: Outcome, now_s: float) -> None:
        decided, meter = self.classification, self._meter
        logger.info(
            "request_id=%s route=%s class=%s tenant=%s reason=%r outcome=%s ttft_ms=%s tbt_max_ms=%s e2e_ms=%s",
            self.request_id,
            self.route,
            decided.priority.name if decided else "none",
            "none" if self.tenant is None else repr(self.tenant),
            decided.reason if decided else "not classified",
            outcome.value,
            _in_ms(meter.ttft_s if meter else None),
            _in_ms(meter.times.max_gap_s if meter else None),
            _in_ms(now_s - self.arrived_s),
        )


def _in_ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1e3:.1f}"

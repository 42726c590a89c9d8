"""A small fleet on a fake clock, in a closed loop with the real rules: load -> latencies -> alerts -> policy -> fleet.

A fluid model, in steps of a second. Requests of P1 come at a rate that is a function of time. Each replica serves up to
`slots` at once, and a step takes longer the more it serves, so TBT is `tbt_fixed_s + tbt_each_s * running`; a request
is `num_tokens` steps. The rest waits, up to `max_waiting`: the ingress sheds what comes on top. TTFT is the wait and a
prefill. Replicas come up after `start_s`, as many as there is room for; those that go stop at once and leave their
requests to the others, which is harder than a drain. Batch work fills what is left and moves nothing that P1 is
measured by, as the engines' scheduler sees to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from autoscale.policy import ScalingDecision, ScalingRules, decide
from autoscale.rules import TBT_BREACH, AlertBook, alert_rules, evaluate
from autoscale.scaling_state import ScalingState
from autoscale.view import ClassView, FleetView, ReplicaCounts
from slo.priority import PriorityClass
from slo.settings import Settings

P0, P1, P2 = PriorityClass


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """One replica. The default breaks its promise to P1 (100 ms) with 40 in flight, and the alert's 200 ms with 90."""

    slots: int = 128
    tbt_fixed_s: float = 0.020
    tbt_each_s: float = 0.002
    num_tokens: int = 100
    prefill_s: float = 0.05

    def tbt_s(self, running: float) -> float:
        return self.tbt_fixed_s + self.tbt_each_s * running

    def rate_at(self, running: float) -> float:
        """Requests a second that end while `running` are served."""
        return running / (self.tbt_s(running) * self.num_tokens)


@dataclass(frozen=True, slots=True)
class Second:
    """What happened in one of them."""

    arrived: float
    started: float
    ended: float
    tbt_s: float | None
    ttft_s: float | None


@dataclass
class SimulatedFleet:
    """One writer: `run`. By period: the target after it, whether P1 was over its TBT target, whether it breached."""

    settings: Settings
    arrivals_per_s: Callable[[float], float]
    model: ReplicaModel = ReplicaModel()
    start_s: float = 60.0
    max_startable: int = 1000
    max_waiting: float = 1000.0
    jitter: float = 0.0
    seed: int = 0
    num_batch_waiting: int = 0
    now_s: float = 0.0
    running: int = 1
    target: int = 1
    waiting: float = 0.0
    served: float = 0.0
    state: ScalingState = field(default_factory=ScalingState)
    book: AlertBook = field(default_factory=AlertBook)
    decisions: list[ScalingDecision] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    over: list[bool] = field(default_factory=list)
    breached: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        window = int(self.settings.autoscale.window_s)
        self._seconds: deque[Second] = deque(maxlen=window)
        self._ready_at: list[float] = []
        self._random = random.Random(self.seed)
        self._alerts = alert_rules(self.settings)
        self._rules = ScalingRules.of(self.settings)

    def run(self, seconds: float) -> None:
        """So much time, with a look of the policy in every period."""
        period = int(self.settings.autoscale.period_s)
        for _ in range(int(seconds) // period):
            for _ in range(period):
                self._second()
            self._look()

    @property
    def num_changes(self) -> int:
        return sum(a != b for a, b in zip(self.targets, self.targets[1:], strict=False))

    @property
    def num_scale_ins(self) -> int:
        return sum(b < a for a, b in zip(self.targets, self.targets[1:], strict=False))

    def _second(self) -> None:
        self.now_s += 1
        self._start()
        arrived = max(0.0, self.arrivals_per_s(self.now_s) * (1 + self._random.uniform(-self.jitter, self.jitter)))
        self.waiting = min(self.waiting + arrived, self.max_waiting)
        started = min(self.waiting, max(0.0, self.running * self.model.slots - self.served))
        wait_s = self.waiting / started if self.waiting > started > 0 else 0.0
        self.waiting -= started
        self.served += started
        each = self.served / self.running if self.running else 0.0
        ended = min(self.served, self.running * self.model.rate_at(each))
        self.served -= ended
        tbt_s = self.model.tbt_s(each) if each > 0.01 else None
        ttft_s = wait_s + self.model.prefill_s if started > 0.01 else None
        self._seconds.append(Second(arrived, started, ended, tbt_s, ttft_s))

    def _start(self) -> None:
        ready = [at for at in self._ready_at if at <= self.now_s]
        for at in ready[: max(0, self.max_startable - self.running)]:
            self._ready_at.remove(at)
            self.running += 1

    def _look(self) -> None:
        view = self._view()
        evaluation = evaluate(self._alerts, view, self.book, 600.0)
        self.book = evaluation.book
        breaches = frozenset(p for p in PriorityClass if self.book.is_firing(TBT_BREACH, p))
        decision, self.state = decide(view, breaches, self.state, self._rules, self.now_s)
        self.state.check_invariants()
        self._apply(decision)
        self.decisions.append(decision)
        self.targets.append(self.target)
        self.breached.append(bool(breaches))
        self.over.append((view.classes[P1].tbt_p99_s or 0.0) > 0.1)

    def _apply(self, decision: ScalingDecision) -> None:
        if decision.target is None or self.settings.autoscale.mode != "on":
            return
        self.target = decision.target
        while self.running + len(self._ready_at) < self.target:
            self._ready_at.append(self.now_s + self.start_s)
        while self.running + len(self._ready_at) > self.target:
            if self._ready_at:
                self._ready_at.pop()
            else:
                self.running -= 1
        overflow = max(0.0, self.served - self.running * self.model.slots)
        self.served -= overflow
        self.waiting += overflow

    def _view(self) -> FleetView:
        seconds, num = list(self._seconds), len(self._seconds)
        p1 = ClassView(
            ttft_p99_s=max((s.ttft_s for s in seconds if s.ttft_s is not None), default=None),
            tbt_p99_s=max((s.tbt_s for s in seconds if s.tbt_s is not None), default=None),
            arrivals_per_s=sum(s.arrived for s in seconds) / num,
            completions_per_s=sum(s.ended for s in seconds) / num,
            starts_per_s=sum(s.started for s in seconds) / num,
            num_running=round(self.served),
            num_waiting=round(self.waiting),
        )
        waiting = max(0, self.target - self.running)
        return FleetView(
            now_s=self.now_s,
            window_s=self.settings.autoscale.window_s,
            classes={P0: ClassView(starts_per_s=0.0), P1: p1, P2: ClassView(num_waiting=self.num_batch_waiting)},
            replicas=ReplicaCounts(self.target, self.running, waiting, 0, self.running),
            is_complete=True,
            slots_per_replica=self.model.slots,
            num_without_replica=0 if self.running else round(self.waiting),
        )

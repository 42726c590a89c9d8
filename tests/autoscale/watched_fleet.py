"""A fleet that the policy watches period by period, on a fake clock, as far as a single rule needs one.

It obeys at once: the policy's target is Serve's in the next period. Replicas come and go only when a test says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autoscale.policy import ScalingDecision, ScalingReason, ScalingRules, decide
from autoscale.scaling_state import ScalingState
from autoscale.view import ClassView, FleetView, ReplicaCounts
from slo.priority import PriorityClass
from slo.settings import parse_settings

P0, P1, P2 = PriorityClass
PERIOD_S = 10.0
SETTLE_S, START_S, RETRY_S, QUIET_S, REGRET_S, ZERO_S = 60, 600, 600, 300, 600, 900
"""The defaults, named for what tests count in."""
SLOTS = 64

GOOD = ClassView(ttft_p99_s=0.1, tbt_p99_s=0.02, arrivals_per_s=1, completions_per_s=1, starts_per_s=1, num_running=8)
"""P1 far within its targets (0.5 s, 0.1 s)."""
BAD = replace(GOOD, tbt_p99_s=0.25, num_running=40)
"""P1 over twice its TBT target."""
QUEUED = replace(GOOD, num_running=64, num_waiting=36, arrivals_per_s=2)
"""P1 whose last waiting request starts in 36 s, while more arrive than start."""
LATE = replace(GOOD, ttft_p99_s=0.8, arrivals_per_s=10, completions_per_s=10, starts_per_s=10, num_running=40)
"""P1 whose first tokens come late, although nobody is seen waiting."""
IDLE = ClassView(starts_per_s=0.0)
BATCH_QUEUE = ClassView(num_running=64, num_waiting=1000, arrivals_per_s=5, completions_per_s=1, starts_per_s=1)


def rules(num_replicas: int = 1, targets: Mapping[str, Any] | None = None, **autoscale: Any) -> ScalingRules:
    """Rules of a fleet of 1 to 8 replicas, unless `autoscale` says otherwise."""
    return ScalingRules.of(
        parse_settings(
            {
                "replicas": {"num_replicas": num_replicas},
                "autoscale": {"min_replicas": 1, "max_replicas": 8, **autoscale},
                "scheduler": {"targets": targets or {}},
            }
        )
    )


@dataclass
class WatchedFleet:
    """Calls the policy once a period; what it remembers must hold together after each call."""

    rules: ScalingRules = field(default_factory=rules)
    target: int = 1
    running: int | None = None
    now_s: float = 1000.0
    state: ScalingState = field(default_factory=ScalingState)
    decisions: list[ScalingDecision] = field(default_factory=list)
    obeys: bool = True

    def __post_init__(self) -> None:
        self.running = self.target if self.running is None else self.running
        self._first_target = self.target
        if self.state.target is None:
            self.state = replace(self.state, last_s=self.now_s)  # so that each look is a period after one before

    def view(
        self,
        classes: Mapping[PriorityClass, ClassView],
        *,
        complete: bool = True,
        fresh: int | None = None,
        **more: Any,
    ) -> FleetView:
        assert self.running is not None
        counts = ReplicaCounts(
            self.target, self.running, max(0, self.target - self.running), 0, self.running if fresh is None else fresh
        )
        return FleetView(
            **{
                "now_s": self.now_s,
                "window_s": 30.0,
                "classes": classes,
                "replicas": counts,
                "is_complete": complete,
                "slots_per_replica": SLOTS,
                **more,
            }
        )

    def look(
        self,
        p1: ClassView = GOOD,
        breaches: frozenset[PriorityClass] | None = None,
        *,
        p0: ClassView = IDLE,
        p2: ClassView = IDLE,
        after_s: float = PERIOD_S,
        **more: Any,
    ) -> ScalingDecision:
        """One period later: the policy is asked, and obeyed. P1 breaches when it is BAD, unless told otherwise."""
        self.now_s += after_s
        view = self.view({P0: p0, P1: p1, P2: p2}, **more)
        breaching = frozenset({P1} if p1 is BAD else ()) if breaches is None else breaches
        decision, self.state = decide(view, breaching, self.state, self.rules, self.now_s)
        self.state.check_invariants()
        self.decisions.append(decision)
        if self.obeys and decision.target is not None and self.rules.settings.mode == "on":
            self.target = decision.target
            self.running = min(self.running or 0, self.target)
        return decision

    def look_for(self, seconds: float, p1: ClassView = GOOD, *args: Any, **more: Any) -> list[ScalingDecision]:
        """As many periods as fit into `seconds`; all decisions."""
        return [self.look(p1, *args, **more) for _ in range(int(seconds / PERIOD_S))]

    def all_up(self) -> None:
        """Every replica that was asked for has come up."""
        self.running = self.target

    @property
    def changes(self) -> list[tuple[int, ScalingReason]]:
        """The targets decided, where they differ from the one before, with their reasons."""
        changes: list[tuple[int, ScalingReason]] = []
        last = self._first_target
        for decision in self.decisions:
            if decision.target is not None and decision.target != last:
                changes.append((decision.target, decision.reason))
                last = decision.target
        return changes


def settled(target: int = 1, **more: Any) -> WatchedFleet:
    """A fleet that has been at rest long enough to be learned from."""
    fleet = WatchedFleet(target=target, **more)
    fleet.look_for(SETTLE_S + PERIOD_S)
    return fleet


def scaled_in() -> WatchedFleet:
    """A fleet of one that was one of two just now."""
    fleet = settled(target=2)
    while fleet.target == 2:
        fleet.look()
    assert fleet.changes == [(1, ScalingReason.SPARE)]
    return fleet


def broken_at_40() -> WatchedFleet:
    """A fleet of one, at most 8, that has seen P1 break for long at 40 in flight, and hold again at 8."""
    fleet = settled()
    fleet.look_for(300, BAD, frozenset())
    fleet.look_for(10)
    band = fleet.state.records[P1.level].in_flight.band
    assert band.broke is not None
    assert 20 < band.broke < 45
    return fleet

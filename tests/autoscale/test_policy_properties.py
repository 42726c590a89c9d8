"""What holds for the policy whatever it is shown: random fleets that start, fail and fall silent; clocks that jump.

Mutations that are caught here: a clamp left out; a start given up before the breach is asked about; no look at
`is_complete` in a scale-in, or in a start given up; STARTING or SETTLING left out; the cap of a step left out; a quiet
time that goes on after a scale-in; the cap on watched time left out; a field of the state that is lost in a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscale.policy import ScalingDecision, ScalingReason, ScalingRules, decide
from autoscale.scaling_state import ScalingState, dump_state, load_state
from autoscale.view import ClassView, FleetView, ReplicaCounts
from slo.priority import PriorityClass
from tests.autoscale.watched_fleet import P0, P1, rules

R = ScalingReason
PATIENCE: dict[str, Any] = {
    "settle_s": 30,
    "start_timeout_s": 100,
    "start_retry_s": 50,
    "start_retry_max_s": 200,
    "scale_in_quiet_s": 40,
    "scale_in_quiet_max_s": 160,
    "scale_in_regret_s": 60,
    "quiet_half_life_s": 300,
    "zero_after_s": 60,
    "max_step_replicas": 3,
}
"""Short, so that every rule has its turn within a hundred periods."""
REDEPLOYED = 2
"""Serve's target after a redeploy."""
RAISES = (R.TBT_BREACH, R.QUEUE_GROWTH, R.TTFT_BREACH)

maybe_s = st.none() | st.sampled_from([0.01, 0.05, 0.3, 2.0])
rates = st.sampled_from([0.0, 0.5, 1.0, 5.0])
numbers = st.sampled_from([0, 0, 1, 10, 100])
class_views = st.builds(
    ClassView,
    ttft_p99_s=maybe_s,
    tbt_p99_s=maybe_s,
    arrivals_per_s=rates,
    completions_per_s=rates,
    starts_per_s=st.none() | rates,
    num_running=numbers,
    num_waiting=numbers,
    num_paused=numbers,
)
quiet_views = st.just(ClassView(ttft_p99_s=0.01, tbt_p99_s=0.005, completions_per_s=1.0, starts_per_s=1.0))
late_views = st.just(ClassView(ttft_p99_s=2.0, tbt_p99_s=0.005, arrivals_per_s=5.0, starts_per_s=5.0, num_running=60))
idle_views = st.just(ClassView(starts_per_s=0.0))


@dataclass(frozen=True)
class Weather:
    """What some periods are like."""

    num_periods: int
    classes: tuple[ClassView, ClassView, ClassView]
    breaches: frozenset[PriorityClass]
    is_complete: bool
    serve_answers: bool
    num_without_replica: int
    comes_up: int
    falls_down: int
    period_s: float
    restarts: bool
    resets: bool


weathers = st.builds(
    Weather,
    num_periods=st.integers(1, 15),
    classes=st.tuples(class_views, class_views, class_views)
    | st.tuples(quiet_views, quiet_views, quiet_views)
    | st.tuples(quiet_views, late_views, quiet_views)
    | st.tuples(idle_views, idle_views, idle_views),
    breaches=st.just(frozenset()) | st.frozensets(st.sampled_from(list(PriorityClass))),
    is_complete=st.sampled_from([True, True, True, False]),
    serve_answers=st.sampled_from([True, True, True, False]),
    num_without_replica=st.sampled_from([0, 0, 1]),
    comes_up=st.sampled_from([0, 1, 8]),
    falls_down=st.sampled_from([0, 0, 0, 1]),
    period_s=st.sampled_from([10.0, 10.0, 10.0, 12.0, 36_000.0, -500.0]),
    restarts=st.booleans(),
    resets=st.sampled_from([False, False, False, True]),
)
bounds = st.sampled_from([(0, 6), (1, 6), (2, 3), (1, 1)])


@dataclass
class Witness:
    """Runs the policy and watches, with its own bookkeeping, what it may not do."""

    rules: ScalingRules
    serve_target: int = REDEPLOYED
    running: int = REDEPLOYED
    now_s: float = 0.0
    state: ScalingState = field(default_factory=ScalingState)
    watched_s: float = 0.0
    raised_at_s: float | None = None
    whole_since_s: float | None = None
    rose_at_s: float | None = None
    lowered_at_s: float | None = None
    reasons: list[ScalingReason] = field(default_factory=list)

    def live_through(self, weather: Weather) -> None:
        for _ in range(weather.num_periods):
            self._period(weather)
        if weather.restarts:
            recalled = load_state(dump_state(self.state))
            assert replace(recalled, last_s=self.state.last_s) == self.state
            self.state = recalled
        if weather.resets:
            self.serve_target = REDEPLOYED
            self.running = min(self.running, REDEPLOYED)

    def _period(self, weather: Weather) -> None:
        before = self.running
        self.running = max(0, min(self.running + weather.comes_up, self.serve_target) - weather.falls_down)
        self.now_s += weather.period_s
        if self.state.last_s is not None:
            self.watched_s += min(max(0.0, weather.period_s), self.rules.settings.stale_after_s)
        if self.running > before:
            self.rose_at_s = self.watched_s
        if self.running < self.serve_target:
            self.whole_since_s = None
        elif self.whole_since_s is None:
            self.whole_since_s = self.watched_s
        view = self._view(weather)
        decision, state = decide(view, weather.breaches, self.state, self.rules, self.now_s)
        assert (decision, state) == decide(view, weather.breaches, self.state, self.rules, self.now_s)
        state.check_invariants()
        self._judge(decision, view, weather)
        self.state = state
        self.reasons.append(decision.reason)
        if decision.target is not None:
            self.serve_target = decision.target
            self.running = min(self.running, self.serve_target)

    def _view(self, weather: Weather) -> FleetView:
        starting = self.serve_target - self.running
        counts = ReplicaCounts(self.serve_target, self.running, starting, 0, self.running)
        return FleetView(
            now_s=self.now_s,
            window_s=30.0,
            classes=dict(zip(PriorityClass, weather.classes, strict=True)),
            replicas=counts if weather.serve_answers else None,
            is_complete=weather.is_complete,
            num_without_replica=weather.num_without_replica,
            slots_per_replica=64,
        )

    def _judge(self, decision: ScalingDecision, view: FleetView, weather: Weather) -> None:
        if decision.target is None:
            assert view.replicas is None
            return
        assert self.rules.bounds.clamp(decision.target) == decision.target
        assert decision.detail
        if decision.target < self.serve_target and decision.reason is not R.BOUNDS:
            self._judge_lowering(decision, weather)
        if decision.target > self.serve_target and decision.reason in RAISES:
            self._judge_raise(decision)

    def _judge_lowering(self, decision: ScalingDecision, weather: Weather) -> None:
        assert decision.target is not None
        assert weather.is_complete, "lowered on a part of the data"
        assert not weather.breaches & {P0, P1}, "lowered in a breach"
        assert decision.reason in (R.SPARE, R.IDLE, R.START_GIVEN_UP)
        if decision.reason is R.START_GIVEN_UP:
            assert decision.target >= self.running, "gave up a replica that runs"
            return
        assert decision.target == self.serve_target - 1, "more than one at a time"
        quiet_s = self.rules.settings.scale_in_quiet_s
        assert self.watched_s >= quiet_s
        if self.lowered_at_s is not None:
            assert self.watched_s - self.lowered_at_s >= quiet_s, "two scale-ins in one quiet time"
        self.lowered_at_s = self.watched_s

    def _judge_raise(self, decision: ScalingDecision) -> None:
        """One step a cold start: the former replicas have come up and had their chance, or are given up."""
        assert decision.target is not None
        numbers = self.rules.settings
        assert decision.target - self.serve_target <= numbers.max_step_replicas
        if self.raised_at_s is not None and self.watched_s - self.raised_at_s < numbers.start_timeout_s:
            assert self.whole_since_s is not None, "a step while others start"
            assert self.rose_at_s is None or self.watched_s - self.rose_at_s >= numbers.settle_s, "no chance was given"
        self.raised_at_s = self.watched_s


def live(weather: Sequence[Weather], low: int, high: int) -> Witness:
    witness = Witness(rules(num_replicas=max(1, low), min_replicas=low, max_replicas=high, **PATIENCE))
    for some in weather:
        witness.live_through(some)
    return witness


@settings(max_examples=200, deadline=None)
@given(weather=st.lists(weathers, min_size=1, max_size=12), limits=bounds)
def test_policy_keeps_its_promises_whatever_it_is_shown(weather: list[Weather], limits: tuple[int, int]) -> None:
    witness = live(weather, *limits)
    assert len(witness.reasons) == sum(some.num_periods for some in weather)


@settings(max_examples=80, deadline=None)
@given(
    calm=st.integers(0, 10),
    p1=st.lists(class_views, min_size=1, max_size=60),
    breaches=st.frozensets(st.sampled_from([P0, P1]), min_size=1),
    comes_up=st.lists(st.sampled_from([0, 0, 1, 4]), min_size=60, max_size=60),
)
def test_target_only_rises_during_a_breach(
    calm: int, p1: list[ClassView], breaches: frozenset[PriorityClass], comes_up: list[int]
) -> None:
    witness = Witness(rules(min_replicas=0, max_replicas=6, **PATIENCE))
    quiet = ClassView(ttft_p99_s=0.01, tbt_p99_s=0.005, completions_per_s=1.0, starts_per_s=1.0)
    calm_weather = Weather(max(1, calm), (quiet,) * 3, frozenset(), True, True, 0, 8, 0, 10.0, False, False)
    witness.live_through(calm_weather)
    for view, up in zip(p1, comes_up, strict=False):
        before = witness.serve_target
        witness.live_through(
            replace(calm_weather, num_periods=1, classes=(view, view, view), breaches=breaches, comes_up=up)
        )
        assert witness.serve_target >= before


def test_every_reason_has_its_turn() -> None:
    """The weather above is varied enough to mean something: with a fixed seed it meets every reason there is."""
    seen: set[ScalingReason] = set()

    @settings(max_examples=200, deadline=None, derandomize=True, database=None)
    @given(weather=st.lists(weathers, min_size=1, max_size=12), limits=bounds)
    def meet(weather: list[Weather], limits: tuple[int, int]) -> None:
        seen.update(live(weather, *limits).reasons)

    meet()
    assert seen == set(ScalingReason)

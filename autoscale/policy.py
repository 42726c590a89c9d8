"""How many replicas there should be: the rules of scaling, in the order in which they are asked (`_RULES`).

Pure: it is given what was seen and what it remembered, and returns a decision with its reason and what to remember
next. It never reads a clock, awaits, logs, or asks Serve for anything; the controller does, and applies the target.

Out: a promise is broken, or the queue says that it will be. One step, sized by what a replica was seen to carry; then
the new replicas have their chance, and those that do not come up are given up. In: one replica at a time, when the rest
was seen able to carry the load for a quiet time. While a promise is broken nothing below `_scale_out` is asked, so the
target cannot fall, but to an operator's own bound.

Queue growth of a class without a promised TTFT target is no reason: batch work fills what there is. A fleet that shall
grow for it promises P2 a TTFT target, its deadline to start.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from autoscale.case import Case, look
from autoscale.decision import ScalingDecision, ScalingReason, ScalingRules
from autoscale.quiet import QuietTime
from autoscale.scaling_state import ScalingState
from autoscale.starts import StartWatch
from autoscale.view import FleetView
from slo.priority import PriorityClass

__all__ = ["ScalingDecision", "ScalingReason", "ScalingRules", "decide"]


def decide(
    view: FleetView,
    breaches: Set[PriorityClass],
    state: ScalingState,
    rules: ScalingRules,
    now_s: float,
) -> tuple[ScalingDecision, ScalingState]:
    """The target for the time until the next call, and what to remember for it. To be called once a period.

    Args:
        view: the fleet over the window.
        breaches: the classes for which the alert tbt_breach fires.
        state: what the former call returned; `ScalingState()` for the first, `load_state` after a restart.
        now_s: of a monotonic clock. It may jump: time that nobody watched does not count.

    The caller applies `target` when it differs from `view.replicas.target` and the mode is `on`, having kept the state
    before: a restart between the two then ends in the new target. A raise that was not applied is asked for again; a
    scale-in that was not, after another quiet time.
    """
    if view.replicas is None:
        return ScalingDecision(None, ScalingReason.UNKNOWN, "Serve could not be asked"), replace(state, last_s=now_s)
    case = look(view, view.replicas, breaches, state, rules, now_s)
    decision = next(decision for rule in _RULES if (decision := rule(case)) is not None)
    return decision, _remember(case, decision)


def _within_bounds(case: Case) -> ScalingDecision | None:
    """The operator's word comes first, in a breach too."""
    low, high = case.rules.bounds
    target = case.rules.bounds.clamp(case.target)
    if target == case.target:
        return None
    return ScalingDecision(target, ScalingReason.BOUNDS, f"{case.target} is not within {low} to {high}")


def _restored(case: Case) -> ScalingDecision | None:
    """Serve's target is below the one decided: a redeploy has reset it, or it could not be applied."""
    if case.target == case.replicas.target:
        return None
    return case.keep(ScalingReason.RESTORED, f"Serve's target is {case.replicas.target}, {case.target} was decided")


def _wake_up(case: Case) -> ScalingDecision | None:
    """Someone asks a fleet without replicas."""
    if case.target or not case.someone_waits_for_a_replica:
        return None
    if case.state.starts.retry_in_s:
        return case.keep(ScalingReason.START_GIVEN_UP, _retry_detail(case))
    return ScalingDecision(1, ScalingReason.WAKE_UP, "a request arrived, and there is no replica")


def _scale_out(case: Case) -> ScalingDecision | None:
    """A promise is broken: more replicas, unless some are on their way, or have just come."""
    if not case.troubles:
        return None
    if (waits := _why_no_more(case)) is not None:
        return waits
    trouble = next(trouble for trouble in case.troubles if trouble.calls_for_more)
    target = min(case.target + _step(case), case.rules.bounds.max_replicas)
    return ScalingDecision(target, trouble.reason, trouble.detail)


def _give_up(case: Case) -> ScalingDecision | None:
    """What did not come up is no longer asked for, once no promise is broken and nobody waits for it.

    What ran once is: a replica that is lost and cannot come back takes nothing from the target.
    """
    starts = case.state.starts
    if not case.is_given_up or not case.view.is_complete:
        return None
    target = max(case.replicas.running, starts.reached or 0, case.rules.bounds.min_replicas)
    if target >= case.target or (not target and case.someone_waits_for_a_replica):
        return None
    detail = f"{_missing(case)} did not come up in {starts.short_s:g} s; next try in {starts.retry_in_s:g} s"
    return ScalingDecision(target, ScalingReason.START_GIVEN_UP, detail)


def _scale_in(case: Case) -> ScalingDecision | None:
    """One replica fewer, when the rest has been able to carry the load for the quiet time, as far as is known."""
    quiet, left = case.state.quiet, case.target - 1
    if left < case.rules.bounds.min_replicas or not case.room.has_room or not quiet.is_over(case.settings):
        return None
    if left:
        return ScalingDecision(left, ScalingReason.SPARE, f"{left} would have done for {quiet.seen_s:g} s")
    if case.state.promised_gone_s < case.settings.zero_after_s:
        return None
    return ScalingDecision(0, ScalingReason.IDLE, f"no work for {quiet.seen_s:g} s")


def _steady(case: Case) -> ScalingDecision:
    """Nothing asks for another target. The detail says why it is not a lower one."""
    quiet = case.state.quiet
    if case.target <= case.rules.bounds.min_replicas:
        return case.keep(ScalingReason.STEADY, "as few as may be")
    if not case.room.has_room:
        return case.keep(ScalingReason.STEADY, case.room.detail)
    needed_s = quiet.needed_s(case.settings)
    return case.keep(ScalingReason.STEADY, f"one fewer would have done for {quiet.seen_s:g} s, of {needed_s:g} s")


_RULES = (_within_bounds, _restored, _wake_up, _scale_out, _give_up, _scale_in, _steady)


def _why_no_more(case: Case) -> ScalingDecision | None:
    """What speaks against adding replicas although a promise is broken."""
    starts, what = case.state.starts, case.troubles[0].detail
    if case.target >= case.rules.bounds.max_replicas:
        return case.keep(ScalingReason.AT_MOST, f"{what}; {case.target} replicas are all that is allowed")
    if starts.retry_in_s:
        return case.keep(ScalingReason.START_GIVEN_UP, f"{what}; {_retry_detail(case)}")
    if case.is_given_up and case.num_missing >= case.settings.max_step_replicas:
        return case.keep(ScalingReason.START_GIVEN_UP, f"{what}; {_missing(case)} do not come up")
    if not case.is_given_up and case.num_missing:
        return case.keep(ScalingReason.STARTING, f"{what}; {_missing(case)} not up after {starts.short_s:g} s")
    if not case.is_given_up and starts.settling_s:
        return case.keep(ScalingReason.SETTLING, f"{what}; the latest replica has {starts.settling_s:g} s yet")
    if not any(trouble.calls_for_more for trouble in case.troubles):
        return case.keep(ScalingReason.CLEARING, f"{what}; it passes by itself")
    return None


def _step(case: Case) -> int:
    """How many to add: as many as the load needs at what a replica was seen to carry, and one while that is not known.

    One, too, when others are given up: it asks whether another place will do.
    """
    if case.is_given_up:
        return 1
    classes, ratio = case.view.classes, case.settings.headroom_ratio
    troubled = {trouble.priority for trouble in case.troubles if trouble.calls_for_more}
    needs = [record.num_needed(classes, ratio) or 0 for record in case.state.records if record.priority in troubled]
    return min(max(1, max(needs) - case.target), case.settings.max_step_replicas)


def _missing(case: Case) -> str:
    return f"{case.num_missing} of {case.replicas.target} replicas"


def _retry_detail(case: Case) -> str:
    starts = case.state.starts
    return (
        f"{starts.failed_target} replicas did not come up, {starts.num_failed} x; next try in {starts.retry_in_s:g} s"
    )


def _remember(case: Case, decision: ScalingDecision) -> ScalingState:
    is_on = case.settings.mode == "on"
    return replace(
        case.state,
        target=_target_to_remember(case, decision),
        differs_s=_differs_s(case) if is_on and decision.target == case.target else 0.0,
        starts=_starts_after(case, decision, is_on),
        quiet=_quiet_after(case, decision, is_on),
    )


def _target_to_remember(case: Case, decision: ScalingDecision) -> int | None:
    """What was decided; a higher one of Serve's is taken over once it has stood for a while.

    It may be one that has not yet followed a scale-in, and to take it over would undo that.
    """
    if case.settings.mode != "on":
        return case.replicas.target
    is_change, decided = decision.target != case.target, case.state.target
    if is_change or decided is None or _differs_s(case) >= case.settings.settle_s:
        return decision.target
    return decided


def _differs_s(case: Case) -> float:
    decided = case.state.target
    return case.state.differs_s + case.elapsed_s if decided is not None and case.replicas.target > decided else 0.0


def _starts_after(case: Case, decision: ScalingDecision, is_on: bool) -> StartWatch:
    starts = case.state.starts
    if decision.target is None or decision.target <= case.target:
        return starts
    if is_on:
        return starts.asked()
    return replace(starts, settling_s=case.settings.start_timeout_s)


def _quiet_after(case: Case, decision: ScalingDecision, is_on: bool) -> QuietTime:
    quiet = case.state.quiet
    if decision.target == case.target:
        return quiet
    if is_on and decision.reason in (ScalingReason.SPARE, ScalingReason.IDLE):
        return quiet.scaled_in()
    return quiet.restarted()

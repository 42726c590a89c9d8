"""Who has waited too long, and what it is given for that: pure rules, nothing of vLLM, time is an argument.

A request that waits is *lifted* by one class at a time. It counts as that class wherever classes are compared, until it
has run for a while (`has_had_its_grain`); then it is of its own class again, and the next time it waits it is counted
from the start. Two clocks lift:

* aging, `aging_s` for each class: since arrival or the last preemption, for a class that stands still. While a request
  that counts as the same class or a lesser one runs, the class is served, in its order, and lifting one would only make
  equals take turns;
* `suspended_prefill_deadline_s`: a prefill that was begun and makes no progress, whoever runs.

Few are lifted at a time (`max_lifted`): a batch queue that is overdue as a whole must not become urgent as a whole.

The bound is `counts_as_most_urgent_after_s`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slo.priority import PriorityClass
from slo.settings.scheduling import FairnessSettings


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that waits, or that runs and gets no tokens for the prefill it has begun."""

    counts_as: PriorityClass
    counted_from_s: float
    """When its present wait began; after a lift, when that lift was due."""
    is_suspended_prefill: bool = False


@dataclass(frozen=True, slots=True)
class Lift:
    """A request that counts as a more urgent class than its own."""

    own: PriorityClass
    counts_as: PriorityClass
    grain_tokens: int | None = None
    """Tokens to compute before the lift ends; None until it first runs."""

    def after(self, num_tokens: int) -> Lift:
        assert self.grain_tokens is not None
        return replace(self, grain_tokens=self.grain_tokens - num_tokens)


def next_lift_s(wait: Wait, settings: FairnessSettings) -> float | None:
    """When `wait` is due to count as one class more urgent, in seconds of the caller's clock; None: never."""
    periods = [settings.aging_s.of(wait.counts_as)]
    if wait.is_suspended_prefill and wait.counts_as is not PriorityClass.P0:
        periods.append(settings.suspended_prefill_deadline_s)
    return min((wait.counted_from_s + p for p in periods if p is not None), default=None)


def may_lift(
    wait: Wait, now_s: float, num_lifted: int, lowest_running: PriorityClass | None, s: FairnessSettings
) -> bool:
    """Whether `wait` is lifted now. `num_lifted` count as the class above already; `lowest_running` is the least urgent
    class that a running request counts as."""
    due_s = next_lift_s(wait, s)
    if due_s is None or now_s < due_s or num_lifted >= s.max_lifted:
        return False
    return wait.is_suspended_prefill or lowest_running is None or lowest_running.outranks(wait.counts_as)


def lifted(wait: Wait, settings: FairnessSettings) -> Wait:
    """The same wait, one class up. Counted on from when that was due, so that a late lift does not delay the next."""
    due_s = next_lift_s(wait, settings)
    assert due_s is not None
    return replace(wait, counts_as=wait.counts_as.promoted(), counted_from_s=due_s)


def grain_of(num_tokens_left: int, settings: FairnessSettings) -> int:
    """Tokens that a lifted request computes before it is of its own class again, when it begins to run with
    `num_tokens_left` known tokens not yet computed: some of its prefill, or decode tokens if it has no prefill left."""
    if num_tokens_left > 1:
        return min(num_tokens_left, settings.lift_prefill_tokens)
    return settings.lift_decode_tokens


def has_had_its_grain(lift: Lift) -> bool:
    return lift.grain_tokens is not None and lift.grain_tokens <= 0


def can_be_preempted_again(num_preemptions: int, settings: FairnessSettings) -> bool:
    """Whether a request that was preempted `num_preemptions` times may be a victim once more."""
    cap = settings.max_preemptions_per_request
    return cap is None or num_preemptions < cap


def counts_as_most_urgent_after_s(own: PriorityClass, settings: FairnessSettings) -> float | None:
    """The bound: how long a request of class `own` waits at most before nothing that comes later is ahead of it.

    Seconds since it arrived or was last preempted, while more urgent requests never end and its class stands still: the
    sum of the steps up, 50 s for a P2 by the defaults. It then counts as P0 and goes by arrival, so it starts with the
    first run slot and KV that come free after those P0 that arrived before it. None if a step is missing: no bound.

    It holds for the `max_lifted` that have waited longest; each further one follows when one of those has had its
    grain. What the urgent class pays: as many run slots as `max_lifted`, and the wait of one that needs much KV.
    """
    total_s = 0.0
    while own is not PriorityClass.P0:
        step_s = settings.aging_s.of(own)
        if step_s is None:
            return None
        total_s += step_s
        own = own.promoted()
    return total_s

"""The gate's rules: who is admitted, who waits, who is refused, and who of the waiters is next. Pure.

A request is admitted while its class has room in flight and nobody waits before it; what its tenant has beyond its
share too, as surplus, which holds nobody up, while all that the class has in flight leaves room. Otherwise it waits,
unless the wait would outlast its class's time-out. Where there is no room to wait, the one who would be served last
goes: it is the least urgent class's, and in one class the request of the tenant that has piled up most, be it the
newcomer or one that waits. So P2 is refused first, P1 next, P0 last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from app.gate.ask import Ask, Waiter
from app.gate.ending import Ending
from app.gate.limits import GateLimits
from app.gate.load import Load, total
from app.gate.shares import Shares, has_turn, is_within_share, share_of
from slo.messages import Standing
from slo.priority import PriorityClass
from slo.settings.scheduling import AgingPeriods

MIN_RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class Admit:
    """Handed to an engine now. `displaced` go from the queue, for their bodies' bytes."""

    displaced: tuple[Waiter, ...] = ()
    is_surplus: bool = False


@dataclass(frozen=True, slots=True)
class Queue:
    """Waits until `deadline_s` at most. `displaced` go from the queue."""

    deadline_s: float
    displaced: tuple[Waiter, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not let in; worth another try after `retry_after_s`, whole seconds."""

    reason: Ending
    retry_after_s: int


Decision = Admit | Queue | Refuse


@dataclass(frozen=True, slots=True)
class Candidate:
    """One that waits, and may be the next.

    Attributes:
        is_surplus: it would be its tenant's.
        has_turn: while it has no room, what is less urgent waits too.
    """

    waiter: Waiter
    is_surplus: bool = False
    has_turn: bool = True


@dataclass(frozen=True, slots=True)
class ClassView:
    """One class, as one request finds it.

    Attributes:
        within: what its requests hold within their tenants' shares.
        surplus: what they hold beyond them.
        queued: what waits.
        is_held: someone waits who has a turn (`app.gate.shares.has_turn`).
        tokens_per_s: the measured service rate, None where it is not known.
    """

    within: Load = field(default_factory=Load)
    surplus: Load = field(default_factory=Load)
    queued: Load = field(default_factory=Load)
    is_held: bool = False
    tokens_per_s: float | None = None

    @property
    def in_flight(self) -> Load:
        """All that its requests hold."""
        return self.within + self.surplus


@dataclass(frozen=True, slots=True)
class GateView:
    """The gate, as one request finds it.

    Attributes:
        shares: those of its class.
        is_behind_own: its tenant has others of its class that wait.
        tokens_ahead: tokens that wait in its class and would be served before it.
        behind: the waiters that would be served after it, the last first; read only as far as needed.
    """

    limits: GateLimits
    classes: Mapping[PriorityClass, ClassView]
    shares: Shares = field(default_factory=Shares)
    is_behind_own: bool = False
    tokens_ahead: int = 0
    behind: Iterable[Waiter] = ()

    @property
    def in_flight(self) -> Load:
        """Of all classes."""
        return total(view.in_flight for view in self.classes.values())


def decide_admission(view: GateView, ask: Ask, max_retry_after_s: float, now_s: float) -> Decision:
    """What happens to `ask` now. Where no replica runs it waits for one: one may be starting, or be woken by it."""
    wait_s = estimate_wait_s(view, ask.priority, view.tokens_ahead)
    limits = view.limits.classes[ask.priority]
    retry_after_s = _retry_after_s(wait_s, limits.queue_timeout_s, max_retry_after_s)
    is_surplus = is_surplus_now(view, ask)
    runs_now = not _is_someone_before(view, ask.priority, is_surplus) and fits_in_flight(view, ask, is_surplus)
    is_too_long = view.limits.num_replicas > 0 and wait_s is not None and wait_s > limits.max_wait_s
    if not runs_now and is_too_long:
        return Refuse(Ending.WAIT_TOO_LONG, retry_after_s)
    displaced = _whom_to_displace(view, ask, runs_now)
    if displaced is None:
        return Refuse(Ending.NO_ROOM, retry_after_s)
    return Admit(displaced, is_surplus) if runs_now else Queue(now_s + limits.queue_timeout_s, displaced)


def is_surplus_now(view: GateView, ask: Ask) -> bool:
    """Whether `ask` would be its tenant's surplus, admitted now."""
    return not is_within_share(view.limits.classes[ask.priority], ask, view.shares)


def fits_in_flight(view: GateView, ask: Ask, is_surplus: bool) -> bool:
    """Whether the limits in flight have room for `ask`: its class's, and that of all classes.

    What is within a share does not see the surplus of its class, which yields to it, as long as both fit. Of surplus no
    more sequences have to fit than its tenant's share is: a larger request would wait until its class is empty. Surplus
    that has a turn takes of the room of all classes what its class may, as it holds its class up meanwhile.
    """
    limits, state = view.limits.classes[ask.priority], view.classes[ask.priority]
    counts_as = Standing(is_surplus and not has_turn(limits, ask, view.shares)).counts_as(ask.priority)
    of_all = view.limits.classes[counts_as].in_flight_of_all
    charge = limits.in_flight.clamp(ask.load)
    if is_surplus:
        share = share_of(limits, view.shares.part)
        least = replace(ask.load, sequences=min(ask.load.sequences, share))
        fits = limits.in_flight_with_surplus.fits(state.in_flight, least)
    else:
        fits = limits.in_flight.fits(state.within, ask.load)
    return (
        view.limits.num_replicas > 0
        and fits
        and limits.in_flight_at_most.fits(state.in_flight, charge)
        and view.in_flight.sequences + min(charge.sequences, of_all) <= of_all
    )


def choose_next(
    candidates: Iterable[Candidate], fits: Callable[[Candidate], bool], aging_s: AgingPeriods, now_s: float
) -> Candidate | None:
    """Who of the waiters is handed to an engine now, if any.

    In order of class: while a more urgent one waits for room, the engines are full of its class, and what is less
    urgent would only wait there. It goes nevertheless once it has waited for its class's aging period, if its own class
    has room: so it starves no more here than in the engine, whose scheduler lifts it by the same periods.

    Args:
        candidates: by class, of each the first that has a turn and the first of the others.
        fits: whether the limits in flight have room for one.
    """
    someone_is_held = False
    for candidate in candidates:
        waiter = candidate.waiter
        period_s = aging_s.of(waiter.ask.priority)
        has_aged = period_s is not None and now_s - waiter.arrived_s >= period_s
        if (has_aged or not someone_is_held) and fits(candidate):
            return candidate
        someone_is_held = someone_is_held or candidate.has_turn
    return None


def estimate_wait_s(view: GateView, priority: PriorityClass, tokens_ahead: int) -> float | None:
    """How long one waits behind `tokens_ahead` of its class and all that is more urgent; None: a rate is unknown."""
    wait_s = 0.0
    for other, state in view.classes.items():
        tokens = state.queued.tokens if other.outranks(priority) else tokens_ahead if other is priority else 0
        if tokens and state.tokens_per_s is None:
            return None
        wait_s += tokens / state.tokens_per_s if tokens and state.tokens_per_s else 0.0
    return wait_s


def retry_after_s_of_last(view: GateView, priority: PriorityClass, max_retry_after_s: float) -> int:
    """What one is told who goes from the end of its class's queue."""
    wait_s = estimate_wait_s(view, priority, view.classes[priority].queued.tokens)
    return _retry_after_s(wait_s, view.limits.classes[priority].queue_timeout_s, max_retry_after_s)


def _retry_after_s(wait_s: float | None, timeout_s: float, most_s: float) -> int:
    """When those ahead will have been served, or, at an unknown rate, have given up."""
    return max(MIN_RETRY_AFTER_S, math.floor(min(most_s, math.ceil(timeout_s if wait_s is None else wait_s))))


def _is_someone_before(view: GateView, priority: PriorityClass, is_surplus: bool) -> bool:
    if view.is_behind_own or (is_surplus and view.classes[priority].queued.sequences):
        return True
    return any(state.is_held for other, state in view.classes.items() if not priority.outranks(other))


def _whom_to_displace(view: GateView, ask: Ask, runs_now: bool) -> tuple[Waiter, ...] | None:
    """The waiters that must go so that there is room for `ask`; None when even all behind it would not do."""
    displaced: list[Waiter] = []
    behind = iter(view.behind)
    while not _has_room(view, ask, displaced, runs_now):
        waiter = next(behind, None)
        if waiter is None:
            return None
        displaced.append(waiter)
    return tuple(displaced)


def _has_room(view: GateView, ask: Ask, displaced: list[Waiter], runs_now: bool) -> bool:
    gone = total(
        waiter.charge for waiter in displaced
    )  # every one of them is of the asker's class or a less urgent one
    queued = total(state.queued for state in view.classes.values())
    held_bytes = queued.num_bytes + view.in_flight.num_bytes - gone.num_bytes
    if held_bytes and held_bytes + ask.load.num_bytes > view.limits.max_held_bytes:
        return False
    if runs_now:
        return True
    charge = view.limits.queue_charge(ask)
    for level in PriorityClass:
        if ask.priority.outranks(level):
            continue
        waiting = total(state.queued for other, state in view.classes.items() if not other.outranks(level))
        if not view.limits.queue_room(level).fits(waiting - gone, charge):
            return False
    return True

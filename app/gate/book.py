"""What is in flight and what waits at a gate, and what becomes of it as `admission.py` decides: no event loop, no time.

Who holds a book tells it of each event, with the time, and calls `settle` as the last thing in each; the book tells of
every waiter whose wait is over. The ingress' gate (`gate.py`) drives one, and so does the simulator's. Every request
that was entered ends exactly once: admitted, refused, displaced, expired, or gone by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from app.gate.admission import (
    Admit,
    Candidate,
    ClassView,
    GateView,
    Queue,
    Refuse,
    choose_next,
    decide_admission,
    fits_in_flight,
    retry_after_s_of_last,
)
from app.gate.ask import Ask, Waiter
from app.gate.askers import Askers
from app.gate.backlog import Backlog
from app.gate.ending import Ending
from app.gate.in_flight import Held, InFlight
from app.gate.limits import ClassLimits, derive_limits
from app.gate.load import Load
from app.gate.service_rate import ServiceRate
from app.gate.shares import Shares, delay_s_of, has_turn, is_within_share
from slo.messages import Standing
from slo.priority import PriorityClass
from slo.settings import Settings

_BY_URGENCY: Final = tuple(sorted(PriorityClass, key=lambda c: c.level))


class Waiters(Protocol):
    """Those who wait, as the book tells them. Called within the calls of the book; must not call it back."""

    def has_left(self, waiter: Waiter) -> bool:
        """Whether its client is gone: then it takes nobody's place, and leaves by itself (`Ending.LEFT`)."""
        ...

    def let_in(self, waiter: Waiter, standing: Standing) -> None:
        """It is in flight now."""
        ...

    def turn_away(self, waiter: Waiter, ending: Ending, retry_after_s: int) -> None:
        """It leaves without a permit. `retry_after_s`: an estimate, for those that are displaced."""
        ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """In flight at once; to be released by its number."""

    number: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class ClassAtGate:
    """One class at the gate now. `endings` are totals since the start; `surplus` is a part of `in_flight`."""

    in_flight: Load
    surplus: Load
    queued: Load
    num_queued: int
    tokens_per_s: float | None
    endings: Mapping[Ending, int]


class GateBook:
    """The book of one gate. One writer; times are of its clock, seconds."""

    def __init__(self, settings: Settings, num_replicas: int, waiters: Waiters, now_s: float) -> None:
        self._settings = settings
        self._waiters = waiters
        self._limits = derive_limits(settings, num_replicas)
        self._backlog = Backlog()
        self._in_flight = InFlight()
        self._askers = Askers()
        self._rates = {c: ServiceRate(settings.admission.rate_window_s, now_s) for c in PriorityClass}
        self._rates_are_of = num_replicas
        self._endings: dict[PriorityClass, Counter[Ending]] = {c: Counter() for c in PriorityClass}
        self._num_asked = 0
        self._is_closed = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._backlog)

    @property
    def next_deadline_s(self) -> float | None:
        """When the next waiter expires; None when nobody waits."""
        return self._backlog.next_deadline_s()

    def limits_of(self, priority: PriorityClass) -> ClassLimits:
        """Those in force."""
        return self._limits.classes[priority]

    def num_queued(self, priority: PriorityClass) -> int:
        """Of those that wait, the ones of a class."""
        return len(self._backlog.queues[priority])

    def state(self, now_s: float) -> Mapping[PriorityClass, ClassAtGate]:
        """Each class now."""
        return {
            c: ClassAtGate(
                in_flight=self._in_flight.within[c] + self._in_flight.surplus[c],
                surplus=self._in_flight.surplus[c],
                queued=queue.load,
                num_queued=len(queue),
                tokens_per_s=self._rates[c].tokens_per_s(now_s),
                endings=dict(self._endings[c]),
            )
            for c, queue in self._backlog.queues.items()
        }

    def enter(self, ask: Ask, now_s: float) -> Admitted | Waiter | Refuse:
        """A request comes, to a settled book: what has expired takes no room from it."""
        number, self._num_asked = self._num_asked, self._num_asked + 1
        if self._is_closed:
            return self._refused(ask, Refuse(Ending.CLOSED, 0))
        self._askers.come(ask.priority, ask.tenant, ask.weight, now_s)
        match decide_admission(self._view(ask, now_s), ask, self._settings.admission.max_retry_after_s, now_s):
            case Refuse() as refusal:
                self._askers.go(ask.priority, ask.tenant)
                return self._refused(ask, refusal)
            case Admit(displaced=displaced, is_surplus=is_surplus):
                self._displace(displaced, now_s)
                return Admitted(number, self._admit(number, ask, is_surplus))
            case Queue(deadline_s=deadline_s, displaced=displaced):
                self._displace(displaced, now_s)
                waiter = Waiter(number, ask, self._limits.queue_charge(ask), now_s, deadline_s)
                self._backlog.push(waiter)
                return waiter

    def leave(self, waiter: Waiter) -> None:
        """The client of one that waits has left."""
        self._take_out(waiter, Ending.LEFT, 0)

    def release(self, number: int) -> None:
        """One that was in flight has ended."""
        held = self._in_flight.remove(number)
        priority = held.ask.priority
        self._askers.go(priority, held.ask.tenant)
        self._rates[priority] = self._rates[priority].ended(held.charge.tokens)

    @property
    def num_replicas(self) -> int:
        """That run, as far as is known."""
        return self._limits.num_replicas

    def set_num_replicas(self, num_replicas: int) -> bool:
        """So many replicas run now; whether that is another number."""
        if num_replicas == self._limits.num_replicas:
            return False
        self._limits = derive_limits(self._settings, num_replicas)
        if num_replicas:
            if self._rates_are_of:
                self._rates = {c: rate.scaled(num_replicas / self._rates_are_of) for c, rate in self._rates.items()}
            self._rates_are_of = num_replicas
        return True

    def close(self) -> None:
        """Nobody is admitted any more, and who waits is told. What is in flight goes on."""
        self._is_closed = True
        for waiter in list(self._backlog):
            self._turn_away(waiter, Ending.CLOSED)

    def settle(self, now_s: float) -> None:
        """Makes everything as it has to be at `now_s`: who has expired goes first, then who may be let in, and last the
        service rates are measured."""
        self._askers.forget(now_s)
        for waiter in self._backlog.expired(now_s):
            self._turn_away(waiter, Ending.EXPIRED if self._limits.num_replicas else Ending.NO_REPLICA)
        while (following := self.next_one(now_s)) is not None:
            self._let_in(following)
        self._measure(now_s)

    def next_one(self, now_s: float) -> Candidate | None:
        """Who of the waiters may go now."""
        if not len(self._backlog):
            return None
        return choose_next(
            self._candidates(),
            lambda one: fits_in_flight(
                self._view(one.waiter.ask, now_s, sees_held=False), one.waiter.ask, one.is_surplus
            ),
            self._settings.scheduler.fairness.aging_s,
            now_s,
        )

    def _candidates(self) -> Iterator[Candidate]:
        for c in _BY_URGENCY:
            queue = self._backlog.queues[c]
            first, other = queue.heads(self._has_turn)
            if first is not None:
                yield Candidate(first, not self._is_within(first))
            if other is not None:
                yield Candidate(other, is_surplus=True, has_turn=False)

    def _let_in(self, following: Candidate) -> None:
        waiter = following.waiter
        if self._waiters.has_left(waiter):
            self.leave(waiter)
            return
        self._backlog.serve(waiter)
        self._waiters.let_in(waiter, self._admit(waiter.number, waiter.ask, following.is_surplus))

    def _admit(self, number: int, ask: Ask, is_surplus: bool) -> Standing:
        delay_s = delay_s_of(self.limits_of(ask.priority), ask, self._shares(ask), is_surplus)
        charge = self.limits_of(ask.priority).in_flight.clamp(ask.load)
        self._in_flight.add(number, Held(ask, charge, is_surplus))
        self._endings[ask.priority][Ending.ADMITTED] += 1
        return Standing(is_surplus, delay_s)

    def _refused(self, ask: Ask, refusal: Refuse) -> Refuse:
        self._endings[ask.priority][refusal.reason] += 1
        return refusal

    def _displace(self, waiters: tuple[Waiter, ...], now_s: float) -> None:
        most_s = self._settings.admission.max_retry_after_s
        for waiter in waiters:
            retry_after_s = retry_after_s_of_last(self._view(waiter.ask, now_s), waiter.ask.priority, most_s)
            self._turn_away(waiter, Ending.DISPLACED, retry_after_s)

    def _turn_away(self, waiter: Waiter, ending: Ending, retry_after_s: int = 0) -> None:
        if self._waiters.has_left(waiter):
            self.leave(waiter)
        else:
            self._take_out(waiter, ending, retry_after_s)

    def _take_out(self, waiter: Waiter, ending: Ending, retry_after_s: int) -> None:
        self._backlog.remove(waiter)
        self._askers.go(waiter.ask.priority, waiter.ask.tenant)
        self._endings[waiter.ask.priority][ending] += 1
        self._waiters.turn_away(waiter, ending, retry_after_s)

    def _is_within(self, waiter: Waiter) -> bool:
        ask = waiter.ask
        return is_within_share(self.limits_of(ask.priority), ask, self._shares(ask))

    def _has_turn(self, waiter: Waiter) -> bool:
        return has_turn(self.limits_of(waiter.ask.priority), waiter.ask, self._shares(waiter.ask))

    def _shares(self, ask: Ask) -> Shares:
        return Shares(
            part=self._askers.part(ask.priority, ask.tenant),
            within=self._in_flight.within[ask.priority].sequences,
            of_tenant=self._in_flight.of_tenant(ask.priority, ask.tenant),
            is_idle=not self._in_flight.has_any(ask.priority, ask.tenant),
        )

    def _view(self, ask: Ask, now_s: float, sees_held: bool = True) -> GateView:
        queues = self._backlog.queues
        classes = {
            c: ClassView(
                within=self._in_flight.within[c],
                surplus=self._in_flight.surplus[c],
                queued=queue.load,
                is_held=sees_held and queue.heads(self._has_turn)[0] is not None,
                tokens_per_s=self._rates[c].tokens_per_s(now_s),
            )
            for c, queue in queues.items()
        }
        return GateView(
            limits=self._limits,
            classes=classes,
            shares=self._shares(ask),
            is_behind_own=queues[ask.priority].has(ask.tenant),
            tokens_ahead=queues[ask.priority].tokens_ahead(ask.tenant),
            behind=self._backlog.behind(ask.priority, ask.tenant),
        )

    def _measure(self, now_s: float) -> None:
        is_first = self._limits.num_replicas > 0
        for c in _BY_URGENCY:
            queue = self._backlog.queues[c]
            self._rates[c] = self._rates[c].at(now_s, is_first and len(queue) > 0)
            is_first = is_first and queue.heads(self._has_turn)[0] is None

    def check_invariants(self, waiting: set[int], now_s: float) -> None:
        """For tests, when settled: the sums hold, those that wait are `waiting`, and nobody who may go waits."""
        self._backlog.check_invariants()
        self._in_flight.check_invariants()
        self._askers.check_invariants(*self._in_flight.asks(), *(waiter.ask for waiter in self._backlog))
        assert {waiter.number for waiter in self._backlog} == waiting
        following = self.next_one(now_s)
        assert following is None or self._waiters.has_left(following.waiter), f"{following} could go"
        ended = sum(sum(endings.values()) for endings in self._endings.values())
        assert ended + len(self._backlog) == self._num_asked
        assert len(self._in_flight) <= sum(endings[Ending.ADMITTED] for endings in self._endings.values())

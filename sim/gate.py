"""The ingress' gate on a virtual clock: its own book (`app.gate.book`), driven by the simulation. One tenant."""

from __future__ import annotations

from collections.abc import Callable

from app.gate.admission import Refuse
from app.gate.ask import Ask, Waiter
from app.gate.book import Admitted, GateBook
from app.gate.ending import Ending
from app.gate.load import Load
from sim.request import Track
from slo.messages import Standing
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import Settings

_TENANT = "all"
_OUTCOMES = {Ending.EXPIRED: Outcome.EXPIRED, Ending.NO_REPLICA: Outcome.REPLICA_LOST}
"""Of those that are turned away; the others are shed."""


class SimGate:
    """`admit` gives a request to a replica; `end` is told of those that are not let in; `plan` calls back at a time."""

    def __init__(
        self,
        settings: Settings,
        num_replicas: int,
        admit: Callable[[Track], None],
        end: Callable[[Track, Outcome], None],
        plan: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._book = GateBook(settings, num_replicas, self, 0.0)
        self._waiting: dict[int, Track] = {}
        self._numbers: dict[str, int] = {}
        self._give = admit
        self._end = end
        self._plan = plan

    @property
    def num_waiting(self) -> int:
        return len(self._book)

    def num_queued(self, priority: PriorityClass) -> int:
        """Of those that wait, the ones of a class."""
        return self._book.num_queued(priority)

    def arrive(self, track: Track, now_s: float) -> None:
        """A request comes: it is given to a replica, waits, or is refused."""
        self.settle(now_s)
        match self._book.enter(self._ask_of(track), now_s):
            case Refuse():
                self._end(track, Outcome.SHED)
            case Admitted(number=number):
                self._admit(track, number)
            case Waiter() as waiter:
                self._waiting[waiter.number] = track
                self._plan(waiter.deadline_s)
        self.settle(now_s)

    def release(self, track: Track, now_s: float) -> None:
        """A request that was given to a replica has ended."""
        self._book.release(self._numbers.pop(track.arrival.request_id))
        self.settle(now_s)

    def set_num_replicas(self, num_replicas: int, now_s: float) -> None:
        """So many replicas serve now."""
        if self._book.set_num_replicas(num_replicas):
            self.settle(now_s)

    def settle(self, now_s: float) -> None:
        """Makes everything as it has to be at `now_s`."""
        self._book.settle(now_s)

    def has_left(self, waiter: Waiter) -> bool:  # noqa: ARG002
        """See `app.gate.book.Waiters`: simulated clients are patient."""
        return False

    def let_in(self, waiter: Waiter, standing: Standing) -> None:  # noqa: ARG002
        """See `app.gate.book.Waiters`: there is one tenant, so nothing is surplus."""
        self._admit(self._waiting.pop(waiter.number), waiter.number)

    def turn_away(self, waiter: Waiter, ending: Ending, retry_after_s: int) -> None:  # noqa: ARG002
        """See `app.gate.book.Waiters`."""
        self._end(self._waiting.pop(waiter.number), _OUTCOMES.get(ending, Outcome.SHED))

    def _admit(self, track: Track, number: int) -> None:
        self._numbers[track.arrival.request_id] = number
        self._give(track)

    def _ask_of(self, track: Track) -> Ask:
        arrival, admission = track.arrival, self._settings.admission
        num_bytes = int(arrival.prompt_tokens * admission.bytes_per_token)
        load = Load(1, arrival.prompt_tokens + arrival.output_tokens, num_bytes)
        return Ask(arrival.request_id, arrival.priority, _TENANT, 1.0, load)

"""Places for LoRA adapters in one step: the engine computes at most `max_adapters` of them at once. Pure.

A waiting request whose adapter has no place gets one when all who use another adapter leave their run slots for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from replicas.scheduler.victims import outranked, yielding_order
from replicas.scheduler.views import Asker, Holder, Room


class AdapterPlaces:
    """The places as one plan changes them."""

    def __init__(self, room: Room) -> None:
        self._max = room.max_adapters
        self._num_users = Counter(room.adapters)
        self._joined: set[int] = set()
        self.closing: set[int] = set()
        """Adapters that are giving up their place: who waits with one of them must not take it up again."""

    def has_place(self, adapter: int | None) -> bool:
        """Whether a request with `adapter` (None: the model itself) could run beside those that do."""
        if adapter is None or self._max is None:
            return True
        return adapter not in self.closing and (adapter in self._num_users or len(self._num_users) < self._max)

    def join(self, asker: Asker) -> None:
        """`asker` is admitted."""
        if asker.adapter is not None:
            self._num_users[asker.adapter] += 1
            self._joined.add(asker.adapter)

    def leave(self, holder: Holder) -> None:
        """`holder` leaves its run slot."""
        if holder.adapter is not None and not holder.is_paused:
            self._num_users[holder.adapter] -= 1
            if not self._num_users[holder.adapter]:
                del self._num_users[holder.adapter]

    def close(self, leaving: Sequence[Holder]) -> None:
        """The users of one adapter leave. Those that are left go in the next steps, and none comes meanwhile."""
        self.closing |= {h.adapter for h in leaving if h.adapter is not None and h.adapter in self._num_users}

    def choose_leaving(self, holders: Iterable[Holder], asker: Asker) -> tuple[Holder, ...] | None:
        """Who leaves so that the adapter of `asker` gets a place: all users of the one that is easiest to do without.

        () if nobody has to; None if each adapter has a user that does not yield. The adapter whose most urgent user is
        the least urgent, then the one with the fewest users.
        """
        if self.has_place(asker.adapter):
            return ()
        users: dict[int, list[Holder]] = {}
        for holder in holders:
            if holder.adapter is not None and not holder.is_paused:
                users.setdefault(holder.adapter, []).append(holder)
        ways = [sorted(u, key=yielding_order) for a, u in users.items() if a not in self._joined]
        ways = [way for way in ways if len(list(outranked(way, asker))) == len(way)]
        best = min(ways, key=lambda way: (-way[-1].priority.level, len(way), yielding_order(way[0])), default=None)
        return None if best is None else tuple(best)

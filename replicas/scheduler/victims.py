"""Who yields to a more urgent request: pure choices among holders.

Only strictly less urgent ones ever yield to an asker: equals that preempt each other would take turns for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from replicas.scheduler.views import Asker, Holder, Room

BlocksOf = Callable[[str], Mapping[int, int]]
"""The KV blocks of a request: block id to the number of requests that hold the block."""


def yielding_order(holder: Holder) -> tuple[int, bool, int, float, str]:
    """Sort key: least urgent first, then paused before running, then least KV to lose, then newest."""
    return (
        -holder.priority.level,
        not holder.is_paused,
        holder.num_computed_tokens,
        -holder.arrival_s,
        holder.request_id,
    )


class FreedBlocks:
    """Counts the blocks that are free when a set of holders yields: those that nobody outside the set holds."""

    def __init__(self, blocks_of: BlocksOf, kept: Iterable[int] = (), gone: Counter[int] | None = None) -> None:
        """`kept`: blocks that stay in use whoever yields. `gone`: how often a block was given up before."""
        self._blocks_of = blocks_of
        self._kept = frozenset(kept)
        self.given_up: Counter[int] = Counter(gone)
        self.count = 0
        self._given: dict[str, list[tuple[int, int]]] = {}

    def add(self, holder: Holder) -> None:
        self.count += holder.growth_blocks
        given = self._given[holder.request_id] = self._given_by(holder)
        for block, num_holders in given:
            self.given_up[block] += 1
            self.count += self.given_up[block] == num_holders and block not in self._kept

    def drop(self, holder: Holder) -> None:
        self.count -= holder.growth_blocks
        for block, num_holders in self._given.pop(holder.request_id):
            self.count -= self.given_up[block] == num_holders and block not in self._kept
            self.given_up[block] -= 1

    def num_own(self, holder: Holder) -> int:
        """Blocks that nobody else holds any more: what a swap would copy."""
        return sum(n - self.given_up[block] == 1 for block, n in self._blocks_of(holder.request_id).items())

    def _given_by(self, holder: Holder) -> list[tuple[int, int]]:
        """All that it holds; of one that may be swapped, which keeps what it shares, only what is its own."""
        blocks = self._blocks_of(holder.request_id).items()
        return [(block, n) for block, n in blocks if not holder.can_swap or n - self.given_up[block] == 1]


def choose_for_blocks(
    holders: Iterable[Holder], asker: Asker, room: Room, freed: FreedBlocks
) -> tuple[Holder, ...] | None:
    """Who yields its KV so that `asker` gets its blocks; () if nobody has to, None if it cannot be done.

    In the order of `yielding_order`; in the class reached last, whom the others make unnecessary is spared. How many
    may yield in one step is the caller's concern. `freed` ends as the count of those chosen.
    """
    chosen: list[Holder] = []

    def is_enough() -> bool:
        num_leaving = sum(not h.is_paused for h in chosen)
        return room.blocks_for_admission(num_leaving) + room.freeing_blocks + freed.count >= asker.need_blocks

    if is_enough():
        return ()
    for holder in sorted(outranked(holders, asker), key=yielding_order):
        chosen.append(holder)
        freed.add(holder)
        if is_enough():
            break
    else:
        return None
    for holder in [h for h in chosen if h.priority is chosen[-1].priority][:-1]:
        chosen.remove(holder)
        freed.drop(holder)
        if not is_enough():
            chosen.append(holder)
            freed.add(holder)
    return tuple(sorted(chosen, key=yielding_order))


def choose_for_slot(holders: Iterable[Holder], asker: Asker) -> Holder | None:
    """The running holder that leaves its run slot to `asker`, or None."""
    running = (h for h in outranked(holders, asker) if not h.is_paused)
    return min(running, key=yielding_order, default=None)


def choose_reclaimed(holders: Sequence[Holder], short_blocks: int, freed: FreedBlocks) -> tuple[Holder, ...]:
    """The paused holders that give up their KV so that the running ones can grow by `short_blocks` more.

    Least urgent first, and all there are if they do not suffice. One that is more urgent than a running holder keeps
    its KV: the engine's own preemption under memory pressure then takes the running one.
    """
    lowest_running = max((h.priority.level for h in holders if not h.is_paused), default=0)
    chosen: list[Holder] = []
    for holder in sorted((h for h in holders if h.is_paused), key=yielding_order):
        if freed.count >= short_blocks or holder.priority.level < lowest_running:
            break
        chosen.append(holder)
        freed.add(holder)
    return tuple(chosen)


def outranked(holders: Iterable[Holder], asker: Asker) -> Iterable[Holder]:
    """Those that may yield to `asker`."""
    return (h for h in holders if h.can_yield and asker.priority.outranks(h.priority))

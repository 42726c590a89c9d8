"""One scheduling step, decided: who is admitted, who yields for it, and which prefill gets how many tokens.

Pure: values in, values out, nothing of vLLM. Askers are served in the order in which the engine would admit them; the
first that cannot be served ends the plan, as it ends the engine's own scan of the waiting requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from replicas.kv_swap.cost import Exit, ExitChoice
from replicas.scheduler.adapter_places import AdapterPlaces
from replicas.scheduler.exits import ExitPlan, Leaving
from replicas.scheduler.victims import BlocksOf, FreedBlocks, choose_for_blocks, choose_for_slot
from replicas.scheduler.views import Asker, Holder, Room, StepPlan, Yielding
from slo.priority import PriorityClass
from slo.settings.scheduling import PreemptionSettings


@dataclass(frozen=True, slots=True)
class Prefill:
    """A running request that still reads its prompt."""

    request_id: str
    priority: PriorityClass
    want_tokens: int


def plan_tokens(prefills: Sequence[Prefill], plan: StepPlan, room: Room) -> dict[str, int]:
    """Token caps for running prefills, by request id, so that a waiting request that joins gets its tokens first.

    The engine gives running requests their tokens before it looks at waiting ones. `prefills` come in the order in
    which it does so, most urgent class first; those that yield in `plan` leave theirs to the others. No cap where
    there is nothing to leave to anyone.
    """
    caps: dict[str, int] = {}
    given = 0
    for prefill in prefills:
        if prefill.request_id in plan.yielding.victims:
            continue
        reserved = sum(a.need_tokens for a in plan.joins if a.priority.outranks(prefill.priority))
        cap = max(0, min(prefill.want_tokens, room.tokens - reserved - given))
        given += cap
        if reserved:
            caps[prefill.request_id] = cap
    return caps


def plan_step(
    askers: Iterable[Asker],
    room: Room,
    list_holders: Callable[[], Sequence[Holder]],
    blocks_of: BlocksOf,
    settings: PreemptionSettings,
) -> StepPlan:
    """Admit askers in their order while there is room, and make room where less urgent holders can yield.

    At most `settings.max_victims_per_step` running requests leave their slot. An asker that needs more gets them over
    several steps; when all that outranks would not be enough, nobody yields. Where there is swap, those that give up KV
    are swapped out, unless `exits` says otherwise; nobody yields when moving their KV would take too long.
    `list_holders` and `blocks_of` are only called if somebody has to yield.
    """
    planning = _Planning(room, list_holders, blocks_of, settings)
    for asker in askers:
        if not planning.serve(asker):
            break
    return planning.result()


@dataclass(frozen=True, slots=True)
class _Ground:
    """What room is made from: the state of the plan, or what it would be if the swapped-out let shared blocks go."""

    room: Room
    holders: list[Holder]
    given_up: Counter[int]
    releases_kept: bool = False


class _Planning:
    """The state of one `plan_step`."""

    def __init__(
        self,
        room: Room,
        list_holders: Callable[[], Sequence[Holder]],
        blocks_of: BlocksOf,
        settings: PreemptionSettings,
    ) -> None:
        self._room = room
        self._adapters = AdapterPlaces(room)
        self._list_holders = list_holders
        self._holders: list[Holder] | None = None
        self._blocks_of = blocks_of
        self._settings = settings
        self._given_up: Counter[int] = Counter()
        self._releases_kept = False
        self._kept: frozenset[int] = frozenset()
        self._exit_plan = None if room.swap is None else ExitPlan(room.swap)
        self._exits: dict[str, ExitChoice] = {}
        self._pause: list[str] = []
        self._recompute: list[str] = []
        self._reclaim: list[str] = []
        self._swap: list[str] = []
        self._joins: list[Asker] = []
        self._ahead: set[str] = set()
        self._refused: list[str] = []

    def serve(self, asker: Asker) -> bool:
        """Whether those behind `asker` may be served too: it joins, or the engine passes it over."""
        if asker.is_loading:
            self._gain(slots=-min(1, max(0, self._room.slots)))  # Nobody less urgent gets the slot before it is ready.
            return True
        asker = _without_what_was_given_up(asker, self._given_up, self._kept)
        if self._has_room_for(asker):
            if self._room.tokens_for(asker.priority) <= 0:
                return False
        else:
            served = self._make_room(asker) if self._settings.enabled else None
            if served is None:
                return not self._adapters.has_place(asker.adapter)
            asker = served
            self._ahead.add(asker.request_id)
            if not self._has_room_for(asker):
                return False
        self._join(asker)
        return True

    def result(self) -> StepPlan:
        yielding = Yielding(
            tuple(self._pause), tuple(self._recompute), tuple(self._reclaim), tuple(self._swap), self._exits
        )
        return StepPlan(
            yielding,
            tuple(self._joins),
            frozenset(self._ahead),
            tuple(self._refused),
            self._releases_kept,
            frozenset(self._adapters.closing),
        )

    def _has_room_for(self, asker: Asker) -> bool:
        has_blocks = self._room.blocks_for_admission() >= asker.need_blocks
        return self._room.slots > 0 and has_blocks and self._adapters.has_place(asker.adapter)

    def _join(self, asker: Asker) -> None:
        self._joins.append(asker)
        self._ahead.add(asker.request_id)
        self._kept |= asker.shared_blocks.keys()
        self._adapters.join(asker)
        self._gain(slots=-1, blocks=-asker.need_blocks, tokens=-asker.need_tokens, num_running=1)

    def _make_room(self, asker: Asker) -> Asker | None:
        """Let those yield who may go in this step, and say what `asker` needs then; None, and nobody goes, when all
        together would not be enough, or the moves would take too long."""
        found = next(((g, a, h) for g, a, h in self._ways(asker) if h is not None), None)
        if found is None:
            return None
        ground, asker, for_blocks = found
        for_adapter = self._adapters.choose_leaving(ground.holders, asker)
        if for_adapter is None:
            return None
        for_slot = self._choose_for_slot(ground, for_blocks, for_adapter, asker)
        if for_slot is None:
            return None
        going = (*for_blocks, *for_slot)
        if ground.room.tokens_for(asker.priority) + sum(h.decode_tokens for h in going) <= 0:
            return None
        exits = self._choose_exits((*for_blocks, *(h for h in for_slot if not self._can_pause(h))), ground)
        if exits is None:
            self._refused.append(asker.request_id)
            return None
        self._room, self._holders, self._given_up = ground.room, ground.holders, ground.given_up
        self._releases_kept |= ground.releases_kept
        self._give_up_kv(for_blocks, exits, self._freed_by(asker))
        for holder in for_slot:
            self._give_up_slot(holder, exits, self._freed_by(asker))
        self._adapters.close(for_adapter)
        return asker

    def _choose_for_slot(
        self, ground: _Ground, for_blocks: Sequence[Holder], for_adapter: Sequence[Holder], asker: Asker
    ) -> tuple[Holder, ...] | None:
        """Who leaves its run slot and may keep its KV: for the adapter's place, or for the slot; None: nobody can."""
        leaving = tuple(h for h in for_adapter if h not in for_blocks)
        if leaving or ground.room.slots + sum(not h.is_paused for h in for_blocks) > 0:
            return leaving
        for_slot = choose_for_slot((h for h in ground.holders if h not in for_blocks), asker)
        return None if for_slot is None else (for_slot,)

    def _ways(self, asker: Asker) -> Iterator[tuple[_Ground, Asker, tuple[Holder, ...] | None]]:
        """Whose KV makes room for `asker`, from the mildest way on: None where it cannot."""
        for ground in self._grounds():
            needs = _without_what_was_given_up(asker, ground.given_up, self._kept)
            freed = FreedBlocks(self._blocks_of, self._kept | needs.shared_blocks.keys(), ground.given_up)
            yield ground, needs, choose_for_blocks(ground.holders, needs, ground.room, freed)

    def _grounds(self) -> Iterator[_Ground]:
        """As things are; with the blocks that swapped-out requests keep; with nobody swapped who yields now, so that
        blocks which victims share come free too."""
        if self._holders is None:
            self._holders = list(self._list_holders())
        ground = _Ground(self._room, self._holders, self._given_up)
        yield ground
        if ground.room.kept:
            room = replace(ground.room, blocks=ground.room.blocks + ground.room.kept_alone_blocks, kept={})
            room = replace(room, kept_alone_blocks=0)
            ground = _Ground(room, ground.holders, ground.given_up + Counter(ground.room.kept), releases_kept=True)
            yield ground
        if ground.room.swap is not None:
            yield replace(ground, holders=[replace(h, can_swap=False) for h in ground.holders])

    def _choose_exits(self, going: Sequence[Holder], ground: _Ground) -> dict[str, ExitChoice] | None:
        if self._exit_plan is None:
            return {}
        return self._exit_plan.choose([self._leaving(h, ground.given_up) for h in going if h.can_swap], can_refuse=True)

    def _leaving(self, holder: Holder, given_up: Counter[int]) -> Leaving:
        num_own = FreedBlocks(self._blocks_of, gone=given_up).num_own(holder)
        return Leaving(holder.request_id, num_own, holder.num_computed_tokens)

    def _freed_by(self, asker: Asker) -> FreedBlocks:
        return FreedBlocks(self._blocks_of, self._kept | asker.shared_blocks.keys(), self._given_up)

    def _give_up_kv(self, holders: Iterable[Holder], exits: dict[str, ExitChoice], freed: FreedBlocks) -> None:
        for holder in holders:
            choice = exits.get(holder.request_id)
            is_swapped = choice is not None and choice.exit is Exit.SWAP
            if holder.is_paused:
                self._reclaim.append(holder.request_id)
            elif self._can_take_a_victim():
                (self._swap if is_swapped else self._recompute).append(holder.request_id)
                self._gain(slots=1, tokens=holder.decode_tokens, num_running=-1)
            else:
                continue
            if choice is not None and self._exit_plan is not None:
                self._exits[holder.request_id] = choice
                self._exit_plan.take(self._leaving(holder, freed.given_up), choice)
            num_before = freed.count
            freed.add(holder)
            self._gone(holder)
            self._gain_blocks(freed.count - num_before, holder.growth_blocks if is_swapped else None)
        self._given_up = freed.given_up

    def _give_up_slot(self, holder: Holder, exits: dict[str, ExitChoice], freed: FreedBlocks) -> None:
        """The KV stays where it is if it can."""
        if not self._can_pause(holder):
            self._give_up_kv((holder,), exits, freed)
        elif self._can_take_a_victim():
            self._pause.append(holder.request_id)
            self._gain(slots=1, blocks=holder.growth_blocks, tokens=holder.decode_tokens, num_running=-1)
            self._gone(holder)

    def _can_pause(self, holder: Holder) -> bool:
        return self._settings.pause and holder.can_pause

    def _can_take_a_victim(self) -> bool:
        return len(self._pause) + len(self._recompute) + len(self._swap) < self._settings.max_victims_per_step

    def _gone(self, holder: Holder) -> None:
        assert self._holders is not None
        self._holders.remove(holder)
        self._adapters.leave(holder)

    def _gain_blocks(self, num_blocks: int, at_once: int | None) -> None:
        """`at_once`: of a swapped victim, whose own blocks are free when they have been copied; None for others."""
        if at_once is None:
            at_once = 0 if self._room.defers_frees else num_blocks
        num_later = num_blocks - at_once
        self._room = replace(self._room, freeing_blocks=self._room.freeing_blocks + num_later)
        self._gain(blocks=at_once)

    def _gain(self, slots: int = 0, blocks: int = 0, tokens: int = 0, num_running: int = 0) -> None:
        room = self._room
        self._room = replace(
            room,
            slots=room.slots + slots,
            blocks=room.blocks + blocks,
            tokens=room.tokens + tokens,
            num_running=room.num_running + num_running,
        )


def _without_what_was_given_up(asker: Asker, given_up: Counter[int], kept: frozenset[int]) -> Asker:
    """A shared block whose holders have all yielded in this plan is a free block like others, and needed."""
    lost = {b for b, num_holders in asker.shared_blocks.items() if given_up[b] >= num_holders} - kept
    shared = {b: num_holders for b, num_holders in asker.shared_blocks.items() if b not in lost}
    return replace(asker, need_blocks=asker.need_blocks + len(lost), shared_blocks=shared) if lost else asker

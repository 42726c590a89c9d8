"""One scheduling step, decided: who is admitted, who yields for it, and which prefill gets how many tokens.

Pure: values in, values out, nothing of vLLM. Askers are served in the order in which the engine would admit them; the
first that cannot be served ends the plan, as it ends the engine's own scan of the waiting requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

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
    several steps; when all that outranks would not be enough, nobody yields. `list_holders` and `blocks_of` are only
    called if somebody has to yield.
    """
    planning = _Planning(room, list_holders, blocks_of, settings)
    for asker in askers:
        if not planning.serve(asker):
            break
    return planning.result()


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
        self._list_holders = list_holders
        self._holders: list[Holder] | None = None
        self._blocks_of = blocks_of
        self._settings = settings
        self._given_up: Counter[int] = Counter()
        self._kept: frozenset[int] = frozenset()
        self._pause: list[str] = []
        self._recompute: list[str] = []
        self._reclaim: list[str] = []
        self._joins: list[Asker] = []
        self._ahead: set[str] = set()

    def serve(self, asker: Asker) -> bool:
        """Whether `asker` joins in this step; if not, those behind it do not either."""
        asker = self._without_what_was_given_up(asker)
        if self._has_room_for(asker):
            if self._room.tokens_for(asker.priority) <= 0:
                return False
        else:
            if not self._settings.enabled or not self._make_room(asker):
                return False
            self._ahead.add(asker.request_id)
            if not self._has_room_for(asker):
                return False
        self._join(asker)
        return True

    def result(self) -> StepPlan:
        yielding = Yielding(tuple(self._pause), tuple(self._recompute), tuple(self._reclaim))
        return StepPlan(yielding, tuple(self._joins), frozenset(self._ahead))

    def _has_room_for(self, asker: Asker) -> bool:
        return self._room.slots > 0 and self._room.blocks_for_admission() >= asker.need_blocks

    def _without_what_was_given_up(self, asker: Asker) -> Asker:
        """A shared block whose holders have all yielded in this plan is a free block like others, and needed."""
        lost = {b for b, num_holders in asker.shared_blocks.items() if self._given_up[b] >= num_holders} - self._kept
        shared = {b: num_holders for b, num_holders in asker.shared_blocks.items() if b not in lost}
        return replace(asker, need_blocks=asker.need_blocks + len(lost), shared_blocks=shared) if lost else asker

    def _join(self, asker: Asker) -> None:
        self._joins.append(asker)
        self._ahead.add(asker.request_id)
        self._kept |= asker.shared_blocks.keys()
        self._gain(slots=-1, blocks=-asker.need_blocks, tokens=-asker.need_tokens, num_running=1)

    def _make_room(self, asker: Asker) -> bool:
        """Let those yield who may go in this step; False, and nobody goes, when all together would not be enough."""
        if self._holders is None:
            self._holders = list(self._list_holders())
        for_blocks = choose_for_blocks(self._holders, asker, self._room, self._freed_by(asker))
        if for_blocks is None:
            return False
        for_slot = None
        if self._room.slots + sum(not h.is_paused for h in for_blocks) <= 0:
            for_slot = choose_for_slot((h for h in self._holders if h not in for_blocks), asker)
            if for_slot is None:
                return False
        going = (*for_blocks, *((for_slot,) if for_slot else ()))
        if self._room.tokens_for(asker.priority) + sum(h.decode_tokens for h in going) <= 0:
            return False
        self._give_up_kv(for_blocks, self._freed_by(asker))
        if for_slot is not None:
            self._give_up_slot(for_slot, self._freed_by(asker))
        return True

    def _freed_by(self, asker: Asker) -> FreedBlocks:
        return FreedBlocks(self._blocks_of, self._kept | asker.shared_blocks.keys(), self._given_up)

    def _give_up_kv(self, holders: Iterable[Holder], freed: FreedBlocks) -> None:
        for holder in holders:
            if holder.is_paused:
                self._reclaim.append(holder.request_id)
            elif self._can_take_a_victim():
                self._recompute.append(holder.request_id)
                self._gain(slots=1, tokens=holder.decode_tokens, num_running=-1)
            else:
                continue
            freed.add(holder)
            self._gone(holder)
        self._given_up = freed.given_up
        self._gain_blocks(freed.count)

    def _give_up_slot(self, holder: Holder, freed: FreedBlocks) -> None:
        """The KV stays where it is if it can."""
        if not (self._settings.pause and holder.can_pause):
            self._give_up_kv((holder,), freed)
        elif self._can_take_a_victim():
            self._pause.append(holder.request_id)
            self._gain(slots=1, blocks=holder.growth_blocks, tokens=holder.decode_tokens, num_running=-1)
            self._gone(holder)

    def _can_take_a_victim(self) -> bool:
        return len(self._pause) + len(self._recompute) < self._settings.max_victims_per_step

    def _gone(self, holder: Holder) -> None:
        assert self._holders is not None
        self._holders.remove(holder)

    def _gain_blocks(self, num_blocks: int) -> None:
        if self._room.defers_frees:
            self._room = replace(self._room, freeing_blocks=self._room.freeing_blocks + num_blocks)
        else:
            self._gain(blocks=num_blocks)

    def _gain(self, slots: int = 0, blocks: int = 0, tokens: int = 0, num_running: int = 0) -> None:
        room = self._room
        self._room = replace(
            room,
            slots=room.slots + slots,
            blocks=room.blocks + blocks,
            tokens=room.tokens + tokens,
            num_running=room.num_running + num_running,
        )

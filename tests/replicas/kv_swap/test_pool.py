"""The accounts of host memory and of the directory, against a model that knows each slot's and each byte's state.

Mutations tried, each failing here: slots given back while a copy is in flight free at once; freed at the first of two
copies' end; never freed after a copy; a holder's slots freed twice; `take` that gives what it has when that is not
enough; new slots before used ones; `end_move` that does not forget the move; two holders with one file id.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from replicas.kv_swap.pool import FilePool, HostPool

NUM_SLOTS = 12
MAX_BYTES = 1000


class PoolMachine(RuleBasedStateMachine):
    """Holders come, move, abort in the middle of a move, and come back under the same name."""

    moves = Bundle("moves")

    def __init__(self) -> None:
        super().__init__()
        self.slots = HostPool(NUM_SLOTS)
        self.files = FilePool(MAX_BYTES)
        self.held: dict[str, tuple[tuple[int, ...], int, int]] = {}
        self.in_flight: dict[int, tuple[tuple[int, ...], int, int]] = {}
        self.file_ids: set[int] = set()
        self.next_move = 0
        self.most_in_use = 0

    def out_of_use(self) -> tuple[set[int], int]:
        """Slots, and bytes of files, that somebody holds or some copy uses."""
        rooms = {file_id: (slots, num_bytes) for slots, file_id, num_bytes in self._rooms()}
        return {slot for slots, _ in rooms.values() for slot in slots}, sum(b for _, b in rooms.values())

    def _rooms(self) -> list[tuple[tuple[int, ...], int, int]]:
        return [*self.held.values(), *self.in_flight.values()]

    @rule(holder=st.sampled_from("abcde"), num_slots=st.integers(1, NUM_SLOTS), num_bytes=st.integers(1, MAX_BYTES))
    def take(self, holder: str, num_slots: int, num_bytes: int) -> None:
        used_slots, used_bytes = self.out_of_use()
        if holder in self.held:
            for pool, amount in ((self.slots, num_slots), (self.files, num_bytes)):
                with pytest.raises(ValueError, match="holds room already"):
                    pool.take(holder, amount)
            return
        fits = num_slots <= NUM_SLOTS - len(used_slots) and num_bytes <= MAX_BYTES - used_bytes
        if not fits:
            if num_slots > NUM_SLOTS - len(used_slots):
                assert self.slots.take(holder, num_slots) is None
            if num_bytes > MAX_BYTES - used_bytes:
                assert self.files.take(holder, num_bytes) is None
            return
        slots, file_id = self.slots.take(holder, num_slots), self.files.take(holder, num_bytes)
        assert slots is not None
        assert file_id is not None
        assert len(set(slots)) == num_slots
        assert used_slots.isdisjoint(slots)
        assert file_id not in self.file_ids
        self.file_ids.add(file_id)
        self.held[holder] = (slots, file_id, num_bytes)

    @precondition(lambda self: self.held)
    @rule(target=moves, data=st.data())
    def begin_move(self, data: st.DataObject) -> int:
        holder = data.draw(st.sampled_from(sorted(self.held)))
        move, self.next_move = self.next_move, self.next_move + 1
        self.slots.begin_move(holder, move)
        self.files.begin_move(holder, move)
        self.in_flight[move] = self.held[holder]
        return move

    @rule(move=consumes(moves))
    def end_move(self, move: int) -> None:
        self.slots.end_move(move)
        self.files.end_move(move)
        del self.in_flight[move]

    @precondition(lambda self: self.held)
    @rule(target=moves, data=st.data())
    def give_back(self, data: st.DataObject) -> object:
        holder = data.draw(st.sampled_from(sorted(self.held)))
        _, file_id, _ = self.held.pop(holder)
        self.slots.give_back(holder)
        assert self.files.give_back(holder) == file_id
        return multiple()

    @rule(holder=st.sampled_from("abcde"))
    def ask(self, holder: str) -> None:
        slots, file_id, _ = self.held.get(holder, (None, None, None))
        assert (self.slots.slots_of(holder), self.files.file_of(holder)) == (slots, file_id)

    @invariant()
    def accounts_add_up(self) -> None:
        self.slots.check_invariants()
        self.files.check_invariants()
        used_slots, used_bytes = self.out_of_use()
        assert self.slots.num_free == NUM_SLOTS - len(used_slots)
        assert self.files.free_bytes == MAX_BYTES - used_bytes

    @invariant()
    def no_more_slots_are_touched_than_were_in_use_at_a_time(self) -> None:
        used_slots, _ = self.out_of_use()
        self.most_in_use = max(self.most_in_use, len(used_slots))
        assert all(slot < self.most_in_use for slot in used_slots)


TestPools = PoolMachine.TestCase


def test_slots_of_an_aborted_holder_stay_out_of_use_until_both_its_copies_end() -> None:
    pool = HostPool(3)
    assert pool.take("a", 3) == (0, 1, 2)
    pool.begin_move("a", 1)
    pool.begin_move("a", 2)
    pool.give_back("a")
    assert pool.take("b", 1) is None
    pool.end_move(1)
    assert pool.take("b", 1) is None
    pool.end_move(2)
    assert pool.take("b", 3) == (0, 1, 2)
    pool.check_invariants()


def test_holder_comes_back_under_its_name_while_its_old_copy_is_in_flight() -> None:
    pool = HostPool(4)
    pool.take("a", 2)
    pool.begin_move("a", 1)
    pool.give_back("a")
    assert pool.take("a", 2) == (2, 3)
    pool.end_move(1)
    assert pool.num_free == 2
    assert pool.slots_of("a") == (2, 3)
    pool.check_invariants()


@pytest.mark.parametrize("pool", [HostPool(4), FilePool(4)], ids=["slots", "files"])
def test_pool_refuses_what_cannot_be_meant(pool: HostPool | FilePool) -> None:
    pool.take("a", 1)
    pool.begin_move("a", 1)
    for wrong in (
        lambda: pool.take("a", 1),
        lambda: pool.take("b", 0),
        lambda: pool.begin_move("a", 1),
        lambda: pool.begin_move("b", 2),
        lambda: pool.end_move(2),
        lambda: pool.give_back("b"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            wrong()
        pool.check_invariants()


@pytest.mark.parametrize("pool_class", [HostPool, FilePool])
def test_pool_refuses_a_negative_size(pool_class: type[HostPool] | type[FilePool]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        pool_class(-1)


def test_pool_without_slots_never_has_room() -> None:
    assert HostPool(0).take("a", 1) is None


def test_check_invariants_sees_a_slot_in_two_places() -> None:
    pool = HostPool(2)
    pool.take("a", 1)
    pool._free.append(0)
    with pytest.raises(AssertionError, match="once each"):
        pool.check_invariants()


def test_check_invariants_sees_lost_bytes() -> None:
    pool = FilePool(2)
    pool.take("a", 1)
    pool._free_bytes = 0
    with pytest.raises(AssertionError, match="not all"):
        pool.check_invariants()

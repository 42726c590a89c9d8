"""Who holds which room outside the device: slots of host memory, and bytes of the directory. Scheduler's side.

Pure bookkeeping. A holder that leaves while a copy still reads or writes its room keeps the room out of use until that
copy is done, so nothing is handed out twice. Unknown holders and moves are errors; a pool without room says None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Held = TypeVar("Held")


@dataclass(slots=True)
class _Lease(Generic[Held]):
    """Room that is out of use: by its holder, by copies in flight, or both."""

    held: Held
    is_given_back: bool = False
    moves: set[int] = field(default_factory=set)


class _Leases(Generic[Held]):
    """Room by holder and by move. What becomes free is returned to the caller, once."""

    def __init__(self) -> None:
        self._by_holder: dict[str, _Lease[Held]] = {}
        self._by_move: dict[int, _Lease[Held]] = {}

    def add(self, holder_id: str, held: Held) -> None:
        self._by_holder[holder_id] = _Lease(held)

    def has(self, holder_id: str) -> bool:
        return holder_id in self._by_holder

    def get(self, holder_id: str) -> Held | None:
        lease = self._by_holder.get(holder_id)
        return None if lease is None else lease.held

    def begin_move(self, holder_id: str, move_id: int) -> None:
        if move_id in self._by_move:
            raise ValueError(f"move {move_id} has begun already")
        lease = self._lease_of(holder_id)
        lease.moves.add(move_id)
        self._by_move[move_id] = lease

    def end_move(self, move_id: int) -> Held | None:
        lease = self._by_move.pop(move_id, None)
        if lease is None:
            raise ValueError(f"move {move_id} has not begun, or has ended")
        lease.moves.remove(move_id)
        return lease.held if lease.is_given_back and not lease.moves else None

    def give_back(self, holder_id: str) -> tuple[Held, bool]:
        """What was held, and whether it is free now."""
        lease = self._lease_of(holder_id)
        del self._by_holder[holder_id]
        lease.is_given_back = True
        return lease.held, not lease.moves

    def all_held(self) -> list[Held]:
        """Everything out of use, each room once. Checks the links between holders, moves and rooms."""
        leases = {id(lease): lease for lease in (*self._by_holder.values(), *self._by_move.values())}
        with_holder = {id(lease) for lease in self._by_holder.values()}
        for key, lease in leases.items():
            assert lease.is_given_back == (key not in with_holder), f"{lease} held by nobody, or not let go"
            assert lease.moves == {m for m, other in self._by_move.items() if other is lease}, f"{lease} and its moves"
        return [lease.held for lease in leases.values()]

    def _lease_of(self, holder_id: str) -> _Lease[Held]:
        lease = self._by_holder.get(holder_id)
        if lease is None:
            raise ValueError(f"{holder_id!r} holds nothing")
        return lease


class HostPool:
    """Host slots of one KV block each. The slots of all workers are alike, so one account serves them all.

    Slots given back last are taken first, and new ones only when there are no others: memory that a worker has never
    touched costs nothing, and no more is touched than was ever in use at a time.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 0:
            raise ValueError(f"num_slots={num_slots} must not be negative")
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._leases: _Leases[tuple[int, ...]] = _Leases()

    @property
    def num_slots(self) -> int:
        """Slots there are."""
        return self._num_slots

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self, holder_id: str, num_slots: int) -> tuple[int, ...] | None:
        """Slots for `holder_id`, which holds none yet; None, and nothing changes, when there are not enough."""
        _check_taker(self._leases.has(holder_id), holder_id, num_slots)
        if num_slots > len(self._free):
            return None
        slots = tuple(self._free.pop() for _ in range(num_slots))
        self._leases.add(holder_id, slots)
        return slots

    def slots_of(self, holder_id: str) -> tuple[int, ...] | None:
        """What `holder_id` holds, in the order in which it was taken; None if nothing."""
        return self._leases.get(holder_id)

    def begin_move(self, holder_id: str, move_id: int) -> None:
        """A copy to or from the slots of `holder_id` starts: they stay out of use until `end_move`."""
        self._leases.begin_move(holder_id, move_id)

    def end_move(self, move_id: int) -> None:
        """The copy is done, or has failed, in every worker."""
        self._release(self._leases.end_move(move_id) or ())

    def give_back(self, holder_id: str) -> None:
        """`holder_id` lets go. Its slots are free at once, or when the last copy in flight that uses them ends."""
        slots, is_free = self._leases.give_back(holder_id)
        self._release(slots if is_free else ())

    def check_invariants(self) -> None:
        """Every slot is free, or in one lease, and never both.

        Raises:
            AssertionError: the accounts do not add up.
        """
        slots = [*self._free, *(slot for held in self._leases.all_held() for slot in held)]
        assert sorted(slots) == list(range(self._num_slots)), "free and held slots are not all slots, once each"

    def _release(self, slots: tuple[int, ...]) -> None:
        self._free.extend(reversed(slots))


@dataclass(frozen=True, slots=True)
class _File:
    file_id: int
    num_bytes: int


class FilePool:
    """Bytes of the directory, one file a holder. Bytes are of one engine: all its workers' files together."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes={max_bytes} must not be negative")
        self._max_bytes = max_bytes
        self._free_bytes = max_bytes
        self._next_id = 0
        self._leases: _Leases[_File] = _Leases()

    @property
    def free_bytes(self) -> int:
        """Bytes that can be taken now."""
        return self._free_bytes

    def take(self, holder_id: str, num_bytes: int) -> int | None:
        """A new file's id for `holder_id`, which holds none yet; None, and nothing changes, when it does not fit.

        Args:
            num_bytes: of the files of all workers (`directory.file_bytes` for each).
        """
        _check_taker(self._leases.has(holder_id), holder_id, num_bytes)
        if num_bytes > self._free_bytes:
            return None
        file = _File(self._next_id, num_bytes)
        self._next_id += 1
        self._free_bytes -= num_bytes
        self._leases.add(holder_id, file)
        return file.file_id

    def file_of(self, holder_id: str) -> int | None:
        """The file of `holder_id`; None if it has none."""
        file = self._leases.get(holder_id)
        return None if file is None else file.file_id

    def begin_move(self, holder_id: str, move_id: int) -> None:
        """A copy to or from the file of `holder_id` starts: its bytes stay out of use until `end_move`."""
        self._leases.begin_move(holder_id, move_id)

    def end_move(self, move_id: int) -> None:
        """The copy is done, or has failed, in every worker."""
        self._release(self._leases.end_move(move_id))

    def give_back(self, holder_id: str) -> int:
        """`holder_id` lets go: the id of its file, for the workers to drop (they do so after its copies in flight).

        The bytes are free at once, or when the last copy in flight ends.
        """
        file, is_free = self._leases.give_back(holder_id)
        self._release(file if is_free else None)
        return file.file_id

    def check_invariants(self) -> None:
        """Free and held bytes are all bytes.

        Raises:
            AssertionError: the accounts do not add up.
        """
        held = self._leases.all_held()
        assert self._free_bytes >= 0, f"{self._free_bytes} bytes free"
        assert self._free_bytes + sum(file.num_bytes for file in held) == self._max_bytes, "free and held are not all"
        assert len({file.file_id for file in held}) == len(held), "a file is held twice"

    def _release(self, file: _File | None) -> None:
        self._free_bytes += 0 if file is None else file.num_bytes


def _check_taker(holds_already: bool, holder_id: str, amount: int) -> None:
    if holds_already:
        raise ValueError(f"{holder_id!r} holds room already: it must give that back first")
    if amount <= 0:
        raise ValueError(f"{holder_id!r} asks for {amount}: it must be positive")

"""The room outside the device, both tiers under one name: host memory, and the directory where there is one."""

from __future__ import annotations

from replicas.kv_swap.directory import file_bytes
from replicas.kv_swap.metadata import HostSlots, SwapFile
from replicas.kv_swap.moves import Tier
from replicas.kv_swap.pool import FilePool, HostPool


class SwapRoom:
    """The accounts of one engine, in blocks. `block_bytes` is the size of a block in one of `num_workers` workers."""

    def __init__(self, memory: HostPool, directory: FilePool | None, block_bytes: int, num_workers: int) -> None:
        self._memory = memory
        self._directory = directory
        self._block_bytes = block_bytes
        self._num_workers = num_workers
        self.holders: set[str] = set()

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those there are, the one to try first first."""
        return (Tier.MEMORY,) if self._directory is None else (Tier.MEMORY, Tier.DIRECTORY)

    def free_blocks(self, tier: Tier) -> int:
        """Blocks of one request that fit into `tier` now; 0 where there is no such tier."""
        if tier is Tier.MEMORY:
            return self._memory.num_free
        if self._directory is None:
            return 0
        file_overhead = file_bytes(0, self._block_bytes)
        return max(0, self._directory.free_bytes // self._num_workers - file_overhead) // self._block_bytes

    def take(self, tier: Tier, request_id: str, num_blocks: int) -> bool:
        """Room for a request, which has none; False, and nothing changes, when there is not enough."""
        if tier is Tier.MEMORY:
            is_taken = self._memory.take(request_id, num_blocks) is not None
        else:
            num_bytes = file_bytes(num_blocks, self._block_bytes) * self._num_workers
            is_taken = self._files.take(request_id, num_bytes) is not None
        if is_taken:
            self.holders.add(request_id)
        return is_taken

    def place_of(self, tier: Tier, request_id: str) -> HostSlots | SwapFile:
        """What `take` took."""
        if tier is Tier.MEMORY:
            slots = self._memory.slots_of(request_id)
            assert slots is not None
            return HostSlots(slots)
        file_id = self._files.file_of(request_id)
        assert file_id is not None
        return SwapFile(file_id)

    def begin_move(self, tier: Tier, request_id: str, move_id: int) -> None:
        """A copy to or from the room of a request starts: nobody else gets it before `end_move`."""
        self._pool_of(tier).begin_move(request_id, move_id)

    def end_move(self, tier: Tier, move_id: int) -> None:
        """The copy has ended in every worker."""
        self._pool_of(tier).end_move(move_id)

    def give_back(self, tier: Tier, request_id: str) -> int | None:
        """A request lets go of its room; the id of the file to drop, if it was one."""
        self.holders.remove(request_id)
        if tier is Tier.MEMORY:
            self._memory.give_back(request_id)
            return None
        return self._files.give_back(request_id)

    def check_invariants(self) -> None:
        """For tests: the accounts add up."""
        self._memory.check_invariants()
        if self._directory is not None:
            self._directory.check_invariants()

    @property
    def _files(self) -> FilePool:
        assert self._directory is not None, "there is no directory"
        return self._directory

    def _pool_of(self, tier: Tier) -> HostPool | FilePool:
        return self._memory if tier is Tier.MEMORY else self._files

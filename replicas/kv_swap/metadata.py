"""What the two sides of the swap connector tell each other, in the envelopes that vLLM carries between its processes.

The scheduler's side sends the moves of a step with that step; the worker's side answers with the moves that have ended.
Plain values; every worker gets the same moves, and each answers for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from replicas.kv_swap.moves import Bandwidths, MoveDone, Tier


@dataclass(frozen=True, slots=True)
class HostSlots:
    """A place in host memory: one slot a block, in the order of the blocks."""

    slots: tuple[int, ...]
    tier = Tier.MEMORY


@dataclass(frozen=True, slots=True)
class SwapFile:
    """A place in the directory. `skip_blocks` at its start are not read."""

    file_id: int
    skip_blocks: int = 0
    tier = Tier.DIRECTORY


@dataclass(frozen=True, slots=True)
class OutMove:
    """Copy device blocks to `place`, pair by pair."""

    move_id: int
    device_blocks: tuple[int, ...]
    place: HostSlots | SwapFile


@dataclass(frozen=True, slots=True)
class InMove:
    """Copy `place` to device blocks, for a request that waits for it."""

    move_id: int
    request_id: str
    place: HostSlots | SwapFile
    device_blocks: tuple[int, ...]


@dataclass(slots=True)
class SwapMoves(KVConnectorMetadata):  # type: ignore[misc]  # vLLM's types are not read
    """The moves that begin with a step, and the files that nobody needs any more."""

    outs: list[OutMove] = field(default_factory=list)
    ins: list[InMove] = field(default_factory=list)
    dropped_files: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SwapReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What has ended since the last report; once after the start, what the workers measured."""

    done: list[MoveDone] = field(default_factory=list)
    bandwidths: dict[Tier, Bandwidths] = field(default_factory=dict)
    """Of the slowest worker."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> SwapReport:
        """Called by vLLM for each further worker's report of the same step."""
        assert isinstance(other, SwapReport)
        self.done += other.done
        for tier, theirs in other.bandwidths.items():
            self.bandwidths[tier] = slowest((theirs, *([self.bandwidths[tier]] if tier in self.bandwidths else [])))
        return self


def slowest(bandwidths: Iterable[Bandwidths]) -> Bandwidths:
    """What can be relied on when all copy at the same time."""
    found = list(bandwidths)
    return Bandwidths(min(b.out_bytes_per_s for b in found), min(b.in_bytes_per_s for b in found))

"""What the policy sees of a step, and what it answers: plain values, with no vLLM type among them.

A *holder* has KV blocks that a more urgent request may get: a running request, or a paused one, which has left its run
slot and kept its KV. An *asker* waits and could be admitted if there were room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replicas.kv_swap.cost import ExitChoice
from replicas.scheduler.exits import SwapTerms
from slo.priority import PriorityClass


@dataclass(frozen=True, slots=True)
class Holder:
    """A running or paused request."""

    request_id: str
    priority: PriorityClass
    arrival_s: float
    num_computed_tokens: int
    growth_blocks: int = 0
    """Free blocks that its next step takes if it keeps running; 0 for a paused request."""
    decode_tokens: int = 0
    """Tokens of the budget set aside for it; none for a prefill, which gets what is left, or a paused request."""
    is_paused: bool = False
    can_pause: bool = True
    can_yield: bool = True
    can_swap: bool = False
    """Whether its own KV can be copied out when it gives it up."""
    adapter: int | None = None
    """The id of its LoRA adapter; None: the model itself."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A waiting request that nothing but a lack of room keeps from running."""

    request_id: str
    priority: PriorityClass
    need_blocks: int
    """Free blocks that its whole sequence takes."""
    need_tokens: int
    """Tokens that it would compute in this step, given the chance."""
    shared_blocks: Mapping[int, int] = field(default_factory=dict)
    """Cached blocks of its sequence that other requests hold, and how many hold each: not in `need_blocks`, and not won
    by preempting those."""
    is_loading: bool = False
    """Whether its KV is on its way in: it has its blocks, and takes a run slot in a step or two."""
    adapter: int | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine can give to waiting requests in this step without preempting anyone."""

    slots: int
    blocks: int
    """Free blocks less the growth of the running requests; negative when those alone run short."""
    freeing_blocks: int
    """Blocks given up earlier that become free when the steps in flight are done."""
    defers_frees: bool
    """Whether blocks given up in this step are of that kind."""
    tokens: int
    """Tokens of the step's budget left by the running decodes."""
    prefill_tokens: Mapping[PriorityClass, int]
    """Tokens that running prefills want, by class."""
    num_running: int
    watermark_blocks: int
    """Blocks that admission leaves free for the growth of the running requests, as long as there are any."""
    swap: SwapTerms | None = None
    """None where there is no swap: who gives up KV is computed again."""
    kept: Mapping[int, int] = field(default_factory=dict)
    """Shared blocks that swapped-out requests keep on the device, and how many keep each."""
    kept_alone_blocks: int = 0
    """How many of them nobody else holds: free if the swapped-out let go."""
    adapters: Mapping[int, int] = field(default_factory=dict)
    """Running requests with each LoRA adapter."""
    max_adapters: int | None = None
    """Adapters that the engine computes in one step, at most; None where it has none."""

    def tokens_for(self, priority: PriorityClass) -> int:
        """Tokens left for a waiting request once the running prefills it does not outrank have had theirs."""
        return self.tokens - sum(n for c, n in self.prefill_tokens.items() if not priority.outranks(c))

    def blocks_for_admission(self, num_leaving: int = 0) -> int:
        """Blocks that a waiting request can get when `num_leaving` of the running ones leave."""
        return self.blocks - (self.watermark_blocks if self.num_running > num_leaving else 0)


@dataclass(frozen=True, slots=True)
class Yielding:
    """Who gives up what in this step, by request id. Nobody is in two of these."""

    pause: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    reclaim: tuple[str, ...] = ()
    swap: tuple[str, ...] = ()
    exits: Mapping[str, ExitChoice] = field(default_factory=dict)
    """What becomes of the KV of those that give it up, where there is swap: of those in `recompute` and `swap`, and of
    the reclaimed. One that is not in it cannot be swapped."""

    @property
    def victims(self) -> tuple[str, ...]:
        """Those that lose their run slot. A reclaimed one had lost it before."""
        return self.pause + self.recompute + self.swap


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Who yields, who is admitted for it, and who is to be admitted before any paused request."""

    yielding: Yielding = Yielding()
    joins: tuple[Asker, ...] = ()
    ahead: frozenset[str] = frozenset()
    """The ids of `joins`, and of the one that room is still being made for."""
    refused: tuple[str, ...] = ()
    """Askers for which nobody yields, since moving the KV is estimated above the limit."""
    releases_kept: bool = False
    """Whether the swapped-out let go of the shared blocks that they keep: nothing else would make room."""
    closing: frozenset[int] = frozenset()
    """Adapters whose users are leaving for another adapter: nobody joins with one of them."""

"""What becomes of the KV of those that give it up in one step: swapped out, or computed again. Pure.

Applies `kv_swap.cost.decide_exit` to several victims at once: they share the room outside the device and the copies'
time, so what one takes the next has not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from replicas.kv_swap.cost import Exit, ExitChoice, TierView, VictimView, decide_exit, recompute_ms
from replicas.kv_swap.moves import Direction, Tier


@dataclass(frozen=True, slots=True)
class SwapTerms:
    """What swap can take in this step."""

    free_blocks: Mapping[Tier, int]
    """Room for blocks outside the device, for each tier there is."""
    leaving_blocks: Mapping[Tier, int]
    """Blocks on their way out: a new copy to the same tier comes behind them. Files hold no copy in memory up."""
    estimate_ms: Callable[[int, Direction, Tier], float]
    """Milliseconds to move so many blocks."""
    max_move_ms: float
    over_limit: Literal["queue", "recompute"]
    prefill_tokens_per_s: float | None
    """What computing again costs; None while it is unknown."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A victim that could be swapped."""

    request_id: str
    num_own_blocks: int
    num_computed_tokens: int


class ExitPlan:
    """The exits of one step: what those chosen so far have taken."""

    def __init__(self, terms: SwapTerms) -> None:
        self._terms = terms
        self._taken: Counter[Tier] = Counter()

    def choose(self, victims: Sequence[Leaving], can_refuse: bool) -> dict[str, ExitChoice] | None:
        """The exit of each, as if all went now; None when that is to be given up. `take` makes it so, one by one."""
        taken = Counter(self._taken)
        choices: dict[str, ExitChoice] = {}
        for victim in victims:
            choice = decide_exit(self._view(victim, taken, can_refuse), self._terms.max_move_ms, self._terms.over_limit)
            if choice.exit is Exit.REFUSED:
                return None
            if choice.tier is not None:
                taken[choice.tier] += victim.num_own_blocks
            choices[victim.request_id] = choice
        return choices

    def take(self, victim: Leaving, choice: ExitChoice) -> None:
        """`victim` goes in this step."""
        if choice.tier is not None:
            self._taken[choice.tier] += victim.num_own_blocks

    def _view(self, victim: Leaving, taken: Counter[Tier], can_refuse: bool) -> VictimView:
        tiers = {tier: self._tier(tier, victim.num_own_blocks, taken) for tier in self._terms.free_blocks}
        return VictimView(
            num_own_blocks=victim.num_own_blocks,
            recompute_ms=recompute_ms(victim.num_computed_tokens, self._terms.prefill_tokens_per_s),
            can_refuse=can_refuse,
            memory=tiers[Tier.MEMORY],
            directory=tiers.get(Tier.DIRECTORY),
        )

    def _tier(self, tier: Tier, num_blocks: int, taken: Counter[Tier]) -> TierView:
        num_before = self._terms.leaving_blocks.get(tier, 0) + taken[tier]
        return TierView(
            has_room=num_blocks <= self._terms.free_blocks[tier] - taken[tier],
            out_ms=self._terms.estimate_ms(num_before + num_blocks, Direction.OUT, tier),
            in_ms=self._terms.estimate_ms(num_blocks, Direction.IN, tier),
        )

"""KV swap, as one scheduler carries it out: what it asks of the swap behind vLLM's connector, and what it tells it.

Owns the exits planned for a step, the run slots kept for requests whose KV is on its way in, and what was lost all the
same. Where there is no swap (`swap.host_bytes` 0, or an engine it does not suit) every call does nothing, and victims
are computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from replicas.kv_swap.connector import SwapConnector
from replicas.kv_swap.cost import Exit, ExitChoice, ExitReason
from replicas.kv_swap.counts import LossReason
from replicas.scheduler.exits import ExitPlan, Leaving, SwapTerms

if TYPE_CHECKING:
    from replicas.kv_swap.request_swap import RequestSwap
    from replicas.scheduler.scheduler import PriorityScheduler

_LOSSES = {
    ExitReason.RECOMPUTE_IS_CHEAPER: LossReason.CHEAPER,
    ExitReason.NOTHING_TO_MOVE: LossReason.NOTHING_TO_MOVE,
    ExitReason.OVER_LIMIT: LossReason.OVER_LIMIT,
    ExitReason.NO_ROOM: LossReason.NO_ROOM,
}


class Swapping:
    """One scheduler's swap."""

    def __init__(self, scheduler: PriorityScheduler) -> None:
        self._scheduler = scheduler
        connector = scheduler.connector
        self._swap: RequestSwap | None = connector.swap if isinstance(connector, SwapConnector) else None
        if self._swap is not None:
            scheduler.preemption_counts.swap = self._swap.counts
        self._planned: dict[str, ExitChoice] = {}
        self._refused: set[str] = set()
        self._num_ceded = 0

    @property
    def is_on(self) -> bool:
        return self._swap is not None

    def can_swap(self, request: Request) -> bool:
        """Whether the KV of `request` can be copied out; False without swap."""
        return self._swap is not None and self._swap.can_swap(request)

    def terms(self) -> SwapTerms | None:
        """What swap can take in this step."""
        if (swap := self._swap) is None:
            return None
        room, settings = swap.ledger.room, swap.settings
        return SwapTerms(
            free_blocks={tier: room.free_blocks(tier) for tier in room.tiers},
            leaving_blocks=swap.ledger.leaving_blocks(),
            estimate_ms=swap.estimate_ms,
            max_move_ms=settings.max_move_ms,
            over_limit=settings.over_limit,
            prefill_tokens_per_s=self._scheduler.pacing.cost.prefill_tokens_per_s,
        )

    def kept_blocks(self) -> tuple[Mapping[int, int], int]:
        """Blocks that swapped-out requests keep, with the number that keep each, and how many nobody else holds."""
        if self._swap is None:
            return {}, 0
        return self._swap.ledger.kept_blocks(), self._swap.ledger.num_kept_alone()

    @property
    def num_freeing(self) -> int:
        """Blocks that come free when the copies in flight are done."""
        return 0 if self._swap is None else self._swap.ledger.num_freeing

    @property
    def is_freeing(self) -> bool:
        return self._swap is not None and self._swap.ledger.is_freeing

    def is_leaving(self, request: Request) -> bool:
        """Whether its copy out is in flight: it cannot resume yet."""
        return self._swap is not None and self._swap.ledger.is_leaving(request.request_id)

    def is_swapped(self, request: Request) -> bool:
        return self._swap is not None and self._swap.ledger.is_swapped(request.request_id)

    # Slots: a request whose KV is being loaded does not run yet, and must find a slot when it can.

    @property
    def num_reserved_slots(self) -> int:
        """Run slots that vLLM must not give to others: also counts loads that vLLM begins while it schedules."""
        return 0 if self._swap is None else max(0, self._swap.ledger.num_loading - self._num_ceded)

    def reserve_slots(self, num_free: int, num_joins: int) -> None:
        """Before vLLM schedules: loads in flight have what slots are left by those that the plan admits, which are more
        urgent, or have had theirs reserved."""
        if self._swap is not None:
            num_loading = self._swap.ledger.num_loading
            self._num_ceded = num_loading - max(0, min(num_loading, num_free - num_joins))

    # KV that is given up.

    def plan(self, exits: Mapping[str, ExitChoice], refused: Iterable[str]) -> None:
        """What was planned for this step."""
        self._planned = dict(exits)
        if self._swap is not None:
            new = set(refused) - self._refused
            self._swap.counts.num_refused += len(new)
            self._refused |= new

    def secure(self, request: Request) -> bool:
        """`request` is about to give up its KV: copy it out if that is planned, or, where nothing was, if it is right.

        False: it is to be computed again, which has been counted.
        """
        swap, request_id = self._swap, request.request_id
        planned = self._planned.pop(request_id, None)
        if swap is None:
            return False
        if not swap.can_swap(request):
            swap.counts.add_recomputed(LossReason.CANNOT_SWAP)
            return False
        choice = planned or self.choose_exit(request)
        if choice.exit is not Exit.SWAP or choice.tier is None:
            swap.counts.add_recomputed(_LOSSES[choice.reason])
            return False
        if not swap.swap_out(request, choice.tier):
            swap.counts.add_recomputed(LossReason.NO_ROOM)
            return False
        return True

    def choose_exit(self, request: Request) -> ExitChoice:
        """For a request that must go, whoever needs the room."""
        swap, terms = self._swap, self.terms()
        assert swap is not None
        assert terms is not None
        leaving = Leaving(request.request_id, swap.num_own_blocks(request), request.num_computed_tokens)
        choices = ExitPlan(terms).choose([leaving], can_refuse=False)
        assert choices is not None
        return choices[request.request_id]

    def release_kept(self) -> bool:
        """The swapped-out let go of the shared blocks that they keep on the device; False if there were none."""
        return self._swap is not None and self._swap.ledger.release_kept()

    # KV that comes back.

    def begin_step(self) -> None:
        """Requests whose load has ended hold their KV from now on, as paused ones do: they can run, or be reclaimed.

        vLLM would find that out when it comes to them, which it may not for a while. One whose load failed from the
        first block on holds nothing, and waits with those that do not.
        """
        scheduler = self._scheduler
        for request_id in sorted(scheduler.finished_recving_kv_req_ids) if self._swap is not None else ():
            request = scheduler.requests[request_id]
            if request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
                continue
            scheduler._handle_blocked_waiting_request(request)
            scheduler._inflight_prefills.discard(request)
            if not request.num_computed_tokens:
                scheduler.kv_holding_waiting.remove_request(request)
                scheduler.waiting.add_request(request)

    def end_step(self, output: SchedulerOutput) -> None:
        """After a step was scheduled. If nothing runs or moves and yet some wait, shared blocks that the swapped-out
        keep are what they wait for."""
        if self._swap is None:
            return
        scheduler = self._scheduler
        is_stuck = not output.total_num_scheduled_tokens and not scheduler.running and len(scheduler.waiting)
        if is_stuck and not self._swap.ledger.num_in_flight:
            self._swap.ledger.release_kept()

    def forget(self, request: Request) -> None:
        """It has ended."""
        self._refused.discard(request.request_id)

    # A reset of the prefix cache.

    def reset(self) -> bool:
        """KV from before must not be used any more. False while loads are in flight, whose blocks cannot be freed."""
        if self._swap is None:
            return True
        self._swap.ledger.lose_all()
        return not self._swap.ledger.has_loads

    def check_invariants(self) -> None:
        """For tests, between steps: who is swapped out waits, and holds nothing."""
        if self._swap is None:
            return
        self._swap.ledger.check_invariants()
        assert not self._planned, f"planned and not carried out: {self._planned}"
        waiting = {request.request_id for request in self._scheduler.waiting}
        assert set(self._swap.ledger.room.holders) <= waiting, "swapped out, and not waiting"
        assert self._refused <= self._scheduler.requests.keys()

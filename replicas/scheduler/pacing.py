"""The step's token budget, carried out: reads the work of a step, has it planned, and learns from how long it took."""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import chain, islice, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from replicas.scheduler.budget import BudgetPlanner, StepBudget, StepWork
from replicas.scheduler.step_cost import StepCost, StepShape, StepTimes
from replicas.scheduler.step_view import class_of
from replicas.scheduler.urgent_traffic import UrgentTraffic
from slo.priority import PriorityClass

if TYPE_CHECKING:
    from replicas.scheduler.scheduler import PriorityScheduler

_IS_PREFILL = attrgetter("is_prefill_chunk")
_COMPUTED = attrgetter("num_computed_tokens")
MAX_OWN_SEEN = 16
"""Waiting requests looked at for what the most urgent class wants; their chunks fill a step long before."""


class Pacing:
    """One scheduler's budgets. `clock` gives monotonic seconds; a simulation puts its own in."""

    def __init__(self, scheduler: PriorityScheduler) -> None:
        budget = scheduler.settings.budget
        self.clock = time.monotonic
        self.cost = StepCost()
        self._scheduler = scheduler
        num_in_flight = scheduler.vllm_config.max_concurrent_batches
        self._planner = BudgetPlanner(scheduler.settings, scheduler.max_num_scheduled_tokens, num_in_flight)
        self._times = StepTimes()
        self._urgent = UrgentTraffic(budget.urgent_expected, budget.expected_min_s, budget.expected_max_s)
        self.decode_tokens = 1 + scheduler.num_spec_tokens
        self._strictest: PriorityClass | None = None
        self._others_want_prefill = False
        self._context_tokens = 0
        self.budget = StepBudget(scheduler.max_num_scheduled_tokens, 1, 1, 1, "table")

    def note_arrival(self, request: Request) -> None:
        """A request has come."""
        if class_of(request) is PriorityClass.P0:
            self._urgent.note(self.clock())

    def plan(self) -> int:
        """Plan the step about to be scheduled, `running` being in order; the tokens it may compute."""
        work = self._read()
        self._strictest = work.strictest
        self.budget = self._planner.plan(work, self.cost)
        return self.budget.tokens

    def max_chunk(self, request: Request) -> int:
        """Prefill tokens that `request` may compute in this step; a request alone has all there are."""
        if not self._others_want_prefill:
            return self.budget.tokens
        if self._strictest is None or request.priority > self._strictest.level:
            return self.budget.chunk_tokens
        num_left = request.num_tokens - request.num_computed_tokens
        return self.budget.tokens if num_left <= self.budget.short_prompt_tokens else self.budget.own_chunk_tokens

    def begin(self, output: SchedulerOutput) -> None:
        """The step was scheduled."""
        tokens = list(output.num_scheduled_tokens.values())
        num_decodes = tokens.count(self.decode_tokens)
        prefill_tokens = output.total_num_scheduled_tokens - num_decodes * self.decode_tokens
        self._times.begin(self.clock(), StepShape(prefill_tokens, num_decodes, self._context_tokens))

    def end(self) -> None:
        """The oldest step in flight has given its output."""
        if (took := self._times.end(self.clock())) is not None:
            self.cost.observe(*took)

    def _read(self) -> StepWork:
        running = self._scheduler.running
        num_decodes = bisect_left(running, True, key=_IS_PREFILL)
        prefills = running[num_decodes:]
        queues = [q for q in (self._scheduler.waiting, self._scheduler.kv_holding_waiting) if len(q)]
        self._others_want_prefill = len(prefills) + sum(map(len, queues)) > 1
        heads = [running[0]] if num_decodes else []
        heads += prefills[:1] + [q.peek_request() for q in queues]
        level = min((h.priority for h in heads), default=None)
        # Where streams of the same class limit its prompts, what counts is only whether there are several.
        most = 2 if num_decodes and running[0].priority == level else MAX_OWN_SEEN
        heads_of = (islice(takewhile(lambda r: r.priority == level, rs), most) for rs in (prefills, *queues))
        own = [r.num_tokens - r.num_computed_tokens for r in chain(*heads_of)]
        self._context_tokens = sum(map(_COMPUTED, running))
        return StepWork(
            strictest=None if level is None else PriorityClass.from_level(level),
            strictest_decoding=PriorityClass.from_level(running[0].priority) if num_decodes else None,
            num_decodes=num_decodes,
            decode_tokens=num_decodes * self.decode_tokens,
            context_tokens=self._context_tokens,
            own_prefill_tokens=sum(own),
            num_own_prefills=len(own),
            is_urgent_expected=self._urgent.is_expected(self.clock()),
        )

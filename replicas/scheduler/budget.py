"""How many tokens a step may compute: the profile's table, or what the learned step cost allows. Pure.

Decodes are never limited. What is chosen is how much prefill goes beside them, so that the step keeps the strictest
promise that somebody in it, or somebody who is to be expected, has.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicas.scheduler.step_cost import StepCost, StepShape
from slo.priority import PriorityClass
from slo.settings.scheduling import SchedulerSettings
from slo.settings.targets import ClassTargets


@dataclass(frozen=True, slots=True)
class StepWork:
    """What there is to do in a step.

    Attributes:
        strictest: the most urgent class with work, running or waiting; None without work.
        strictest_decoding: the most urgent class that decodes, or None.
        num_decodes: running requests that get a token.
        decode_tokens: tokens set aside for them (more than one each with speculative decoding).
        context_tokens: tokens that their attention reads.
        own_prefill_tokens: prompt tokens that requests of the class `strictest` could compute now.
        num_own_prefills: how many requests these are of.
        is_urgent_expected: whether an urgent request may come while the step runs.
    """

    strictest: PriorityClass | None
    strictest_decoding: PriorityClass | None
    num_decodes: int
    decode_tokens: int
    context_tokens: int
    own_prefill_tokens: int
    num_own_prefills: int
    is_urgent_expected: bool


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What a step may compute.

    Attributes:
        tokens: decodes and prefill together.
        chunk_tokens: prefill of one request, while others want prefill too.
        own_chunk_tokens: the same for a request of the most urgent class with work.
        short_prompt_tokens: a P0 that has no more than this left to read has the whole budget: it is read before the
            next one is begun, so that the first is early rather than both late. 0 where P0 has no work.
        reason: what decided: `table`, `room`, `tbt`, `broken` (a TBT target out of reach), `ceiling` or `floor`.
    """

    tokens: int
    chunk_tokens: int
    own_chunk_tokens: int
    short_prompt_tokens: int
    reason: str


class BudgetPlanner:
    """Plans each step's budget. Keeps the last prefill limit, so that small changes of the estimate move nothing."""

    def __init__(self, settings: SchedulerSettings, max_tokens: int, num_in_flight: int = 1) -> None:
        """`max_tokens`: the most that the engine computes in one step. `num_in_flight`: steps that are scheduled before
        the oldest of them ends."""
        self._settings = settings
        self._budget = settings.budget
        self._max_tokens = max_tokens
        self._num_in_flight = num_in_flight
        self._held: tuple[str, int] = ("", 0)

    def plan(self, work: StepWork, cost: StepCost) -> StepBudget:
        """The budget of a step with this work."""
        profile = self._settings.profiles.of(_tbt_target_ms(self._settings.targets, work.strictest))
        decodes_ms = cost.estimate_ms(StepShape(0, work.num_decodes, work.context_tokens)) if cost.is_known else 0.0
        limit_ms, promise = step_limit_ms(work, self._settings, self._num_in_flight, decodes_ms)
        prefill, reason, chunk = profile.token_budget - work.decode_tokens, "table", profile.chunk_tokens
        if self._budget.adaptive and cost.is_known:
            if limit_ms is None:
                prefill, reason = self._max_tokens - work.decode_tokens, "room"
            else:
                prefill = cost.prefill_tokens_within(limit_ms, work.num_decodes, work.context_tokens)
                prefill, reason = self._steady(promise, prefill), promise
            chunk = prefill // 2
        if prefill < self._budget.min_prefill_tokens:
            prefill, reason = self._budget.min_prefill_tokens, "floor"
        chunk = max(chunk, self._budget.min_prefill_tokens)
        short = self._short_prompt(work, cost, profile.chunk_tokens)
        own_share = self._own_share(work, profile.chunk_tokens, short)
        own_chunk = max(own_share, prefill if work.num_own_prefills == 1 else chunk)
        tokens = min(self._max_tokens, work.decode_tokens + max(prefill, own_share))
        return StepBudget(tokens, chunk, own_chunk, short, reason)

    def _short_prompt(self, work: StepWork, cost: StepCost, table_chunk: int) -> int:
        """Prompt tokens of a P0 that one step reads in what waiting leaves of P0's TTFT target; 0 for other classes."""
        ttft_ms = self._settings.targets.p0.ttft_p99_ms
        if work.strictest is not PriorityClass.P0 or ttft_ms is None:
            return 0
        if not (self._budget.adaptive and cost.is_known):
            return table_chunk
        left_ms = ttft_ms * (1 - self._budget.ceiling_ttft_ratio)
        return max(table_chunk, cost.prefill_tokens_within(left_ms, work.num_decodes, work.context_tokens))

    def _own_share(self, work: StepWork, table_chunk: int, short_prompt: int) -> int:
        """Prefill of the most urgent class that may go beyond the step's limit. A prompt is cut for the streams of its
        own class only, and, unless it is of P0 itself, for a P0 to be expected."""
        strictest, decoding = work.strictest, work.strictest_decoding
        if strictest is None or (decoding is not None and not strictest.outranks(decoding)):
            return 0
        if strictest is PriorityClass.P0:
            return min(work.own_prefill_tokens, max(table_chunk, short_prompt))
        return 0 if work.is_urgent_expected else min(work.own_prefill_tokens, table_chunk)

    def _steady(self, promise: str, tokens: int) -> int:
        """The limit held, unless the new one differs by more than the hysteresis, or is for another promise."""
        held_promise, held = self._held
        if held_promise == promise and abs(tokens - held) <= self._budget.hysteresis_ratio * held:
            return held
        self._held = (promise, tokens)
        return tokens


def step_limit_ms(
    work: StepWork, settings: SchedulerSettings, num_in_flight: int = 1, decodes_ms: float = 0.0
) -> tuple[float | None, str]:
    """How long the step may take, milliseconds, and for whose sake: `tbt` or `ceiling`; None: as long as it likes.

    A class whose targets are not promised limits nothing: its profile's table does. Who comes waits for all the steps
    in flight, so these share the ceiling. `decodes_ms`: what the step's decodes take alone. Where that is more than a
    target below P0's, holding prompts back would keep no promise, only let fewer requests share each step: they get as
    much of it as the decodes.
    """
    limits: list[tuple[float, str]] = []
    if work.strictest_decoding is not None:
        targets = settings.targets.of(work.strictest_decoding)
        if targets.promised and targets.tbt_p99_ms is not None:
            if decodes_ms > targets.tbt_p99_ms and work.strictest_decoding is not PriorityClass.P0:
                limits.append((2 * decodes_ms, "broken"))
            else:
                limits.append((targets.tbt_p99_ms * settings.budget.tbt_ratio, "tbt"))
    ttft_ms = settings.targets.p0.ttft_p99_ms
    if work.is_urgent_expected and ttft_ms is not None:
        limits.append((ttft_ms * settings.budget.ceiling_ttft_ratio / num_in_flight, "ceiling"))
    return min(limits, default=(None, "room"))


def _tbt_target_ms(targets: ClassTargets, priority: PriorityClass | None) -> float | None:
    return None if priority is None else targets.of(priority).tbt_p99_ms

"""One simulated engine: the real scheduler, stepped on a virtual clock, and a model of how long each step takes.

With asynchronous scheduling two steps are in flight, as in vLLM's engine core: the next one is scheduled when the one
before it begins, so who arrives meanwhile is in neither.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from replicas.scheduler import PriorityScheduler
from sim.copies import SwapSide
from sim.equal_steps import TOKEN, carry_out, count_equal_steps
from sim.request import Track
from sim.static_batch import StaticBatch
from sim.step_reading import read_work
from sim.step_work import StepTime, StepWork
from sim.token_log import Floats, TokenLog

EMPTY_STEP_S = 0.0005
"""A step that computes nothing, while KV is on its way: the engine's core asks again and again."""


@dataclass(slots=True)
class InFlight:
    """A step that was scheduled and has not ended."""

    output: SchedulerOutput
    sampled: list[list[int]]
    end_s: float
    is_decodes: bool


class SimEngine:
    """`is_stepwise`: runs of equal steps are not taken at once, for tests that compare."""

    def __init__(
        self,
        scheduler: Scheduler,
        step_time: StepTime,
        log: TokenLog,
        *,
        is_async: bool,
        swap: SwapSide | None = None,
        batch: StaticBatch | None = None,
        is_stepwise: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.now_s = 0.0
        self.tracks: dict[str, Track] = {}
        self.num_steps = 0
        self.busy_s = 0.0
        self.last_step_s = 0.0
        self.on_step: Callable[[SchedulerOutput], None] = lambda _: None
        self._step_time = step_time
        self._log = log
        self._depth = 2 if is_async else 1
        self._swap = swap
        self._batch = batch
        self._is_stepwise = is_stepwise
        self._in_flight: deque[InFlight] = deque()
        self._free_s = 0.0
        self._num_equal = 0
        self._hash = get_request_block_hasher(scheduler.hash_block_size, sha256)
        self._is_priority = isinstance(scheduler, PriorityScheduler)
        if self._is_priority:
            scheduler.aging.clock = scheduler.pacing.clock = lambda: self.now_s
        self.next_event_s = math.inf
        """When its state changes by itself; until then its batch decodes, or it is idle."""

    def add(self, track: Track, at_s: float) -> None:
        """A request comes at `at_s`, not before any other call's time. One that had tokens elsewhere brings them."""
        self.catch_up(at_s)
        request = self._request_of(track)
        self.tracks[request.request_id] = track
        if self._batch is None:
            self.scheduler.add_request(request)
        else:
            self._batch.hold(request)
        if not self._in_flight:
            self.now_s = max(self.now_s, at_s)
            self._fill()
        self._look_ahead()

    def advance(self) -> list[Track]:
        """Goes on to `next_event_s`, and beyond it by a step in flight; who ended there."""
        if self._num_equal:
            self._pass(self._num_equal)
        ended = self._deliver()
        self._fill()
        self._look_ahead()
        return ended

    def stop(self, at_s: float) -> list[Track]:
        """The engine dies: who was under way."""
        self.catch_up(at_s)
        self._in_flight.clear()
        self.next_event_s = math.inf
        lost, self.tracks = list(self.tracks.values()), {}
        return lost

    def catch_up(self, at_s: float) -> None:
        """Steps of a run of equal ones that have ended by `at_s`, which is before `next_event_s`, are carried out."""
        if self._num_equal and self._in_flight[0].end_s <= at_s:
            ends_s = self._ends_s(self._num_equal)
            self._pass(int(np.searchsorted(ends_s, at_s, side="right")))

    def _look_ahead(self) -> None:
        self._num_equal = 0
        if not self._in_flight:
            self.next_event_s = math.inf
            return
        self.next_event_s = self._in_flight[0].end_s
        is_full = len(self._in_flight) == self._depth
        if is_full and not self._is_stepwise and all(step.is_decodes for step in self._in_flight):
            self._num_equal = count_equal_steps(self.scheduler, [step.output for step in self._in_flight])
            if self._num_equal:
                self.next_event_s = float(self._ends_s(self._num_equal + 1)[-1])

    def _ends_s(self, num_steps: int) -> Floats:
        """When each of the next steps ends, those in flight included, if all are equal."""
        known = [step.end_s for step in self._in_flight]
        num_more = num_steps - len(known)
        if num_more <= 0:
            return np.array(known[:num_steps])
        running = self.scheduler.running
        context = sum(r.num_computed_tokens for r in running) + len(running)
        work = StepWork(num_decodes=len(running), decode_context=context, num_sampled=len(running))
        growth_s = self._step_time.context_slope_s() * len(running)
        took_s = self._step_time.step_s(work) + growth_s * np.arange(num_more)
        return np.concatenate([known, self._free_s + np.cumsum(took_s)])

    def _pass(self, num_steps: int) -> None:
        ends_s = self._ends_s(num_steps + self._depth)
        times_s = ends_s[:num_steps]
        running = self.scheduler.running
        carry_out(self.scheduler, num_steps)
        if self._is_priority:
            self._show_learner(times_s)
        for step, end_s in zip(self._in_flight, ends_s[num_steps:], strict=True):
            step.end_s = float(end_s)
        self.busy_s += float(ends_s[-1]) - self._free_s
        self._free_s = float(ends_s[-1])
        self.now_s = float(times_s[-1])
        self.num_steps += num_steps
        self._num_equal -= num_steps
        self._log.run((self.tracks[r.request_id] for r in running), times_s)

    def _show_learner(self, times_s: Floats) -> None:
        """What a run shows the scheduler's own estimate of step times: those in flight, and its last step."""
        pacing, output = self.scheduler.pacing, self._in_flight[0].output
        num_ended = min(self._depth, len(times_s))
        for time_s in times_s[:num_ended]:
            self.now_s = float(time_s)
            pacing.end()
        if len(times_s) > num_ended:
            self.now_s = float(times_s[-2])
            pacing.plan()
            pacing.begin(output)
            self.now_s = float(times_s[-1])
            pacing.end()
        pacing.plan()
        for _ in range(num_ended):
            pacing.begin(output)

    def _fill(self) -> None:
        while len(self._in_flight) < self._depth and self._has_work():
            self._schedule()

    def _has_work(self) -> bool:
        if self._batch is not None and self._batch.has_requests:
            return True
        scheduler = self.scheduler
        is_moving = scheduler.connector is not None and scheduler.connector.has_pending_push_work()
        return bool(scheduler.has_unfinished_requests() or is_moving)

    def _schedule(self) -> None:
        if self._batch is not None:
            self._batch.release(self.scheduler)
        output = self.scheduler.schedule()
        self.on_step(output)
        start_s = max(self.now_s, self._free_s)
        sampled: list[list[int]] = []
        is_decodes = False
        if output.total_num_scheduled_tokens:
            work, samples = read_work(self.scheduler, output)
            sampled = [[TOKEN] if is_sampled else [] for is_sampled in samples]
            took_s = self.last_step_s = self._step_time.step_s(work)
            self.busy_s += took_s
            is_decodes = not work.prefill_tokens
        else:
            took_s = 0.0 if start_s > self.now_s else EMPTY_STEP_S
        if self._swap is not None:
            self._swap.begin(output, start_s)
        self._free_s = start_s + took_s
        self.num_steps += 1
        self._in_flight.append(InFlight(output, sampled, self._free_s, is_decodes))

    def _deliver(self) -> list[Track]:
        """The oldest step in flight has ended."""
        step = self._in_flight.popleft()
        self.now_s = step.end_s
        request_ids = list(step.output.num_scheduled_tokens)
        computed = ModelRunnerOutput(request_ids, {i: n for n, i in enumerate(request_ids)}, step.sampled)
        if self._swap is not None:
            computed.kv_connector_output = self._swap.end(step.end_s)
        ended = []
        requests = {i: r for i in request_ids if (r := self.scheduler.requests.get(i)) is not None}
        for client in self.scheduler.update_from_output(step.output, computed).values():
            for item in client.outputs:
                track = self.tracks[item.request_id]
                for _ in item.new_token_ids:
                    self._log.token(track, step.end_s)
                if item.finish_reason is not None:
                    track.num_preempted += requests[item.request_id].num_preemptions
                    del self.tracks[item.request_id]
                    ended.append(track)
        return ended

    def _request_of(self, track: Track) -> Request:
        arrival, prompt_tokens = track.arrival, track.arrival.prompt_tokens + track.num_tokens
        shared = min(arrival.shared_tokens, prompt_tokens)
        prompt = [-1 - arrival.shared_id] * shared + [arrival.number + 1] * (prompt_tokens - shared)
        return Request(
            request_id=arrival.request_id,
            prompt_token_ids=prompt,
            sampling_params=_sampling(arrival.output_tokens - track.num_tokens),
            pooling_params=None,
            arrival_time=arrival.arrived_s,
            priority=arrival.priority.level,
            block_hasher=self._hash if self.scheduler.cache_config.enable_prefix_caching else None,
        )


@lru_cache(maxsize=8192)
def _sampling(max_tokens: int) -> SamplingParams:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    sampling.update_from_generation_config({}, 1)
    return sampling

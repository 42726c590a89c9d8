"""Steps a scheduler on a virtual clock and checks, in each step, what must hold in every one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from replicas.kv_swap.connector import SwapConnector
from replicas.scheduler import PriorityScheduler
from slo.priority import PriorityClass
from tests.replicas.scheduler.harness.swap import SwapRanks
from tests.replicas.scheduler.harness.worker import SymbolicWorker


@dataclass(frozen=True, slots=True)
class Step:
    """One step, as it was scheduled."""

    output: SchedulerOutput
    running_before: tuple[str, ...]
    preempted: frozenset[str]

    @property
    def scheduled(self) -> frozenset[str]:
        return frozenset(self.output.num_scheduled_tokens)


@dataclass(slots=True)
class Driver:
    """`depth` steps are in flight at a time: 1 is synchronous, 2 is what asynchronous scheduling does.

    The clock counts steps: a request arrives at the number of the step before which it was added.
    """

    scheduler: Scheduler
    depth: int = 1
    check: Callable[[Step], None] = lambda _: None
    """Called in each step when it has been scheduled, and none of its output delivered."""
    outputs: dict[str, list[int]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    requests: dict[str, Request] = field(default_factory=dict)
    num_steps: int = 0
    step_s: float = 0.01
    """How long a step lasts, for what the scheduler decides by time."""
    cost_s: Callable[[SchedulerOutput], float] | None = None
    """How long the step lasts that computes this, instead."""
    now_s: float = 0.0
    worker: SymbolicWorker = field(init=False)
    swap: SwapRanks | None = field(init=False, default=None)
    """The workers' side of KV swap, where the scheduler has a connector."""
    _in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        scheduler, num_ranks = self.scheduler, self.scheduler.vllm_config.parallel_config.world_size
        blocks = scheduler.kv_cache_config.num_blocks
        self.worker = SymbolicWorker(blocks, scheduler.block_size, scheduler.use_v2_model_runner, num_ranks)
        if scheduler.connector is not None:
            self.swap = SwapRanks(scheduler.vllm_config, scheduler.kv_cache_config, self.worker.kv)
        if isinstance(self.scheduler, PriorityScheduler):
            self.scheduler.aging.clock = self.scheduler.pacing.clock = lambda: self.now_s

    def add(
        self,
        request_id: str,
        priority: PriorityClass | int,
        prompt: Sequence[int] | int = 20,
        max_tokens: int = 10,
        adapter: int | None = None,
    ) -> Request:
        """`prompt` may be a number of tokens: then no other request has the same. `adapter`: the id of one."""
        if isinstance(prompt, int):
            first = sum(map(ord, request_id)) % 400
            prompt = [first + 3 + (i * 7 + len(self.requests)) % 97 for i in range(prompt)]
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        sampling.update_from_generation_config({}, 1)
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=self.num_steps + len(self.requests) * 1e-6,
            priority=priority.level if isinstance(priority, PriorityClass) else priority,
            lora_request=None if adapter is None else LoRARequest(f"adapter-{adapter}", adapter, "/nowhere"),
            block_hasher=get_request_block_hasher(self.scheduler.hash_block_size, sha256),
        )
        self.requests[request_id] = request
        self.outputs[request_id] = []
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self.finished.add(request_id)

    def step(self) -> Step:
        """Schedule one step and compute it; its output reaches the scheduler `depth - 1` steps later."""
        running_before = tuple(r.request_id for r in self.scheduler.running)
        decodes = [r for r in self.scheduler.running if not r.is_prefill_chunk]
        output = self.scheduler.schedule()
        self.num_steps += 1
        step = Step(output, running_before, frozenset(output.preempted_req_ids or ()))
        self._check_step(step, decodes)
        self.check(step)
        self._in_flight.append((output, self._compute(output)))
        self.now_s += self.step_s if self.cost_s is None else self.cost_s(output)
        if len(self._in_flight) >= self.depth or not output.total_num_scheduled_tokens:
            self._deliver()
        self._check_blocks()
        return step

    def steps(self, count: int) -> list[Step]:
        return [self.step() for _ in range(count)]

    def run_to_end(self, max_steps: int = 5000) -> list[Step]:
        """Until every request is done; too many steps mean that some never will be."""
        steps = []
        while self.scheduler.has_unfinished_requests() or self._in_flight:
            if self.scheduler.has_unfinished_requests():
                steps.append(self.step())
            else:
                self._deliver()
            assert len(steps) < max_steps, f"live lock: {self.scheduler.get_request_counts()} running and waiting"
        while self.scheduler.connector is not None and self.scheduler.connector.has_pending_push_work():
            steps.append(self.step())
            assert len(steps) < max_steps, "a copy never ends"
        self.scheduler.schedule()
        return steps

    @property
    def num_free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    @property
    def num_all_blocks(self) -> int:
        """Without the null block, which nobody ever holds."""
        return self.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1

    def _compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        if self.swap is None:
            return self.worker.run(output)
        self.swap.before_forward(output)
        return self.swap.after_forward(output, self.worker.run(output))

    def _deliver(self) -> None:
        output, model_output = self._in_flight.popleft()
        for client in self.scheduler.update_from_output(output, model_output).values():
            for item in client.outputs:
                assert item.request_id not in self.finished, f"{item.request_id} answers after its end"
                self.outputs[item.request_id] += item.new_token_ids
                if item.finish_reason is not None:
                    self.finished.add(item.request_id)

    def _check_step(self, step: Step, decodes: list[Request]) -> None:
        assert step.output.total_num_scheduled_tokens <= self.scheduler.max_num_scheduled_tokens
        assert len(self.scheduler.running) <= self.scheduler.max_num_running_reqs
        if isinstance(self.scheduler, PriorityScheduler):
            self.scheduler.check_invariants()
            if self.scheduler._has_engine_preempted or self.scheduler.swapping.is_freeing:
                return  # A running request that cannot grow waits for blocks, and so do those behind it.
        for request in decodes:
            stands_still = request.status == RequestStatus.RUNNING and request.request_id not in step.scheduled
            assert not stands_still or _is_done_when_delivered(request), f"decode {request.request_id} stands still"

    def _check_blocks(self) -> None:
        """Every block is free, or has as many holders as the pool counts."""
        pool = self.scheduler.kv_cache_manager.block_pool
        held_by = partial(self.scheduler.kv_cache_manager.get_block_ids)
        holders = Counter(b for request_id in self.scheduler.requests for g in held_by(request_id) for b in g)
        if isinstance(self.scheduler.connector, SwapConnector) and self.scheduler.connector.swap is not None:
            holders += self.scheduler.connector.swap.ledger.held_blocks()
        assert len(holders) + pool.get_num_free_blocks() == self.num_all_blocks
        assert all(pool.blocks[block].ref_cnt == count for block, count in holders.items())


def _is_done_when_delivered(request: Request) -> bool:
    """Whether the steps in flight bring the request's last token, so that vLLM schedules it no more."""
    return request.num_output_tokens + request.num_output_placeholders >= request.max_tokens

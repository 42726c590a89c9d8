"""A worker that computes with symbols: the KV of a position is a hash of all tokens up to it.

Each step checks, before it reads, that the blocks of a request hold the hashes of its own prefix: KV that was lost,
overwritten, or never computed is found at its first read. The token it samples is a function of the prefix alone, so
what a request must answer is known beforehand (`expected_output`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

_MODULUS = (1 << 31) - 1
_SEED = 17


def _extend(prefix_hash: int, token: int) -> int:
    return (prefix_hash * 1000003 + token + 1) % _MODULUS


def _sample(prefix_hash: int) -> int:
    return prefix_hash % 500 + 3


def expected_output(prompt: Sequence[int], num_tokens: int, adapter: int | None = None) -> list[int]:
    """What a request must answer, however it is scheduled. With an adapter everything is another."""
    prefix_hash = _SEED + (adapter or 0)
    for token in prompt:
        prefix_hash = _extend(prefix_hash, token)
    output = []
    for _ in range(num_tokens):
        output.append(_sample(prefix_hash))
        prefix_hash = _extend(prefix_hash, output[-1])
    return output


@dataclass(slots=True)
class _Known:
    """A request as the worker knows it."""

    tokens: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    adapter: int = 0
    hashes: list[int] = field(default_factory=list)

    def prefix_hashes(self) -> list[int]:
        while len(self.hashes) < len(self.tokens):
            last = self.hashes[-1] if self.hashes else _SEED + self.adapter
            self.hashes.append(_extend(last, self.tokens[len(self.hashes)]))
        return self.hashes


class SymbolicWorker:
    """Takes a step's `SchedulerOutput` as vLLM's model runner does: the V1 or the V2 one, by `is_v2`."""

    def __init__(self, num_blocks: int, block_size: int, is_v2: bool, num_ranks: int = 1) -> None:
        """`num_ranks` workers compute the same, each with KV of its own in `kv`."""
        self.kv = np.zeros((num_ranks, num_blocks, block_size), dtype=np.int64)
        self._block_size = block_size
        self._is_v2 = is_v2
        self._known: dict[str, _Known] = {}
        self._batch: set[str] = set()
        """Requests of the last step: the V1 runner forgets the tokens of those that leave it."""
        self._weights = 0
        self._was_preempted_for_reset = False
        self.num_computed_tokens: dict[str, int] = {}
        """Tokens computed for each request, in all: more than it has if some were computed again."""

    def note_reset(self, is_reset: bool) -> None:
        """All were preempted to reset the prefix cache. KV from before is wrong from now on, if it was reset.

        vLLM drops output in flight then, and a request may resume in the step in which it was preempted.
        """
        self._was_preempted_for_reset = True
        self._weights += is_reset

    def run(self, step: SchedulerOutput) -> ModelRunnerOutput:
        preempted = step.preempted_req_ids or set()
        overlap = preempted & step.num_scheduled_tokens.keys()
        assert not overlap or self._was_preempted_for_reset, f"both scheduled and preempted: {overlap}"
        for request_id in step.finished_req_ids | (preempted if self._is_v2 else set()):
            self._known.pop(request_id, None)
        for new in step.scheduled_new_reqs:
            self._take_new(new)
        self._take_cached(step.scheduled_cached_reqs)
        self._batch = set(step.num_scheduled_tokens)
        sampled = [self._compute(request_id, n) for request_id, n in step.num_scheduled_tokens.items()]
        request_ids = list(step.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled,
        )

    def _take_new(self, new: NewRequestData) -> None:
        assert self._is_v2 or new.req_id not in self._known, f"{new.req_id} is new, and known"
        tokens = new.prefill_token_ids if new.prefill_token_ids is not None else new.prompt_token_ids
        assert tokens is not None
        adapter = new.lora_request.lora_int_id if new.lora_request else 0
        self._known[new.req_id] = _Known(list(tokens), list(new.block_ids[0]), new.num_computed_tokens, adapter)

    def _take_cached(self, cached: CachedRequestData) -> None:
        for i, request_id in enumerate(cached.req_ids):
            known = self._known[request_id]
            known.num_computed_tokens = cached.num_computed_tokens[i]
            new_blocks = cached.new_block_ids[i]
            is_resumed = request_id in cached.resumed_req_ids
            if is_resumed:
                assert new_blocks is not None
                known.block_ids = list(new_blocks[0])
            elif new_blocks is not None:
                known.block_ids += new_blocks[0]
            if not self._is_v2 and (is_resumed or request_id not in self._batch):
                assert request_id in cached.all_token_ids, f"{request_id} left the batch and returns without its tokens"
                if self._was_preempted_for_reset and is_resumed:
                    self._known[request_id] = known = replace(known, tokens=list(cached.all_token_ids[request_id]))
                    known.hashes = []
                assert list(cached.all_token_ids[request_id]) == known.tokens, (
                    f"{request_id}: other tokens than sampled"
                )

    def _compute(self, request_id: str, num_tokens: int) -> list[int]:
        known = self._known[request_id]
        start, end = known.num_computed_tokens, known.num_computed_tokens + num_tokens
        assert end <= len(known.tokens), f"{request_id}: {end} tokens to compute, {len(known.tokens)} known"
        hashes = np.array(known.prefix_hashes())
        self._check_kv(request_id, known, hashes[:start] + self._weights * _MODULUS)
        positions = np.arange(start, end)
        blocks = np.array(known.block_ids)[positions // self._block_size]
        self.kv[:, blocks, positions % self._block_size] = hashes[start:end] + self._weights * _MODULUS
        self.num_computed_tokens[request_id] = self.num_computed_tokens.get(request_id, 0) + num_tokens
        if end < len(known.tokens):
            return []
        known.tokens.append(_sample(int(hashes[-1])))
        return [known.tokens[-1]]

    def _check_kv(self, request_id: str, known: _Known, expected: np.ndarray) -> None:
        num_blocks = -(-len(expected) // self._block_size)
        for rank, kv in enumerate(self.kv):
            found = kv[known.block_ids[:num_blocks]].reshape(-1)[: len(expected)]
            if not np.array_equal(found, expected):
                position = int(np.argmin(found == expected))
                where = f"position {position} of {len(expected)}, rank {rank}"
                raise AssertionError(f"{request_id}: wrong KV at {where}")

"""Which prompt blocks could have hit the prefix cache, and which did.

A first-time prompt is no miss: only blocks whose content the cache has held before count as reusable. Owns a bounded
memory of such content, as vLLM's own block hashes, the least recently used forgotten first. Reads requests, and changes
nothing of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass
from itertools import islice

from vllm.v1.request import Request


@dataclass(slots=True)
class _Watched:
    """A request that has run, and how many of its blocks are known."""

    request: Request
    num_known: int = 0


class CacheReuse:
    """One prefix cache.

    Args:
        block_tokens: tokens of a block of a request's `block_hashes`.
        max_known: blocks remembered; about 200 bytes each.
    """

    def __init__(self, block_tokens: int, max_known: int) -> None:
        self._block_tokens = block_tokens
        self._max_known = max_known
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._watched: dict[str, _Watched] = {}
        self.num_reusable_blocks = 0
        self.num_hit_blocks = 0

    def note_first_step(self, request: Request, num_hit_tokens: int) -> None:
        """A new request was admitted; `num_hit_tokens` of its prompt came from the cache.

        The last token of a prompt is always computed, so the block that it ends cannot hit. Costs O(blocks that could).
        """
        num_hit = num_hit_tokens // self._block_tokens
        if not request.skip_reading_prefix_cache:
            self.num_reusable_blocks += max(num_hit, self._num_known_ahead(request))
            self.num_hit_blocks += num_hit
        self._watched[request.request_id] = _Watched(request)

    def sweep(self, alive: Container[str]) -> None:
        """Learn what has been computed since the last sweep. Costs O(1) for each request that runs or has run since,
        and O(new blocks). Called now and then: blocks come to be known that much later than the cache holds them, so a
        miss of a block that it lost again in that time goes unseen. `alive`: ids of the requests that have not ended.
        """
        for watched in self._watched.values():
            if watched.request.num_computed_tokens >= (watched.num_known + 1) * self._block_tokens:
                self._learn(watched)
        self._watched = {i: w for i, w in self._watched.items() if i in alive}
        while len(self._known) > self._max_known:
            self._known.popitem(last=False)

    def note_reset(self) -> None:
        """The cache was emptied on purpose: nothing from before could hit."""
        self._known.clear()
        for watched in self._watched.values():
            watched.num_known = 0

    def _num_known_ahead(self, request: Request) -> int:
        """Blocks from the start of the prompt on that the cache has held, down to the first that it has not."""
        most = (request.num_prompt_tokens - 1) // self._block_tokens
        count = 0
        for block_hash in islice(request.block_hashes, most):
            if block_hash not in self._known:
                break
            count += 1
        return count

    def _learn(self, watched: _Watched) -> None:
        request = watched.request
        end = min(request.num_computed_tokens // self._block_tokens, len(request.block_hashes))
        # From the tail on, as vLLM frees blocks: a prefix is forgotten after what needs it.
        for index in range(end - 1, watched.num_known - 1, -1):
            block_hash = request.block_hashes[index]
            self._known[block_hash] = None
            self._known.move_to_end(block_hash)
        watched.num_known = end

    def check_invariants(self) -> None:
        """For tests: what hit could have hit, and the memory has its bound."""
        assert 0 <= self.num_hit_blocks <= self.num_reusable_blocks
        newly = sum(len(w.request.block_hashes) for w in self._watched.values())
        assert len(self._known) <= self._max_known + newly
        assert all(0 <= w.num_known <= len(w.request.block_hashes) for w in self._watched.values())

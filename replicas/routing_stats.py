"""What this replica tells the request routers: exact counts of what is under way in it, beside its engine's numbers.

The engine tells about itself twice a second at most, so what is under way is counted here, as calls come and go.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from replicas.statistics import EngineStatistics
from slo.messages import GenerateCall
from slo.priority import PriorityClass
from slo.routing import NOTHING, ByClass, RoutingStats, num_sequences, plus


class RoutingLedger:
    """One replica's. Used on its event loop only.

    Args:
        block_tokens: of a KV block.
    """

    def __init__(self, statistics: EngineStatistics, block_tokens: int) -> None:
        self._statistics = statistics
        self._block_tokens = block_tokens
        self._ongoing: dict[str, ByClass] = {}
        self._num_told = 0

    @contextmanager
    def under_way(self, call: GenerateCall, router_id: str) -> Iterator[None]:
        """`call` is under way inside.

        Args:
            router_id: of the router that sent it; any text where that does not matter.
        """
        num = num_sequences(call.body)
        self._add(router_id, call.counts_as, num)
        try:
            yield
        finally:
            self._add(router_id, call.counts_as, -num)

    def tell(self, is_serving: bool) -> dict[str, Any]:
        """Everything, as plain values. Called by Serve's controller, and passed on to every router."""
        self._num_told += 1
        snapshot = self._statistics.snapshot(())
        unread = [load.num_unread_tokens if (load := snapshot.classes.get(c)) else 0 for c in PriorityClass]
        return RoutingStats(
            number=self._num_told,
            ongoing=dict(self._ongoing),
            free_kv_tokens=(snapshot.kv.num_blocks - snapshot.kv.num_used_blocks) * self._block_tokens,
            unread_tokens=(unread[0], unread[1], unread[2]),
            step_s=self._statistics.step_s if self._ongoing else None,
            is_serving=is_serving,
        ).as_dict()

    def _add(self, router_id: str, priority: PriorityClass, num: int) -> None:
        counts = plus(self._ongoing.get(router_id, NOTHING), priority, num)
        if counts == NOTHING:
            del self._ongoing[router_id]
        else:
            self._ongoing[router_id] = counts

    def check_invariants(self) -> None:
        """For tests: nothing is counted that is not there."""
        assert all(min(counts) >= 0 and counts != NOTHING for counts in self._ongoing.values()), self._ongoing

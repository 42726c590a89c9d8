"""What one router knows of one replica: its own requests there, exactly, and what the replica told of the others'.

Own counts are fresh at any time: they change as a request is given to the replica, before it is sent. What the replica
told is put beside them, without what it told of this router's own requests; so nothing is counted twice, whatever was
on its way in which moment. Prompts sent lately are counted on top of what was told of KV and unread prompts, since an
engine's own numbers lag behind by up to a second: for a moment one may count twice, and never not at all.

Stamps are of this process' clock, made as a telling arrives: clocks of different machines are never compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.routing_policy import CallView, ReplicaView, ToldView, at_least
from slo.routing import NOTHING, ByClass, RoutingStats, plus, total_of

LAG_S: Final = 1.0
"""An engine tells its numbers twice a second, and they are on their way for 0.1 to 0.3 s (measured on one machine)."""


@dataclass(slots=True)
class Sent:
    """A request in flight; `is_over` once it is not."""

    call: CallView
    unread_tokens: int
    sent_s: float
    is_over: bool = False


class ReplicaLoad:
    """One replica, for one router. Used on the router's event loop only.

    Args:
        replica_id: as the policy is to name it.
        router_id: of the router; the replica tells its requests under it.
    """

    def __init__(self, replica_id: str, router_id: str, stale_after_s: float) -> None:
        self.replica_id = replica_id
        self._router_id = router_id
        self._stale_after_s = stale_after_s
        self._stats: RoutingStats | None = None
        self._fresh_until_s = 0.0
        self._sent: dict[str, list[Sent]] = {}
        self._own: ByClass = NOTHING
        self._lately: deque[Sent] = deque()
        self._fresh: ReplicaView | None = None
        self._stale: ReplicaView | None = None

    @property
    def is_idle(self) -> bool:
        """Whether this router has nothing in flight there."""
        return not self._sent

    @property
    def num_sent(self) -> int:
        """Requests of this router in flight there."""
        return sum(map(len, self._sent.values()))

    def told(self, stats: Mapping[str, Any], now_s: float) -> bool:
        """Serve has delivered `stats`; whether they are new. The same ones come again whenever another replica's
        change, and are no sign of life then."""
        if not stats or (self._stats is not None and stats.get("number") == self._stats.number):
            return False
        parsed = RoutingStats.parse(stats)
        if parsed is None:
            return False
        self._stats, self._fresh_until_s = parsed, now_s + self._stale_after_s
        self._forget_prompts(now_s)
        self._change()
        return True

    def num_told(self, now_s: float) -> int | None:
        """Sequences under way there, of all routers; None where nothing was told, or too long ago."""
        view = self.view(now_s)
        return None if view.told is None else int(view.own[-1] + view.told.others[-1])

    def sent(self, request_id: str, call: CallView, now_s: float, read_tokens: int = 0) -> None:
        """`call` is given to the replica. Several may have the same id.

        Args:
            read_tokens: of its prompt, those that the replica has read before.
        """
        sent = Sent(call, max(0, call.prompt_tokens - read_tokens), now_s)
        self._sent.setdefault(request_id, []).append(sent)
        self._own = plus(self._own, call.priority, call.num_sequences)
        self._lately.append(sent)
        self._forget_prompts(now_s - self._stale_after_s)
        self._change()

    def ended(self, request_id: str) -> None:
        """One request of that id has ended there, was refused, or was not sent after all. An unknown one is no
        request that was routed by class."""
        all_sent = self._sent.get(request_id)
        if all_sent is None:
            return
        ended = all_sent.pop(0)
        ended.is_over = True
        if not all_sent:
            del self._sent[request_id]
        self._own = plus(self._own, ended.call.priority, -ended.call.num_sequences)
        self._change()

    def view(self, now_s: float) -> ReplicaView:
        """For the policy."""
        if now_s <= self._fresh_until_s and self._stats is not None:
            if self._fresh is None:
                self._fresh = ReplicaView(self.replica_id, at_least(self._own), self._told_view(self._stats))
            return self._fresh
        if self._stale is None:
            self._stale = ReplicaView(self.replica_id, at_least(self._own))
        return self._stale

    def _told_view(self, stats: RoutingStats) -> ToldView:
        unread = NOTHING
        for sent in self._lately:
            if not sent.is_over:
                unread = plus(unread, sent.call.priority, sent.unread_tokens)
        told = stats.unread_tokens
        return ToldView(
            others=at_least(total_of(stats.ongoing, without=self._router_id)),
            free_kv_tokens=max(0, stats.free_kv_tokens - sum(unread)),
            unread_tokens=at_least((told[0] + unread[0], told[1] + unread[1], told[2] + unread[2])),
            step_s=stats.step_s,
            is_serving=stats.is_serving,
        )

    def _forget_prompts(self, now_s: float) -> None:
        """Those that the engine has counted itself by then; and those that are over, as far as they are the oldest."""
        while self._lately and (self._lately[0].is_over or self._lately[0].sent_s < now_s - LAG_S):
            self._lately.popleft()

    def _change(self) -> None:
        self._fresh = self._stale = None

    def check_invariants(self) -> None:
        """For tests, after each step."""
        counts = NOTHING
        for all_sent in self._sent.values():
            assert all_sent
            for sent in all_sent:
                assert not sent.is_over
                counts = plus(counts, sent.call.priority, sent.call.num_sequences)
        assert counts == self._own

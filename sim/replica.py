"""A simulated replica: an engine, and what the ingress and the controller are told about it."""

from __future__ import annotations

from dataclasses import dataclass

from sim.engine import SimEngine
from slo.priority import PriorityClass
from slo.routing import NOTHING, RoutingStats, plus


@dataclass(slots=True)
class Replica:
    """`asked_s`: when it was asked for; `ready_s`: when it has come up; `gone_s`: when it was gone, or None."""

    number: int
    engine: SimEngine
    asked_s: float = 0.0
    ready_s: float = 0.0
    gone_s: float | None = None
    is_draining: bool = False
    num_told: int = 0

    @property
    def num_ongoing(self) -> int:
        """Requests under way."""
        return len(self.engine.tracks)

    def is_serving(self, now_s: float) -> bool:
        """Whether it may be given requests."""
        return self.ready_s <= now_s and self.gone_s is None and not self.is_draining

    def states(self, priority: PriorityClass) -> tuple[int, int, int]:
        """Requests of a class that run, that wait for their first token, and that have left their slot."""
        running = {request.request_id for request in self.engine.scheduler.running}
        of_class = [t for t in self.engine.tracks.values() if t.arrival.priority is priority]
        idle = [t for t in of_class if t.arrival.request_id not in running]
        num_waiting = sum(t.first_s is None for t in idle)
        return len(of_class) - len(idle), num_waiting, len(idle) - num_waiting

    def routing_stats(self, router_id: str) -> RoutingStats:
        """What it tells the routers, all of whose requests came from one."""
        engine, ongoing, unread = self.engine, NOTHING, NOTHING
        requests = engine.scheduler.requests
        for request_id, track in engine.tracks.items():
            priority = track.arrival.priority
            ongoing = plus(ongoing, priority, 1)
            request = requests.get(request_id)
            num_read = 0 if request is None else request.num_computed_tokens
            if num_read < track.arrival.prompt_tokens:
                unread = plus(unread, priority, track.arrival.prompt_tokens - num_read)
        self.num_told += 1
        free_blocks = engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return RoutingStats(
            number=self.num_told,
            ongoing={router_id: ongoing},
            free_kv_tokens=free_blocks * engine.scheduler.block_size,
            unread_tokens=unread,
            step_s=engine.last_step_s if engine.tracks else None,
        )

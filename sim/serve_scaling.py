"""Ray Serve's own autoscaling, to compare with: by requests under way, as Serve's controller applies it.

Its public policy says how many replicas the load asks for. What Serve wraps around it (a factor on changes, and the
time for which a wish must last) is imported too, since its clock has to be the simulation's.
"""

from __future__ import annotations

from typing import Any

from ray.serve.autoscaling_policy import (
    _apply_delay_logic,
    _apply_scaling_factors,
    replica_queue_length_autoscaling_policy,
)
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from sim.fleet import Fleet
from slo.settings.autoscale import ReplicaBounds


class ByRequests:
    """Serve's defaults: 30 s of a higher wish, 600 s of a lower one."""

    period_s = 10.0
    """Serve's replicas and handles tell their numbers so often; it looks every 0.1 s."""

    def __init__(self, bounds: ReplicaBounds, target_requests: float) -> None:
        self._bounds = bounds
        self._config = AutoscalingConfig(
            min_replicas=bounds.min_replicas,
            max_replicas=bounds.max_replicas,
            target_ongoing_requests=target_requests,
        )
        self._state: dict[str, Any] = {}

    def target(self, fleet: Fleet, target: int) -> int | None:
        """See `sim.scaling.ScalingPolicy`."""
        running = [r for r in fleet.replicas if r.is_serving(fleet.now_s)]
        num_requests = sum(r.num_ongoing for r in running) + fleet.num_without_replica
        context = AutoscalingContext(
            deployment_id=None,
            deployment_name="replica",
            app_name=None,
            current_num_replicas=len(running),
            target_num_replicas=target,
            running_replicas=[],
            total_num_requests=float(num_requests),
            total_queued_requests=None,
            aggregated_metrics=None,
            raw_metrics=None,
            capacity_adjusted_min_replicas=self._bounds.min_replicas,
            capacity_adjusted_max_replicas=self._bounds.max_replicas,
            policy_state=self._state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=fleet.now_s,
            config=self._config,
        )
        wish, _ = replica_queue_length_autoscaling_policy(context)
        wish = self._bounds.clamp(_apply_scaling_factors(wish, len(running), self._config))
        decided, self._state = _apply_delay_logic(wish, target, self._config, self._state, fleet.now_s)
        return int(decided)

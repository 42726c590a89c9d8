"""Priority-preempting scheduler for vLLM, usable without the rest:

`--scheduling-policy priority --scheduler-cls replicas.scheduler.PriorityScheduler`.
"""

from replicas.scheduler.scheduler import PriorityScheduler

__all__ = ["PriorityScheduler"]

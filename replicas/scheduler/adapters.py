"""vLLM's scheduler, with LoRA adapters counted over all running requests.

vLLM counts those of the requests in the step. A running prefill that gets no tokens in a step is not in it: another
adapter would take its place, and vLLM ends with an assertion when both are in the next one.
"""

from __future__ import annotations

from collections import Counter

from vllm.v1.request import Request

from replicas.scheduler.reporting import ReportingScheduler
from replicas.scheduler.step_view import adapter_of
from replicas.scheduler.views import StepPlan


class AdapterScheduler(ReportingScheduler):
    """What `PriorityScheduler` is made on."""

    _plan: StepPlan
    _seen_running: tuple[int, frozenset[int]] | None = None
    """The number of running requests, and their adapters, as last counted in this step, in which they only get more
    once vLLM looks at waiting ones."""

    @property
    def max_adapters(self) -> int | None:
        """Adapters in one step, at most; None where there are none."""
        return self.lora_config.max_loras if self.lora_config else None

    def adapters_running(self) -> Counter[int]:
        """How many running requests have each adapter."""
        if not self.lora_config:
            return Counter()
        return Counter(a for r in self.running if (a := adapter_of(r)) is not None)

    def is_ready(self, request: Request) -> bool:
        """As vLLM knows it: nothing of its own keeps it waiting, such as a grammar. Its status may change."""
        return super()._handle_blocked_waiting_request(request)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """vLLM asks this first of each waiting request, and passes one over that is not ready."""
        return self._has_adapter_place(request) and super()._handle_blocked_waiting_request(request)

    def _has_adapter_place(self, request: Request) -> bool:
        adapter = adapter_of(request)
        if adapter is None or self.max_adapters is None:
            return True
        if adapter in self._plan.closing:
            return False
        if self._seen_running is None or self._seen_running[0] != len(self.running):
            self._seen_running = len(self.running), frozenset(self.adapters_running())
        running = self._seen_running[1]
        return adapter in running or len(running) < self.max_adapters

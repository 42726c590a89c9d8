"""What a step costs, learned while the engine runs: milliseconds by prefill tokens, decodes and context read.

A step's time is close to `fixed + a * prefill tokens + b * decodes + c * context tokens` (measured on the CPU backend:
15 ms + 1.1 ms a prefill token + 1.2 ms a decode with SmolLM2-135M on one core). The four are fitted by least squares
over recent steps; what recent steps say nothing about (a long time without prefill, say) keeps its last value.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

MEMORY_STEPS = 400
"""An observation weighs 1/e after so many later ones: some ten seconds of steps."""
MIN_PREFILL_STEPS = 8
"""Steps with prefill that must have been seen before the fit is believed."""
OUTLIER_RATIO = 4.0
"""A step that took longer than so many times its estimate (a pause of the machine) counts as that long."""
_SCALE = np.array([1.0, 100.0, 10.0, 10_000.0])
_RIDGE = 1e-3


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step computes.

    Attributes:
        prefill_tokens: prompt tokens, of all requests.
        num_decodes: requests that get a token.
        context_tokens: tokens that attention reads for them, of all requests.
    """

    prefill_tokens: int
    num_decodes: int
    context_tokens: int


class StepCost:
    """The fit. One writer; `observe` costs some microseconds."""

    def __init__(self) -> None:
        self._moments = np.zeros((4, 4))
        self._sums = np.zeros(4)
        self._per_unit = np.zeros(4)
        self._num_prefill_steps = 0

    @property
    def is_known(self) -> bool:
        """Whether enough has been seen to rely on it."""
        return self._num_prefill_steps >= MIN_PREFILL_STEPS

    def observe(self, shape: StepShape, took_ms: float) -> None:
        """A step of this shape took so long."""
        if self.is_known:
            took_ms = min(took_ms, OUTLIER_RATIO * max(self.estimate_ms(shape), 1.0))
        row = _row(shape)
        self._moments *= 1 - 1 / MEMORY_STEPS
        self._sums *= 1 - 1 / MEMORY_STEPS
        self._moments += np.outer(row, row)
        self._sums += row * took_ms
        ridge = _RIDGE * max(1.0, float(self._moments[0, 0])) * np.eye(4)
        fitted = np.linalg.solve(self._moments + ridge, self._sums + ridge @ self._per_unit)
        self._per_unit = np.maximum(fitted, 0.0)
        self._num_prefill_steps += shape.prefill_tokens > 0

    def estimate_ms(self, shape: StepShape) -> float:
        """What a step of this shape takes."""
        return float(_row(shape) @ self._per_unit)

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """How fast prompt tokens are computed beside what a step costs anyway; None while it is not known."""
        per_token_ms = float(self._per_unit[1] / _SCALE[1])
        return 1e3 / per_token_ms if self.is_known and per_token_ms > 0 else None

    def prefill_tokens_within(self, limit_ms: float, num_decodes: int, context_tokens: int) -> int:
        """The most prefill tokens that a step of at most `limit_ms` has room for beside its decodes; 0 if none."""
        per_token_ms = float(self._per_unit[1] / _SCALE[1])
        left_ms = limit_ms - self.estimate_ms(StepShape(0, num_decodes, context_tokens))
        if left_ms <= 0:
            return 0
        return int(left_ms / per_token_ms) if per_token_ms > 0 else 2**31


class StepTimes:
    """How long each step took, from the calls around it; also with several steps in flight, which end in order."""

    def __init__(self) -> None:
        self._begun: deque[tuple[float, StepShape]] = deque()
        self._last_end_s = float("-inf")

    def begin(self, now_s: float, shape: StepShape) -> None:
        """The engine was handed a step."""
        self._begun.append((now_s, shape))

    def end(self, now_s: float) -> tuple[StepShape, float] | None:
        """The oldest step in flight is done: its shape, and the milliseconds since it began or the one before ended.

        None when no step was begun, or when it was empty.
        """
        if not self._begun:
            return None
        begun_s, shape = self._begun.popleft()
        took_ms = (now_s - max(begun_s, self._last_end_s)) * 1e3
        self._last_end_s = now_s
        return (shape, took_ms) if shape.prefill_tokens or shape.num_decodes else None


def _row(shape: StepShape) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([1.0, shape.prefill_tokens, shape.num_decodes, shape.context_tokens]) / _SCALE

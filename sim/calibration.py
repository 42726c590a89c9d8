"""Fits what steps cost to steps that were measured, and says how far off the fit is on others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.linear_cost import LinearCost
from sim.step_work import StepTime, StepWork

MIN_STEPS = 30
HELD_OUT = 3
"""Every third step is not fitted, and tells the error."""
ROUNDS = 60
MIN_ERROR = 1e-3
MIN_STEP_MS = 1e-3
Floats = np.ndarray[Any, np.dtype[np.float64]]
_TERMS = ("step_ms", "prefill_token_ms", "decode_ms", "context_token_ms", "prefill_pair_ms")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of a real engine."""

    work: StepWork
    took_ms: float


@dataclass(frozen=True, slots=True)
class FitError:
    """Of a model of step times, on steps that it was not fitted to.

    Attributes:
        median_ratio, p90_ratio: of |predicted - measured| / measured, over steps.
        total_ratio: of all steps together, predicted over measured, less 1.
    """

    num_steps: int
    median_ratio: float
    p90_ratio: float
    total_ratio: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit and its error."""

    cost: LinearCost
    error: FitError


def calibrate(steps: Sequence[MeasuredStep]) -> Calibration:
    """A fit to two steps of three, and its error on the third.

    Raises:
        ValueError: too few steps to tell.
    """
    if len(steps) < MIN_STEPS:
        raise ValueError(f"{len(steps)} steps were measured: at least {MIN_STEPS} are needed")
    fitted = [step for number, step in enumerate(steps) if number % HELD_OUT]
    cost = fit(fitted)
    return Calibration(cost, error_of(cost, steps[::HELD_OUT]))


def fit(steps: Sequence[MeasuredStep]) -> LinearCost:
    """The least sum of relative errors, without a negative term.

    Not of their squares: a few steps in which the machine did something else would decide. Relative to the fit itself,
    found in rounds: relative to what was measured, short ones of noisy steps would weigh more than long ones.
    """
    rows = np.array([_row(step.work) for step in steps])
    measured = np.array([step.took_ms for step in steps])
    scale = measured
    for _ in range(ROUNDS):
        values = _without_negatives(rows / scale[:, None], measured / scale)
        predicted = np.maximum(rows @ values, MIN_STEP_MS)
        off = np.abs(measured - predicted) / predicted
        scale = predicted * np.sqrt(np.maximum(off, MIN_ERROR))
    return LinearCost(**dict(zip(_TERMS, values.tolist(), strict=True)))


def _without_negatives(rows: Floats, wanted: Floats) -> Floats:
    """Least squares over terms; the one that would be most negative, by what it adds to a row, is left out, in turn."""
    terms, found = list(range(rows.shape[1])), np.zeros(rows.shape[1])
    while terms:
        values, *_ = np.linalg.lstsq(rows[:, terms], wanted, rcond=None)
        worst = int(np.argmin(values * rows[:, terms].mean(axis=0)))
        if values[worst] >= 0:
            found[terms] = values
            break
        del terms[worst]
    return found


def error_of(cost: StepTime, steps: Sequence[MeasuredStep]) -> FitError:
    """How far off `cost` is on `steps`."""
    measured = np.array([step.took_ms for step in steps])
    predicted = np.array([1e3 * cost.step_s(step.work) for step in steps])
    off = np.abs(predicted - measured) / measured
    median, p90 = (float(p) for p in np.percentile(off, (50, 90)))
    return FitError(len(steps), median, p90, float(predicted.sum() / measured.sum() - 1))


def _row(work: StepWork) -> tuple[float, ...]:
    return (1.0, work.prefill_tokens, work.num_decodes, work.decode_context, work.prefill_pairs)

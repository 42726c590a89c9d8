import random

import pytest

from sim.calibration import MeasuredStep, calibrate, error_of, fit
from sim.linear_cost import LinearCost
from sim.step_work import StepWork

TRUTH = LinearCost(step_ms=12, prefill_token_ms=1.1, decode_ms=1.2, context_token_ms=0.0005)


def steps(count: int, noise: float, truth: LinearCost = TRUTH, seed: int = 0) -> list[MeasuredStep]:
    chance, found = random.Random(seed), []
    for _ in range(count):
        prefill, decodes = chance.choice([0, 0, chance.randrange(1, 600)]), chance.randrange(1, 16)
        work = StepWork(prefill, prefill * prefill // 2, int(prefill > 0), decodes, decodes * chance.randrange(10, 900))
        found.append(MeasuredStep(work, 1e3 * truth.step_s(work) * chance.uniform(1 - noise, 1 + noise)))
    return found


def test_fit_finds_what_made_the_steps() -> None:
    found = fit(steps(300, 0.0))
    assert found.model_dump() == pytest.approx(TRUTH.model_dump(), abs=1e-6)


def test_fit_of_noisy_steps_tells_the_noise_as_its_error() -> None:
    found = calibrate(steps(600, 0.2))
    assert found.cost.prefill_token_ms == pytest.approx(1.1, rel=0.05)
    assert found.error.median_ratio == pytest.approx(0.1, abs=0.02)
    assert found.error.p90_ratio == pytest.approx(0.18, abs=0.03)
    assert found.error.total_ratio == pytest.approx(0.0, abs=0.03)
    assert found.error.num_steps == 200


def test_error_is_of_steps_that_were_not_fitted() -> None:
    """Every third step follows another law, and no such step is fitted."""
    mixed, other = steps(300, 0.0), steps(300, 0.0, LinearCost(step_ms=100, prefill_token_ms=0, decode_ms=0))
    mixed[::3] = other[::3]
    found = calibrate(mixed)
    assert found.cost.model_dump() == pytest.approx(TRUTH.model_dump(), abs=1e-6)
    assert found.error.median_ratio > 0.5


def test_a_few_disturbed_steps_do_not_decide() -> None:
    measured = [
        MeasuredStep(step.work, step.took_ms * (20 if number % 7 == 0 else 1))
        for number, step in enumerate(steps(400, 0.1))
    ]
    found = fit(measured)
    assert found.step_ms == pytest.approx(12, rel=0.1)
    assert found.prefill_token_ms == pytest.approx(1.1, rel=0.1)


def test_no_term_is_negative() -> None:
    odd = [MeasuredStep(s.work, 50 - 0.01 * s.work.num_decodes) for s in steps(200, 0.0)]
    assert min(fit(odd).model_dump().values()) >= 0


def test_total_error_has_its_sign() -> None:
    slow = LinearCost(step_ms=24, prefill_token_ms=2.2, decode_ms=2.4, context_token_ms=0.001)
    assert error_of(slow, steps(50, 0.0)).total_ratio == pytest.approx(1.0)


def test_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="29 steps were measured"):
        calibrate(steps(29, 0.0))

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scenario import Lengths, Synthetic
from bench.sources.synthetic import draw, synthetic_rows
from bench.workload import Ask


def asks(num: int = 200, seed: int = 1, **values: Any) -> list[Ask]:
    source = Synthetic.model_validate({"kind": "synthetic", **values})
    return [row.ask for row in islice(synthetic_rows(source, np.random.default_rng(seed)), num)]


def test_draw_has_the_mean_and_the_spread() -> None:
    random = np.random.default_rng(1)
    lengths = np.array([draw(Lengths(mean=200, cv=0.8), random) for _ in range(20_000)])
    assert lengths.mean() == pytest.approx(200, rel=0.03)
    assert lengths.std() / lengths.mean() == pytest.approx(0.8, rel=0.05)


def test_draw_is_the_mean_when_there_is_no_spread() -> None:
    assert {draw(Lengths(mean=7), np.random.default_rng(seed)) for seed in range(50)} == {7}


@given(st.floats(0.1, 1e4), st.floats(0, 5), st.integers(1, 500), st.integers(0, 500), st.integers(0, 2**32))
def test_draw_stays_within_its_bounds(mean: float, cv: float, low: int, more: int, seed: int) -> None:
    drawn = draw(Lengths(mean=mean, cv=cv, min=low, max=low + more), np.random.default_rng(seed))
    assert low <= drawn <= low + more


def test_prompts_are_of_the_length_asked_for_and_differ() -> None:
    made = asks(prompt_tokens=12, output_tokens=5)
    assert {(ask.prompt_tokens, ask.output_tokens) for ask in made} == {(12, 5)}
    assert len({ask.pieces for ask in made}) == len(made)


def test_prompts_share_the_prefix_that_they_are_to_share() -> None:
    made = asks(prompt_tokens=12, shared_prefix_tokens=8)
    assert len({ask.pieces[0] for ask in made}) == 1
    assert {ask.pieces[0].num_tokens for ask in made} == {8}
    assert {ask.prompt_tokens for ask in made} == {12}
    assert len({ask.pieces[1] for ask in made}) == len(made)


def test_prompt_is_a_part_of_the_prefix_when_it_is_shorter() -> None:
    made = asks(prompt_tokens=3, shared_prefix_tokens=8)
    assert {ask.prompt_tokens for ask in made} == {3}
    assert len({ask.pieces for ask in made}) == 1

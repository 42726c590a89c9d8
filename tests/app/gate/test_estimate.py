from typing import Any

import pytest

from app.gate.estimate import estimate
from app.gate.load import Load
from slo.routing import MAX_COUNT
from slo.settings import AdmissionSettings

SETTINGS = AdmissionSettings(default_output_tokens=100, bytes_per_token=4)


@pytest.mark.parametrize(
    ("body", "sequences", "output"),
    [
        ({}, 1, 100),
        ({"max_tokens": 7}, 1, 7),
        ({"max_completion_tokens": 8, "max_tokens": 7}, 1, 8),
        ({"max_completion_tokens": None, "max_tokens": 7}, 1, 7),
        ({"max_tokens": 7, "n": 3}, 3, 21),
        ({"prompt": "a", "max_tokens": 7}, 1, 7),
        ({"prompt": ["a", "b"], "max_tokens": 7}, 2, 14),
        ({"prompt": [[1, 2], [3]], "max_tokens": 7, "n": 2}, 4, 28),
        ({"prompt": [1, 2, 3], "max_tokens": 7}, 1, 7),  # token ids of one prompt
        ({"prompt": [], "max_tokens": 7}, 1, 7),
    ],
)
def test_estimate_counts_sequences_and_what_each_may_answer(body: dict[str, Any], sequences: int, output: int) -> None:
    assert estimate(body, 41, SETTINGS) == Load(sequences, 11 + output, 41)


@pytest.mark.parametrize("value", [None, True, "9", -1, 0, 1.5, [], {}])
def test_estimate_takes_the_default_when_a_count_is_none(value: object) -> None:
    """The engine refuses such a request; the gate must not break on it."""
    assert estimate({"max_tokens": value, "n": value}, 0, SETTINGS) == Load(1, 100, 0)


def test_estimate_is_bounded_when_a_count_is_absurd() -> None:
    load = estimate({"max_tokens": 10**30, "n": 10**30, "prompt": ["a", "b"]}, 0, SETTINGS)
    assert load == Load(MAX_COUNT, MAX_COUNT * MAX_COUNT, 0)

from __future__ import annotations

import pytest

from autoscale.promql import of_model


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("max(expresslane_replicas)", 'max(expresslane_replicas{model="a"})'),
        (
            'sum by (le) (rate(expresslane_tbt_seconds_bucket{priority_class="P0"}[40s]))',
            'sum by (le) (rate(expresslane_tbt_seconds_bucket{model="a",priority_class="P0"}[40s]))',
        ),
        (
            "max by (model) (expresslane_a_total) / expresslane_b_total[5m]",
            'max by (model) (expresslane_a_total{model="a"}) / expresslane_b_total{model="a"}[5m]',
        ),
        ("up == 0", "up == 0"),
    ],
)
def test_every_metric_of_ours_is_taken_of_the_model_alone(expression: str, expected: str) -> None:
    assert of_model(expression, "a") == expected


def test_name_is_quoted_as_promql_reads_it() -> None:
    assert of_model("expresslane_x", 'a"\\b') == 'expresslane_x{model="a\\"\\\\b"}'

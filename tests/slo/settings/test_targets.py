from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slo.priority import PriorityClass
from slo.settings import ClassTargets, LatencyProfile, LatencyProfiles, LatencyTargets


@pytest.mark.parametrize(
    ("priority", "ttft_p99_ms", "tbt_p99_ms", "promised"),
    [
        (PriorityClass.P0, 100, 20, True),
        (PriorityClass.P1, 500, 100, True),
        (PriorityClass.P2, None, 200, False),
    ],
)
def test_class_targets_default_to_the_design_table(
    priority: PriorityClass, ttft_p99_ms: float | None, tbt_p99_ms: float, promised: bool
) -> None:
    assert ClassTargets().of(priority) == LatencyTargets(
        ttft_p99_ms=ttft_p99_ms, tbt_p99_ms=tbt_p99_ms, promised=promised
    )


@pytest.mark.parametrize(
    ("name", "tbt_below_ms", "token_budget", "chunk_tokens"),
    [("strict", 50, 512, 256), ("standard", 100, 1024, 512), ("relaxed", 200, 2048, 2048)],
)
def test_latency_profiles_default_to_the_design_table(
    name: str, tbt_below_ms: float, token_budget: int, chunk_tokens: int
) -> None:
    expected = LatencyProfile(tbt_below_ms=tbt_below_ms, token_budget=token_budget, chunk_tokens=chunk_tokens)
    assert getattr(LatencyProfiles(), name) == expected


@pytest.mark.parametrize(
    ("priority", "profile"),
    [(PriorityClass.P0, "strict"), (PriorityClass.P1, "standard"), (PriorityClass.P2, "relaxed")],
)
def test_profile_of_each_class_is_the_designs_when_all_is_default(priority: PriorityClass, profile: str) -> None:
    profiles = LatencyProfiles()
    assert profiles.of(ClassTargets().of(priority).tbt_p99_ms) is getattr(profiles, profile)


@pytest.mark.parametrize(
    ("tbt_target_ms", "profile"),
    [
        (1, "strict"),
        (50, "strict"),
        (50.1, "standard"),
        (100, "standard"),
        (100.1, "relaxed"),
        (1e9, "relaxed"),
        (None, "relaxed"),
    ],
)
def test_profile_of_a_target_is_the_first_whose_bound_is_not_below_it(
    tbt_target_ms: float | None, profile: str
) -> None:
    profiles = LatencyProfiles()
    assert profiles.of(tbt_target_ms) is getattr(profiles, profile)


@pytest.mark.parametrize(("asked", "rounded"), [(1, 256), (255, 256), (256, 256), (257, 512), (2000, 2048)])
def test_token_budget_is_rounded_up_to_256(asked: int, rounded: int) -> None:
    assert LatencyProfile(tbt_below_ms=50, token_budget=asked, chunk_tokens=1).token_budget == rounded


@settings(derandomize=True, deadline=None, database=None)
@given(asked=st.integers(1, 10**9))
def test_token_budget_is_the_least_multiple_of_256_that_holds_what_was_asked(asked: int) -> None:
    budget = LatencyProfile(tbt_below_ms=50, token_budget=asked, chunk_tokens=1).token_budget
    assert budget % 256 == 0
    assert asked <= budget < asked + 256


def test_chunk_is_compared_with_the_budget_as_rounded() -> None:
    assert LatencyProfile(tbt_below_ms=50, token_budget=500, chunk_tokens=512).token_budget == 512
    with pytest.raises(ValidationError, match="chunk_tokens=513 exceeds token_budget=512"):
        LatencyProfile(tbt_below_ms=50, token_budget=500, chunk_tokens=513)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"p1": {"tbt_p99_ms": 10}}, r"p1\.tbt_p99_ms=10 is tighter than p0\.tbt_p99_ms=20"),
        ({"p0": {"ttft_p99_ms": 600}}, r"p1\.ttft_p99_ms=500 is tighter than p0\.ttft_p99_ms=600"),
        ({"p2": {"ttft_p99_ms": 400}}, r"p2\.ttft_p99_ms=400 is tighter than p1\.ttft_p99_ms=500"),
        (
            {"p1": {"tbt_p99_ms": None}, "p2": {"tbt_p99_ms": 15}},
            r"p2\.tbt_p99_ms=15 is tighter than p0\.tbt_p99_ms=20",
        ),
    ],
)
def test_class_targets_are_refused_when_a_less_urgent_class_has_the_tighter_one(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        ClassTargets.model_validate(values)


def test_class_targets_may_be_equal() -> None:
    targets = ClassTargets.model_validate({"p1": {"tbt_p99_ms": 20}, "p2": {"tbt_p99_ms": 20}})
    assert targets.p2.tbt_p99_ms == targets.p0.tbt_p99_ms == 20


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"p0": {"ttft_p99_ms": 50}}, LatencyTargets(ttft_p99_ms=50, tbt_p99_ms=20)),
        ({"p0": {"tbt_p99_ms": None}}, LatencyTargets(ttft_p99_ms=100, tbt_p99_ms=None)),
        ({"p0": {}}, LatencyTargets(ttft_p99_ms=100, tbt_p99_ms=20)),
    ],
)
def test_class_targets_keep_the_defaults_of_what_is_not_set(values: dict[str, Any], expected: LatencyTargets) -> None:
    assert ClassTargets.model_validate(values).p0 == expected


def test_class_targets_of_p2_stay_unpromised_when_a_number_is_set() -> None:
    assert ClassTargets.model_validate({"p2": {"tbt_p99_ms": 300}}).p2 == LatencyTargets(tbt_p99_ms=300, promised=False)


@pytest.mark.parametrize("name", ["tbt_below_ms", "token_budget", "chunk_tokens"])
def test_latency_profiles_are_refused_when_one_falls(name: str) -> None:
    values = LatencyProfiles().model_dump()
    values["strict"][name], values["standard"][name] = values["standard"][name], values["strict"][name]
    with pytest.raises(ValidationError, match=rf"strict, standard and relaxed {name} must not fall: \["):
        LatencyProfiles.model_validate(values)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_target_is_refused_when_it_is_no_positive_finite_number(value: float) -> None:
    with pytest.raises(ValidationError, match="ttft_p99_ms"):
        LatencyTargets(ttft_p99_ms=value)

import pytest

from sim.tuning import Score, tune
from tests.sim.test_simulation import scenario, stream


@pytest.mark.parametrize(
    ("score", "other", "better"),
    [
        (Score(1.0, 100), Score(1.5, 200), True),
        (Score(1.5, 200), Score(1.0, 100), False),
        (Score(1.0, 102), Score(1.0, 100), True),
        (Score(1.0, 100.5), Score(1.0, 100), False),
        (Score(1.495, 100), Score(1.5, 100), False),
        (Score(1.2, 50), Score(1.5, 100), True),
    ],
)
def test_promises_come_before_throughput_and_small_gains_do_not_count(score: Score, other: Score, better: bool) -> None:
    assert score.is_better_than(other) is better


def test_tuning_keeps_what_helps_and_names_it_alone() -> None:
    """Without adaptive budgets a P0's TBT follows from how much prefill a step takes."""
    load = scenario(
        duration_s=15,
        settings={
            "engine": {"max_num_seqs": 4},
            "scheduler": {"budget": {"adaptive": False}, "targets": {"p0": {"tbt_p99_ms": 40}}},
        },
        traffic=[stream("P0", 1, 50, 60), stream("P2", 1, 2000, 5)],
    )
    knobs = {
        "settings.scheduler.profiles.strict.token_budget": (256, 1024),
        "settings.scheduler.preemption.max_victims_per_step": (2, 3),
    }
    found = tune(load, knobs)
    assert [turn.value for turn in found.turns] in ([256, 1024, 3], [1024, 3])
    assert found.after.over_ratio <= found.before.over_ratio
    assert "settings.scheduler.preemption.max_victims_per_step" not in found.changes


def test_value_that_settings_forbid_is_not_tried() -> None:
    load = scenario(duration_s=2)
    found = tune(load, {"settings.scheduler.profiles.standard.token_budget": (256, 99_000)})
    assert found.turns == ()
    assert found.before == found.after

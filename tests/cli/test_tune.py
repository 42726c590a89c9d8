from cli.tune import nested


def test_changes_are_nested_as_in_a_scenario_file() -> None:
    changes = {"engine.max_step_tokens": 4096, "settings.scheduler.budget.tbt_ratio": 0.7}
    assert nested(changes) == {
        "engine": {"max_step_tokens": 4096},
        "settings": {"scheduler": {"budget": {"tbt_ratio": 0.7}}},
    }

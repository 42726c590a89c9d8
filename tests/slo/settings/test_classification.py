from typing import Any

import pytest
from pydantic import ValidationError

from slo.priority import PriorityClass
from slo.settings import ClassificationSettings, HeaderMapping, ShapeRule


def test_default_class_is_p1_and_nothing_else_is_read_unless_set() -> None:
    assert ClassificationSettings() == ClassificationSettings(headers=(), rules=(), default_class=PriorityClass.P1)


@pytest.mark.parametrize("written", ["P2", "p2", "batch", " Batch ", 2, PriorityClass.P2])
def test_class_is_read_by_name_or_level(written: object) -> None:
    assert ClassificationSettings.model_validate({"default_class": written}).default_class is PriorityClass.P2


@pytest.mark.parametrize("written", ["P3", "", "urgent", True, False, None, 3, -1, [], 0.5])
def test_class_is_refused_when_it_is_none(written: object) -> None:
    with pytest.raises(ValidationError, match="default_class"):
        ClassificationSettings.model_validate({"default_class": written})


def test_class_refusal_lists_what_is_allowed() -> None:
    with pytest.raises(ValidationError, match="'urgent' is no class; allowed: P0, P1, P2, realtime, standard, batch"):
        ClassificationSettings.model_validate({"default_class": "urgent"})


def test_header_values_are_read_in_any_case() -> None:
    mapping = HeaderMapping.model_validate({"header": "X-Objective", "values": {" Chat ": "P0", "NIGHTLY": "batch"}})
    assert mapping.values == {"chat": PriorityClass.P0, "nightly": PriorityClass.P2}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"header": "priority", "values": {"a": "P0"}}, "'priority' must not name a class"),
        ({"header": "X_VLLM_Priority", "values": {"a": "P0"}}, "'X_VLLM_Priority' must not name a class"),
        ({"header": "", "values": {"a": "P0"}}, "header"),
        ({"header": "x tier", "values": {"a": "P0"}}, "header"),
        ({"header": "x-tier\n", "values": {"a": "P0"}}, "header"),
        ({"header": "x-tier", "values": {}}, "values"),
        ({"header": "x-tier", "values": ["a"]}, "values"),
        ({"header": "x-tier", "values": {"a": "P9"}}, "'P9' is no class"),
        ({"header": "x-tier", "values": {"gold": "P0", "Gold": "P1"}}, r"given twice, .*\['gold', 'Gold'\]"),
    ],
)
def test_header_mapping_is_refused_when_it_cannot_hold(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        HeaderMapping.model_validate(values)


@pytest.mark.parametrize("names", [["X-Priority"], ["x_priority"], ["x-tier", "X-Objective", "X_Tier"]])
def test_header_is_refused_when_it_is_read_already(names: list[str]) -> None:
    headers = [{"header": name, "values": {"a": "P0"}} for name in names]
    with pytest.raises(ValidationError, match=f"header '{names[-1]}' is read already"):
        ClassificationSettings.model_validate({"headers": headers})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"priority": "P2"}, "set default_class instead"),
        ({"priority": "P2", "min_max_tokens": 0}, "min_max_tokens"),
        ({"priority": "P2", "endpoint": "chat_completions"}, "endpoint"),
        ({"streamed": True}, "priority"),
        ({"priority": "P2", "streamed": True, "min_tokens": 1}, "min_tokens"),
    ],
)
def test_shape_rule_is_refused_when_it_cannot_hold(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ShapeRule.model_validate(values)


def test_shape_rule_may_ask_for_whole_answers_only() -> None:
    assert ShapeRule.model_validate({"priority": "batch", "streamed": False}).streamed is False

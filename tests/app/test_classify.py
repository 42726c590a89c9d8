import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.classify import SERVICE_TIERS, Classification, classify
from slo.errors import Rejected, RejectReason
from slo.messages import Endpoint
from slo.priority import PriorityClass
from slo.settings import ClassificationSettings

P0, P1, P2 = PriorityClass.P0, PriorityClass.P1, PriorityClass.P2
DEFAULTS = ClassificationSettings()
FULL = ClassificationSettings.model_validate(
    {
        "headers": [
            {"header": "X_Objective", "values": {"Chat": "P0", "Nightly": "P2"}},
            {"header": "x-team", "values": {"red": "P1"}},
        ],
        "rules": [{"priority": "P2", "endpoint": "completion"}],
        "default_class": "P0",
    }
)


def rules(*values: dict[str, Any]) -> ClassificationSettings:
    return ClassificationSettings.model_validate({"rules": values})


def of(
    headers: list[tuple[str, str]],
    body: dict[str, Any] | None = None,
    settings: ClassificationSettings = DEFAULTS,
    endpoint: Endpoint = Endpoint.CHAT,
) -> tuple[PriorityClass, str]:
    decided = classify(headers, body or {}, endpoint, settings)
    return decided.priority, decided.reason


@pytest.mark.parametrize("name", ["x-priority", "X-Priority", "X-PRIORITY", "x_priority", "X_Priority"])
def test_classify_reads_the_header_in_any_case_with_hyphen_or_underscore(name: str) -> None:
    assert of([(name, "P0")]) == (P0, "header x-priority")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("P0", P0),
        ("p1", P1),
        ("P2", P2),
        (" p2\t", P2),
        ("realtime", P0),
        ("Standard", P1),
        ("BATCH", P2),
    ],
)
def test_classify_takes_short_and_long_names_in_any_case(value: str, expected: PriorityClass) -> None:
    assert of([("x-priority", value)]) == (expected, "header x-priority")


@pytest.mark.parametrize("value", ["", " ", "0", "P3", "urgent", "P0,P0", "P0 P1", "u=1", "é", "high", "None"])
def test_gie_1339_header_that_names_no_class_is_refused_with_what_is_allowed(value: str) -> None:
    with pytest.raises(Rejected) as raised:
        of([("X-Priority", value)])
    assert raised.value.message == (
        f"header x-priority: {value!r} is not allowed; allowed: p0, p1, p2, realtime, standard, batch"
    )
    assert (raised.value.param, raised.value.reason) == ("x-priority", RejectReason.INVALID)


@pytest.mark.parametrize(
    "headers", [[("x-priority", "P0"), ("X-Priority", "p0")], [("x-priority", "P0"), ("x_priority", "realtime")]]
)
def test_classify_takes_a_doubled_header_when_both_name_one_class(headers: list[tuple[str, str]]) -> None:
    assert of(headers) == (P0, "header x-priority")


@pytest.mark.parametrize(
    "headers",
    [
        [("x-priority", "P0"), ("x-priority", "P2")],
        [("x-priority", "P0"), ("x-priority", "P0"), ("x-priority", "P2")],
        [("X-Priority", "P2"), ("x_priority", "P0")],
    ],
)
def test_classify_refuses_a_doubled_header_when_the_classes_differ(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(Rejected, match=r"header x-priority: sent more than once with different classes: .P") as raised:
        of(headers)
    assert raised.value.param == "x-priority"


def test_classify_refuses_a_doubled_header_when_one_names_no_class() -> None:
    with pytest.raises(Rejected, match="'urgent' is not allowed"):
        of([("x-priority", "P0"), ("x-priority", "urgent")])


@pytest.mark.parametrize(
    "header",
    [
        ("Priority", "u=1"),
        ("priority", "u=0, i"),
        ("Priority", "P0"),
        ("X-Vllm-Priority", "-5"),
        ("x_vllm_priority", "P0"),
        ("X-Priority-Class", "P0"),
    ],
)
def test_classify_ignores_headers_that_browsers_and_engines_send(header: tuple[str, str]) -> None:
    assert of([header]) == (P1, "default")


@pytest.mark.parametrize(("tier", "expected"), [("priority", P0), ("auto", P1), ("default", P1), ("flex", P2)])
def test_classify_reads_service_tier(tier: str, expected: PriorityClass) -> None:
    assert of([], {"service_tier": tier}) == (expected, "service_tier")


def test_classify_ignores_service_tier_when_it_is_null() -> None:
    assert of([], {"service_tier": None}) == (P1, "default")


@pytest.mark.parametrize("tier", ["", "P0", "Priority", "realtime", 0, True, [], {}, ["priority"], 1.5])
def test_classify_lists_what_is_allowed_when_service_tier_names_no_class(tier: object) -> None:
    with pytest.raises(Rejected, match=re.escape(f"service_tier: {tier!r} is not allowed")) as raised:
        of([], {"service_tier": tier})
    assert raised.value.message.endswith(f"allowed: {', '.join(SERVICE_TIERS)}")
    assert raised.value.param == "service_tier"


def test_classify_refuses_a_bad_service_tier_even_when_a_header_decides() -> None:
    with pytest.raises(Rejected, match="service_tier"):
        of([("x-priority", "P0")], {"service_tier": "gold"})


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (("x-objective", "chat"), (P0, "header x-objective")),
        (("X-Objective", " NIGHTLY "), (P2, "header x-objective")),
        (("x_objective", "Chat"), (P0, "header x-objective")),
        (("X-Team", "red"), (P1, "header x-team")),
    ],
)
def test_classify_reads_further_headers(header: tuple[str, str], expected: tuple[PriorityClass, str]) -> None:
    assert of([header], settings=FULL) == expected


def test_classify_lists_what_is_allowed_when_a_further_header_names_no_class() -> None:
    with pytest.raises(Rejected, match=r"header x-objective: 'P0' is not allowed; allowed: chat, nightly$"):
        of([("X-Objective", "P0")], settings=FULL)


PRECEDENCE: list[tuple[list[tuple[str, str]], dict[str, Any], Endpoint, str]] = [
    (
        [("x-priority", "P1"), ("x-objective", "chat")],
        {"service_tier": "flex"},
        Endpoint.COMPLETION,
        "header x-priority",
    ),
    ([("x-team", "red"), ("x-objective", "chat")], {"service_tier": "flex"}, Endpoint.COMPLETION, "header x-objective"),
    ([("x-team", "red")], {"service_tier": "flex"}, Endpoint.COMPLETION, "header x-team"),
    ([], {"service_tier": "flex"}, Endpoint.COMPLETION, "service_tier"),
    ([], {}, Endpoint.COMPLETION, "rule 0"),
    ([], {}, Endpoint.CHAT, "default"),
]


@pytest.mark.parametrize(("headers", "body", "endpoint", "reason"), PRECEDENCE, ids=[p[3] for p in PRECEDENCE])
def test_classify_reads_in_order_of_precedence(
    headers: list[tuple[str, str]], body: dict[str, Any], endpoint: Endpoint, reason: str
) -> None:
    assert classify(headers, body, endpoint, FULL).reason == reason


@pytest.mark.parametrize(("headers", "body", "endpoint", "reason"), PRECEDENCE, ids=[p[3] for p in PRECEDENCE])
def test_classification_is_asked_for_when_the_client_named_it(
    headers: list[tuple[str, str]], body: dict[str, Any], endpoint: Endpoint, reason: str
) -> None:
    assert classify(headers, body, endpoint, FULL).is_asked_for is (reason not in ("rule 0", "default"))


@pytest.mark.parametrize("default", PriorityClass)
def test_classify_gives_the_default_when_nothing_else_holds(default: PriorityClass) -> None:
    settings = ClassificationSettings(default_class=default)
    assert classify([], {}, Endpoint.CHAT, settings) == Classification(default, "default")


@pytest.mark.parametrize(
    ("rule", "body", "endpoint", "holds"),
    [
        ({"endpoint": "chat"}, {}, Endpoint.CHAT, True),
        ({"endpoint": "chat"}, {}, Endpoint.COMPLETION, False),
        ({"streamed": True}, {"stream": True}, Endpoint.CHAT, True),
        ({"streamed": True}, {"stream": False}, Endpoint.CHAT, False),
        ({"streamed": True}, {}, Endpoint.CHAT, False),
        ({"streamed": False}, {}, Endpoint.CHAT, True),
        ({"streamed": False}, {"stream": None}, Endpoint.CHAT, True),
        ({"streamed": False}, {"stream": True}, Endpoint.CHAT, False),
        ({"min_max_tokens": 1000}, {"max_tokens": 1000}, Endpoint.CHAT, True),
        ({"min_max_tokens": 1000}, {"max_tokens": 999}, Endpoint.CHAT, False),
        ({"min_max_tokens": 1000}, {"max_completion_tokens": 1000}, Endpoint.CHAT, True),
        ({"min_max_tokens": 1000}, {"max_completion_tokens": 5, "max_tokens": 9999}, Endpoint.CHAT, False),
        ({"min_max_tokens": 1000}, {"max_completion_tokens": None, "max_tokens": 9999}, Endpoint.CHAT, True),
        ({"min_max_tokens": 1000}, {"max_tokens": "9999"}, Endpoint.CHAT, False),
        ({"min_max_tokens": 1000}, {"max_tokens": None}, Endpoint.CHAT, False),
        ({"min_max_tokens": 1000}, {}, Endpoint.CHAT, False),
        ({"min_max_tokens": 9, "endpoint": "chat", "streamed": False}, {"max_tokens": 9}, Endpoint.CHAT, True),
        ({"min_max_tokens": 9, "endpoint": "chat", "streamed": True}, {"max_tokens": 9}, Endpoint.CHAT, False),
        ({"min_max_tokens": 9, "endpoint": "chat", "streamed": False}, {"max_tokens": 8}, Endpoint.CHAT, False),
    ],
)
def test_classify_applies_a_rule_when_every_condition_holds(
    rule: dict[str, Any], body: dict[str, Any], endpoint: Endpoint, holds: bool
) -> None:
    expected = (P2, "rule 0") if holds else (P1, "default")
    assert of([], body, rules({"priority": "P2", **rule}), endpoint) == expected


def test_classify_applies_the_first_rule_that_holds() -> None:
    settings = rules(
        {"priority": "P2", "endpoint": "completion"},
        {"priority": "P0", "streamed": True},
        {"priority": "P1", "streamed": True},
    )
    assert of([], {"stream": True}, settings) == (P0, "rule 1")


NAMES = (
    st.sampled_from(["x-priority", "X_PRIORITY", "x-objective", "X_Team", "priority", "x-vllm-priority"]) | st.text()
)
VALUES = st.sampled_from(["P0", "batch", "chat", "red", "u=1", ""]) | st.text()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["flex", "auto"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)
BODIES = st.dictionaries(
    st.sampled_from(["service_tier", "stream", "max_tokens", "max_completion_tokens", "model"]) | st.text(), JSON_VALUES
)


@settings(derandomize=True, deadline=None, database=None, max_examples=300)
@given(
    headers=st.lists(st.tuples(NAMES, VALUES), max_size=4),
    body=BODIES,
    endpoint=st.sampled_from(Endpoint),
    classification=st.sampled_from([DEFAULTS, FULL, rules({"priority": "P0", "min_max_tokens": 5, "streamed": True})]),
)
def test_classify_gives_a_class_or_rejects_whatever_comes(
    headers: list[tuple[str, str]],
    body: dict[str, Any],
    endpoint: Endpoint,
    classification: ClassificationSettings,
) -> None:
    try:
        decided = classify(headers, body, endpoint, classification)
    except Rejected:
        return
    assert decided.priority in PriorityClass
    assert re.fullmatch(r"header [a-z-]+|service_tier|rule \d+|default", decided.reason)

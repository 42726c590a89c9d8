import json
from typing import Any

from bench.scenario import Endpoint
from bench.scenario_file import parse_scenario
from bench.words import Piece
from bench.workload import Arrival, Ask, endpoint_of, payload_of


def body(ask: Ask, *, salt: int = 0, class_body: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    spec = {"name": "a", "rate": 1, "body": class_body or {}}
    scenario = parse_scenario({"classes": [spec], **values})
    document: dict[str, Any] = json.loads(payload_of(Arrival(0, scenario.classes[0], ask), scenario, "m", salt))
    return document


def test_payload_is_a_streamed_chat_with_usage() -> None:
    sent = body(Ask((Piece(1, 5),), output_tokens=9))
    (message,) = sent.pop("messages")
    assert message["role"] == "user"
    assert len(message["content"].split()) == 5
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert sent == {"model": "m", "max_tokens": 9, "temperature": 0, **options}


def test_payload_has_a_prompt_when_the_endpoint_is_completions() -> None:
    sent = body(Ask((Piece(1, 5),)), endpoint="completions")
    assert len(sent["prompt"].split()) == 5
    assert "messages" not in sent
    assert "max_tokens" not in sent


def test_payload_differs_with_the_salt() -> None:
    ask = Ask((Piece(1, 20),))
    assert body(ask, salt=1)["messages"] != body(ask, salt=2)["messages"]
    assert body(ask, salt=1) == body(ask, salt=1)


def test_payload_takes_the_classs_fields_before_the_scenarios_before_the_sources() -> None:
    ask = Ask(body={"prompt": "p", "model": "other", "stream": False, "top_p": 1, "n": 2, "temperature": 3})
    sent = body(ask, class_body={"top_p": 0.5}, body={"top_p": 0.7, "n": 4})
    assert (sent["top_p"], sent["n"], sent["temperature"]) == (0.5, 4, 3)
    assert (sent["model"], sent["stream"]) == ("m", True)


def test_source_may_name_its_endpoint() -> None:
    scenario = parse_scenario({"classes": [{"name": "a", "rate": 1}]})
    spec = scenario.classes[0]
    assert endpoint_of(Arrival(0, spec, Ask()), scenario) is Endpoint.CHAT
    assert endpoint_of(Arrival(0, spec, Ask(endpoint=Endpoint.COMPLETIONS)), scenario) is Endpoint.COMPLETIONS


def test_ask_knows_its_length_when_its_prompt_is_made() -> None:
    assert Ask((Piece(1, 5), Piece(2, 7))).prompt_tokens == 12
    assert Ask(body={"prompt": "p"}).prompt_tokens is None

from __future__ import annotations

import json

from batch.results import answered, expired, line_id
from slo.batch import LineAnswer


def test_answer_has_openais_form_on_one_line() -> None:
    body = '{"id": "x",\n "text": "a\\nb"}'
    told = answered("batch_req_1_2", 'my "own"', LineAnswer(200, body, None, 1))
    assert told.count(b"\n") == 1
    assert json.loads(told) == {
        "id": "batch_req_1_2",
        "custom_id": 'my "own"',
        "response": {"status_code": 200, "request_id": "batch_req_1_2", "body": {"id": "x", "text": "a\nb"}},
        "error": None,
    }


def test_line_separators_of_unicode_in_an_answer_stay_what_they_are() -> None:
    body = json.dumps({"text": "a\u2028b\x85c\x0bd"}, ensure_ascii=False)
    told = answered("r", "a", LineAnswer(200, body, None, 1))
    assert json.loads(told)["response"]["body"]["text"] == "a\u2028b\x85c\x0bd"


def test_expired_line_has_an_error_and_no_response() -> None:
    told = json.loads(expired("batch_req_1_2", "a"))
    assert (told["response"], told["error"]["code"]) == (None, "batch_expired")


def test_line_id_is_the_same_each_time_and_a_sane_request_id() -> None:
    assert line_id("batch_0af", 7) == "batch_req_0af_7"

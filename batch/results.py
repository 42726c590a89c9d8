"""Lines of output and error files, in OpenAI's form. Pure."""

from __future__ import annotations

import json
from typing import Final

from slo.batch import LineAnswer

EXPIRED: Final = {
    "code": "batch_expired",
    "message": "The completion window was over before this request had run.",
}


def line_id(batch_id: str, number: int) -> str:
    """Of one line: the same, however often it is run. It is in the ingress's log too."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


def answered(request_id: str, custom_id: str, answer: LineAnswer) -> bytes:
    """The line for an answer, good or bad."""
    head = json.dumps({"id": request_id, "custom_id": custom_id})
    request = json.dumps({"status_code": answer.status, "request_id": request_id})
    body = answer.body.replace("\n", " ")  # JSON: a line end in it is only for the eye
    return f'{head[:-1]}, "response": {request[:-1]}, "body": {body}}}, "error": null}}\n'.encode()


def expired(request_id: str, custom_id: str) -> bytes:
    """The line for one that has not run in time."""
    return f"{json.dumps({'id': request_id, 'custom_id': custom_id, 'response': None, 'error': EXPIRED})}\n".encode()

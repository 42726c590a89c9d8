"""The application against its own OpenAPI document: what schemathesis makes of that, good requests and bad ones.

A dispatcher answers them all, so this is about the ingress; vLLM's own checks are met in tests/e2e.

Mutations that these tests see: a status or a header that the document leaves out; another content type; an answer in
another shape; a method that is let through; a route without its key; an exception on the way.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi import checks

from app.gate.access import Access
from app.gate.entry import Entry
from app.gate.keys import KeyStore, hash_key, new_key
from app.gate.tenant import Tenant
from app.openapi import OPENAPI_PATH
from slo.priority import PriorityClass
from slo.settings import parse_settings
from tests.app.answering_dispatcher import MODEL, AnsweringDispatcher
from tests.app.one_model import api_of_one
from tests.app.owned_batches import OwnedBatches
from tests.app.test_operator import FakeOperator

KEY, WRONG_KEY, OPERATOR_KEY = new_key(), new_key(), new_key()
KEYS = KeyStore([(hash_key(KEY), Tenant("chat", PriorityClass.P1, above_class="refuse"))])
MAPPED = {"headers": [{"header": "X-Objective", "values": {"chat": "P0", "nightly": "P2"}}]}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    checks.allow_header_conformance,
]


DIRECTORY = Path(tempfile.mkdtemp(prefix="xl", dir="/tmp"))
atexit.register(shutil.rmtree, DIRECTORY)  # also where this file was collected, and none of its tests chosen
OPENED: list[OwnedBatches] = []


@pytest.fixture(scope="module", autouse=True)
def batches_are_closed() -> Iterator[None]:
    """The databases of files and batches are made at import, as the schemas are."""
    yield
    for batches in OPENED:
        batches.close()


def schema_of(dispatcher: AnsweringDispatcher, tenants: dict[str, Any], access: Access) -> Any:
    values = {"classification": MAPPED, "tenants": tenants, "ingress": {"max_body_bytes": 10_000}}
    settings = parse_settings(values)
    batches = OwnedBatches(DIRECTORY / str(len(OPENED)), settings)
    entry = Entry(settings, access)
    app = api_of_one(dispatcher, settings, (MODEL,), operator=FakeOperator(), entry=entry, batches=batches)
    OPENED.append(batches)
    return schemathesis.openapi.from_asgi(OPENAPI_PATH, app)


OPEN_DISPATCHER, KEYED_DISPATCHER = AnsweringDispatcher(), AnsweringDispatcher()
OPEN = schema_of(OPEN_DISPATCHER, {}, Access(None))
KEYED = schema_of(
    KEYED_DISPATCHER,
    {"keys_file": "/never/read.yaml", "operator_key_sha256": hash_key(OPERATOR_KEY)},
    Access(lambda: KEYS),
)


@OPEN.hook
@KEYED.hook
def map_body(_: Any, body: Any) -> Any:
    """More of the bodies lead to an answer: of random names of models, none would."""
    if not isinstance(body, dict):
        return body
    chosen: dict[str, Any] = {}
    if isinstance(body.get("model"), str) and len(body["model"]) % 2 == 0:
        chosen["model"] = MODEL
    if len(body) % 2 == 0:
        chosen["stream"] = True
    return body | chosen


many: Callable[..., Any] = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@OPEN.parametrize()
@many
def test_open_application_does_as_its_document_says(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


@KEYED.parametrize()
@many
def test_keyed_application_does_as_its_document_says(case: schemathesis.Case, caplog: pytest.LogCaptureFixture) -> None:
    key = OPERATOR_KEY if "operators" in (case.operation.tags or ()) else KEY
    with caplog.at_level(logging.DEBUG):
        case.call_and_validate(checks=CHECKS, headers={"Authorization": f"Bearer {WRONG_KEY}"})
        case.call_and_validate(checks=[*CHECKS, checks.ignored_auth], headers={"Authorization": f"Bearer {key}"})
    for secret in (KEY, WRONG_KEY, OPERATOR_KEY):
        assert secret not in caplog.text
        assert hash_key(secret)[:16] not in caplog.text


def test_requests_that_were_made_were_also_answered() -> None:
    """What comes before must not have been all refusals."""
    for dispatcher in (OPEN_DISPATCHER, KEYED_DISPATCHER):
        assert all(number > 10 for number in dispatcher.num_answered.values()), dispatcher.num_answered

"""docs/api.md tells of every route, error code and header that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import to_http
from app.gate.access import LOWERED_FROM_HEADER
from app.openapi import CLASS_HEADER, OPENAPI_PATH
from app.request_id import REQUEST_ID_HEADER
from cli import haproxy
from slo.errors import ServingError
from slo.settings.classification import PRIORITY_HEADER
from tests.app.every_error import ERRORS
from tests.app.test_openapi import document

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def test_page_tells_of_every_route() -> None:
    told = {f"{method.upper()} {path}" for path, methods in document()["paths"].items() for method in methods}
    assert OPENAPI_PATH in " ".join(told)
    assert {route for route in told if f"`{route}`" not in PAGE} == set()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(to_http(error).body["error"]["code"]))
def test_page_tells_of_every_error(error: ServingError) -> None:
    http = to_http(error)
    code = http.body["error"]["code"]
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| {http.status} |")]
    assert any((f"`{code}`" if code else "none") in row for row in rows)


def test_page_tells_of_haproxys_own_error() -> None:
    assert f"`{haproxy.ERROR['code']}`" in PAGE


@pytest.mark.parametrize("header", [PRIORITY_HEADER, REQUEST_ID_HEADER, CLASS_HEADER, LOWERED_FROM_HEADER])
def test_page_tells_of_every_header(header: str) -> None:
    assert f"`{header}`" in PAGE.lower()

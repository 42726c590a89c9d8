"""The page under the policy that it is served with, and data that would like to be markup.

Mutations tried by hand, each seen to fail here: a text set by `innerHTML` or by a fragment made of text; an `onclick`
attribute; a `style` attribute in the file or set by the script; an image, likewise; a second script; a word to the
console; an error after drawing.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from app.operator import STATUS_PAGE
from slo.status import StatusReport
from tests.app.status_page.browser import Page
from tests.app.status_page.conftest import OpenPage
from tests.app.status_page.page_server import Answer, PageServer
from tests.app.status_page.reports import status_report

MARKUP = '<img src=x onerror="window.ran = true"><script>window.ran = true</script>&amp;\'"><style>*{color:red}</style>'


NUM_NOT_SHOWN = 4
"""The message of the sample's alert that cleared; as one model is served, its name in the list and at both alerts."""


class Outline(HTMLParser):
    """The tags of the file and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def outline() -> Outline:
    outline = Outline()
    outline.feed(STATUS_PAGE.read_text())
    return outline


def with_markup(value: Any, is_state: bool = False) -> Any:
    """`value` as JSON with every text but an alert's state replaced by markup."""
    if isinstance(value, dict):
        return {key: with_markup(inner, key == "state") for key, inner in value.items()}
    if isinstance(value, list):
        return [with_markup(inner) for inner in value]
    return MARKUP if isinstance(value, str) and not is_state else value


def num_texts(value: Any) -> int:
    """How many texts of `value` are the markup."""
    return json.dumps(value).count(json.dumps(MARKUP)[1:-1])


def test_file_has_one_style_and_one_script_and_both_are_inline(outline: Outline) -> None:
    tags = [tag for tag, _ in outline.tags]
    assert (tags.count("style"), tags.count("script")) == (1, 1)
    assert [attributes for tag, attributes in outline.tags if tag == "script"] == [{"type": "module"}]


def test_file_has_no_inline_handler_no_style_attribute_and_loads_nothing(outline: Outline) -> None:
    names = {name for _, attributes in outline.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("style", "src", "srcset")}
    assert not {tag for tag, _ in outline.tags} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert re.findall(r"https?://|@import|url\(", STATUS_PAGE.read_text()) == []


def test_script_has_no_way_from_text_to_markup_or_code() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTML|DOMParser|\beval\b|new Function"
    assert re.findall(forbidden, STATUS_PAGE.read_text()) == []


def test_data_that_looks_like_markup_stays_text(open_at: OpenPage, server: PageServer) -> None:
    told = with_markup(status_report().model_dump(mode="json"))
    StatusReport.model_validate(told)
    server.answer = Answer(200, "application/json", json.dumps(told))
    page: Page = open_at(server)
    page.wait_for_text("Live", "header")
    page.refresh()
    num_shown = page.run("return document.querySelector('#page').textContent").count(MARKUP)
    assert num_shown == num_texts(told) - NUM_NOT_SHOWN
    assert page.run("return document.querySelectorAll('img, #page script, #page style').length") == 0
    assert page.run("return window.ran") is None
    assert page.run("return document.title").startswith(f"1 firing · {MARKUP}")
    assert f"{MARKUP}: {MARKUP}" in page.run("return document.querySelector('[role=alert]').textContent")


def test_error_message_that_looks_like_markup_stays_text(page: Page, server: PageServer) -> None:
    server.answer = Answer.refused(503, MARKUP)
    page.advance(2)
    page.wait_for_text("Controller away", "header")
    assert MARKUP in page.run("return document.querySelector('.notice').textContent")
    assert page.run("return document.querySelectorAll('img').length") == 0
    assert page.run("return window.ran") is None


def test_page_works_under_its_policy_and_says_nothing_to_the_console(page: Page, server: PageServer) -> None:
    for mode in ("dry_run", "off"):
        server.answer = Answer.of(status_report(mode=mode))
        page.refresh()
    assert page.violations == []
    assert page.console() == []
    assert server.strangers == []


@pytest.mark.parametrize(
    ("script", "directive"),
    [
        ("document.body.setAttribute('style', 'color: red')", "style-src-attr"),
        (
            "document.body.append(Object.assign(document.createElement('style'), { textContent: '*{}' }))",
            "style-src-elem",
        ),
        ("document.body.append(Object.assign(new Image(), { src: 'http://127.0.0.1:9/x.png' }))", "img-src"),
        ("try { document.body.innerHTML = '<p>' } catch {}", "require-trusted-types-for"),
        ("fetch('http://localhost:9/').catch(() => {})", "connect-src"),
    ],
)
def test_policy_that_the_tests_serve_refuses(script: str, directive: str, page: Page) -> None:
    page.run(script)
    page.wait_until(lambda: page.violations, "waited for the violation")
    assert page.violations == [directive]
    page.run("violations.length = 0")
    page.console()

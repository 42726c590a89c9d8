import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.measure import figures_of
from bench.report import page_of, write_report
from bench.result import Measured, Result
from bench.run import Run
from slo.outcome import Outcome
from tests.bench.answers import answers, reply, run, scenario

TOLD = run(answers(reply(0, 0.1, 0.12), reply(1, outcome=Outcome.SHED, error="<b>full</b>")))
PNG = b"\x89PNG\r\n\x1a\n"


def result(*runs: Run, name: str = "load") -> Result:
    measured = tuple(Measured(i + 1, told, figures_of(told, scenario())) for i, told in enumerate(runs))
    return Result(scenario(name=name), "m<o>del", 7, measured)


class Tags(HTMLParser):
    """What a page refers to, and which tags it opens."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.sources: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.sources += [value or "" for key, value in attrs if key in ("src", "href")]


def test_page_needs_nothing_beside_it() -> None:
    tags = Tags(page_of(result(TOLD), PNG))
    assert [source.split(",")[0] for source in tags.sources] == ["data:image/png;base64"]
    assert not {"script", "link"} & set(tags.opened)


def test_page_escapes_what_comes_from_outside() -> None:
    page = page_of(result(TOLD, name="<script>"), PNG)
    assert "<script" not in page
    assert "<b>" not in page
    assert "m&lt;o&gt;del" in page
    assert "&lt;b&gt;full&lt;/b&gt;" in page


def test_page_escapes_the_names_of_classes() -> None:
    mix = scenario({"name": "<i>", "rate": 1})
    page = page_of(Result(mix, "m", 1, (Measured(1, TOLD, figures_of(TOLD, mix)),)), PNG)
    assert "<i>" not in page
    assert "<td>&lt;i&gt;</td>" in page


def test_page_shows_the_classes_and_the_scenario_and_of_several_runs_all() -> None:
    one, two = page_of(result(TOLD), PNG), page_of(result(TOLD, TOLD), PNG)
    assert re.search(r"<td>a</td><td>2</td><td>1</td><td>1</td>", one)
    assert "duration_s: 60" in one
    assert "seed 7" in one
    assert "All rates" not in one
    assert "All rates" in two


def test_page_begins_with_the_warning_when_the_generator_was_late() -> None:
    page = page_of(result(run(answers(reply(0, 0.1)), loop_lags_s=(1.0,))), PNG)
    assert page.index("DID NOT KEEP UP") < page.index("<img")
    assert 'class="warning"' not in page_of(result(TOLD), PNG)


@pytest.mark.parametrize(("name", "begin"), [("r.png", PNG), ("r.PNG", PNG), ("r.html", b"<!doctype html>")])
def test_report_is_a_picture_or_a_page_by_its_name(tmp_path: Path, name: str, begin: bytes) -> None:
    write_report(result(TOLD), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)

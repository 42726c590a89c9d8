"""The page on small and large screens, light and dark, and for who does not see it.

Mutations tried by hand, each seen to fail here: words that do not break; cells side by side on a phone; the viewport
left out; a quieter grey; no dark colours; a table's caption, scope or roles left out; a meter that is read out; the
words `met` and `missed` left out.
"""

from __future__ import annotations

import pytest

from slo.status import StatusReport
from tests.app.status_page.browser import Page
from tests.app.status_page.page_server import Answer, PageServer
from tests.app.status_page.reports import longest_report, status_report, unknown_report

REPORTS = {"busy": status_report(), "unknown": unknown_report(), "longest": longest_report()}

# Elements that reach beyond the section that they are in, or beyond the screen.
OVERFLOWING = """
const box = (e) => e.closest('section, header, footer');
const edge = (e) => (box(e) && box(e) !== e ? box(e) : document.body);
return [...document.querySelectorAll('#page *')].filter((e) => {
  const [inner, outer] = [e.getBoundingClientRect(), edge(e).getBoundingClientRect()];
  return inner.width && (inner.right > outer.right + 0.5 || inner.left < outer.left - 0.5);
}).map((e) => `${e.tagName} ${e.textContent.slice(0, 40)}`);
"""

# Two cells of a table that lie over each other: a text wider than its column.
COLLIDING = """
const text = (e) => { const range = document.createRange(); range.selectNodeContents(e); return range; };
const boxes = (row) => [...row.cells].map((cell) => text(cell).getBoundingClientRect()).filter((box) => box.width);
const apart = (a, b) => a.left >= b.right - 0.5 || a.top >= b.bottom - 0.5;
const collide = (a, b) => !apart(a, b) && !apart(b, a);
return [...document.querySelectorAll('tr')].filter((row) => boxes(row).some((a, i) =>
  boxes(row).some((b, j) => i < j && collide(a, b)))).map((row) => row.innerText);
"""

# The lowest contrast of a text with what is behind it, by WCAG 2's formula, and the text.
LOWEST_CONTRAST = """
const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number);
const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const behind = (e) => {
  for (let at = e; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour.length === 3) return colour;
  }
  return rgb(getComputedStyle(document.body).backgroundColor);
};
const contrast = (e) => {
  const [a, b] = [luminance(rgb(getComputedStyle(e).color)), luminance(behind(e))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const own = (e) => [...e.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
return [...document.querySelectorAll('#page *')].filter(own).map((e) => [contrast(e), e.textContent.slice(0, 40)])
  .sort((a, b) => a[0] - b[0])[0];
"""
MIN_CONTRAST = 4.5
"""Of text of any size (WCAG 2.2, 1.4.3, level AA)."""


def show(page: Page, server: PageServer, report: StatusReport, is_away: bool = False) -> None:
    server.answer = Answer.of(report)
    page.refresh()
    if is_away:
        server.answer = Answer.refused(503, "unbreakable" * 20)
        page.advance(2)
        page.wait_for_text("Controller away", "header")


@pytest.mark.parametrize("is_away", [False, True], ids=["live", "away"])
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_nothing_scrolls_sideways_or_leaves_its_box(
    report: StatusReport, is_away: bool, page: Page, server: PageServer
) -> None:
    show(page, server, report, is_away)
    for width in (320, 360, 414, 768, 895, 896, 1200, 1920):
        page.resize(width)
        assert page.run("return innerWidth") == width
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert page.run(OVERFLOWING) == [], width
        assert page.run(COLLIDING) == [], width


def test_phone_text_is_not_small(page: Page) -> None:
    page.resize(360)
    sizes = page.run("return [...document.querySelectorAll('#page *')].map((e) => getComputedStyle(e).fontSize)")
    assert min(float(size.removesuffix("px")) for size in sizes) >= 12


@pytest.mark.parametrize("is_away", [False, True], ids=["live", "away"])
@pytest.mark.parametrize("report", [REPORTS["busy"], REPORTS["longest"]], ids=["busy", "longest"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out(
    scheme: str, report: StatusReport, is_away: bool, page: Page, server: PageServer
) -> None:
    page.prefer(scheme)
    show(page, server, report, is_away)
    contrast, text = page.run(LOWEST_CONTRAST)
    assert contrast >= MIN_CONTRAST, text


def test_colours_follow_the_users_scheme(page: Page) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.prefer("dark")
    dark = page.run(ground)
    assert (light, dark) == ("rgb(246, 247, 248)", "rgb(14, 18, 21)")
    assert page.run("return matchMedia('(prefers-color-scheme: dark)').matches") is True


@pytest.mark.parametrize("width", [360, 1200])
def test_tables_are_tables_to_a_screen_reader(width: int, page: Page) -> None:
    page.resize(width)
    tables = page.all("table")
    assert [table.aria_role for table in tables] == ["table"] * 3
    assert [table.accessible_name for table in tables] == page.texts("caption")
    assert {cell.aria_role for cell in page.all("thead th")} == {"columnheader"}
    assert {cell.aria_role for cell in page.all("tbody th")} == {"rowheader"}
    assert {row.aria_role for row in page.all("tr")} == {"row"}
    assert {cell.aria_role for cell in page.all("td")} == {"cell"}
    # Said in the markup too: Chromium keeps the roles of a table whose `display` changes, other browsers do not.
    assert page.run("return document.querySelectorAll(':is(table, thead, tbody, tr, th, td):not([role])').length") == 0
    assert {cell.get_dom_attribute("scope") for cell in page.all("thead th")} == {"col"}
    assert {cell.get_dom_attribute("scope") for cell in page.all("tbody th")} == {"row"}


def test_regions_have_names_and_headings_have_an_order(page: Page) -> None:
    names = [region.accessible_name for region in page.all("section")]
    assert names == ["Alerts", "Classes", "Replicas", "Engines", "Scaling decisions", "Each replica"]
    assert [heading.tag_name for heading in page.all("h1, h2, h3")] == ["h1", *["h2"] * 6]
    assert page.run("return document.documentElement.lang") == "en"
    ids = page.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_states_are_told_in_words_as_well_as_in_colour(page: Page) -> None:
    coloured = page.texts("#page .good, #page .bad, #page .warn")
    assert coloured == ["Live", "1 firing", "firing", "met", "met", "met", "missed"]


def test_live_regions_are_there_before_they_speak(page: Page) -> None:
    assert page.run("return [...document.body.children].slice(0, 2).map((e) => e.getAttribute('role'))") == [
        "alert",
        "status",
    ]


def test_meters_are_not_read_out_beside_their_numbers(page: Page) -> None:
    assert {meter.get_dom_attribute("aria-hidden") for meter in page.all("meter")} == {"true"}

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from slo.status import StatusReport
from tests.app.status_page.browser import CLOCK, INSTRUMENTS, Page, open_page, start_browser
from tests.app.status_page.page_server import Answer, PageServer
from tests.app.status_page.reports import status_report


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    profile: Path = tmp_path_factory.mktemp("chromium")
    driver = start_browser(profile)
    yield driver
    driver.quit()


@pytest.fixture
def server() -> Iterator[PageServer]:
    server = PageServer(Answer.of(status_report()))
    yield server
    server.may_answer.set()
    server.stop()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_at(driver: Chrome) -> Iterator[OpenPage]:
    """Opens the page of a server; afterwards, whatever the test did, nothing was refused and nothing failed in it."""
    opened: list[Page] = []

    def open_at(server: PageServer, clock: str = CLOCK) -> Page:
        driver.get_log("browser")  # what the last page left
        opened.append(open_page(driver, server.url, INSTRUMENTS + clock))
        return opened[-1]

    yield open_at
    for page in opened:
        assert page.violations == []
        assert [entry for entry in page.console() if entry["source"] != "network"] == []
    driver.get("about:blank")


def show(open_at: OpenPage, server: PageServer, report: StatusReport) -> Page:
    """Opens the page with `report`."""
    server.answer = Answer.of(report)
    page: Page = open_at(server)
    page.wait_for_text("Live", "header")
    return page


@pytest.fixture
def page(open_at: OpenPage, server: PageServer) -> Page:
    """The page with the sample report, on a clock that stands still."""
    page = open_at(server)
    page.wait_for_text("Live", "header")
    return page

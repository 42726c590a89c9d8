"""Makes docs/images/status.png: `python -m tests.app.status_page.screenshot`. The numbers are those of reports.py.

With a directory as argument it writes there the page as a desktop and a phone show it, light and dark, to look at.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from tests.app.status_page.browser import CLOCK, REFRESH_S, Page, open_page, start_browser
from tests.app.status_page.page_server import Answer, PageServer
from tests.app.status_page.reports import longest_report, status_report, unknown_report

README_IMAGE = Path(__file__).parents[3] / "docs" / "images" / "status.png"


def capture(page: Page, path: Path) -> None:
    """The whole page, as high as it is."""
    shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, **whole(page)})
    path.write_bytes(base64.b64decode(shot["data"]))


def whole(page: Page) -> dict[str, object]:
    width, height = page.run("const e = document.documentElement; return [innerWidth, e.offsetHeight]")
    return {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}


def gallery(page: Page, server: PageServer, folder: Path) -> None:
    """Every report at both sizes, in both schemes; and the page without its controller."""
    reports = {"busy": status_report(), "unknown": unknown_report(), "longest": longest_report()}
    answers = {name: Answer.of(report) for name, report in reports.items()}
    answers["away"] = Answer.refused(503, "the controller does not answer")
    for name, answer in answers.items():
        server.answer = answer
        page.advance(REFRESH_S)
        page.wait_for_text("Controller away" if name == "away" else "updated 0 s ago", "header")
        for width in (1200, 360):
            for scheme in ("light", "dark"):
                page.resize(width, scale=2 if width == 360 else 1)
                page.prefer(scheme)
                capture(page, folder / f"{name}-{width}-{scheme}.png")


def main() -> None:
    """See the module."""
    server = PageServer(Answer.of(status_report()))
    with tempfile.TemporaryDirectory(dir="/tmp") as profile:
        driver = start_browser(Path(profile))
        try:
            page = open_page(driver, server.url, CLOCK)
            page.wait_for_text("Live", "header")
            if len(sys.argv) > 1:
                gallery(page, server, Path(sys.argv[1]))
            else:
                page.resize(1200, scale=1.5)
                capture(page, README_IMAGE)
        finally:
            driver.quit()
            server.stop()


if __name__ == "__main__":
    main()

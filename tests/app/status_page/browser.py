"""Headless Chromium with the page in it, and a clock that the test moves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

WAIT_S = 30
"""For a condition that has to come; it comes in milliseconds."""
REFRESH_S = 2
"""The page asks so long after the last answer."""

# Runs before the page's script: time stands still until `clock.advance`, and what a policy refused is kept.
INSTRUMENTS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
"""
CLOCK = """
(() => {
  let [monotonicMs, asleepMs, lastId, timers] = [0, 0, 0, []];
  performance.now = () => monotonicMs;
  Date.now = () => 1.7e12 + monotonicMs + asleepMs;
  window.setTimeout = (act, ms) => (timers.push({ id: ++lastId, atMs: monotonicMs + ms, act }), lastId);
  window.clearTimeout = (id) => { timers = timers.filter((timer) => timer.id !== id); };
  const real = window.fetch;
  window.clock = {
    numFetches: 0,
    numTimers: () => timers.length,
    sleep(ms) { asleepMs += ms; },
    advance(ms) {
      const endMs = monotonicMs + ms;
      for (;;) {
        const due = timers.filter((timer) => timer.atMs <= endMs).sort((a, b) => a.atMs - b.atMs)[0];
        if (!due) break;
        clearTimeout(due.id);
        monotonicMs = due.atMs;
        due.act();
      }
      monotonicMs = endMs;
    },
  };
  window.fetch = (...args) => (++clock.numFetches, real(...args));
})();
"""


def required(command: str, package: str) -> str:
    """The path of `command`.

    Raises:
        RuntimeError: it is not installed. The tests of the page fail then: nothing else shows that the page works.
    """
    if path := shutil.which(command):
        return path
    raise RuntimeError(f"the tests of the status page need {command!r} (Debian package {package}, see requirements/)")


def start_browser(profile: Path) -> Chrome:
    """Chromium with `profile` (an empty directory) as its profile, its console kept."""
    options = ChromeOptions()
    options.binary_location = required("chromium", "chromium")
    for argument in ("--headless=new", f"--user-data-dir={profile}", "--window-size=1200,900", "--no-first-run"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=ChromeService(required("chromedriver", "chromium-driver")))


@dataclass(frozen=True, slots=True)
class Page:
    """The page in a browser, and what a test asks of it."""

    driver: Chrome

    def run(self, script: str, *arguments: object) -> Any:
        """What `script` returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The text of each element, as one line."""
        found = self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector)
        return [" ".join(text.split()) for text in found]

    def text(self, selector: str = "body") -> str:
        """The text of the one element."""
        (text,) = self.texts(selector)
        return text

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Until `condition` holds; for answers of the server, never for the page's clock."""
        WebDriverWait(self.driver, WAIT_S, poll_frequency=0.02).until(lambda _: condition(), what)

    def wait_for_text(self, text: str, selector: str = "#page") -> None:
        self.wait_until(lambda: text in self.text(selector), f"waited for {text!r} in {selector}")

    def advance(self, seconds: float) -> None:
        """Moves the page's clocks, and fires the timers that are due on the way."""
        self.run("clock.advance(arguments[0])", seconds * 1000)

    def refresh(self) -> None:
        """Lets the page ask again, and waits until it has taken the answer over."""
        self.advance(REFRESH_S)
        self.wait_for_text("updated 0 s ago", "header")

    def hide(self, is_hidden: bool) -> None:
        """Tells the page that it is hidden, or shown again, as a browser does when the user changes tabs."""
        self.run(
            "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'));",
            is_hidden,
        )

    @property
    def num_fetches(self) -> int:
        return int(self.run("return clock.numFetches"))

    @property
    def violations(self) -> list[str]:
        """The directives of the content security policy that something in the page broke."""
        return list(self.run("return violations"))

    def console(self) -> list[dict[str, Any]]:
        """What came to the console since it was last read: `source`, `level`, `message`."""
        return list(self.driver.get_log("browser"))

    def resize(self, width: int, height: int = 900, scale: float = 1) -> None:
        """The size of the viewport in CSS pixels; a phone's below 600 pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """The user's colour scheme, `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def open_page(driver: Chrome, url: str, instruments: str) -> Page:
    """Loads `url` afresh with `instruments` run before its script, on a light desktop."""
    page = Page(driver)
    page.resize(1200)
    page.prefer("light")
    command = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": instruments})
    try:
        driver.get(url)
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", command)
    return page

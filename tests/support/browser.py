"""A browser without a window, for the tests of the page."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

WAIT_S = 30.0  # for the page to show something
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
# Records what a policy refuses, and scripts of texts that run, from the beginning of each document.
WATCH = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.refused.push(event.violatedDirective + " " + event.blockedURI);
});
window.alert = window.confirm = window.prompt = () => { window.ran = true; };
"""


class Browser:
    """A page in Chromium, and what a person would do with it. Elements are named by CSS selectors."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page again, even if only the part after # differs."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.wait(lambda: self.all("body.is-ready"))

    def forget(self) -> None:
        """Forget what pages have stored."""
        origin = {"origin": "*", "storageTypes": "all"}
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", origin)
        if self.driver.current_url.startswith("http"):
            self.run("localStorage.clear(); sessionStorage.clear()")

    def resize(self, width: int, height: int = 800) -> None:
        facts = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", facts)

    def offline(self, is_offline: bool) -> None:
        self.driver.execute_cdp_cmd("Network.enable", {})
        facts = {"offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", facts)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Return the first element, when there is one that can be seen."""

        def shown() -> WebElement | None:
            return next((each for each in self.all(selector) if each.is_displayed()), None)

        found: WebElement = self.wait(shown, selector)
        return found

    def wait(self, condition: Callable[[], Any], what: object = "it", wait_s: float = WAIT_S) -> Any:
        """Return what `condition` returns, once that is true."""
        end = time.monotonic() + wait_s
        while True:
            try:
                if found := condition():
                    return found
            except StaleElementReferenceException:
                pass  # the page has changed: ask again
            if time.monotonic() > end:
                raise AssertionError(f"the page does not show {what}; it ends with {self.text('body')[-800:]!r}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        found: str = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return found

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText || e.textContent)", selector
        )
        return found

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def click(self, selector: str) -> None:
        """Click on an element, which may be drawn again meanwhile."""

        def clicked() -> bool:
            try:
                self.one(selector).click()
            except WebDriverException:
                return False
            return True

        self.wait(clicked, f"{selector}, to be clicked")

    def type(self, selector: str, *keys: str) -> None:
        self.one(selector).send_keys(*keys)

    def replace(self, selector: str, text: str) -> None:
        """Type a text in place of the one in a field."""
        self.type(selector, Keys.CONTROL + "a" + Keys.NULL, text)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is: all but the last are held."""
        *held, last = keys
        self.driver.switch_to.active_element.send_keys(*held, last)

    @property
    def focus(self) -> str:
        """The element with the focus, as a short selector."""
        found: str = self.run(
            "const e = document.activeElement; return e.id ? '#' + e.id : e.tagName + '.' + e.className"
        )
        return found

    @property
    def refused(self) -> list[str]:
        """Return what the policies of the page have refused since it was opened."""
        return list(self.run("return window.refused"))

    @property
    def has_run(self) -> bool:
        """True if a script of a text has run."""
        return bool(self.run("return window.ran || false"))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium with a new profile. Skips the test if there is none, or no driver of it."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with its chromedriver is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = program
        for option in (*OPTIONS, f"--user-data-dir={profile}", "--window-size=1280,800"):
            options.add_argument(option)
        browser = Chrome(options=options, service=Service(driver))
        try:
            browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
            yield Browser(browser)
        finally:
            browser.quit()


ENTER, ESCAPE = Keys.ENTER, Keys.ESCAPE

"""Headless Chromium over selenium: what the tests of the web page ask of it."""

from __future__ import annotations

import base64
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from selenium.webdriver.remote.webelement import WebElement


class Browser:
    """One browser; use it as a context manager."""

    def __init__(self, program: str, driver: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        # Root may not use the sandbox, and containers have little in /dev/shm.
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.driver.quit()

    def open(self, url: str) -> None:
        """Load a page."""
        self.driver.get(url)

    @property
    def path(self) -> str:
        """Path and query of the page that is shown."""
        return str(self.run("return location.pathname + location.search"))

    @property
    def text(self) -> str:
        """The text that is shown."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def wait_for(self, text: str) -> None:
        """Wait until the page shows a text."""
        wait_until(lambda: text in self.run("return document.body.innerText"), message=lambda: f"{text!r} in {self.text!r}")

    def find(self, css: str) -> WebElement:
        """Return the first element."""
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def click(self, css: str) -> None:
        """Click an element as a user does: it must be visible."""
        self.find(css).click()

    def run(self, script: str) -> Any:
        """Run a script on the page, and return what it returns."""
        return self.driver.execute_script(script)  # type: ignore[no-untyped-call]

    def look(self, *, scheme: str = "light", width: int = 1200, height: int = 760) -> None:
        """Show pages in light or dark, in a window of that size."""
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )  # fmt: skip

    def screenshot(self) -> bytes:
        """Return what is seen, as PNG."""
        return base64.b64decode(self._tell("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"])

    def complaints(self) -> list[str]:
        """Return what the browser has said in its console since the last call: errors of scripts, what the policy blocked."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in entries if entry["level"] in {"SEVERE", "WARNING"}]

    def _tell(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

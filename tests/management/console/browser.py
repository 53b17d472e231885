"""A browser, used as a person does: by the texts of buttons, links and fields."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from selenium import webdriver
from selenium.common.exceptions import ElementNotInteractableException, StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.command import Command
from selenium.webdriver.remote.webelement import WebElement

from tests.support.polling import wait_until

DESKTOP = (1360, 900)
PHONE = (390, 844)
# Seconds for the page to show something.
SHOWN_WITHIN = 20.0

# Visible elements that match a selector and whose text or label is the wanted one. The topmost dialog hides the rest.
_FIND = """
const [selector, text, exact] = arguments;
const root = document.querySelector("dialog[open]") ?? document;
const label = (element) => element.getAttribute("aria-label") ?? (element.innerText ?? element.textContent).trim();
return [...root.querySelectorAll(selector)].filter((element) => {
  const found = label(element);
  return element.checkVisibility({ visibilityProperty: true }) && (exact ? found === text : found.includes(text));
});
"""
_FIELD = """
const root = document.querySelector("dialog[open]") ?? document;
const [text] = arguments;
for (const element of root.querySelectorAll("input, select, textarea")) {
  const label = element.getAttribute("aria-label") ?? element.closest("label")?.querySelector("span")?.innerText;
  if (label?.trim().startsWith(text)) {
    return element;
  }
}
return null;
"""
_ROWS = """
const table = document.querySelector("main table");
const rows = [...(table?.tBodies[0].rows ?? [])].filter((row) => !row.matches(".spacer"));
return rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()));
"""
# Violations of the content security policy, which the page keeps from its first script on.
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
});
"""


def open_driver(downloads: Path) -> webdriver.Chrome:
    """Start Chromium. Skips the test if it is not installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("Chromium or its driver is not installed (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    arguments = [
        "--headless=new",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--force-color-profile=srgb",
        "--lang=en-US",
        # The console needs no other host.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--window-size={DESKTOP[0]},{DESKTOP[1]}",
    ]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    for argument in arguments:
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        opened = webdriver.Chrome(options=options, service=Service(driver))
    except WebDriverException as error:
        pytest.skip(f"Chromium does not start: {error.msg}")
    opened.set_page_load_timeout(SHOWN_WITHIN)
    opened.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
    return opened


class Console:
    """The console in a browser window.

    Args:
        driver: The browser.
        url: The address of the HTTP API.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.resize(DESKTOP)

    def use_phone(self) -> None:
        """Use a screen of a phone's size."""
        self.resize(PHONE)

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Set the colour scheme that the system prefers."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, *parts: str, **query: str) -> None:
        """Open a location, as from a bookmark."""
        target = "#/" + "/".join(quote(part, safe="") for part in parts) + (f"?{urlencode(query)}" if query else "")
        self.driver.get("about:blank")
        self.driver.get(self.url + target)

    def sign_in(self, name: str = "guest", password: str | None = None) -> None:
        """Fill in the sign-in form."""
        self.fill("User name", name)
        self.fill("Password", name if password is None else password)
        self.click("Sign in")

    def enter(self, *parts: str, **query: str) -> None:
        """Open a location as a user who has just signed in."""
        self.open(*parts, **query)
        self.sign_in()
        self.see_heading()

    def script(self, source: str, *arguments: object) -> Any:
        return self.driver.execute_script(source, *arguments)

    def find(self, selector: str, text: str, *, exact: bool = True) -> WebElement:
        """Wait for a visible element by its selector, and its text or label."""

        def found() -> WebElement | None:
            matching = self.script(_FIND, selector, text, exact)
            return matching[0] if matching else None

        return wait_until(found, lambda: f"no {selector} '{text}' in:\n{self.text()}", SHOWN_WITHIN)

    def click(self, text: str, selector: str = "button, a, [role=button]") -> None:
        """Click a button or a link."""

        def clicked() -> bool:
            try:
                self.find(selector, text).click()
            except (ElementNotInteractableException, StaleElementReferenceException):  # moving, or rendered again
                return False
            return True

        wait_until(clicked, f"cannot click '{text}'", SHOWN_WITHIN)

    def field(self, label: str) -> WebElement:
        def found() -> WebElement | None:
            element: WebElement | None = self.script(_FIELD, label)
            return element

        return wait_until(found, lambda: f"no field '{label}' in:\n{self.text()}", SHOWN_WITHIN)

    def fill(self, label: str, text: str) -> None:
        """Replace the content of a field."""
        element = self.field(label)
        element.clear()
        element.send_keys(text)

    def choose(self, label: str, option: str) -> None:
        """Choose an option of a field by its text."""
        self.field(label).find_element(By.XPATH, f".//option[contains(., '{option}')]").click()

    def press(self, *keys: str) -> None:
        """Press keys wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.script("return document.body.innerText"))

    def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        wait_until(lambda: text in self.text(), lambda: f"no '{text}' in:\n{self.text()}", SHOWN_WITHIN)

    def see_no(self, text: str) -> None:
        """Wait until the page does not show a text."""
        wait_until(lambda: text not in self.text(), lambda: f"'{text}' in:\n{self.text()}", SHOWN_WITHIN)

    def see_heading(self, text: str = "") -> None:
        """Wait for the heading of a view, and for its data."""

        def shown() -> bool:
            heading = self.script("return document.querySelector('main h1')?.innerText ?? ''")
            return bool(heading) and text in heading and "Loading" not in self.text()

        wait_until(shown, lambda: f"no heading '{text}' in:\n{self.text()}", SHOWN_WITHIN)

    def see_dialog(self, shown: bool = True) -> None:
        """Wait until a dialog is open, or until none is."""
        wait_until(lambda: self.script("return Boolean(document.querySelector('dialog[open]'))") is shown, "the dialog")

    def rows(self) -> list[list[str]]:
        """Return the texts of the rendered rows of the first table."""
        return list(self.script(_ROWS))

    def wait_for_rows(self, wanted: Callable[[list[list[str]]], bool]) -> list[list[str]]:
        """Wait until the rows of the first table are as wanted, and return them."""
        return wait_until(
            lambda: rows if wanted(rows := self.rows()) else None, lambda: f"rows: {self.rows()}", SHOWN_WITHIN
        )

    def overflows(self) -> bool:
        """Return whether the page is wider than the window."""
        return bool(self.script("return document.documentElement.scrollWidth > window.innerWidth"))

    def findings(self, axe: str) -> list[str]:
        """Return serious and critical findings of axe-core, whose source is `axe`."""
        self.script(axe)
        found = self.driver.execute_async_script(
            "const [done] = arguments;"
            "axe.run(document, {resultTypes: ['violations']}).then(({ violations }) => done(violations));"
        )
        return [
            f"{finding['id']}: {node['html'][:200]} {node['failureSummary']}"
            for finding in found
            for node in finding["nodes"]
            if finding["impact"] in ("serious", "critical")
        ]

    def problems(self) -> list[str]:
        """Return messages in the browser's console, and violations of the content security policy."""
        messages = [entry["message"] for entry in self.driver.execute(Command.GET_LOG, {"type": "browser"})["value"]]
        return [*messages, *(self.script("return window.violations") or [])]

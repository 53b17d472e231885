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
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.command import Command
from selenium.webdriver.remote.webelement import WebElement

from tests.support.polling import DEADLINE, wait_until

DESKTOP = (1360, 900)
PHONE = (390, 844)
# Seconds for the page to show something.
SHOWN_WITHIN = DEADLINE
# Elements that are moving, covered, rendered again, or not rendered yet.
NOT_READY = (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)

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
  if (label?.trim().startsWith(text) && element.checkVisibility({ visibilityProperty: true })) {
    return element;
  }
}
return null;
"""
# Elements that have a place in the page.
_RENDERED = """
return [...document.querySelectorAll(arguments[0])].filter((element) => element.getClientRects().length > 0);
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
    # The first of these has no user interface of its own, and needs a third less processor time.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
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
    opened.set_script_timeout(SHOWN_WITHIN)
    opened.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
    return opened


class Console:
    """The console in a browser window.

    Args:
        driver: The browser.
        url: The address of the HTTP API.

    Attributes:
        reported: The problems until the console was left.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self._messages: list[str] = []
        # The driver may be in a field of the login before the browser gives it the focus.
        self._expected = {"Autofocus processing was blocked because a document already has a focused element."}
        self.reported: list[str] = []
        self._has_left = False
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

    def see_result(self, expected: object, source: str) -> None:
        """Wait until a script returns a value."""
        wait_until(
            lambda: self.script(source) == expected,
            lambda: f"{self.script(source)!r}; expected {expected!r} of {source}",
            SHOWN_WITHIN,
        )

    def element(self, selector: str) -> WebElement:
        """Wait for the first element with a selector that has a place in the page."""

        def found() -> WebElement | None:
            matching = self.script(_RENDERED, selector)
            return matching[0] if matching else None

        return wait_until(found, lambda: f"no {selector} in:\n{self.text()}", SHOWN_WITHIN)

    def find(self, selector: str, text: str, *, exact: bool = True) -> WebElement:
        """Wait for a visible element by its selector, and its text or label."""

        def found() -> WebElement | None:
            matching = self.script(_FIND, selector, text, exact)
            return matching[0] if matching else None

        return wait_until(found, lambda: f"no {selector} '{text}' in:\n{self.text()}", SHOWN_WITHIN)

    def retry(self, action: Callable[[], object], what: str) -> None:
        """Repeat an action until its elements are ready for it."""

        def done() -> bool:
            try:
                action()
            except NOT_READY:
                return False
            return True

        wait_until(done, lambda: f"cannot {what} in:\n{self.text()}", SHOWN_WITHIN)

    def click(self, text: str, selector: str = "button, a, [role=button]", *, exact: bool = True) -> None:
        """Click a button or a link, as soon as it is enabled."""
        self.retry(lambda: self.see_enabled(text, selector, exact=exact).click(), f"click '{text}'")

    def click_in_row(self, row: str, button: str) -> None:
        """Click a button in the row of a table, both by a part of their texts."""
        path = f".//button[contains(., '{button}')]"
        self.retry(
            lambda: self.find("main tr", row, exact=False).find_element(By.XPATH, path).click(),
            f"click '{button}' in the row '{row}'",
        )

    def see_enabled(self, text: str, selector: str = "button", enabled: bool = True, *, exact: bool = True) -> WebElement:
        """Wait until a button is enabled, or until it is disabled."""

        def found() -> WebElement | None:
            try:
                element = self.find(selector, text, exact=exact)
                return element if element.is_enabled() is enabled else None
            except StaleElementReferenceException:
                return None

        state = "disabled" if enabled else "enabled"
        return wait_until(found, lambda: f"{selector} '{text}' is {state} in:\n{self.text()}", SHOWN_WITHIN)

    def field(self, label: str) -> WebElement:
        def found() -> WebElement | None:
            element: WebElement | None = self.script(_FIELD, label)
            return element

        return wait_until(found, lambda: f"no field '{label}' in:\n{self.text()}", SHOWN_WITHIN)

    def fill(self, label: str, text: str) -> None:
        """Replace the content of a field."""

        def typed() -> None:
            element = self.field(label)
            element.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
            if element.get_property("value"):
                raise ElementNotInteractableException("the field lost the focus before it was empty")
            element.send_keys(text)

        self.retry(typed, f"fill in '{label}'")

    def choose(self, label: str, option: str) -> None:
        """Choose an option of a field by its text."""
        path = f".//option[contains(., '{option}')]"
        self.retry(lambda: self.field(label).find_element(By.XPATH, path).click(), f"choose '{option}' of '{label}'")

    def check(self, label: str) -> None:
        """Click a checkbox."""
        self.retry(lambda: self.field(label).click(), f"click the field '{label}'")

    def see_value(self, label: str, part: str) -> None:
        """Wait until the content of a field has a part."""

        def content() -> str:
            try:
                return str(self.field(label).get_property("value"))
            except StaleElementReferenceException:
                return ""

        wait_until(lambda: part in content(), lambda: f"no '{part}' in the field '{label}': {content()}", SHOWN_WITHIN)

    def press(self, *keys: str) -> None:
        """Press keys wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.script("return document.body?.innerText ?? ''"))

    def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        wait_until(lambda: text in self.text(), lambda: f"no '{text}' in:\n{self.text()}", SHOWN_WITHIN)

    def see_no(self, text: str) -> None:
        """Wait until the page does not show a text."""
        wait_until(lambda: text not in self.text(), lambda: f"'{text}' in:\n{self.text()}", SHOWN_WITHIN)

    def location(self) -> str:
        """Return the address of the page."""
        return str(self.driver.current_url)

    def see_location(self, *parts: str) -> None:
        """Wait until the address of the page has all parts."""
        wait_until(lambda: all(part in self.location() for part in parts), self.location, SHOWN_WITHIN)

    def see_location_without(self, part: str) -> None:
        """Wait until the address of the page does not have a part."""
        wait_until(lambda: part not in self.location(), self.location, SHOWN_WITHIN)

    def see_heading(self, text: str = "") -> None:
        """Wait for the heading of a view, and for its data."""

        def shown() -> bool:
            # Not that of the sign-in form, which stays until the broker has answered.
            heading = self.script("return document.querySelector('main:not(.signin) h1')?.innerText ?? ''")
            return bool(heading) and text in heading and "Loading" not in self.text()

        wait_until(shown, lambda: f"no heading '{text}' in:\n{self.text()}", SHOWN_WITHIN)

    def see_dialog(self, shown: bool = True) -> None:
        """Wait until a dialog is open, or until none is."""
        self.see_result(shown, "return Boolean(document.querySelector('dialog[open]'))")

    def rows(self) -> list[list[str]]:
        """Return the texts of the rendered rows of the first table."""
        return list(self.script(_ROWS))

    def wait_for_rows(self, wanted: Callable[[list[list[str]]], bool]) -> list[list[str]]:
        """Wait until the rows of the first table are as wanted, and return them."""
        return wait_until(
            lambda: rows if wanted(rows := self.rows()) else None, lambda: f"rows: {self.rows()}", SHOWN_WITHIN
        )

    def see_fit(self) -> None:
        """Wait until the page is no wider than the window."""
        fits = "return document.documentElement.scrollWidth <= window.innerWidth"
        wait_until(lambda: self.script(fits), lambda: f"{self.location()} is wider than the window", SHOWN_WITHIN)

    def findings(self, axe: str, *rules: str) -> list[str]:
        """Return what axe-core finds, whose source is `axe`, by some of its rules or by all."""
        self.script(axe)
        found = self.driver.execute_async_script(
            "const [rules, done] = arguments;"
            "const options = { resultTypes: ['violations'], ...(rules.length && { runOnly: rules }) };"
            "axe.run(document, options).then(({ violations }) => done(violations));",
            rules,
        )
        return [
            f"{finding['id']}: {node['html'][:200]} {node['failureSummary']}"
            for finding in found
            for node in finding["nodes"]
        ]

    def see_problem(self, status: int) -> None:
        """Wait until the browser reports an answer with a status, which is no problem from now on."""
        self._expected.add(f"status of {status} ")
        wait_until(lambda: any(map(self._is_expected, self._read())), lambda: str(self._messages), SHOWN_WITHIN)

    def leave(self) -> None:
        """Leave the console, so that the end of the test changes nothing that it shows. Once it is left, do nothing.

        Notes unexpected messages in the browser's console, and violations of the content security policy.
        """
        if self._has_left:
            return  # another page reports that it has no icon
        self._has_left = True
        windows = self.driver.window_handles
        self.driver.switch_to.window(windows[-1])  # the test may have closed the current one
        self.reported += [message for message in self._read() if not self._is_expected(message)]
        for window in windows:
            self.driver.switch_to.window(window)
            self.reported += self.script("return window.violations") or []
            self.driver.get("about:blank")
        self.forget_problems()

    def forget_problems(self) -> None:
        """Drop the messages in the browser's console, such as those of other pages."""
        self._read().clear()

    def _is_expected(self, message: str) -> bool:
        return any(part in message for part in self._expected)

    def _read(self) -> list[str]:
        entries = self.driver.execute(Command.GET_LOG, {"type": "browser"})["value"]
        self._messages += [entry["message"] for entry in entries]
        return self._messages

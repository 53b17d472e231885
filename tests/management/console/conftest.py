"""Fixtures of tests of the web console in a real browser.

With LEVERET_SCREENSHOTS=docs/images, the tests write the pictures of the documentation there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

import pytest

from tests.management.http.brokers import USERS
from tests.management.http.client import HttpBroker
from tests.management.http.mail_server import MailServer
from tests.support import npm
from tests.support.broker import ROOT, LeveretProcess, basic_config, leveret_only
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.management.console.browser import Console

SOURCES = Path(__file__).parent
# Takes the name of a picture.
Screenshot: TypeAlias = Callable[[str], None]


# Tests in the browser that `make test` runs: those of signing in, of a queue from its growth to its end, and of stored
# scripts. The others are slow.
FIRST = ("test_sign_in_and_out", "test_from_a_growing_queue_to_its_end", "test_stored_scripts_are_inert")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == SOURCES and "console" in getattr(item, "fixturenames", ()) and item.name not in FIRST:
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Leave the console before fixtures delete what it shows."""
    try:
        yield
    finally:
        console = getattr(item, "funcargs", {}).get("console")
        if console is not None:
            console.leave()


@pytest.fixture(scope="session")
def mail_server() -> Iterator[MailServer]:
    """The mail server of the broker."""
    with MailServer() as started:
        yield started


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory, mail_server: MailServer) -> Iterator[HttpBroker]:
    """The API of the broker whose console the tests use."""
    pytest.importorskip("uvicorn", reason="the extra leveret[management] is not installed")
    leveret_only("the web console")
    directory = tmp_path_factory.mktemp("console")
    mail = f'[management.mail]\nhost = "127.0.0.1"\nport = {mail_server.port}\nsecurity = "none"\ninterval = 0\n'
    mail += 'sender = "leveret@example.com"\nrecipients = ["example.com"]\n'
    process = LeveretProcess(
        directory,
        config=basic_config() + USERS + "[management]\nport = 0\nrefused_logins = 0\n" + mail,
        environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
    )
    with process.start():
        yield HttpBroker(process)
        process.check_log()


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


def downloaded(path: Path) -> bytes:
    """Wait until the browser has saved a file, and return its content. Removes the file: the browser replaces none."""
    partial = path.with_name(f"{path.name}.crdownload")
    wait_until(
        lambda: path.exists() and path.stat().st_size > 0 and not partial.exists(),
        lambda: f"no {path.name} in {list(path.parent.iterdir())}",
    )
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture(scope="session")
def driver(downloads: Path) -> Iterator[Chrome]:
    pytest.importorskip("selenium", reason="selenium is not installed")
    from tests.management.console.browser import open_driver

    opened = open_driver(downloads)
    yield opened
    opened.quit()


def definitions(api: HttpBroker) -> list[str]:
    """Return the paths of what the broker has."""
    found = api.get("/definitions")
    kinds = ("queues", "exchanges", "policies", "topic_permissions", "vhosts", "users")
    paths = [path_of(kind.replace("_", "-"), item) for kind in kinds for item in found[kind]]
    parameters = [path_of(f"parameters/{item['component']}", item) for item in found["parameters"]]
    return [*paths, *parameters, *(path_of("operator-policies", item) for item in api.get("/operator-policies"))]


def path_of(kind: str, item: dict[str, str]) -> str:
    """Return the path of an object in the definitions."""
    parts = [item[key] for key in ("vhost", "name", "user") if key in item]
    return "/".join(["", kind, *(quote(part, safe="") for part in parts)])


@pytest.fixture
def console(driver: Chrome, api: HttpBroker) -> Iterator[Console]:
    """The console in a new window. The test fails if the browser reports an error.

    What the test declares is deleted, also if it fails.
    """
    from tests.management.console.browser import Console

    first = driver.current_window_handle
    before = definitions(api)
    driver.switch_to.new_window("window")
    opened = Console(driver, f"http://127.0.0.1:{api.port}/")
    opened.prefer("light")
    opened.forget_problems()
    yield opened
    opened.leave()
    driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": opened.url.rstrip("/"), "storageTypes": "all"})
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    for window in driver.window_handles:
        if window != first:
            driver.switch_to.window(window)
            driver.close()
    driver.switch_to.window(first)
    for path in definitions(api):
        if path not in before:
            api("DELETE", path)
    assert opened.reported == []


@pytest.fixture
def screenshot(console: Console) -> Screenshot:
    """Write a picture for the documentation, if the environment asks for it."""
    directory = os.environ.get("LEVERET_SCREENSHOTS")

    def write(name: str) -> None:
        if directory:
            console.find(".live", "Live")
            console.driver.save_screenshot(str(ROOT / directory / f"console-{name}.png"))

    return write


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, an npm package that checks accessibility."""
    return (npm.install(SOURCES, "console") / "axe-core" / "axe.min.js").read_text("utf-8")

"""amqp-client.js and rhea over WebSocket, on Node.js and in Chromium."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.docs.pages import blocks
from tests.interop.test_node import SOURCES, run
from tests.management.console.browser import open_driver
from tests.support.broker import ROOT, LeveretProcess, free_port, leveret_only
from tests.support.npm import install
from tests.support.polling import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def modules() -> Path:
    return install(SOURCES, "node")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Serve the files of a directory, and yield the origin of its pages."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, modules: Path) -> Path:
    """The directory of a site with both clients."""
    directory = tmp_path_factory.mktemp("site")
    shutil.copy(modules / "@cloudamqp/amqp-client/dist/amqp-websocket-client.mjs", directory)
    shutil.copy(modules / "rhea/dist/rhea.js", directory)
    return directory


@pytest.fixture(scope="module")
def origin(site: Path) -> Iterator[str]:
    with serving(site) as origin:
        yield origin


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "two shards"])
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, origin: str
) -> Iterator[LeveretProcess]:
    """A broker with a listener for WebSockets, which pages of `origin` may use."""
    leveret_only("it has the listener")
    environment = {
        "LEVERET_WEBSOCKET__ENABLED": "true",
        "LEVERET_WEBSOCKET__PORT": str(free_port()),
        "LEVERET_WEBSOCKET__ALLOWED_ORIGINS": origin,
        "LEVERET_CLUSTER__SHARDS": request.param,
    }
    with LeveretProcess(tmp_path_factory.mktemp("broker"), environment=environment) as broker:
        yield broker.start()
        broker.check_log()


def url_of(broker: LeveretProcess) -> str:
    return f"ws://127.0.0.1:{broker.environment['LEVERET_WEBSOCKET__PORT']}/ws"


def test_node(started: LeveretProcess, modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_WEBSOCKET", url_of(started))
    run(started, modules, "websocket.test.js")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    driver = open_driver(tmp_path_factory.mktemp("downloads"))
    yield driver
    driver.quit()


@pytest.mark.parametrize("example", [0, 1], ids=["amqp-client.js", "rhea"])
def test_the_pages_of_the_documentation(
    started: LeveretProcess, driver: Chrome, site: Path, origin: str, example: int
) -> None:
    page = blocks(ROOT / "docs/websocket.md", "html")[example].text
    local = "ws://localhost:15678/ws"
    assert local in page
    (site / "index.html").write_text(page.replace(local, url_of(started)))
    driver.get(f"{origin}/index.html")
    wait_until(lambda: shown(driver) == "a book", lambda: f"{shown(driver)!r}: {driver.page_source}")
    # The page goes, and with it its connection.
    driver.get("about:blank")


def shown(driver: Chrome) -> str:
    return str(driver.execute_script("return document.querySelector('#orders').innerText")).strip()


def test_a_page_of_another_origin(started: LeveretProcess, driver: Chrome, site: Path) -> None:
    (site / "index.html").write_text("<!doctype html><ul id='orders'></ul>")
    with serving(site) as other:
        driver.get(f"{other}/index.html")
        script = """
        const [url, done] = arguments;
        const socket = new WebSocket(url, "amqp");
        socket.onopen = () => done("open");
        socket.onclose = ({ code }) => done(code);
        """
        assert driver.execute_async_script(script, url_of(started)) == 1006
        started.wait_for_log(f"pages of the origin '{other}' may not connect")

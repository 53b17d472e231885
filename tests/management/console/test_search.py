"""Search in the message browser of the console, by selectors, values of JSON bodies and texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from leveret import sync
from tests.management.console.test_console import IMAGE, declare, delete, publish
from tests.management.http.client import HttpBroker

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


# Keeps the broker from answering requests for a count, so that a search lasts until it is cancelled.
_WITHOUT_COUNTS = """
window.real = window.fetch;
window.fetch = (url, options) => String(url).endsWith("/messages/count")
  ? new Promise((_, refuse) => options.signal.addEventListener("abort", () => refuse(options.signal.reason)))
  : window.real(url, options);
"""


@pytest.fixture
def orders(api: HttpBroker) -> Iterator[str]:
    """A queue with three messages."""
    declare(api, "searched")
    for number, color in enumerate(("red", "green", "blue")):
        publish(api, "searched", f'{{"order": {{"id": {number}}}}}', headers={"color": color, "weight": number})
    yield "searched"
    delete(api, "searched")


def test_a_long_search_shows_its_progress_and_is_cancelled(
    console: Console, api: HttpBroker, orders: str, axe: str
) -> None:
    with sync.connect(api.process.url()) as connection, connection.channel().publisher(routing_key=orders) as publisher:
        for number in range(30_000):
            publisher.publish(b"x", headers={"weight": 50 + number % 2})
    console.enter("queues", "/", orders, tab="messages")
    console.fill("Selector", "weight = 50")
    console.click("Search")
    console.see("50 messages of")
    console.script(_WITHOUT_COUNTS)
    console.click("Count all")
    console.see("found 50")
    assert console.findings(axe) == []
    console.click("Cancel search")
    console.see_no("Cancel search")
    console.script("window.fetch = window.real")
    console.fill("Selector", "weight = 51")
    console.click("Search")
    console.click("Count all")
    console.see("15,000 messages of 30,003 messages that were looked at, the first 50 shown")
    console.see_no("Count all")
    console.click("More")
    console.see("100 messages of")
    console.use_phone()
    console.see_fit()


def test_a_selector_and_a_value_in_json(console: Console, orders: str, axe: str) -> None:
    console.enter("queues", "/", orders, tab="messages")
    console.see("3 messages")
    console.fill("Selector", "color <> 'red' AND weight > 1")
    console.click("Search")
    console.see("1 message of 3 messages")
    console.see('"id": 2')
    assert console.findings(axe) == []
    console.driver.refresh()
    console.see("1 message of 3 messages")
    console.fill("Selector", "weight >= 0")
    console.choose("Search in", "a value in a JSON body")
    console.fill("Path", "order.id")
    console.choose("Condition", "is at least")
    console.fill("Text", "1")
    console.click("Search")
    console.see("2 messages of 3 messages")
    console.fill("Selector", "color = ")
    console.click("Search")
    console.see("invalid selector: position 8: expected")
    console.see_problem(400)


def test_messages_are_followed_live(console: Console, api: HttpBroker, orders: str, axe: str) -> None:
    console.enter("queues", "/", orders, tab="live")
    console.fill("Selector", "weight > 1")
    # Hold the request back: the page must not say that it follows before the broker does.
    console.script(
        "const real = window.real = window.fetch; window.fetch = (path, ...rest) => String(path).includes('/messages/tail')"
        " ? new Promise((answer) => { window.release = () => answer(real(path, ...rest)); }) : real(path, ...rest)"
    )
    console.click("Follow")
    console.see("Follow with this search")
    assert "has arrived so far" not in console.script("return document.body.innerText")
    console.script("window.release()")
    console.see("No message has arrived so far.")
    console.script("window.fetch = window.real")
    for number in range(3):
        publish(api, orders, f'{{"live": {number}}}', headers={"weight": number})
    console.see('"live": 2')
    console.see("Following: looked at 3 messages")
    assert console.findings(axe) == []
    console.click("Stop")
    console.see("Stopped: looked at 3 messages")
    console.open("exchanges", "/", "amq.fanout", tab="live")
    console.click("Follow")
    console.see("No message has arrived so far.")
    publish(api, "somewhere", IMAGE, "amq.fanout")
    console.see(IMAGE)
    assert console.script("return window.attacked") is None
    console.use_phone()
    console.see_fit()

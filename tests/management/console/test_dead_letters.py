"""The dead letters of a queue in the console, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.management.console.conftest import Screenshot
from tests.management.console.test_console import declare, delete, publish, queue
from tests.management.http.client import HttpBroker

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

REJECT = {"count": 100, "ackmode": "reject_requeue_false", "encoding": "auto"}


@pytest.fixture
def graves(api: HttpBroker) -> Iterator[str]:
    """A queue with dead letters of two queues: 4 with a timeout, 2 without stock, and 3 of the other queue."""
    names = ("graves", "work.orders", "work.bills")
    declare(api, "graves")
    for name in names[1:]:
        declare(api, name, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"})
    for number in range(6):
        error = "timeout" if number < 4 else "no stock"
        headers = {"x-exception-message": error}
        publish(api, "work.orders", f"order {number}", delivery_mode=2, headers=headers)
    for number in range(3):
        publish(api, "work.bills", f"bill {number}", delivery_mode=2)
    for name in names[1:]:
        assert api("POST", f"/queues/%2F/{name}/get", REJECT).status == 200
    yield "graves"
    for name in names:
        delete(api, name)


def test_dead_letters_are_grouped_and_replayed(
    console: Console, api: HttpBroker, graves: str, axe: str, screenshot: Screenshot
) -> None:
    console.enter("queues", "/", graves, tab="dead-letters")
    expected = [
        ["rejected", "work.orders", "(default exchange)", "timeout", "4"],
        ["rejected", "work.bills", "(default exchange)", "–", "3"],
        ["rejected", "work.orders", "(default exchange)", "no stock", "2"],
    ]
    console.wait_for_rows(lambda found: [row[:5] for row in found] == expected)
    assert console.findings(axe) == []
    screenshot("dead-letters-light")
    console.click("Replay…")
    console.see("reason rejected, queue work.orders, exchange (empty), x-exception-message timeout")
    console.see("Would move 4 messages")
    assert queue(api, graves)["messages"] == 9
    console.click("Replay messages")
    console.see("Replayed 4 messages")
    console.wait_for_rows(lambda found: [row[4] for row in found] == ["3", "2"])
    assert (queue(api, graves)["messages"], queue(api, "work.orders")["messages"]) == (5, 4)
    console.fill("Header of the exception", "x\ue003")  # backspace
    console.click("Group")
    console.wait_for_rows(lambda found: [row[3] for row in found] == ["3", "2"])


def test_dead_letters_without_a_target_stay(console: Console, api: HttpBroker, graves: str) -> None:
    delete(api, "work.bills")
    console.enter("queues", "/", graves, tab="dead-letters", header="none")
    console.wait_for_rows(lambda found: len(found) == 2)
    console.click("Replay…", "tr:has(a[title='work.bills']) button")
    console.see("Would move 0 messages; 3 stay: no queue would get them")
    console.click("Replay messages")
    console.see("Replayed 0 messages; 3 stay")
    assert queue(api, graves)["messages"] == 9


def test_a_group_opens_the_message_browser(console: Console, api: HttpBroker, graves: str) -> None:
    console.enter("queues", "/", graves, tab="dead-letters")
    console.wait_for_rows(lambda found: len(found) == 3)
    console.click("Browse", "tr:has(a[title='work.bills']) a")
    console.see("Only messages with reason rejected, queue work.bills")
    console.see("3 messages of 9 messages that were looked at")
    console.see("rejected in work.bills, 1 time, published to (default exchange) with work.bills")
    console.find("ol li", "now in graves")
    console.choose("Search in", "the body")
    console.fill("Text", "bill 1")
    console.click("Search")
    console.see("1 message of 9 messages that were looked at")
    console.driver.refresh()  # the location holds the group, too
    console.see("1 message of 9 messages that were looked at")
    console.click("Show all")
    console.see_no("Only messages with")

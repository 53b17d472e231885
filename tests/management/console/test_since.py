"""Messages since a time in the message browser."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.management.console.test_console import declare, publish, queue
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


def test_messages_since_an_interval_are_shown_and_deleted(console: Console, api: HttpBroker) -> None:
    declare(api, "dated")
    publish(api, "dated", "undated message")
    publish(api, "dated", "old message", timestamp=int(time.time()) - 7200)
    publish(api, "dated", "new message", timestamp=int(time.time()))
    console.enter("queues", "/", "dated", tab="messages")
    console.see("undated message")
    console.fill("Since", "1h")
    console.click("Browse")
    console.see_no("undated message")
    console.see("new message")
    console.see("1 message of 3 messages that were looked at")
    console.see_location("since=1h")
    console.driver.refresh()
    console.see("1 message of 3 messages that were looked at")
    console.click("Delete messages…")
    console.click("Delete messages", "dialog button")
    wait_until(lambda: queue(api, "dated")["messages_ready"] == 2, "the messages are deleted")
    console.open("overview")
    console.see_heading("Overview")
    console.open("queues", "/", "dated", tab="messages", since="yesterday")
    console.see("invalid since 'yesterday'")
    console.see_problem(400)

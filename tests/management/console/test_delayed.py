"""Delayed messages in the console."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from leveret import sync
from tests.management.console.test_console import declare, publish
from tests.management.http.client import HttpBroker

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


def test_delayed_messages_are_shown_with_the_time_at_which_they_become_ready(console: Console, api: HttpBroker) -> None:
    declare(api, "appointments")
    publish(api, "appointments", "ready message")
    due = int(time.time() + 3600)
    shown = time.strftime("%H:%M:%S", time.localtime(due))
    with (
        sync.connect(api.process.url(), protocol="1.0") as connection,
        connection.session().sender("appointments") as sender,
    ):
        sender.send("later message", annotations={"x-opt-delivery-time": 1000 * due})
        sender.send("latest message", annotations={"x-opt-delivery-time": 1000 * due + 5000})
    console.enter("queues", "/", "appointments")
    console.see("including 2 delayed, oldest")
    console.click("Messages", "nav.tabs a")
    console.see("ready message")
    console.choose("State", "Delayed")
    console.click("Browse")
    console.see(f"ready at {time.strftime('%Y-%m-%d', time.localtime(due))} {shown}")
    console.see("latest message")
    console.see_no("ready message")
    console.see_location("state=delayed")
    console.driver.refresh()
    console.see("latest message")
    console.see_enabled("Delete messages…", enabled=False)

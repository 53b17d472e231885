"""The broker's log in the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.management.http.client import HttpBroker
from tests.management.http.test_log import read
from tests.support.logged import close_channel
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


def log_records(api: HttpBroker, *queues: str) -> None:
    """Have the broker log that it closed a channel with 404, for each queue."""
    for queue in queues:
        close_channel(api.process, queue)
    wait_until(lambda: read(api, text=f"'{queues[-1]}'"))


def test_records_are_shown_as_they_are_logged(console: Console, api: HttpBroker, axe: str) -> None:
    log_records(api, "follow-past")
    console.enter("overview")
    console.press("gj")
    console.see_heading("Log")
    console.fill("Text", "follow-\n")
    console.see_location("text=follow-")
    console.wait_for_rows(lambda rows: bool(rows) and "'follow-past'" in rows[0][3])
    log_records(api, "follow-live")
    (row, *_) = console.wait_for_rows(lambda rows: len(rows) == 2 and "'follow-live'" in rows[0][3])
    assert (row[1], row[2], row[4], row[6]) == ("info", "leveret.connection", "/", "broker")
    console.find("[role=status]", "Following")
    console.see("2 records")
    assert console.findings(axe) == []
    console.click("Pause")
    console.find("[role=status]", "Paused")
    console.find("button[aria-pressed=true]", "Resume")
    log_records(api, "follow-paused")
    console.click("Resume")
    console.wait_for_rows(lambda rows: len(rows) == 3 and "'follow-paused'" in rows[0][3])
    console.use_phone()
    console.see_fit()
    console.wait_for_rows(lambda rows: len(rows) == 3 and rows[0][0] == "info")


def test_a_filter_is_typed_while_records_arrive(console: Console, api: HttpBroker) -> None:
    console.enter("log", text="halfway")
    console.see("No record matches so far.")
    console.field("Text").send_keys("-1")
    log_records(api, "halfway-1")
    console.wait_for_rows(lambda rows: len(rows) == 1)
    assert console.field("Text").get_property("value") == "halfway-1"


def test_a_record_and_the_records_of_its_connection(console: Console, api: HttpBroker) -> None:
    log_records(api, "log-one", "log-two")
    console.enter("log", text="log-one", level="info", vhost="/")
    console.see_value("Text", "log-one")
    console.see_value("Lowest level", "info")
    console.wait_for_rows(lambda rows: len(rows) == 1)
    console.click("log-one", "main td button", exact=False)
    console.see_dialog()
    console.see("127.0.0.1:")
    console.click("Only this connection")
    console.see_dialog(shown=False)
    console.see_location("connection=")
    console.fill("Text", "\n")
    console.see_location_without("text=")
    console.wait_for_rows(lambda rows: len(rows) == 1)
    console.choose("Lowest level", "warning")
    console.see("No record matches so far.")


def test_the_log_is_for_administrators(console: Console) -> None:
    console.open("log")
    console.sign_in("monitor")
    console.see("This location does not exist, or your user may not see it.")
    console.press("gj")
    console.press("go")
    console.see_heading("Overview")
    assert "Log" not in console.element("#nav").text.splitlines()

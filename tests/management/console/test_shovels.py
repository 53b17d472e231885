"""The list of shovels in the console, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.management.console.conftest import Screenshot
from tests.management.console.test_console import IMAGE, declare, delete, publish
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)
LOCAL = {"src-uri": "amqp://guest:guest@", "dest-uri": "amqp://guest:guest@"}
SHOVELS: dict[str, dict[str, Any]] = {
    "orders": {**LOCAL, "src-queue": "in", "dest-protocol": "amqp10", "dest-address": "/queues/out"},
    IMAGE: {**LOCAL, "src-uri": "amqp://u:p@127.0.0.1:1", "src-queue": IMAGE, "dest-queue": "out", "reconnect-delay": 0},
}


@pytest.fixture
def shovels(api: HttpBroker) -> Iterator[None]:
    """A shovel that has moved a message, and one that cannot connect."""
    declare(api, "in")
    declare(api, "out")
    publish(api, "in", "moved")
    for name, value in SHOVELS.items():
        assert api("PUT", f"/parameters/shovel/%2F/{quote(name, safe='')}", {"value": value}).status == 201
    yield
    for name in SHOVELS:
        api("DELETE", f"/parameters/shovel/%2F/{quote(name, safe='')}")
    delete(api, "in")
    delete(api, "out")


def names(api: HttpBroker) -> list[str]:
    return [row["name"] for row in api.get("/shovels")]


def test_shovels_are_restarted_and_deleted(
    console: Console, api: HttpBroker, shovels: None, screenshot: Screenshot
) -> None:
    console.enter("shovels")
    rows = console.wait_for_rows(
        lambda found: len(found) == 2 and {"running", "terminated", "1"} <= {cell for row in found for cell in row}
    )
    orders = next(row for row in rows if row[0] == "orders")
    assert {"running", "amqp:// · in", "amqp:// · /queues/out"} <= set(orders)
    broken = next(row for row in rows if row[0] == IMAGE)
    assert "terminated" in broken and any("127.0.0.1:1" in cell for cell in broken[4:])
    console.fill("Filter shovels", "127.0.0.1:1")
    console.wait_for_rows(lambda found: [row[0] for row in found] == [IMAGE])
    console.fill("Filter shovels", "orders")
    console.wait_for_rows(lambda found: [row[0] for row in found] == ["orders"])
    screenshot("shovels-light")
    console.click("Restart…")
    console.see("Closes both connections of orders")
    console.click("Restart shovel")
    console.see("Restarted shovel 'orders'")
    publish(api, "in", "after the restart")
    console.wait_for_rows(lambda found: bool(found) and "2" in found[0])
    console.click("Delete…")
    console.click("Delete shovel")
    console.see("No shovel matches.")
    wait_until(lambda: names(api) == [IMAGE])
    assert console.script("return window.attacked") is None


def test_a_monitor_sees_shovels_and_changes_none(console: Console, shovels: None) -> None:
    console.open("shovels")
    console.sign_in("monitor")
    console.wait_for_rows(lambda found: len(found) == 2)
    assert "Restart…" not in console.text()

"""The progress of pipelines in the console, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from leveret import sync
from leveret.sync import BaseChannel
from tests.management.console.conftest import Screenshot
from tests.management.console.test_console import IMAGE, SCRIPT, declare, delete, publish
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until
from tests.support.requests import ask

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


@contextmanager
def pipeline(
    console: Console, api: HttpBroker, *, queue: str = "payments", stream: str = "events", name: str = "daily-report"
) -> Iterator[BaseChannel]:
    """A reader of a queue, a consumer of a stream, and a sink. Leaves the console before they are deleted."""
    declare(api, queue)
    declare(api, stream, **{"x-queue-type": "stream"})
    stage = str(uuid4())
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        for number in range(40):
            channel.publish(b"%d" % number, queue, persistent=True)
            channel.publish(b"%d" % number, stream, persistent=True)
        epoch = ask(channel, "lease.acquire", queue=queue, lease=name)["epoch"]
        ask(channel, "lease.plan", queue=queue, lease=name, epoch=epoch, after=0, max_messages=10)
        ask(channel, "stream.start", stream=stream, consumer=name, offset=0)
        ask(channel, "stream.commit", stream=stream, consumer=name, offset=15)
        ask(channel, "stage.open", stage=stage, app=name, exchanges=[])
        try:
            yield channel
        finally:
            console.leave()
            ask(channel, "stage.discard", stages=[stage])
            delete(api, queue)
            delete(api, stream)


def test_the_lag_of_a_consumer_that_catches_up(console: Console, api: HttpBroker) -> None:
    with pipeline(console, api) as channel:
        console.enter("pipelines")
        console.wait_for_rows(lambda found: [row[:2] for row in found] == [["daily-report", "events"]] and "25" in found[0])
        console.find("[role=img]", "Lag of stream consumers over time")
        console.see("Total 25")
        console.click("daily-report")
        console.see_heading("daily-report")
        console.see("Lag 25")
        ask(channel, "stream.commit", stream="events", consumer="daily-report", offset=38)
        publish(api, "payments", "wakes the console")
        console.see_no("Lag 25")
        console.see("Lag 2")
        console.driver.refresh()
        console.see_heading("daily-report")
        console.click("events")
        console.see_heading("events")


def test_a_lease_is_released(console: Console, api: HttpBroker) -> None:
    with pipeline(console, api):
        console.enter("pipelines")
        console.click("Leases")
        rows = console.wait_for_rows(lambda found: [row[:2] for row in found] == [["daily-report", "payments"]])
        assert "40" in rows[0] and "10" in rows[0]
        console.fill("Filter leases", "weekly")
        console.see("No reader has a lease of a queue.")
        console.open("pipelines", "lease", "/", "payments", "daily-report")
        console.see_heading("daily-report")
        console.see("not read")
        console.click("Release…")
        console.see("Requeues the 10 messages that daily-report holds of payments")
        console.click("Release lease")
        console.see("No reader has a lease of a queue.")
        wait_until(lambda: api.get("/leveret/leases") == [], "the lease is released")


def test_sinks_and_their_transactions(console: Console, api: HttpBroker) -> None:
    with pipeline(console, api) as channel, ExitStack() as stack:
        stack.callback(api, "POST", "/leveret/operations/stages.forget", {"name": "loader"})
        stage = str(uuid4())
        ask(channel, "stage.open", stage=stage, app="loader", exchanges=[])
        ask(channel, "stage.seal", stage=stage, count=0, crc32=0)
        ask(channel, "stage.promote", app="loader", batch=7, stages=[stage])
        console.enter("pipelines", tab="sinks")
        console.wait_for_rows(lambda found: any(row[0] == "loader" and row[3] == "7" for row in found))
        console.click("Sink transactions")
        console.wait_for_rows(lambda found: [row[0] for row in found] == ["daily-report"] and "open" in found[0])
        console.click("Abort…")
        console.click("Abort transaction")
        console.see("No transaction of a sink is open.")


def test_scripts_in_names_of_pipelines_are_inert(console: Console, api: HttpBroker) -> None:
    with pipeline(console, api, queue=SCRIPT, stream=IMAGE, name=IMAGE):
        console.enter("pipelines")
        console.see(IMAGE)
        for tab in ("leases", "sinks", "transactions"):
            console.open("pipelines", tab=tab)
            console.see_heading()
            if tab != "sinks":
                console.see(IMAGE)
        console.click("Abort…")
        console.see_dialog()
        for kind, queue in (("stream", IMAGE), ("lease", SCRIPT)):
            console.open("pipelines", kind, "/", queue, IMAGE)
            console.see_heading(IMAGE)
            console.see("Lag")
        assert console.script("return window.attacked") is None
        assert console.script("return document.querySelectorAll('main img, body script').length") == 0
        console.open("overview")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pipelines_are_accessible_and_fit_a_phone(
    console: Console, api: HttpBroker, axe: str, scheme: str, screenshot: Screenshot
) -> None:
    console.prefer(scheme)
    with pipeline(console, api) as channel:
        console.enter("pipelines")
        console.wait_for_rows(lambda found: len(found) == 1)
        ask(channel, "stream.commit", stream="events", consumer="daily-report", offset=30)
        publish(api, "payments", "wakes the console")
        console.see("Total 10")
        screenshot(f"pipelines-{scheme}")
        for parts, query in (
            (("pipelines",), {}),
            (("pipelines",), {"tab": "leases"}),
            (("pipelines",), {"tab": "sinks"}),
            (("pipelines",), {"tab": "transactions"}),
            (("pipelines", "lease", "/", "payments", "daily-report"), {}),
            (("pipelines", "stream", "/", "events", "daily-report"), {}),
        ):
            console.open(*parts, **query)
            console.see_heading()
            assert console.findings(axe) == [], (parts, query)
            console.use_phone()
            console.see_fit()
            console.resize((1360, 900))
        console.open("overview")

"""Links, transactions and branches in the console, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pika
import pytest

from leveret.wire.amqp10.messaging import Source
from tests.management.console.conftest import Screenshot
from tests.management.console.test_console import IMAGE, SCRIPT, declare, delete, parameters
from tests.management.http.client import HttpBroker
from tests.support.peers.amqp10 import Peer, Session, message, under
from tests.support.peers.engine_amqp09 import Client
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


@contextmanager
def session(api: HttpBroker, container: str = "billing") -> Iterator[Session]:
    """A session of AMQP 1.0."""
    peer = Peer(api.process.host, api.process.port)
    assert peer.login(response=b"\0guest\0guest") == 0
    peer.open(container)
    try:
        yield peer.begin()
    finally:
        with suppress(OSError, AssertionError):
            peer.close()


@contextmanager
def branch(api: HttpBroker, name: str) -> Iterator[None]:
    """A branch of a distributed transaction in which a channel works."""
    client = Client(api.process)
    client.call("dtx.select", "dtx.select-ok")
    client.call("dtx.start", "dtx.start-ok", dtx_identifier=name)
    try:
        with closing(client.socket):
            yield
    finally:
        for path in ("rollback", "forget"):
            api("POST", f"/leveret/operations/dtx.{path}", {"name": name})


@pytest.fixture
def work(api: HttpBroker) -> Iterator[str]:
    """A queue that links and transactions use."""
    declare(api, "invoices")
    yield "invoices"
    delete(api, "invoices")


def branches(api: HttpBroker) -> Any:
    return api.get("/leveret/branches")


def test_a_link_that_its_client_has_left(console: Console, api: HttpBroker, work: str) -> None:
    with session(api) as peer:
        peer.sender(f"/queues/{work}", name="invoices-out").deliver()
        kept = Source(f"/queues/{work}", durable=2, expiry_policy="never")
        receiver = peer.receiver(name="invoices-in", credit=5, source=kept)
        receiver.get()
        console.enter("links", vhost="/", sort="unsettled", desc="1")
        expected = [
            ["invoices-in", f"/queues/{work}", "to client"],
            ["invoices-out", f"/queues/{work}", "from client"],
        ]
        console.wait_for_rows(
            lambda found: [row[:3] for row in found] == expected and all("attached" in row for row in found)
        )
        console.click("invoices-in")
        console.see_heading("invoices-in")
        console.see("unsettled-state")
        location = console.location()
        console.click(".1:", "a", exact=False)  # the connection
        console.see("AMQP 1.0 links")
        console.see("invoices-out")
        console.driver.get(location)
        console.see_heading("invoices-in")
        receiver.detach(closed=False)
        console.see("suspended")
        console.click("Release…")
        console.see("Requeues the 1 unsettled message")
        console.click("Release messages")
        console.see("Released link 'invoices-in'")
        wait_until(lambda: api.get(f"/queues/%2F/{work}")["messages_ready"] == 1, "the message is requeued")
        console.click("Delete…")
        console.click("Delete link")
        console.wait_for_rows(lambda found: [row[0] for row in found] == ["invoices-out"])


def test_open_transactions(console: Console, api: HttpBroker, work: str) -> None:
    with pika.BlockingConnection(parameters(api)) as connection, session(api) as peer:
        channel = connection.channel()
        channel.tx_select()
        for _ in range(3):
            channel.basic_publish("", work, b"x" * 2000)
        id = peer.controller().declare()
        peer.sender(f"/queues/{work}", name="in-transaction").send(message(), state=under(id))
        console.enter("transactions", sort="publishes", desc="1")
        rows = console.wait_for_rows(lambda found: len(found) == 2 and "3" in found[0] and "1" in found[1])
        assert "tx" in rows[0] and "coordinator" in rows[1]
        console.fill("Filter open transactions", "unknown")
        console.see("No open transaction matches.")
        console.see_location("name=unknown")
        console.fill("Filter open transactions", "guest")
        console.wait_for_rows(lambda found: len(found) == 2)
        channel.tx_commit()
        console.wait_for_rows(lambda found: len(found) == 1 and "coordinator" in found[0])


def test_a_prepared_branch_is_resolved(console: Console, api: HttpBroker) -> None:
    with branch(api, "order-17"):
        assert api("POST", "/leveret/operations/dtx.prepare", {"name": "order-17"}).status == 200
        console.enter("transactions", kind="branches")
        console.wait_for_rows(lambda found: [row[0] for row in found] == ["order-17"] and "prepared" in found[0])
        console.click("Roll back…")
        console.see("its messages are requeued")
        console.click("Roll back branch")
        console.see("Rolled back branch 'order-17'")
        console.see("No branch matches.")
        wait_until(lambda: not branches(api), "the branch to be gone")


def test_a_user_who_is_not_an_administrator_changes_no_link(console: Console, api: HttpBroker, work: str) -> None:
    with session(api) as peer:
        peer.receiver(f"/queues/{work}", name="of-guest")
        console.open("links")
        console.sign_in("monitor")
        console.wait_for_rows(lambda found: len(found) == 1)
        assert "Delete…" not in console.text()
        console.click("of-guest")
        console.see_heading("of-guest")
        assert "Delete…" not in console.text()


def test_scripts_in_names_of_links_are_inert(console: Console, api: HttpBroker) -> None:
    for name in (SCRIPT, IMAGE):
        declare(api, name)
    with branch(api, IMAGE), session(api, SCRIPT) as peer:
        peer.receiver("/queues/%3Cimg%20src%3Dx%20onerror%3D%27window.attacked%20%3D%20true%27%3E", name=IMAGE)
        console.enter("links")
        console.see(IMAGE)
        console.click(IMAGE)
        console.see_heading(IMAGE)
        console.see(SCRIPT)
        console.open("connections", api.get("/leveret/links")[0]["connection_details"]["name"])
        console.see(IMAGE)
        console.open("transactions", kind="branches")
        console.see(IMAGE)
        console.click("Roll back…")
        console.see_dialog()
        assert console.script("return window.attacked") is None
        assert console.script("return document.querySelectorAll('main img, body script').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_links_are_accessible_and_fit_a_phone(
    console: Console, api: HttpBroker, work: str, axe: str, scheme: str, screenshot: Screenshot
) -> None:
    console.prefer(scheme)
    with branch(api, "order-18"), session(api) as peer:
        id = peer.controller().declare()
        sender = peer.sender(f"/queues/{work}", name="invoices-out")
        for _ in range(4):
            sender.deliver()
        sender.send(message(), state=under(id))
        receiver = peer.receiver(f"/queues/{work}", name="invoices-in", credit=20)
        receiver.get()
        console.enter("links")
        console.wait_for_rows(lambda found: len(found) == 2)
        screenshot(f"links-{scheme}")
        for parts, query in (
            (("links",), {}),
            (("links", "/", "invoices-in"), {"container": "billing"}),
            (("transactions",), {}),
            (("transactions",), {"kind": "branches"}),
        ):
            console.open(*parts, **query)
            console.see_heading()
            console.see_no("Loading")
            assert console.findings(axe) == [], (parts, query)
            console.use_phone()
            console.see_fit()
            console.resize((1360, 900))

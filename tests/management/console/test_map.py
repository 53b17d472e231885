"""Consumers on the topology map, and where a message would go, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.management.console.conftest import Screenshot
from tests.management.console.test_console import clients, declare, delete, queue
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

LIT = """
const titles = [...document.querySelectorAll(".map .node.on title")];
return titles.map((title) => title.textContent.split("\\n")[0]).sort();
"""
CLIENTS = "return [...document.querySelectorAll('.map .node.client')].map((node) => node.textContent)"


@pytest.fixture
def kinds(api: HttpBroker) -> Iterator[str]:
    """A headers exchange with two queues, whose `billing` has a consumer."""
    for name in ("billing", "archive"):
        declare(api, name)
    assert api("PUT", "/exchanges/%2F/kinds", {"type": "headers"}).status == 201
    for name, arguments in (("billing", {"kind": "bill"}), ("archive", {"x-match": "any", "kind": "bill", "old": True})):
        assert api("POST", f"/bindings/%2F/e/kinds/q/{name}", {"arguments": arguments}).status == 201
    with clients(api):
        yield "kinds"
    api("DELETE", "/exchanges/%2F/kinds")
    for name in ("billing", "archive"):
        delete(api, name)


def test_headers_show_where_a_message_would_go(console: Console, api: HttpBroker, kinds: str) -> None:
    console.enter("map", vhost="/", node=f"e:{kinds}")
    console.see("No queue.")
    console.fill("Properties", '{"headers": {"old": true}}')
    console.see_result(["archive", "kinds"], LIT)
    console.fill("Properties", '{"headers": {"kind": "bill"}}')
    console.see_result(["archive", "billing", "kinds"], LIT)
    console.see("2 bindings on the way")
    assert (queue(api, "billing")["messages"], queue(api, "archive")["messages"]) == (0, 0)


def test_the_broker_says_which_queue_a_hash_chooses(console: Console, api: HttpBroker, kinds: str) -> None:
    assert api("PUT", "/exchanges/%2F/shards", {"type": "x-consistent-hash"}).status == 201
    for name in ("billing", "archive"):
        assert api("POST", f"/bindings/%2F/e/shards/q/{name}", {"routing_key": "1"}).status == 201
    body = {"routing_key": "some-key"}
    (chosen,) = api("POST", "/leveret/exchanges/%2F/shards/destinations", body).json["queues"]
    console.enter("map", vhost="/", node="e:shards")
    console.fill("Routing key", "some-key")
    console.see_result(sorted([chosen, "shards"]), LIT)
    console.see("1 binding on the way")


def test_consumers_are_shown_on_request(
    console: Console, api: HttpBroker, kinds: str, axe: str, screenshot: Screenshot
) -> None:
    console.enter("map", vhost="/", name="billing")
    console.find(".node.queue", "billing", exact=False)
    assert console.script(CLIENTS) == []
    console.check("Consumers")
    wait_until(lambda: len(console.script(CLIENTS)) == 1, lambda: console.script(CLIENTS))
    console.find(".node.client", "1 consumer of guest", exact=False)
    console.find(".node.client", "billing-service", exact=False)
    console.click(kinds, ".node.exchange", exact=False)
    console.fill("Properties", '{"headers": {"kind": "bill"}}')
    wait_until(lambda: "billing" in console.script(LIT) and len(console.script(LIT)) == 3, lambda: console.script(LIT))
    assert console.findings(axe) == []
    console.click("Fit")
    console.click("billing-service", ".node.client", exact=False)
    console.see("Open connection")
    console.driver.refresh()  # the location holds the choice
    wait_until(lambda: len(console.script(CLIENTS)) == 1, lambda: console.script(CLIENTS))
    console.check("Consumers")
    console.see_result([], CLIENTS)


@pytest.fixture
def many(api: HttpBroker) -> Iterator[str]:
    """A vhost with 520 queues of two prefixes, each in a binding, and one of its own name."""
    assert api("PUT", "/vhosts/many").status == 201
    names = [f"{kind}.{number}" for kind in ("billing", "orders") for number in range(260)] + ["audit"]
    queues = [{"vhost": "many", "name": name, "durable": True} for name in names]
    bindings = [
        {"vhost": "many", "source": "amq.topic", "destination": name, "destination_type": "queue", "routing_key": "#"}
        for name in names
    ]
    assert api("POST", "/definitions", {"queues": queues, "bindings": bindings}).status in (200, 204)
    yield "many"
    assert api("DELETE", "/vhosts/many").status == 204


def test_many_objects_are_grouped_by_prefix(console: Console, api: HttpBroker, many: str) -> None:
    console.enter("map", vhost=many)
    console.see("501 objects, 21 not shown: filter by name")  # the API's largest page and the exchange
    console.find(".node.group", "260 queues", exact=False)
    nodes = "return document.querySelectorAll('.map .node').length"
    console.see_result(4, nodes)
    console.fill("Filter topology", "audit")
    console.see_result(2, nodes)
    console.fill("Filter topology", "")
    console.click("billing.*", ".node.group", exact=False)
    console.see_location("name=billing.")
    console.see("261 objects")
    console.check("Group by prefix")
    console.see_location("group=0")

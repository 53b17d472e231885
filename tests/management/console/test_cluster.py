"""A cluster in the console: its shards and nodes, which administrators move, drain and forget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node, owners
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until
from tests.support.postgres import require_postgres, shared_server

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node, str]]:
    require_postgres()
    dsn = shared_server().database()
    directory = tmp_path_factory.mktemp("nodes")
    http = {"LEVERET_MANAGEMENT__ENABLED": "true", "LEVERET_MANAGEMENT__PORT": "0"}
    with running(Node(directory / "one", dsn, "a", shards=4, **http)) as one, running(Node(directory / "two", dsn)) as two:
        yield one, two, dsn


@pytest.fixture(scope="module")
def api(nodes: tuple[Node, Node, str]) -> HttpBroker:
    """The API of the first node, whose console the tests use."""
    return HttpBroker(nodes[0])


@pytest.mark.parametrize("tags", ["monitoring", "administrator,read-only"])
def test_users_who_change_no_nodes(console: Console, api: HttpBroker, tags: str) -> None:
    assert api("PUT", "/users/watcher", {"password": "watcher", "tags": tags}).status in (201, 204)
    console.open("overview")
    console.sign_in("watcher")
    console.see("one disk (no synchronous standby)")
    console.see_result([], "return [...document.querySelectorAll('main td button')].map(({ innerText }) => innerText)")
    for method, path in (("POST", "cluster/nodes/two/drain"), ("DELETE", "cluster/nodes/two"), ("POST", "shards/0/move")):
        assert api(method, f"/leveret/{path}", {}, user="watcher").status == 401
    console.leave()
    assert api("DELETE", "/users/watcher").status == 204


def test_shards_and_nodes(console: Console, nodes: tuple[Node, Node, str], axe: str) -> None:
    _, two, dsn = nodes
    console.enter("overview")
    console.see("one disk (no synchronous standby)")
    console.click_in_row("two", "Drain…")
    console.see_dialog()
    console.see("Moves 0 shards of two to other nodes")
    console.click("Drain node", "dialog button")
    console.see("Node 'two' owns no shards")
    console.find(".badge", "draining")
    console.click_in_row("two", "End drain…")
    console.click("End drain", "dialog button")
    console.see("Node 'two' owns shards again")
    console.find("button", "Move…")
    assert console.findings(axe) == []
    console.click("Move…")
    console.see("Clients of / are disconnected from node one and reconnect.")
    console.click("Move shard", "dialog button")
    console.see("Moved shard 0 to node 'two'")
    assert owners(dsn)[0] == "two"
    two.kill()
    wait_until(lambda: owners(dsn)[0] == "one")
    console.click_in_row("two", "Forget…")
    console.click("Forget node", "dialog button")
    console.see("Forgot node 'two'")
    console.use_phone()
    console.see_fit()

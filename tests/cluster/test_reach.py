"""A node that reaches PostgreSQL, but has no links to the other nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.sharded import running
from tests.cluster.test_cluster_commands import finds, run, settled, shown
from tests.cluster.test_nodes import Node, dsn
from tests.management.http.client import HttpBroker
from tests.management.http.scrapes import scrape
from tests.support.broker import Broker, free_port
from tests.support.proxy import Proxy

__all__ = ["dsn"]


@pytest.fixture
def link() -> Iterator[Proxy]:
    """The way to the third node."""
    proxy = Proxy(Broker(port=free_port()))
    yield proxy
    proxy.stop()


def test_a_node_without_links_is_shown_at_all_nodes(tmp_path: Path, dsn: str, link: Proxy) -> None:
    port = link.broker.port
    http = {"LEVERET_MANAGEMENT__ENABLED": "true", "LEVERET_MANAGEMENT__PORT": "0"}
    way = {"LEVERET_CLUSTER__PORT": str(port), "LEVERET_CLUSTER__ADVERTISED": f"127.0.0.1:{link.port}"}
    nodes = [Node(tmp_path / name, dsn, shards=2) for name in ("first", "second")]
    third = Node(tmp_path / "third", dsn, shards=2, **http, **way)
    with ExitStack() as stack:
        for node in (*nodes, third):
            stack.enter_context(running(node))
        api = HttpBroker(third)
        settled(partial(finds, third, []), *nodes, third)
        assert "links                  all nodes reach each other" in run(third, "status").output
        assert api("GET", "/health/checks/is-in-service").status == 200
        # Nothing listens there.
        link.broker.port = free_port()
        for node in (*nodes, third):
            settled(partial(finds, node, ["links", "links"]), *nodes, third)
            assert shown(node, "status")["unreached"] == {"first": ["third"], "second": ["third"]}
        status = run(nodes[0], "status").output
        assert "links                  first does not reach third; second does not reach third" in status
        check = run(third, "check").output
        assert "node 'first' does not reach node third" in check
        assert "`leveret cluster drain third` moves its shards to the others until then" in check
        expected = {"first": ["third"], "second": ["third"], "third": []}
        settled(
            lambda: {node["name"]: node["unreachable"] for node in api.get("/leveret/cluster/nodes")} == expected, third
        )
        settled(lambda: 'leveret_node_unreachable{node="first"} 1.0' in scrape(third).splitlines(), third)
        refused = api("GET", "/health/checks/is-in-service")
        assert refused.status == 503
        assert b"this node has no link to another one, although others reach each other" in refused.content
        # A load balancer does not take its clients away: the others do not reach its shards.
        assert api("GET", "/health/checks/ready-to-serve-clients").status == 200
        link.broker.port = port
        settled(partial(finds, third, []), *nodes, third)
        assert api("GET", "/health/checks/is-in-service").status == 200

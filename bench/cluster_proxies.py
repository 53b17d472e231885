"""A cluster whose nodes reach each other and PostgreSQL through proxies, which cut, delay, stall and repeat traffic."""

from __future__ import annotations

from contextlib import ExitStack

from bench.cluster_rig import Rig, TlsRig
from tests.cluster.test_nodes import Node
from tests.support.broker import Broker, free_port
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy

CUT, DELAY, STALL, REPEAT = "cut", "delay", "stall", "repeat"


class ProxyRig(Rig):
    """Nodes with proxies in front of each of them, and between each of them and PostgreSQL.

    kinds     what the proxies do
    links     the proxies in front of the nodes
    stores    the proxies between nodes and PostgreSQL
    """

    kinds: tuple[str, ...] = (CUT, DELAY, STALL)

    def __init__(self, stack: ExitStack, *, replicated: bool = True, count: int = 3) -> None:
        self.links: list[Proxy] = []
        self.stores: list[Proxy] = []
        stack.callback(self._stop_proxies)
        super().__init__(stack, replicated=replicated, count=count)

    def _stop_proxies(self) -> None:
        for proxy in (*self.links, *self.stores):
            proxy.stop()

    def make_node(self, name: str, settings: dict[str, str]) -> Node:
        node = super().make_node(name, settings)
        link = Proxy(Broker(port=free_port()))
        self.links.append(link)
        dsn = self.dsn
        for server in (self.primary, self.standby):
            if server is not None:
                dsn = self._through_proxy(server, dsn)
        node.environment |= {
            "LEVERET_STORAGE__DSN": dsn,
            "LEVERET_CLUSTER__PORT": str(link.broker.port),
            "LEVERET_CLUSTER__ADVERTISED": f"{link.host}:{link.port}",
        }
        return node

    def _through_proxy(self, server: PostgresServer, dsn: str) -> str:
        """Return the address of the database with a proxy in the place of a server."""
        store = Proxy(Broker(server.host, server.port))
        self.stores.append(store)
        return dsn.replace(f"{server.host}:{server.port}", f"{store.host}:{store.port}")


class TlsProxyRig(TlsRig, ProxyRig):
    """The same with TLS between nodes, which detects repeated data."""

    kinds = (CUT, DELAY, STALL, REPEAT)

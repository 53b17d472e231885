"""A cluster whose nodes are in network namespaces, with links that can be cut: to the other nodes, and to PostgreSQL."""

from __future__ import annotations

import ctypes
import os
import subprocess
from contextlib import ExitStack

from bench.cluster_rig import NAMES, Rig
from tests.cluster.test_nodes import Node
from tests.support.postgres import PostgresServer

# The networks: of nodes and clients, and of PostgreSQL. This process has the last address of each.
NODES, POSTGRES = "nodes", "postgres"
PREFIXES = {NODES: "10.77.1", POSTGRES: "10.77.2"}
OWN = 254
CLONE_NEWNET = 0x40000000


def ip(*arguments: str) -> None:
    """Run a command of iproute2."""
    subprocess.run(["ip", *arguments], check=True)


def enter_own_network() -> None:
    """Put this process into a network namespace of its own, which ends with it. Raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot create a network namespace")
    ip("link", "set", "lo", "up")


class NetworkRig(Rig):
    """Nodes in network namespaces, each with a link to either network. Needs root."""

    host = f"{PREFIXES[POSTGRES]}.{OWN}"

    def __init__(self, stack: ExitStack, *, replicated: bool = True) -> None:
        enter_own_network()
        for network, prefix in PREFIXES.items():
            ip("link", "add", f"br-{network}", "type", "bridge")
            ip("address", "add", f"{prefix}.{OWN}/24", "dev", f"br-{network}")
            ip("link", "set", f"br-{network}", "up")
        for number, name in enumerate(NAMES, 1):
            space = self._space(name)
            ip("netns", "add", space)
            stack.callback(ip, "netns", "delete", space)
            ip("-n", space, "link", "set", "lo", "up")
            for network, prefix in PREFIXES.items():
                link = self._link(name, network)
                ip("link", "add", link, "type", "veth", "peer", "name", network, "netns", space)
                ip("link", "set", link, "master", f"br-{network}", "up")
                ip("-n", space, "address", "add", f"{prefix}.{number}/24", "dev", network)
                ip("-n", space, "link", "set", network, "up")
        super().__init__(stack, replicated=replicated)

    def _space(self, name: str) -> str:
        return f"leveret-{os.getpid()}-{name}"

    def _link(self, name: str, network: str) -> str:
        return f"{network[0]}-{name}"

    def new_server(self) -> PostgresServer:
        """Return a server that listens on all networks."""
        return PostgresServer({"listen_addresses": "*"})

    def create_primary(self) -> PostgresServer:
        """Return a primary that trusts the nodes."""
        created = super().create_primary()
        with (created.data / "pg_hba.conf").open("a") as access:
            access.write("host all all 10.77.0.0/16 trust\n")
        return created

    def make_node(self, name: str, settings: dict[str, str]) -> Node:
        node = super().make_node(name, settings)
        node.host = f"{PREFIXES[NODES]}.{NAMES.index(name) + 1}"
        node.environment["LEVERET_AUTH__LOOPBACK_USERS"] = "[]"
        node.wrapper = ["ip", "netns", "exec", self._space(name)]
        return node

    def set_link(self, node: Node, network: str, *, up: bool) -> None:
        """Cut or restore the link of a node to a network."""
        ip("link", "set", self._link(node.directory.name, network), "up" if up else "down")

"""Three nodes and PostgreSQL with a synchronous standby, on this machine."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.test_clocks import with_clock
from tests.cluster.test_nodes import Node, owners
from tests.security.certificates import Authority
from tests.support.polling import wait_until
from tests.support.postgres import PostgresServer, execute
from tests.support.processes import family

NAMES = ("one", "two", "three")
VHOSTS = ("/", "a", "b")
STANDBY = "standby"


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to all processes that still exist."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class Rig:
    """A cluster of nodes.

    dsn       the address of the database, on whichever server is the primary
    primary, standby    PostgreSQL; the standby is None if there is one disk only
    host      where nodes reach PostgreSQL
    """

    host = "127.0.0.1"

    def __init__(
        self, stack: ExitStack, *, replicated: bool = True, count: int = 3, settings: dict[str, str] | None = None
    ) -> None:
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leveret-cluster-")))
        self.primary = self.create_primary().start()
        self.standby: PostgresServer | None = None
        stack.callback(self._remove_servers)
        self.database = self.primary.database().rpartition("/")[2]
        if replicated:
            self.standby = self.new_server().clone(self.primary, STANDBY).start()
            self.primary.reload(synchronous_standby_names=STANDBY)
        self.dsn = self._address()
        # The first one creates the vhosts, so that there are three shards with vhosts.
        self.nodes = [self.make_node(name, settings or {}) for name in NAMES[:count]]
        for node in self.nodes:
            stack.callback(self.end, node)

    def new_server(self) -> PostgresServer:
        """Return a server without data."""
        return PostgresServer()

    def create_primary(self) -> PostgresServer:
        """Return an empty server."""
        return self.new_server().create()

    def _address(self) -> str:
        servers = [self.primary] if self.standby is None else [self.primary, self.standby]
        hosts = ",".join(f"{self.host}:{server.port}" for server in servers)
        return f"postgresql://leveret@{hosts}/{self.database}?target_session_attrs=read-write"

    def _remove_servers(self) -> None:
        for server in (self.standby, self.primary):
            if server is not None:
                server.remove()

    def make_node(self, name: str, settings: dict[str, str]) -> Node:
        node = Node(self.directory / name, self.dsn, "a", "b")
        node.environment |= settings
        return node

    def start(self) -> None:
        """Start all nodes, and give each one a vhost."""
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            if owners(self.dsn)[number] != node.directory.name:
                self.nodes[0].ask("nodes.move", shard=number, node=node.directory.name)
        for node in self.nodes:
            wait_until(partial(self.knows_owners, node), node.log)

    def knows_owners(self, node: Node) -> bool:
        """Return whether a node knows an owner of each vhost."""
        return [shard["state"] for shard in node.ask("shards.list")].count("ready") == len(VHOSTS)

    def owner(self, shard: int) -> Node:
        """Return the node that owns a shard, once it has an owner."""
        name = wait_until(lambda: owners(self.dsn)[shard])
        return next(node for node in self.nodes if node.directory.name == name)

    def epoch(self, shard: int) -> int:
        """Return the epoch of a shard."""
        return int(self.execute(f"SELECT epoch FROM leveret.owner WHERE shard = {shard}")[0][0])

    def shard_in(self, node: Node, shard: int) -> tuple[int, bool]:
        """Return the process of a shard in a node, and whether the node has restarted it before."""
        found = next(found for found in node.ask("shards.list") if found["number"] == shard)
        return int(found["pid"]), bool(found["restarts"])

    def kill(self, node: Node) -> None:
        """Kill all processes of a node."""
        pids = family(node.pid)
        signal_all(pids, signal.SIGKILL)
        node.kill()

    def end(self, node: Node) -> None:
        if node.process is not None:
            pids = family(node.pid)
            signal_all(pids, signal.SIGCONT)
            node.process.terminate()
            deadline = time.monotonic() + 15
            while node.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            signal_all(pids, signal.SIGKILL)
            node.kill()

    def restart(self, node: Node) -> None:
        """Start a node that has ended, and wait until it can pass on clients."""
        node.kill()
        node.start()
        wait_until(lambda: self.knows_owners(node), node.log)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement in the database of the cluster."""
        return execute(self.dsn, statement)

    def check_logs(self) -> list[str]:
        """Return exceptions in the logs of the nodes."""
        found = []
        for node in self.nodes:
            try:
                node.check_log()
            except AssertionError as error:
                found.append(f"node {node.directory.name}: {error}")
        return found


class ClockRig(Rig):
    """Nodes with clocks of their own, which can be set. Needs libfaketime."""

    def make_node(self, name: str, settings: dict[str, str]) -> Node:
        return with_clock(super().make_node(name, settings), 0)


class TlsRig(Rig):
    """Nodes with TLS between them."""

    _authority: Authority | None = None

    def make_node(self, name: str, settings: dict[str, str]) -> Node:
        node = super().make_node(name, settings)
        if self._authority is None:
            self._authority = Authority(self.directory)
        cert, key = self._authority.issue(name)
        files = {"CERT": str(cert), "KEY": str(key), "CA": str(self._authority.path)}
        node.environment |= {f"LEVERET_CLUSTER__TLS__{option}": path for option, path in files.items()}
        return node


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Freeze processes."""
    signal_all(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(pids, signal.SIGCONT)

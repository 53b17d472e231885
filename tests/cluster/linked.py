"""Two nodes in one process: the front and shards of `joined`, which own the vhosts, and the front of another node."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leveret.cluster.front_session import FrontProtocols, Target
from leveret.cluster.links import NodeClient, NodeInfo, NodeServer, Route
from leveret.protocols.adoption import Adoption
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.security.tls import MutualTls
from leveret.server.server import Server
from tests.cluster.joined import Cluster, joined, make_services, users
from tests.support.polling import wait_until

SECRET = bytes(range(32))
OWNER = "owner"
EPOCH = 7
NUMBERS = {"/": 0, "b": 1}
AMQP10 = Amqp10Settings(anonymous_user="user")


class RemoteShard:
    """A shard in another node, as the front sees it."""

    def __init__(self, client: NodeClient, number: int, node: NodeInfo) -> None:
        self.unavailable = ""
        self.client_addresses = ("", "")
        self.refers = False
        self.client = client
        self.number = number
        self.node = node
        self.attempts = 0

    async def connect(self, adoption: Adoption) -> Route:
        self.attempts += 1
        return await self.client.connect(self.node, self.number, EPOCH, adoption)

    def hand_over(self, sock: Any, adoption: Adoption) -> None:
        raise AssertionError("a remote shard takes no sockets")


class Other:
    """The node of the clients.

    Attributes:
        port: The port of its front.
        front: The server of its front.
        client: Its connections to other nodes.
        shards: Where it believes the vhosts to be.
        patience: Seconds for which its clients wait for their shards.
    """

    def __init__(self, client: NodeClient, shards: dict[str, Target], patience: float) -> None:
        self.port = 0
        self.client = client
        self.shards = shards
        self.patience = patience
        self.front = Server(FrontProtocols(make_services([], users(), {"heartbeat": 0}), self, amqp10=AMQP10))

    def shard_of(self, vhost: str) -> Target | None:
        return self.shards.get(vhost)

    async def start(self, tls: ssl.SSLContext | None) -> None:
        await self.front.start()
        _, self.port = await self.front.listen("127.0.0.1", 0, tls)


class Linked:
    """Both nodes.

    Attributes:
        cluster: The node that owns the vhosts.
        server: Its listener for nodes, and the address of that.
        control: The path of its control sockets; None for none.
        owns: Whether it believes to own the shards.
        other: The node of the clients.
    """

    def __init__(self, cluster: Cluster, tls: MutualTls | None) -> None:
        self.cluster = cluster
        self.control: Path | None = None
        self.owns = True
        self.epochs: list[int] = []
        self.server = NodeServer(SECRET, OWNER, self._target, lambda shard: self.control, tls)
        self.address = self.cluster.run(self.server.start("127.0.0.1", 0))

    def begin(self, tls: ssl.SSLContext | None, patience: float, node_tls: MutualTls | None) -> None:
        client = NodeClient(SECRET, "other", node_tls)
        node = NodeInfo(OWNER, self.address)
        shards: dict[str, Target] = {name: RemoteShard(client, number, node) for name, number in NUMBERS.items()}
        self.other = self.cluster.call(lambda: Other(client, shards, patience))
        self.cluster.run(self.other.start(tls))

    def _target(self, shard: int, epoch: int) -> Target | None:
        self.epochs.append(epoch)
        return list(self.cluster.shards.values())[shard] if self.owns else None

    def remote(self, vhost: str) -> RemoteShard:
        found = self.other.shards[vhost]
        assert isinstance(found, RemoteShard)
        return found

    def wait_empty(self) -> None:
        """Wait until the node of the clients has no client any more."""
        front = self.other.front
        wait_until(lambda: self.cluster.call(lambda: not front.accepted and not front.services.sessions))


@contextmanager
def linked(
    *,
    tls: ssl.SSLContext | None = None,
    patience: float = 30.0,
    node_tls: tuple[MutualTls | None, MutualTls | None] = (None, None),
) -> Iterator[Linked]:
    """Run both nodes.

    Args:
        tls: The TLS context of the listener for clients; None for a plain one.
        patience: Seconds for which clients wait for their shards.
        node_tls: The certificates of the node that owns the shards, and of the node of the clients.
    """
    with joined(amqp10=AMQP10) as cluster:
        nodes = Linked(cluster, node_tls[0])
        nodes.begin(tls, patience, node_tls[1])
        try:
            yield nodes
        finally:
            cluster.call(lambda: nodes.other.client.stop("the test ends"))
            cluster.run(nodes.other.front.stop())
            cluster.run(nodes.server.stop())


@contextmanager
def owner_process() -> Iterator[tuple[subprocess.Popen[str], NodeInfo]]:
    """Run a node that owns the vhosts in a process of its own."""
    command = [sys.executable, "-m", "tests.cluster.owner_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, NodeInfo(OWNER, process.stdout.readline().strip())
        finally:
            process.kill()

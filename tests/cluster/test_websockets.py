"""Clients of WebSockets, which the front relays to their shards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest

from leveret.cluster.front_session import FrontProtocols
from leveret.server.server import Server
from leveret.server.websocket import WebSocketProtocol
from leveret.server.websocket_request import WebSocketSettings
from leveret.wire.amqp10.frames import FrameReader
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Close, Open
from tests.cluster.joined import Cluster, joined
from tests.cluster.linked import linked
from tests.server.test_websocket import wire_of
from tests.support.peers.amqp10 import AMQP
from tests.support.peers.websocket import WebSocketPeer, connect
from tests.support.polling import wait_until

SETTINGS = WebSocketSettings("/ws", frozenset())


def listen(cluster: Cluster, server: Server) -> int:
    """Have a server of the cluster listen, and return its port."""
    return cluster.run(server.listen("127.0.0.1", 0, None, partial(WebSocketProtocol, SETTINGS)))[1]


def use(port: int, test: Callable[[WebSocketPeer], Awaitable[None]]) -> None:
    """Run a client on an event loop of its own."""

    async def run() -> None:
        peer = await connect("127.0.0.1", port)
        await peer.upgrade()
        await test(peer)
        peer.writer.close()

    asyncio.run(asyncio.wait_for(run(), 120))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with joined() as running:
        yield running


def test_a_relayed_connection(cluster: Cluster) -> None:
    port = listen(cluster, cluster.front)

    async def test(peer: WebSocketPeer) -> None:
        wire = wire_of(peer)
        await wire.open()
        described = await asyncio.to_thread(lambda: cluster.session().describe())
        own = peer.writer.get_extra_info("sockname")[1]
        assert described.name == f"127.0.0.1:{own} -> 127.0.0.1:{port}"
        assert not described.tls and described.mechanism == "PLAIN"
        assert described.websocket_path == "/ws"
        await wire.send(1, "channel.open")
        await wire.expect("channel.open-ok")
        await wire.send(0, "connection.close", reply_code=200)
        await wire.expect("connection.close-ok")
        assert await wire.ended() == b""
        assert peer.closed is not None and peer.closed.code == 1000

    use(port, test)
    cluster.wait_empty()
    wait_until(lambda: cluster.shards["/"].ended == [1])


def test_the_death_of_the_shard(cluster: Cluster) -> None:
    async def test(peer: WebSocketPeer) -> None:
        wire = wire_of(peer)
        await wire.open()
        cluster.call(cluster.shards["/"].die)
        assert (await wire.expect("connection.close"))["reply_code"] == 320
        await wire.send(0, "connection.close-ok")
        assert await wire.ended() == b""
        assert peer.closed is not None and peer.closed.code == 1000

    use(listen(cluster, cluster.front), test)
    cluster.wait_empty()


def test_no_redirect_to_a_node_with_another_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node is only known by the address of its listener for AMQP."""
    with linked() as nodes:
        nodes.remote("b").client_addresses = (f"127.0.0.1:{nodes.cluster.port}", "tls:1")
        protocols = nodes.other.front.protocols
        assert isinstance(protocols, FrontProtocols)
        monkeypatch.setattr(protocols.amqp10.settings, "redirect", True)

        async def test(peer: WebSocketPeer) -> None:
            output, reader = Output(), FrameReader(1 << 20)
            output.send(Open("test", hostname="vhost:b"))
            peer.write(AMQP + output.to_send())
            found: list[object] = []
            while not any(isinstance(item, Open | Close) for item in found):
                found += reader.receive(await peer.read(0))
            assert isinstance(found[-1], Open)
            await asyncio.to_thread(lambda: nodes.cluster.session("b"))

        use(listen(nodes.cluster, nodes.other.front), test)
        assert nodes.epochs

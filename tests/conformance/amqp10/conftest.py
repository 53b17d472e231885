"""Peers of AMQP 1.0, and queues for them. The broker is that of all conformance tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.sockets import sockets
from tests.support.broker import Broker
from tests.support.peers.amqp091 import Channel
from tests.support.peers.amqp091 import Peer as OtherPeer
from tests.support.peers.amqp10 import Peer, Session

Connect = Callable[..., Peer]
Begin = Callable[..., Session]


@pytest.fixture(autouse=True)
def _leveret_only() -> None:
    if os.environ.get("LEVERET_TEST_BROKER") == "rabbitmq":
        pytest.skip("RabbitMQ is the measure of 0-9-1, not of 1.0")


@pytest.fixture
def raw(broker: Broker) -> Iterator[Connect]:
    """A factory of new sockets, before any header."""
    yield from sockets(Peer, broker)


@pytest.fixture
def connect(raw: Connect, name: str) -> Connect:
    """A factory of open connections, each with its own container unless named."""
    made: list[Peer] = []

    def make(*, at: Broker | None = None, **options: object) -> Peer:
        peer = raw() if at is None else raw(at)
        peer.header()
        made.append(peer)
        peer.open(**{"container_id": f"{name}.{len(made)}"} | options)  # type: ignore[arg-type]
        return peer

    return make


@pytest.fixture
def peer(connect: Connect) -> Peer:
    return connect()


@pytest.fixture
def session(peer: Peer) -> Session:
    return peer.begin()


@pytest.fixture
def begin(connect: Connect) -> Begin:
    """A factory of sessions, each on its own connection."""
    return lambda **options: connect(**options).begin()


@pytest.fixture
def channel0(broker: Broker) -> Iterator[Callable[..., Channel]]:
    """A factory of channels of AMQP 0-9-1, to declare queues with arguments and to inspect them."""
    peers: list[OtherPeer] = []

    def make(vhost: str = "/") -> Channel:
        peer = OtherPeer(broker.host, broker.port)
        peers.append(peer)
        peer.handshake(vhost)
        return peer.channel(1)

    yield make
    for peer in peers:
        peer.drop()

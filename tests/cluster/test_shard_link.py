"""The link between the front and a shard: long messages, sockets, and a peer that does not read."""

from __future__ import annotations

import asyncio
import socket

from leveret.cluster import link as links
from leveret.cluster.link import Adopt, Applied, Begin, Change, Link, Message, make_pair
from leveret.protocols.adoption import Adoption, PeerFacts
from leveret.protocols.detect import V0_9_1
from leveret.security.accounts import ExportedAccount
from tests.support.polling import wait_until_async


def adoption(connection: int, input: bytes = b"") -> Adoption:
    facts = PeerFacts("client", "127.0.0.1", True, False, 0)
    return Adoption(V0_9_1, connection, facts, input, ExportedAccount("guest"))


class End:
    """One end of a link, which records what it receives."""

    def __init__(self, end: socket.socket) -> None:
        self.link = Link(end)
        self.received: list[Message] = []
        self.sockets: list[socket.socket] = []
        self.is_closed = False
        self.drained = 0

    def start(self) -> None:
        self.link.start(self._take, self._closed, self._note_drained)

    def _take(self, message: Message, carried: socket.socket | None) -> None:
        self.received.append(message)
        if carried is not None:
            self.sockets.append(carried)

    def _closed(self) -> None:
        self.is_closed = True

    def _note_drained(self) -> None:
        self.drained += 1


def test_long_messages_and_sockets_arrive_in_order() -> None:
    asyncio.run(_long_messages_and_sockets_arrive_in_order())


async def _long_messages_and_sockets_arrive_in_order() -> None:
    front, shard = map(End, make_pair())
    front.start()
    shard.start()
    begin = Begin([("user", f"user{number}", b"x" * 1000) for number in range(1000)])
    near, far = socket.socketpair()
    front.link.send(begin)
    front.link.send(Adopt(adoption(5, b"frame" * 100_000)), far)
    front.link.send(Change(7, [("user", "user1", None)]))
    shard.link.send(Applied(7))
    await wait_until_async(lambda: len(shard.received) == 3 and front.received)
    adopted = shard.received[1]
    assert shard.received[0] == begin and shard.received[2] == Change(7, [("user", "user1", None)])
    assert isinstance(adopted, Adopt) and adopted.adoption.input == b"frame" * 100_000
    assert front.received == [Applied(7)]
    shard.sockets[0].sendall(b"from the shard")
    assert near.recv(100) == b"from the shard"
    front.link.close()
    await wait_until_async(lambda: shard.is_closed)
    shard.sockets[0].close()
    near.close()


def test_a_peer_that_does_not_read_fills_the_link_up_to_a_limit() -> None:
    asyncio.run(_a_peer_that_does_not_read_fills_the_link_up_to_a_limit())


async def _a_peer_that_does_not_read_fills_the_link_up_to_a_limit() -> None:
    front, shard = map(End, make_pair())
    front.start()
    sent = 0
    clients = []
    while not front.link.is_full:
        near, far = socket.socketpair()
        clients.append(near)
        front.link.send(Adopt(adoption(sent, b"x" * 20_000)), far)
        sent += 1
    assert sent <= links.MAX_WAITING_BYTES // 20_000 + 100
    shard.start()
    await wait_until_async(lambda: len(shard.received) == sent and front.drained)
    assert [message.adoption.connection for message in shard.received if isinstance(message, Adopt)] == list(range(sent))
    assert not front.link.is_full and not front.link.is_waiting
    for opened in (*shard.sockets, *clients):
        opened.close()
    shard.link.close()
    await wait_until_async(lambda: front.is_closed)


def test_sockets_that_wait_for_a_dead_peer_are_closed() -> None:
    asyncio.run(_sockets_that_wait_for_a_dead_peer_are_closed())


async def _sockets_that_wait_for_a_dead_peer_are_closed() -> None:
    front, shard = map(End, make_pair())
    front.start()
    clients = []
    while not front.link.is_waiting:
        near, far = socket.socketpair()
        clients.append(near)
        front.link.send(Adopt(adoption(0, b"x" * 20_000)), far)
    shard.link.close()
    await wait_until_async(lambda: front.is_closed)
    near, far = socket.socketpair()
    front.link.send(Adopt(adoption(0)), far)
    for client in (*clients, near):
        assert client.recv(1) == b""
        client.close()

"""Sockets are read into one buffer: no read allocates the maximum size."""

from __future__ import annotations

import asyncio
import socket
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from leveret.broker.broker import Broker, VhostSettings
from leveret.protocols.detect import HEADER_AMQP091
from leveret.protocols.ingress_throttle import MAX_READ, MIN_READ, SHARED_READ
from leveret.protocols.opening import Protocols
from leveret.protocols.services import Services, SessionSettings
from leveret.security.users import UserStore
from leveret.server import transport
from leveret.server.server import Server
from leveret.server.transport import LIMITED_RECEIVE_BUFFER, LOOPBACK_CONGESTION, SO_BUF_LOCK, SocketPeer
from leveret.storage.memory import MemoryLog


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, int]]:
    broker = Broker(MemoryLog())
    broker.recover(broker.log.open())
    broker.add_vhost("/", VhostSettings())
    server = Server(Protocols(Services(broker, UserStore(), SessionSettings())), shutdown_timeout=0.1)
    await server.start()
    _, port = await server.listen("127.0.0.1", 0)
    yield server, port
    await server.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def bytes_in(server: Server) -> int:
    return sum(session.describe().bytes_in for session in server.services.sessions)


def test_small_pieces_take_little_memory() -> None:
    async def scenario() -> int:
        async with serving() as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.sendall(HEADER_AMQP091[:4])
                await until(lambda: any(protocol._first for protocol in server.accepted))
                tracemalloc.start()
                try:
                    before, _ = tracemalloc.get_traced_memory()
                    client.sendall(HEADER_AMQP091[4:])
                    await until(lambda: bool(server.services.sessions))
                    for number in range(20):
                        client.sendall(b"\x01")  # of a frame that is never complete
                        await until(lambda number=number: bytes_in(server) > number)  # type: ignore[misc]
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
            return peak - before

    assert asyncio.run(scenario()) < MAX_READ // 2


async def connected(server: Server, client: socket.socket) -> SocketPeer:
    """Send the protocol header, and return the broker's side of the socket."""
    client.sendall(HEADER_AMQP091)
    await until(lambda: bool(server.services.sessions))
    (session,) = server.services.sessions
    assert isinstance(session.peer, SocketPeer)
    return session.peer


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's buffers are those of Linux")
def test_a_limited_socket_is_read_and_received_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LIMITED_FOR", 0.0)

    async def scenario() -> None:
        async with serving() as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                peer = await connected(server, client)
                (protocol,) = server.accepted
                assert protocol._transport is not None
                accepted = protocol._transport.get_extra_info("socket")
                before = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                peer.limit_reads(SHARED_READ, True)
                assert len(protocol.get_buffer(-1)) == SHARED_READ
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == before
                peer.limit_reads(MIN_READ, True)
                assert len(protocol.get_buffer(-1)) == MIN_READ
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * LIMITED_RECEIVE_BUFFER
                assert accepted.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) != 0
                peer.limit_reads(MAX_READ, False)
                assert len(protocol.get_buffer(-1)) == MAX_READ
                assert accepted.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) != 0
                await until(lambda: accepted.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) == 0)

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not pace their output")
def test_output_to_a_client_on_this_machine_is_not_paced() -> None:
    async def scenario() -> bytes:
        async with serving() as (server, port):
            with socket.create_connection(("127.0.0.1", port)):
                await until(lambda: bool(server.accepted))
                (protocol,) = server.accepted
                assert protocol._transport is not None
                accepted = protocol._transport.get_extra_info("socket")
                name: bytes = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                return name.rstrip(b"\0")

    assert asyncio.run(scenario()) == LOOPBACK_CONGESTION


def test_a_socket_is_writable_until_the_client_leaves_output_unread() -> None:
    async def scenario() -> None:
        async with serving() as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                peer = await connected(server, client)
                assert peer.is_writable()
                peer.write(bytes(64 << 20))
                assert not peer.is_writable()

    asyncio.run(scenario())


def test_pieces_of_several_sockets_do_not_mix() -> None:
    async def scenario() -> list[bytes]:
        async with serving() as (server, port):
            loop = asyncio.get_running_loop()
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
            for client in clients:
                client.setblocking(False)
            for at in range(8):
                for client in clients:
                    await loop.sock_sendall(client, HEADER_AMQP091[at : at + 1])
                    await asyncio.sleep(0)
            answers = [await loop.sock_recv(client, 7) for client in clients]
            assert len(server.services.sessions) == 3
            for client in clients:
                client.close()
            return answers

    answers = asyncio.run(scenario())
    assert [answer[:3] for answer in answers] == [b"\x01\x00\x00"] * 3  # a method frame on channel 0: connection.start

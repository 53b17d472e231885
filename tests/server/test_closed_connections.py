"""Closed connections leave nothing for the garbage collector, which runs rarely in a broker."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pika
import pika.exceptions
import pytest
from wsproto.events import CloseConnection
from wsproto.frame_protocol import FrameProtocol

from leveret.broker.broker import Broker, VhostSettings
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.connection.connection import Connection
from leveret.protocols.amqp091.connection.login import Login
from leveret.protocols.amqp10.connection.connection import Connection as Connection10
from leveret.protocols.amqp10.connection.sasl import Login as Login10
from leveret.protocols.detect import HEADER_1_0_TLS, HEADER_AMQP091
from leveret.protocols.opening import Protocols
from leveret.protocols.services import Services, SessionSettings
from leveret.security.mechanisms.scram import ScramSha256
from leveret.security.scram import Keyring
from leveret.security.users import UserStore
from leveret.server.server import Server
from leveret.server.tls import TlsProtocol
from leveret.server.transport import SocketProtocol
from leveret.server.websocket import WebSocket, WebSocketProtocol
from leveret.server.websocket_request import WebSocketSettings
from leveret.storage.memory import MemoryLog
from tests.security.certificates import Authority
from tests.server.test_websocket import wire_of
from tests.support.broker import Broker as BrokerAddress
from tests.support.peers import websocket
from tests.support.polling import wait_until, wait_until_async
from tests.support.scram import log_in_1_0, log_in_amqp091

TIMES = 5


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(*classes: type) -> dict[str, int]:
    objects = gc.get_objects()
    return {one.__name__: sum(1 for item in objects if type(item) is one) for one in classes}


def use(port: int, context: ssl.SSLContext | None, *, close: bool) -> None:
    """A client that declares, publishes and consumes, and then closes, or breaks off."""
    options = None if context is None else pika.SSLOptions(context, "localhost")
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=30, ssl_options=options))
    channel = connection.channel()
    limits = {"x-message-ttl": 3_600_000, "x-expires": 3_600_000}
    queue = channel.queue_declare("", exclusive=True, arguments=limits).method.queue
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", queue, b"m", mandatory=True)
    channel.basic_consume(queue, lambda *_: None)
    connection.process_data_events(time_limit=0)
    if close:
        connection.close()
    else:
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)


def be_closed(port: int) -> None:
    """A client whose connection the broker closes, perhaps before the client is done with opening it."""
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        wait_until(lambda: connection.process_data_events(time_limit=0.02))


def test_connections_closed_by_the_broker_leave_no_objects(no_collector: None) -> None:
    async def scenario() -> dict[str, int]:
        server = await started()
        _, port = await server.listen("127.0.0.1", 0)
        for _ in range(TIMES):
            client = asyncio.create_task(asyncio.to_thread(be_closed, port))
            while not client.done():
                for session in list(server.services.sessions):
                    if isinstance(session, Connection) and session.opened:
                        session.shut_down("an operator wants it")
                session = None  # type: ignore[assignment]
                await asyncio.sleep(0.01)
            await client
        return await what_is_left(server)

    left = asyncio.run(scenario())
    assert left == dict.fromkeys(left, 0)


async def started() -> Server:
    broker = Broker(MemoryLog())
    broker.recover(broker.log.open())
    broker.add_vhost("/", VhostSettings())
    server = Server(Protocols(Services(broker, UserStore(), SessionSettings())))
    await server.start()
    return server


async def what_is_left(server: Server) -> dict[str, int]:
    await wait_until_async(lambda: not server.services.sessions and not server.accepted)
    await asyncio.sleep(0)
    left = alive(Connection, Channel, Login, SocketProtocol, _SelectorSocketTransport, SSLProtocol, ScramSha256)
    left |= {f"{name} of 1.0": count for name, count in alive(Connection10, Login10).items()}
    await server.stop()
    return left


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's, and the client's."""
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("server"))
    return server, ssl.create_default_context(cafile=str(authority.path))


@pytest.mark.parametrize("close", [True, False], ids=["close", "break"])
@pytest.mark.parametrize("how", ["plain", "tls", "tls on the plain listener"])
def test_closed_connections_leave_no_objects(
    no_collector: None, how: str, close: bool, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    async def scenario() -> dict[str, int]:
        server = await started()
        server.tls = contexts[0]
        _, port = await server.listen("127.0.0.1", 0, contexts[0] if how == "tls" else None)
        for _ in range(TIMES):
            await asyncio.to_thread(use, port, None if how == "plain" else contexts[1], close=close)
        return await what_is_left(server)

    left = asyncio.run(scenario())
    assert left == dict.fromkeys(left, 0)


@pytest.mark.parametrize("password", ["guest", "wrong"])
@pytest.mark.parametrize("log_in", [log_in_amqp091, log_in_1_0], ids=["0-9-1", "1.0"])
def test_scram_logins_leave_no_objects(
    no_collector: None, log_in: Callable[[BrokerAddress, str, str, str], object], password: str
) -> None:
    async def scenario() -> dict[str, int]:
        server = await started()
        mechanisms = ["SCRAM-SHA-256", "PLAIN"]
        server.services.mechanisms = mechanisms
        server.services.users.keyring = Keyring(mechanisms, 4096)
        _, port = await server.listen("127.0.0.1", 0)
        for _ in range(TIMES):
            got_in = await asyncio.to_thread(log_in, BrokerAddress("127.0.0.1", port), mechanisms[0], "guest", password)
            assert (got_in is not None) is (password == "guest")
        return await what_is_left(server)

    left = asyncio.run(scenario())
    assert left == dict.fromkeys(left, 0)


@pytest.mark.parametrize("ending", ["connection", "websocket", "socket", "refused"])
@pytest.mark.parametrize("tls", [True, False])
def test_websockets_leave_no_objects(
    no_collector: None, tls: bool, ending: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    settings = WebSocketSettings("/ws" if ending != "refused" else "/other", frozenset())

    async def use(port: int) -> None:
        peer = await websocket.connect("127.0.0.1", port, contexts[1] if tls else None)
        if ending == "refused":
            peer.writer.write(websocket.request())
            assert b" 404 " in await peer.reader.read()
        else:
            await peer.upgrade()
            wire = wire_of(peer)
            peer.write(HEADER_AMQP091)
            await wire.expect("connection.start")
            if ending == "connection":
                response = {"mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"}
                await wire.send(0, "connection.start-ok", client_properties={}, **response)
                await wire.expect("connection.tune")
                await wire.send(0, "connection.close", reply_code=200)
                await wire.ended()
            elif ending == "websocket":
                peer.send(CloseConnection(1000))
                await wire.ended()
        peer.writer.close()
        await peer.writer.wait_closed()

    async def scenario() -> dict[str, int]:
        server = await started()
        make = partial(WebSocketProtocol, settings)
        _, port = await server.listen("127.0.0.1", 0, contexts[0] if tls else None, make)
        for _ in range(TIMES):
            await use(port)
        await wait_until_async(lambda: not server.services.sessions and not server.accepted)
        await asyncio.sleep(0)
        left = alive(Connection, WebSocketProtocol, WebSocket, TlsProtocol)
        # The clients have objects of these classes, too.
        objects = gc.get_objects()
        parsers = [item for item in objects if type(item) is FrameProtocol and not item.client]
        transports = [item for item in objects if type(item) is _SelectorSocketTransport]
        left["parsers"] = len(parsers)
        left["transports"] = sum(item.get_extra_info("sockname")[1] == port for item in transports)
        await server.stop()
        return left

    left = asyncio.run(scenario())
    assert left == dict.fromkeys(left, 0)


def half_of_a_handshake(port: int, first: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(first)
        client.shutdown(socket.SHUT_WR)
        while client.recv(4096):
            pass


@pytest.mark.parametrize(
    "first",
    [b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x00\x02\xff\xff", HEADER_1_0_TLS],
    ids=["half", "nonsense", "header only"],
)
def test_failed_handshakes_leave_no_objects(
    no_collector: None, first: bytes, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    async def scenario() -> dict[str, int]:
        server = await started()
        server.tls = contexts[0]
        _, port = await server.listen("127.0.0.1", 0)
        for _ in range(TIMES):
            await asyncio.to_thread(half_of_a_handshake, port, first)
        return await what_is_left(server)

    left = asyncio.run(scenario())
    assert left == dict.fromkeys(left, 0)

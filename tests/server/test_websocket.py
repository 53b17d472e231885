"""AMQP over WebSocket: the upgrade, data of any size, the end, and hostile input."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_network
from typing import Any, cast

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Pong

from leveret.protocols.detect import HEADER_1_0_SASL, HEADER_1_0_TLS, HEADER_AMQP091
from leveret.server import websocket
from leveret.server.admission import Admission
from leveret.server.server import Server
from leveret.server.transport import SocketProtocol, Sockets
from leveret.server.websocket import WebSocket, WebSocketProtocol
from leveret.server.websocket_request import WebSocketSettings
from tests.protocols.support import Site
from tests.server.test_server import Wire, run, serving
from tests.support.peers.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    MASK,
    PING,
    TEXT,
    WebSocketPeer,
    connect,
    frame,
    request,
)
from tests.support.polling import wait_until_async

SHOP = "https://shop.example.com"
SETTINGS = WebSocketSettings("/ws", frozenset((SHOP,)))
BEHIND_A_PROXY = WebSocketSettings("/ws", frozenset(), (ip_network("127.0.0.0/8"),))


@asynccontextmanager
async def listening(
    settings: WebSocketSettings = SETTINGS,
    tls: ssl.SSLContext | None = None,
    trusting: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Server, Callable[[], Any]]]:
    """A server with a listener for WebSockets, and a way to connect to it. `tls` is that of a listener without plain."""
    async with serving(**options) as (server, _):
        host, port = await server.listen("127.0.0.1", 0, tls, partial(WebSocketProtocol, settings))
        peers: list[WebSocketPeer] = []

        async def connecting() -> WebSocketPeer:
            peers.append(await connect(host, port, trusting))
            return peers[-1]

        try:
            yield server, connecting
        finally:
            for peer in peers:
                peer.writer.close()


def wire_of(peer: WebSocketPeer) -> Wire:
    """Return a client of AMQP 0-9-1 over a WebSocket."""
    return Wire(cast(Any, peer), cast(Any, peer))


async def ended(peer: WebSocketPeer) -> tuple[int, str | None] | None:
    """Wait for the end of the socket, and return the code and the reason of the close, which gets a reply."""
    while await peer.read(0):
        pass
    return None if peer.closed is None else (peer.closed.code, peer.closed.reason)


def test_a_connection_from_the_upgrade_to_the_close() -> None:
    async def test() -> None:
        async with listening() as (server, connecting):
            peer = await connecting()
            await peer.upgrade()
            assert peer.subprotocol == "amqp"
            wire = wire_of(peer)
            await wire.open()
            (session,) = server.services.sessions
            described = session.describe()
            assert described.name == "{}:{} -> {}:{}".format(
                *peer.writer.get_extra_info("sockname"), *peer.writer.get_extra_info("peername")
            )
            assert not described.tls
            assert described.websocket_path == "/ws"
            assert len(server.admission) == 0
            await wire.send(1, "channel.open")
            await wire.expect("channel.open-ok")
            await wire.send(0, "connection.close", reply_code=200)
            await wire.expect("connection.close-ok")
            assert await wire.ended() == b""
            assert peer.closed is not None and peer.closed.code == 1000
            await wait_until_async(lambda: not server.accepted)
            assert not server.services.sessions

    run(test)


def test_without_a_subprotocol() -> None:
    """As amqp-client.js connects."""

    async def test() -> None:
        async with listening() as (_, connecting):
            peer = await connecting()
            await peer.upgrade(())
            assert peer.subprotocol is None
            await wire_of(peer).open()

    run(test)


def test_the_client_of_a_trusted_proxy() -> None:
    async def test() -> None:
        async with listening(BEHIND_A_PROXY) as (server, connecting):
            peer = await connecting()
            await peer.upgrade(forwarded_for=["127.0.0.1, 203.0.113.7:4711", "127.0.0.9"])
            await wire_of(peer).open()
            (session,) = server.services.sessions
            proxy, own = peer.writer.get_extra_info("sockname"), peer.writer.get_extra_info("peername")
            name = f"203.0.113.7:4711 via 127.0.0.1:{proxy[1]} -> 127.0.0.1:{own[1]}"
            assert session.describe().name == name
            assert (session.peer.host, session.peer.local) == ("203.0.113.7", False)
            assert session.peer.subject.log_fields["peer"] == "203.0.113.7:4711"

    run(test)


@pytest.mark.parametrize(
    ("settings", "forwarded_for"), [(BEHIND_A_PROXY, []), (SETTINGS, ["203.0.113.7"]), (SETTINGS, ["nonsense"])]
)
def test_a_peer_that_names_no_client_or_is_not_believed(settings: WebSocketSettings, forwarded_for: list[str]) -> None:
    async def test() -> None:
        async with listening(settings) as (server, connecting):
            peer = await connecting()
            await peer.upgrade(forwarded_for=forwarded_for)
            await wire_of(peer).open()
            (session,) = server.services.sessions
            assert session.describe().name.startswith("127.0.0.1:{} -> ".format(peer.writer.get_extra_info("sockname")[1]))
            assert session.peer.local

    run(test)


def forwarded(client: str) -> bytes:
    return REQUEST[:-2] + f"X-Forwarded-For: {client}\r\n\r\n".encode()


def test_a_trusted_proxy_that_names_something_else_than_an_address(caplog: pytest.LogCaptureFixture) -> None:
    reason = (
        "X-Forwarded-For of the proxy 127.0.0.1 is '203.0.113.7, unknown'; expected an IP address, with or without a port"
        " ('websocket.trusted_proxies')"
    )

    async def test() -> None:
        async with listening(BEHIND_A_PROXY) as (_, connecting):
            peer = await connecting()
            peer.writer.write(forwarded("203.0.113.7, unknown"))
            with caplog.at_level("INFO", "leveret.server"):
                answer = (await peer.reader.read()).decode()
            assert answer.startswith("HTTP/1.1 400 ")
            assert reason in answer and reason in caplog.text

    run(test)


def test_clients_of_a_trusted_proxy_are_counted_by_address() -> None:
    async def test() -> None:
        async with listening(BEHIND_A_PROXY) as (server, connecting):
            server.admission.per_address = 2
            for client in ("203.0.113.1", "203.0.113.2", "203.0.113.1", "203.0.113.3"):
                await (await connecting()).upgrade(forwarded_for=[client])
            peer = await connecting()
            peer.writer.write(forwarded("203.0.113.1"))
            answer = (await peer.reader.read()).decode()
            assert answer.startswith("HTTP/1.1 429 ")
            assert "too many sockets of 203.0.113.1 have not opened a connection ('limits.unauth" in answer
            assert len(server.admission) == 5  # the refused one as that of the proxy, until its client closes it
            peer.writer.close()
            await wait_until_async(lambda: len(server.admission) == 4)

    run(test)


def in_bytes(data: bytes) -> bytes:
    return b"".join(frame(BINARY, data[at : at + 1]) for at in range(len(data)))


def in_fragments(data: bytes) -> bytes:
    return (
        frame(BINARY, data[:3], ends=False)
        + frame(PING, b"1")
        + frame(CONTINUATION, b"", ends=False)
        + frame(CONTINUATION, data[3:])
    )


@pytest.mark.parametrize("framed", [in_bytes, in_fragments, lambda data: frame(BINARY) + frame(BINARY, data)])
def test_the_boundaries_of_messages_mean_nothing(framed: Callable[[bytes], bytes]) -> None:
    async def test() -> None:
        async with listening() as (_, connecting):
            peer = await connecting()
            await peer.upgrade()
            peer.writer.write(framed(HEADER_AMQP091))
            await wire_of(peer).expect("connection.start")

    run(test)


def test_input_right_behind_the_request() -> None:
    async def test() -> None:
        async with listening() as (_, connecting):
            peer = await connecting()
            peer.writer.write(request() + frame(PING, b"early"))
            assert b"101 Switching Protocols" in await peer.reader.readuntil(b"\r\n\r\n")
            assert await peer.event() == Pong(b"early")

    run(test)


def test_a_request_in_pieces() -> None:
    async def test() -> None:
        async with listening() as (_, connecting):
            peer = await connecting()
            whole = request()
            for at in range(0, len(whole), 50):
                peer.writer.write(whole[at : at + 50])
                await peer.drain()
                await asyncio.sleep(0)
            assert b"101 Switching Protocols" in await peer.reader.readuntil(b"\r\n\r\n")

    run(test)


REQUEST = request()
REFUSED = {
    "path": (request("/other?x=1"), 404, "no WebSocket at '/other'; expected '/ws' ('websocket.path')"),
    "long path": (request("/" + "x" * 1000), 404, f"no WebSocket at '/{'x' * 99}...'; expected"),
    "origin": (
        request(origin="http://evil.example"),
        403,
        "pages of the origin 'http://evil.example' may not connect; expected one of 'websocket.allowed_origins'",
    ),
    "origin of the listener": (request(origin="http://localhost", host="localhost"), 403, "'http://localhost' may not"),
    "no origin": (request(origin="null"), 403, "'null' may not connect"),
    "two origins": (
        REQUEST.replace(b"\r\n\r\n", f"\r\nOrigin: {SHOP}\r\nOrigin: https://evil.example\r\n\r\n".encode()),
        403,
        "'https://evil.example' may not connect",
    ),
    "subprotocol": (request(subprotocols=("mqtt", "x")), 400, "the subprotocol is 'mqtt, x'; expected 'amqp'"),
    "a page": (b"GET /ws HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "expected the header 'Connection: Upgrade'"),
    "upgrade": (REQUEST.replace(b"Upgrade: websocket", b"Upgrade: h2c"), 400, "expected the header 'Upgrade: websocket'"),
    "http 1.0": (REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"), 505, "the request is HTTP/1.0; expected HTTP/1.1"),
    "version": (REQUEST.replace(b"-Version: 13", b"-Version: 8"), 426, "the version is '8'; expected 13"),
    "no version": (REQUEST.replace(b"Sec-WebSocket-Version: 13\r\n", b""), 400, "the version is ''; expected 13"),
    "key": (REQUEST.replace(b"-Key: ", b"-Key: xx"), 400, "invalid Sec-WebSocket-Key; expected 16 bytes in Base64"),
    "no key": (REQUEST.replace(b"-Key: ", b"-Keys: "), 400, "invalid Sec-WebSocket-Key"),
    "two keys": (
        REQUEST.replace(b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==\r\nSec-WebSocket-Key: "),
        400,
        "invalid Sec-WebSocket-Key",
    ),
    "no headers": (b"\r\n\r\n", 400, "not a request for a WebSocket"),
    "post": (REQUEST.replace(b"GET", b"POST"), 400, "not a request for a WebSocket: b'POST /ws'"),
    "amqp": (HEADER_AMQP091, 400, "expected b'GET ', since 'websocket.port' has no other protocol"),
    "subprotocol in other bytes": (REQUEST.replace(b"amqp", b"\xff"), 400, "expected 'amqp'"),
    "path in other bytes": (REQUEST.replace(b"/ws", b"/\xff"), 400, "not a request for a WebSocket"),
    "two hosts": (REQUEST.replace(b"Host:", b"Host: other\r\nHost:"), 400, "multiple Host"),
    "not http": (REQUEST.replace(b"HTTP/1.1", b"HTTP/9"), 400, "not a request for a WebSocket: illegal request line"),
    "size": (REQUEST[:-2] + b"X: " + bytes(9000), 431, "the request is too large; expected 8192 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request(name: str, caplog: pytest.LogCaptureFixture) -> None:
    sent, status, reason = REFUSED[name]

    async def test() -> None:
        async with listening() as (server, connecting):
            peer = await connecting()
            peer.writer.write(sent)
            with caplog.at_level("INFO", "leveret.server"):
                answer = (await peer.reader.read()).decode()
            assert answer.startswith(f"HTTP/1.1 {status} ")
            assert reason in answer.partition("\r\n\r\n")[2]
            assert reason in caplog.text
            peer.writer.close()
            await wait_until_async(lambda: not server.accepted)

    run(test)


@pytest.mark.parametrize(
    ("origins", "origin"), [({SHOP}, SHOP), ({SHOP}, "https://Shop.example.com"), ({"*"}, "http://evil.example")]
)
def test_an_allowed_origin(origins: set[str], origin: str) -> None:
    async def test() -> None:
        async with listening(WebSocketSettings("/ws", frozenset(origins))) as (_, connecting):
            peer = await connecting()
            await peer.upgrade(origin=origin)

    run(test)


@pytest.mark.parametrize(
    "sent",
    [
        # Decoding this host as IDNA, which is quadratic, would take 30 ms.
        REQUEST.replace(b"localhost", b"xn--" + "".join(map(chr, range(0x53C0, 0x4E00, -3))).encode("punycode")),
        REQUEST.replace(b"localhost", b"\xff"),
        REQUEST.replace(b"Connection: Upgrade", b"Connection: keep-alive\r\nConnection: x, upgrade"),
        REQUEST.replace(b"Upgrade: websocket", b"Upgrade: h2c, WebSocket"),
    ],
)
def test_an_unusual_request(sent: bytes) -> None:
    async def test() -> None:
        async with listening() as (_, connecting):
            peer = await connecting()
            peer.writer.write(sent)
            assert b"101 Switching Protocols" in await peer.reader.readuntil(b"\r\n\r\n")

    run(test)


@pytest.mark.parametrize(
    ("offered", "chosen"), [(("binary", "AMQPWSB10", "amqp"), "AMQPWSB10"), (("mqtt", "amqp", "AMQPWSB10"), "amqp")]
)
def test_the_first_known_subprotocol_is_chosen(offered: tuple[str, ...], chosen: str) -> None:
    async def test() -> None:
        async with listening() as (_, connecting):
            peer = await connecting()
            await peer.upgrade(offered)
            assert peer.subprotocol == chosen

    run(test)


WRONG = {
    "text": (frame(TEXT, b"AMQP"), 1003, "text messages are not supported; expected binary messages"),
    "invalid text": (frame(TEXT, b"\xff"), 1007, None),
    "unmasked": (b"\x82\x01A", 1002, "server received unexpected unmasked frame"),
    "operation": (frame(3), 1002, "Invalid opcode 0x3"),
    "compressed": (b"\xc2\x80" + MASK, 1002, "Reserved bit set unexpectedly"),
    "continuation": (frame(CONTINUATION), 1002, "unexpected CONTINUATION"),
    "size of 2^63": (frame(BINARY, size=1 << 63), 1002, "8-byte payload length with non-zero MSB"),
    "large ping": (frame(PING, bytes(126)), 1002, "Control frame with payload len > 125"),
    "short close": (frame(CLOSE, b"\x03"), 1002, "CLOSE with 1 byte payload"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_closes_the_websocket(name: str, caplog: pytest.LogCaptureFixture) -> None:
    sent, code, reason = WRONG[name]

    async def test() -> None:
        async with listening() as (server, connecting):
            peer = await connecting()
            await peer.upgrade()
            await wire_of(peer).open()
            with caplog.at_level("INFO", "leveret.server"):
                peer.writer.write(sent + frame(BINARY, bytes(100)))
                closed = await ended(peer)
            assert closed is not None and closed[0] == code
            if reason is not None:
                assert closed[1] == reason
                assert f"closed the WebSocket with {code}: {reason}" in caplog.text
            peer.writer.close()
            await wait_until_async(lambda: not server.accepted)
            assert not server.services.sessions

    run(test)


def test_the_largest_message_is_never_kept() -> None:
    """A message of nearly 2^63 bytes carries a connection of any length."""

    async def test() -> None:
        async with listening() as (_, connecting):
            peer = await connecting()
            await peer.upgrade()
            peer.writer.write(frame(BINARY, size=(1 << 63) - 1) + HEADER_AMQP091)
            await wire_of(peer).expect("connection.start")

    run(test)


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (frame(BINARY, HEADER_AMQP091) + frame(PING) + frame(CLOSE, b"\x03\xe8"), 1000),  # connection.start is dropped
        (frame(BINARY, b"not AMQP") + frame(CLOSE, b"\x03\xe8"), 1000),
        (frame(BINARY, b"not AMQP") + frame(TEXT, b"x"), 1000),
        (frame(BINARY, b"not AMQP") + frame(3), 1000),
        (frame(BINARY, HEADER_AMQP091) + frame(TEXT, b"x"), 1003),
        (frame(BINARY, HEADER_AMQP091) + frame(3), 1002),
    ],
)
def test_data_and_an_end_in_one_read(last: bytes, code: int, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with listening() as (server, connecting):
            peer = await connecting()
            await peer.upgrade()
            peer.writer.write(last)
            closed = await ended(peer)
            assert closed is not None and closed[0] == code
            peer.writer.close()
            await wait_until_async(lambda: not server.accepted)

    run(test)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_client_closes_the_websocket() -> None:
    async def test() -> None:
        async with listening() as (server, connecting):
            peer = await connecting()
            await peer.upgrade()
            await wire_of(peer).open()
            peer.send(CloseConnection(4001, "enough"))
            assert await ended(peer) == (4001, "enough")
            await wait_until_async(lambda: not server.accepted)
            assert not server.services.sessions

    run(test)


@pytest.mark.parametrize("opens", [True, False])
def test_the_server_stops(opens: bool) -> None:
    async def test() -> None:
        async with listening(shutdown_timeout=200.0) as (server, connecting):
            peer = await connecting()
            await peer.upgrade()
            if opens:
                wire = wire_of(peer)
                await wire.open()
            stopping = asyncio.create_task(server.stop())
            if opens:
                assert (await wire.expect("connection.close"))["reply_code"] == 320
                await wire.send(0, "connection.close-ok")
            assert await ended(peer) == (1001, "the broker stops")
            await stopping

    run(test)


def test_a_client_that_does_not_reply_to_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT", 0.05)

    async def test() -> None:
        async with listening() as (server, connecting):
            peer = await connecting()
            await peer.upgrade()
            wire = wire_of(peer)
            await wire.open()
            await wire.send(0, "connection.close", reply_code=200)
            await wait_until_async(lambda: not server.accepted)

    run(test)


def test_a_client_that_never_asks() -> None:
    async def test() -> None:
        async with listening(handshake_timeout=0.05) as (server, connecting):
            peer = await connecting()
            peer.writer.write(b"GET /ws HTTP/1.1\r\n")
            assert await peer.reader.read() == b""
            await wait_until_async(lambda: not server.accepted)

    run(test)


@pytest.mark.parametrize("only", [True, False])
def test_tls(context: ssl.SSLContext, trusting: ssl.SSLContext, only: bool) -> None:
    """On a listener that accepts only TLS, and on one that accepts both."""

    async def test() -> None:
        async with serving(tls=None if only else context) as (server, _):
            make = partial(WebSocketProtocol, SETTINGS)
            host, port = await server.listen("127.0.0.1", 0, context if only else None, make)
            peer = await connect(host, port, trusting)
            await peer.upgrade()
            wire = wire_of(peer)
            await wire.open()
            (session,) = server.services.sessions
            assert session.describe().tls
            # More than one read, of TLS and of the WebSocket.
            await wire.send(1, "channel.open")
            await wire.expect("channel.open-ok")
            await wire.send(1, "queue.declare", queue="q")
            await wire.expect("queue.declare-ok")
            await wire.send(0, "connection.close", reply_code=200)
            await wire.expect("connection.close-ok")
            assert await wire.ended() == b""
            peer.writer.close()
            await wait_until_async(lambda: not server.accepted)

    run(test)


def test_a_listener_that_accepts_only_tls(context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with listening(tls=context) as (server, connecting):
            peer = await connecting()
            peer.writer.write(request())
            answer = (await peer.reader.read()).decode()
            assert answer.startswith("HTTP/1.1 400 ")
            assert "the listener accepts only TLS (wss://); set 'websocket.plain' to accept ws://, too" in answer
            peer = await connecting()
            peer.writer.write(HEADER_AMQP091)
            assert await peer.reader.read() == b""
            await wait_until_async(lambda: not server.accepted)

    run(test)


def test_no_tls_within_the_websocket(context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with serving(tls=context) as (server, _):
            peer = await connect(*await server.listen("127.0.0.1", 0, None, partial(WebSocketProtocol, SETTINGS)))
            await peer.upgrade()
            peer.write(HEADER_1_0_TLS)
            assert await peer.read(8) == HEADER_1_0_SASL
            assert await ended(peer) == (1000, "")

    run(test)


# Hostile input, with a transport that a test looks into.


class Below(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.closed = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        assert not self.closed
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Above:
    """A protocol that keeps what it receives."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.room = memoryview(bytearray(16 << 10))
        self.on_data: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.room

    def received(self, data: bytes) -> None:
        self.data.append(data)
        self.on_data()

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


class Pair:
    """A WebSocket after its upgrade, between what is below and above it."""

    def __init__(self) -> None:
        self.below, self.above = Below(), Above()
        self.sockets = Sockets(Site().protocols, asyncio.get_running_loop(), ThreadPoolExecutor(1), 1.0, Admission())
        self.websocket = WebSocket(self.below, cast(SocketProtocol, self.above), self.sockets, SETTINGS)
        self.websocket.feed(request())
        assert self.below.written.startswith(b"HTTP/1.1 101 ")
        self.below.written = b""

    def read(self, data: bytes) -> bytes:
        """Have the WebSocket read as much as it takes. Return the rest."""
        room = self.websocket.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        self.websocket.buffer_updated(size)
        return data[size:]

    async def read_all(self, data: bytes) -> int:
        """Have it read data as a socket does. Return the turns that it takes."""
        turns = 0
        while data or not self.below.reads:
            if self.below.reads:
                data = self.read(data)
            await asyncio.sleep(0)
            turns += 1
        return turns

    def events(self) -> list[Any]:
        """Return what the client has received."""
        client = Connection(ConnectionType.CLIENT)
        client.receive_data(self.below.written)
        self.below.written = b""
        return list(client.events())


@pytest.mark.parametrize(
    "flood",
    [frame(BINARY), frame(PING), frame(BINARY, b"x"), frame(CONTINUATION, b"", ends=False)],
    ids=["empty messages", "pings", "bytes", "empty fragments"],
)
def test_small_frames_are_parsed_in_many_turns(flood: bytes) -> None:
    async def test() -> None:
        pair = Pair()
        count = 8 * websocket.MAX_FRAMES
        start = frame(BINARY, ends=False) if flood[0] == CONTINUATION else b""
        turns = await pair.read_all(start + flood * count)
        per_turn = websocket.MAX_FRAMES + websocket.MAX_SLICE // len(frame(BINARY))
        assert turns >= count / per_turn
        pair.read(frame(CONTINUATION, b"end") if start else frame(BINARY, b"end"))
        assert pair.above.data[-1] == b"end"

    run(test)


def test_a_session_that_reads_no_more_gets_no_more() -> None:
    async def test() -> None:
        pair = Pair()
        pair.above.on_data = pair.websocket.pause_reading
        data = frame(BINARY, b"x") * (4 * websocket.MAX_FRAMES)
        pair.read(data)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(pair.above.data) == 1 and not pair.below.reads
        pair.above.on_data = lambda: None
        pair.websocket.resume_reading()
        await wait_until_async(lambda: pair.below.reads)
        assert b"".join(pair.above.data) == b"x" * (4 * websocket.MAX_FRAMES)

    run(test)


def test_a_read_is_as_large_as_the_session_wants() -> None:
    """It is more by the headers of frames, so that the session knows a full read, after which it wants more."""

    async def test() -> None:
        pair = Pair()
        pair.read(frame(BINARY, bytes(100)) * 1000)
        size = sum(map(len, pair.above.data))
        assert len(pair.above.room) <= size <= 1.125 * len(pair.above.room)
        pair.above.room = memoryview(bytearray(1 << 20))
        assert len(pair.websocket.get_buffer(-1)) == 1.125 * websocket.READ_SIZE

    run(test)


def test_the_last_ping_of_a_read_is_answered_when_the_client_reads() -> None:
    async def test() -> None:
        pair = Pair()
        pair.read(frame(PING, b"1") + frame(PING, b"2"))
        assert pair.events() == [Pong(b"2")]
        pair.websocket.pause_writing()
        for number in range(100):
            pair.read(frame(PING, b"%d" % number))
        assert pair.below.written == b""
        pair.websocket.resume_writing()
        # asyncio's transport closes a socket twice if a write while it resumes loses it.
        assert pair.below.written == b""
        await asyncio.sleep(0)
        assert pair.events() == [Pong(b"99")]

    run(test)


def test_a_client_that_resets_the_connection_before_its_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        pair = Pair()

        def write_eof() -> None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

        monkeypatch.setattr(pair.below, "can_write_eof", lambda: True, raising=False)
        monkeypatch.setattr(pair.below, "write_eof", write_eof, raising=False)
        pair.read(frame(TEXT, b"x"))
        assert pair.below.closed

    run(test)


def test_a_transport_is_closed_once() -> None:
    """TLS is closing when the client has closed that, and its last input may be read later."""

    async def test() -> None:
        pair = Pair()
        pair.below.close()
        pair.read(frame(CLOSE))
        assert pair.websocket.is_closing()

    run(test)


def test_output_after_the_close_is_dropped() -> None:
    async def test() -> None:
        pair = Pair()
        pair.websocket.write(b"first")
        pair.websocket.close()
        pair.websocket.close()
        pair.websocket.write(b"second")
        pair.read(frame(PING) + frame(BINARY, b"late") + frame(TEXT, b"late"))
        data, closed = pair.events()
        assert isinstance(data, BytesMessage) and data.data == b"first"
        assert isinstance(closed, CloseConnection) and closed.code == 1000
        assert pair.above.data == [] and not pair.below.closed
        pair.read(frame(CLOSE, b"\x03\xe8"))
        assert pair.below.closed

    run(test)

"""TLS on the plain listener: by the protocol header of AMQP 1.0 for it (security section 5.2.1), and by a ClientHello."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

import pytest

from leveret.protocols.detect import HEADER_1_0, HEADER_1_0_SASL, HEADER_1_0_TLS, HEADER_AMQP091
from leveret.server.server import Server
from leveret.wire.amqp10.frames import FrameReader
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from leveret.wire.amqp10.transport import Open
from tests.security.certificates import Authority
from tests.server.test_server import Wire, run, serving
from tests.support.polling import wait_until_async

Connect = Callable[[], Awaitable[Wire]]


async def ask(wire: Wire) -> None:
    """The header that asks for TLS, and the same as answer."""
    wire.writer.write(HEADER_1_0_TLS)
    assert await wire.reader.readexactly(8) == HEADER_1_0_TLS


async def begin_tls(wire: Wire, trusting: ssl.SSLContext) -> None:
    await wire.writer.start_tls(trusting, server_hostname="localhost")


async def gone(server: Server) -> None:
    """Wait until the server has no connection any more."""
    await wait_until_async(lambda: not server.accepted)


async def log_in_1_0(wire: Wire) -> Open:
    """SASL PLAIN and open."""
    output, reader = Output(), FrameReader(1 << 20)
    received: list[object] = []

    async def expect(kind: type) -> object:
        while True:
            for index, item in enumerate(received):
                if isinstance(item, kind):
                    return received.pop(index)
            data = await wire.reader.read(65536)
            assert data, f"the connection ended before {kind.__name__}"
            received.extend(reader.receive(data))

    wire.writer.write(HEADER_1_0_SASL)
    await expect(SaslMechanisms)
    output.send(SaslInit("PLAIN", b"\0user\0user"))
    wire.writer.write(output.to_send())
    outcome = await expect(SaslOutcome)
    assert isinstance(outcome, SaslOutcome) and outcome.code == 0
    output.send_header(0)
    output.send(Open("test"))
    wire.writer.write(output.to_send())
    answer = await expect(Open)
    assert isinstance(answer, Open)
    return answer


@pytest.mark.parametrize("header", [True, False], ids=["header", "hello"])
def test_amqp_1_0_within_tls(context: ssl.SSLContext, trusting: ssl.SSLContext, header: bool) -> None:
    async def test() -> None:
        async with serving(tls=context) as (server, connect):
            wire = await connect()
            if header:
                await ask(wire)
            await begin_tls(wire, trusting)
            await log_in_1_0(wire)
            (session,) = server.services.sessions
            assert session.describe().tls
            wire.writer.close()
            await gone(server)

    run(test)


def test_0_9_1_within_tls_by_hello(context: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async def test() -> None:
        async with serving(tls=context) as (server, connect):
            wire = await connect()
            await begin_tls(wire, trusting)
            await wire.open()
            (session,) = server.services.sessions
            assert session.describe().tls
            await wire.send(1, "channel.open")
            await wire.expect("channel.open-ok")

    run(test)


def test_a_socket_that_was_closed_twice_can_be_aborted(context: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    """The client does not close its side of TLS, for which asyncio waits."""

    def connect(address: tuple[str, int]) -> ssl.SSLSocket:
        client = trusting.wrap_socket(socket.create_connection(address), server_hostname="localhost")
        client.sendall(HEADER_AMQP091)
        return client

    async def test() -> None:
        async with serving(tls=context) as (server, _):
            client = await asyncio.to_thread(connect, server.listeners[0].address)
            await wait_until_async(lambda: server.services.sessions)
            (session,) = server.services.sessions
            session.peer.close()
            session.peer.close()
            (protocol,) = server.accepted
            protocol.abort()
            await gone(server)
            client.close()

    run(test)


def test_plain_clients_stay_plain(context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with serving(tls=context) as (server, connect):
            wire = await connect()
            await wire.open()
            (session,) = server.services.sessions
            assert not session.describe().tls

    run(test)


def test_the_header_and_the_hello_in_one_or_many_pieces(context: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    """Data that the client sends before it has its reply is not lost."""

    async def test() -> None:
        async with serving(tls=context) as (_, connect):
            for size in (1, 3, 100_000):
                wire = await connect()
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
                with pytest.raises(ssl.SSLWantReadError):
                    tls.do_handshake()
                data = HEADER_1_0_TLS + outgoing.read()
                for start in range(0, len(data), size):
                    wire.writer.write(data[start : start + size])
                    await wire.writer.drain()
                    await asyncio.sleep(0)
                assert await wire.reader.readexactly(8) == HEADER_1_0_TLS
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        wire.writer.write(outgoing.read())
                        incoming.write(await wire.reader.read(65536))
                tls.write(HEADER_AMQP091)
                wire.writer.write(outgoing.read())
                assert await read_within(tls, incoming, wire, 1) == b"\x01"

    run(test)


async def read_within(tls: ssl.SSLObject, incoming: ssl.MemoryBIO, wire: Wire, size: int) -> bytes:
    while True:
        try:
            return tls.read(size)
        except ssl.SSLWantReadError:
            data = await wire.reader.read(65536)
            assert data
            incoming.write(data)


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (HEADER_1_0_TLS, HEADER_1_0_SASL),
        (b"\x16\x03\x01\x02\x00", HEADER_AMQP091),
    ],
    ids=["header", "hello"],
)
def test_without_tls_the_client_gets_a_supported_header(
    first: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test() -> None:
        async with serving() as (server, connect):
            wire = await connect()
            wire.writer.write(first)
            assert await wire.ended() == answer
            wire.writer.close()
            await gone(server)

    run(test)
    assert "set 'tls.cert' to enable it" in caplog.text


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (b"AMQP\x02\x01\x00\x01", HEADER_1_0_TLS),
        (b"AMQP\x02\x02\x00\x00", HEADER_1_0_TLS),
        (b"AMQP\x03\x01\x00\x01", HEADER_1_0_SASL),
        (b"AMQP\x00\x01\x01\x00", HEADER_1_0),
        (b"AMQP\x04\x01\x00\x00", HEADER_AMQP091),
    ],
    ids=["tls revision", "tls major", "sasl revision", "amqp minor", "no such id"],
)
def test_wrong_headers_get_a_supported_one(context: ssl.SSLContext, first: bytes, answer: bytes) -> None:
    async def test() -> None:
        async with serving(tls=context) as (_, connect):
            wire = await connect()
            wire.writer.write(first)
            assert await wire.ended() == answer

    run(test)


@pytest.mark.parametrize(
    ("again", "answer"),
    [
        (HEADER_1_0_TLS, HEADER_1_0_SASL),
        (b"\x16\x03\x01\x02\x00", HEADER_AMQP091),
    ],
    ids=["header", "hello"],
)
def test_no_tls_within_tls(
    context: ssl.SSLContext, trusting: ssl.SSLContext, again: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test() -> None:
        async with serving(tls=context) as (server, connect):
            wire = await connect()
            await ask(wire)
            await begin_tls(wire, trusting)
            wire.writer.write(again)
            assert await wire.ended() == answer
            await gone(server)

    run(test)
    assert "TLS within TLS" in caplog.text


@pytest.mark.parametrize("header", [True, False], ids=["header", "hello"])
def test_a_handshake_that_fails_costs_its_connection_only(context: ssl.SSLContext, header: bool) -> None:
    """An invalid record, and a client that disconnects in mid-handshake."""

    async def test() -> None:
        async with serving(tls=context) as (server, connect):
            for octets in (b"\x16\x03\x01\x00\x04\xff\xff\xff\xff", b"\x16\x03\x01\x02\x00\x01"):
                wire = await connect()
                if header:
                    await ask(wire)
                wire.writer.write(octets)
                await wire.writer.drain()
                wire.writer.write_eof()
                await wire.ended()
                await gone(server)
            wire = await connect()
            await wire.open()

    run(test)


def test_only_tls_follows_the_header(context: ssl.SSLContext) -> None:
    """Plain text after the header is not parsed as AMQP, so that an attacker cannot inject commands."""

    async def test() -> None:
        async with serving(tls=context) as (server, connect):
            wire = await connect()
            wire.writer.write(HEADER_1_0_TLS + HEADER_1_0 + struct.pack(">IBBH", 8, 2, 0, 0))
            answer = await wire.ended()
            assert answer[:8] == HEADER_1_0_TLS
            assert b"AMQP" not in answer[8:]
            assert not server.services.sessions
            await gone(server)

    run(test)


@pytest.mark.parametrize("header", [True, False], ids=["header", "hello"])
def test_a_client_that_stops_within_the_handshake_is_cut_off(context: ssl.SSLContext, header: bool) -> None:
    async def test() -> None:
        async with serving(tls=context, handshake_timeout=1) as (server, connect):
            wire = await connect()
            wire.writer.write(HEADER_1_0_TLS if header else b"\x16\x03\x01\x02\x00\x01")
            answer = await wire.ended()
            assert answer == (HEADER_1_0_TLS if header else b"")
            await gone(server)

    run(test)


def test_a_stop_within_the_handshake(context: ssl.SSLContext) -> None:
    async def test() -> None:
        async with serving(tls=context, shutdown_timeout=0.01) as (server, connect):
            wire = await connect()
            await ask(wire)
            await server.stop()
            assert not server.accepted
            assert await wire.ended() == b""

    run(test)


def test_certificates_of_clients(authority: Authority, context: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    """The session knows the client's identity, as on the TLS listener."""
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.path)
    trusting.load_cert_chain(*authority.issue("user"))

    async def test() -> None:
        async with serving(tls=context) as (server, connect):
            server.services.mechanisms.insert(0, "EXTERNAL")
            wire = await connect()
            await ask(wire)
            await begin_tls(wire, trusting)
            wire.writer.write(HEADER_1_0_SASL)
            reader = FrameReader(65536)
            items = reader.receive(await wire.reader.readexactly(8))
            while not (offered := [item for item in items if isinstance(item, SaslMechanisms)]):
                items = reader.receive(await wire.reader.read(65536))
            assert "EXTERNAL" in offered[0].sasl_server_mechanisms
            output = Output()
            output.send(SaslInit("EXTERNAL", b""))
            wire.writer.write(output.to_send())
            items = []
            while not items:
                items = reader.receive(await wire.reader.read(65536))
            assert [item.code for item in items if isinstance(item, SaslOutcome)] == [0]
            (session,) = server.services.sessions
            assert session.user == "user"

    run(test)

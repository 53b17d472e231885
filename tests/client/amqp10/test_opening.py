"""Opening connections of AMQP 1.0, and failures to open them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from leveret import aio
from leveret.client import AuthenticationFailed, ConnectionFailed, ConnectionLost, ProtocolMismatch, VhostRefused
from leveret.wire.amqp10 import frames
from leveret.wire.amqp10.transport import Begin, Close, End
from tests.client.amqp10.conftest import Connect1
from tests.client.amqp10.peer import Peer
from tests.client.conftest import Connect
from tests.client.fake import scripted_server
from tests.support.broker import Broker
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy


async def test_server_properties(connect: Connect1, server: Broker) -> None:
    connection = await connect(name="mine", heartbeat=7)
    assert connection.server_properties["product"] == "RabbitMQ"
    assert connection.is_open and "open" in repr(connection)
    assert connection.core.heartbeat_timeout == 14


async def test_refused_connections(connect: Connect1, server: Broker) -> None:
    with pytest.raises(AuthenticationFailed, match="guest"):
        await connect(password="wrong")
    with pytest.raises(AuthenticationFailed, match="PLAIN"):
        await connect(mechanism="EXTERNAL")
    with pytest.raises(VhostRefused, match="nowhere") as refused:
        await connect(vhost="nowhere")
    assert refused.value.condition


async def test_vhosts(connect: Connect1, leveret_only: Broker, name: str) -> None:
    async with await connect(vhost="vhöst/ü") as connection, connection.session() as session:
        await session.declare_queue(name)
    channel = await connect.channel("0-9-1", vhost="vhöst/ü")
    await channel.delete_queue(name)


async def test_hostnames(connect: Connect1, server: Broker) -> None:
    """The hostname takes the place of the vhost. An unknown one without the prefix is that of the vhost '/'."""
    async with await connect(vhost="nowhere", hostname="anything.example") as connection:
        assert connection.is_open
    with pytest.raises(VhostRefused, match=r"refused the hostname 'vhost:nowhere' .*\(options vhost, hostname, user\)"):
        await connect(hostname="vhost:nowhere")


async def test_the_hostname_is_that_of_the_login_and_the_open(dial: Connect) -> None:
    """Qpid Broker-J chooses the mechanisms and users of a virtual host by that of the login."""
    asked: list[object] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        asked.extend(await peer.open())
        await peer.begin()
        while not isinstance(frame := await peer.next(), Close):
            if isinstance(frame, End):
                peer.output.send(End())
                await peer.flush()
        peer.output.send(Close())
        await peer.flush()

    async with fake(script) as url:
        for options in ({"hostname": "default"}, {"vhost": "shop", "hostname": "default"}, {"vhost": "shop"}, {}):
            connection = await dial.open("1.0", url, **options)
            await connection.close()
    assert asked == ["default"] * 4 + ["vhost:shop"] * 2 + ["127.0.0.1"] * 2


async def test_anonymous(connect: Connect1, leveret_only: Broker) -> None:
    assert (await connect(mechanism="ANONYMOUS")).is_open


async def test_auto_prefers_0_9_1(connect: Connect1) -> None:
    assert isinstance(await connect.open("auto"), aio.Connection)


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def fake(script: Script) -> AsyncIterator[str]:
    """Run the script for every connection and yield the URL."""
    async with scripted_server(script) as port:
        yield f"amqp://127.0.0.1:{port}"


async def test_auto_falls_back_to_1_0(dial: Connect) -> None:
    async def only_1_0(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(8) != b"AMQP\x03\x01\x00\x00":
            writer.write(b"AMQP\x03\x01\x00\x00")
            await writer.drain()
            return
        peer = Peer(reader, writer)
        peer.coming.append(None)
        peer.frames.receive(b"AMQP\x03\x01\x00\x00")
        await peer.open()
        await peer.begin()
        while True:
            frame = await peer.next()
            if isinstance(frame, End):
                peer.output.send(End())
            elif isinstance(frame, Close):
                peer.output.send(Close())
            await peer.flush()

    async with fake(only_1_0) as url:
        connection = await dial.open("auto", url)
        assert isinstance(connection, aio.Amqp10Connection)
        assert connection.is_open and connection.server_properties == {}
        with pytest.raises(ProtocolMismatch, match=r'AMQP 1.0.*protocol="1.0"'):
            await dial(url)
        await connection.close()


async def test_other_protocols(dial: Connect) -> None:
    async def says(data: bytes, error: str = "") -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8)
            writer.write(data)
            await writer.drain()

        async with fake(script) as url:
            with pytest.raises(ProtocolMismatch, match=error):
                await dial.open("1.0", url)

    await says(b"AMQP\x00\x00\x09\x01")
    await says(b"AMQP\x01\x01\x00\x0a")
    await says(b"HTTP/1.1 400 Bad Request\r\n\r\n", r"^no AMQP server at 127.0.0.1:\d+: the port speaks HTTP;")
    await says(b"\x15\x03\x03\x00\x02\x02\x16\x00", r"^no AMQP server at 127.0.0.1:\d+: the port uses TLS;")
    await says(b"SSH-2.0-OpenSSH_9.6\r\n", r"^no AMQP server at 127.0.0.1:\d+; expected one")


async def test_server_that_closes_after_its_open(dial: Connect) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from leveret.wire.amqp10.transport import Error

        peer = Peer(reader, writer)
        await peer.open()
        peer.output.send(Close(Error("amqp:resource-limit-exceeded", "too many")))
        await peer.flush()
        await peer.next()
        await peer.next()

    async with fake(script) as url:
        with pytest.raises(ConnectionFailed, match="too many") as failed:
            await dial.open("1.0", url)
        assert failed.value.condition == "amqp:resource-limit-exceeded"


async def test_nothing_waits_for_the_ends_of_rabbitmq_3(dial: Connect) -> None:
    """It may stop a session before its end is sent."""
    begun: list[int] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.open(properties={"product": "RabbitMQ", "version": "3.13.7"})
        while not isinstance(frame := await peer.next(), Close):
            if isinstance(frame, Begin):
                begun.append(frame.channel)
                peer.output.send(Begin(0, 100, 100, frame.channel, channel=frame.channel))
                await peer.flush()
        peer.output.send(Close())
        await peer.flush()

    async with fake(script) as url:
        connection = await dial.open("1.0", url, timeout=None)
        await (await connection.session()).close()
        # The server's end may still arrive, and would end another session with the number.
        await connection.session()
        await connection.close()
    assert begun == [0, 1, 2]


async def test_server_that_breaks_the_protocol(dial: Connect) -> None:
    closed: list[object] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.open()
        await peer.begin()
        assert isinstance(await peer.next(), End)
        peer.output.send(End())
        await peer.flush()
        await peer.begin()
        writer.write(b"\0\0\0\x0c\x02\0\0\0\xff\xff\xff\xff")
        await writer.drain()
        closed.append(await peer.next())

    async with fake(script) as url:
        connection = await dial.open("1.0", url)
        await connection.session()
        with pytest.raises(Exception, match="broke the protocol"):
            await connection.wait_closed()
        await wait_until_async(lambda: closed)
        assert isinstance(closed[0], Close) and closed[0].error is not None


async def test_idle_timeouts_of_both_sides(dial: Connect) -> None:
    """The server requires a frame every 400 ms; the client gives it up when it is silent."""
    empty: list[object] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.open(idle_time_out=400)
        await peer.begin()
        assert isinstance(await peer.next(), End)
        peer.output.send(End())
        await peer.flush()
        while True:
            empty.append(await peer.next())

    async with fake(script) as url:
        connection = await dial.open("1.0", url, heartbeat=1, reconnect=False)
        with pytest.raises(ConnectionLost, match="no data from the server"):
            await connection.wait_closed()
        assert [frame.kind for frame in empty] == [frames.EMPTY] * len(empty)  # type: ignore[attr-defined]
        assert len(empty) >= 2


async def test_half_open_connection_is_detected(through: Connect1, proxy: Proxy) -> None:
    connection = await through(heartbeat=1, reconnect_delay=0.01)
    session = await connection.session()
    pairs = proxy.half_open()
    await wait_until_async(lambda: proxy.accepted >= 2 and connection.is_open and session.is_open)
    for pair in pairs:
        pair.cut()

"""The server over real sockets of this machine, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from leveret.broker.log import FAILED
from leveret.broker.timers import Timed
from leveret.protocols.detect import HEADER_AMQP091
from leveret.server.server import Server
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.specs import V0_9_1
from tests.protocols.support import Site
from tests.support.polling import wait_until_async


class Wire:
    """A client of the wire engine over a stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.engine = Engine(CLIENT, V0_9_1)
        self.received: list[Any] = []

    async def expect(self, name: str) -> dict[str, Any]:
        """Wait for a method."""
        while True:
            for index, command in enumerate(self.received):
                if isinstance(command, Method) and command.name == name:
                    del self.received[index]
                    return command.arguments
            data = await self.reader.read(65536)
            assert data, f"the connection ended before {name}"
            self.received.extend(self.engine.receive(data))

    async def send(self, channel: int, name: str, **arguments: Any) -> None:
        self.engine.send(channel, name, arguments)
        self.writer.write(self.engine.to_send())
        await self.writer.drain()

    async def open(self, user: str = "user") -> None:
        """Open a connection. The password is the name of the user."""
        self.writer.write(HEADER_AMQP091)
        await self.expect("connection.start")
        login = {"mechanism": "PLAIN", "response": f"\0{user}\0{user}", "locale": "en_US"}
        await self.send(0, "connection.start-ok", client_properties={}, **login)
        await self.expect("connection.tune")
        await self.send(0, "connection.tune-ok", channel_max=10, frame_max=131072, heartbeat=0)
        await self.send(0, "connection.open", virtual_host="/")
        await self.expect("connection.open-ok")

    async def ended(self) -> bytes:
        """Return everything until the end of the connection; a reset is an end, too."""
        data = b""
        try:
            while piece := await self.reader.read(65536):
                data += piece
        except ConnectionError:
            pass
        return data


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Server, Callable[[], Awaitable[Wire]]]]:
    """A server, and a way to connect to it."""
    site = Site()
    server = Server(site.protocols, **options)
    await server.start()
    host, port = await server.listen("127.0.0.1", 0)
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Wire:
        reader, writer = await asyncio.open_connection(host, port)
        writers.append(writer)
        return Wire(reader, writer)

    try:
        yield server, connect
    finally:
        for writer in writers:
            writer.close()
        await server.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 240))


def test_a_connection_from_header_to_close() -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            wire = await connect()
            await wire.open()
            assert len(server.services.sessions) == 1
            await wire.send(1, "channel.open")
            await wire.expect("channel.open-ok")
            await wire.send(0, "connection.close", reply_code=200)
            await wire.expect("connection.close-ok")
            assert await wire.ended() == b""
            await wait_until_async(lambda: not server.accepted)
            assert not server.services.sessions

    run(test)


def test_a_header_in_pieces() -> None:
    async def test() -> None:
        async with serving() as (_, connect):
            wire = await connect()
            for octet in HEADER_AMQP091:
                wire.writer.write(bytes((octet,)))
                await wire.writer.drain()
                await asyncio.sleep(0.001)
            await wire.expect("connection.start")

    run(test)


def test_other_input_gets_the_header_and_a_close() -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            for octets in (b"AMQP\x01\x01\x00\x08", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0"):
                wire = await connect()
                wire.writer.write(octets)
                assert await wire.ended() == HEADER_AMQP091
            assert not server.services.sessions

    run(test)


def test_a_silent_client_does_not_delay_the_stop() -> None:
    async def test() -> None:
        async with serving(shutdown_timeout=230.0) as (server, connect):
            silent, half = await connect(), await connect()
            half.writer.write(b"AMQP")
            await wait_until_async(lambda: len(server.accepted) == 2)
            await server.stop()
            assert await silent.ended() == await half.ended() == b""

    run(test)


def test_a_silent_client_is_disconnected() -> None:
    async def test() -> None:
        async with serving(handshake_timeout=0.05) as (_, connect):
            silent, half, slow = await connect(), await connect(), await connect()
            half.writer.write(HEADER_AMQP091[:3])
            slow.writer.write(HEADER_AMQP091)
            for wire in (silent, half, slow):
                await wire.ended()

    run(test)


def test_an_open_connection_is_not() -> None:
    async def test() -> None:
        async with serving(handshake_timeout=2) as (_, connect):
            wire = await connect()
            await wire.open()
            # One that came later is cut off first.
            silent = await connect()
            await silent.ended()
            await wire.send(1, "channel.open")
            await wire.expect("channel.open-ok")

    run(test)


def test_garbage_ends_only_its_own_connection() -> None:
    async def test() -> None:
        async with serving() as (_, connect):
            good, bad = await connect(), await connect()
            await good.open()
            await bad.open()
            bad.writer.write(b"\xff" * 1000)
            assert await bad.expect("connection.close") is not None
            await good.send(1, "channel.open")
            await good.expect("channel.open-ok")

    run(test)


def test_timers_fire() -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            wire = await connect()
            await wire.open()
            await wire.send(1, "channel.open")
            await wire.send(1, "queue.declare", queue="q", arguments={"x-expires": 30})
            await wire.expect("queue.declare-ok")
            await wait_until_async(lambda: "q" not in server.broker.vhosts["/"].queues)

    run(test)


def test_a_stop_closes_connections_and_waits_for_close_ok() -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            wire = await connect()
            await wire.open()
            stopping = asyncio.create_task(server.stop("for the test"))
            closed = await wire.expect("connection.close")
            assert closed["reply_code"] == 320 and "for the test" in closed["reply_text"]
            assert not stopping.done()
            await wire.send(0, "connection.close-ok")
            await wire.ended()
            await stopping

    run(test)


def test_a_stop_does_not_wait_for_ever() -> None:
    async def test() -> None:
        async with serving(shutdown_timeout=0.05) as (server, connect):
            wire = await connect()
            await wire.open()
            await server.stop()
            assert not server.accepted

    run(test)


def test_a_store_that_failed_is_reported_once() -> None:
    async def test() -> None:
        calls: list[int] = []
        async with serving(on_failure=lambda: calls.append(1)) as (server, _):
            log = server.broker.log
            assert log.on_state is not None
            log.state = FAILED
            log.on_state()
            log.on_state()
            assert calls == [1]

    run(test)


class Fired(Timed):
    """A timer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def fire(self, now: int) -> None:
        self.calls += 1


def test_the_interval_of_the_timers_does_not_delay_one_that_is_known() -> None:
    site = Site()
    server = Server(site.protocols, timer_interval=3600.0)
    assert server._tick() == 3600.0
    timers, fired = site.broker.timers, Fired()
    timers.at(timers.now() + 60_000, fired)
    assert 0 < server._tick() <= 60.0
    timers.at(timers.now(), fired)
    server._tick()
    assert fired.calls == 1

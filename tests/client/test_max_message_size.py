"""The size and number of messages that a client accepts: a server cannot fill the memory of its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from pamqp import commands

import leveret
from leveret import sync
from leveret.client import ChannelClosed, ConnectionClosed, ConnectionFailed, Error
from leveret.client.engine.amqp09.files import MAX_OPEN
from leveret.client.engine.common import connection as core_base
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.methods import encode_arguments
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp10.messaging import Source
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, End, Flow, Open, Transfer
from tests.client.amqp10 import peer as amqp10
from tests.client.fake import Peer, scripted_server
from tests.support.peers.framing import METHOD_FRAME, body_frames, content, encode, frame_bytes, header_frame
from tests.support.polling import wait_until_async

LIMIT = 1000
TOO_LARGE = 311
# A data section of 992 bytes, which is a message of LIMIT bytes.
LARGEST = b"\x00\x53\x75\xb0" + (LIMIT - 8).to_bytes(4, "big") + bytes(LIMIT - 8)

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, list[Any]], Awaitable[None]]


async def amqp0(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[Any]) -> None:
    """Deliver a message of LIMIT bytes, and the header of a larger one. The codec of both versions is the same here."""
    await reader.readexactly(8)
    peer = Peer(reader, writer)
    peer.send(commands.Connection.Start(mechanisms="PLAIN"))
    await peer.tune(frame_max=2**31)
    peer.send(commands.Connection.OpenOk())
    try:
        while True:
            channel, method = await peer.next()
            if isinstance(method, commands.Basic.Consume):
                peer.send(commands.Basic.ConsumeOk(method.consumer_tag), channel)
                for size in (LIMIT, LIMIT + 1):
                    peer.send(commands.Basic.Deliver(method.consumer_tag, size, False, "", "q"), channel)
                    peer.writer.write(header_frame(channel, size))
                    if size == LIMIT:
                        peer.writer.write(body_frames(channel, bytes(size), 131072))
            elif isinstance(method, commands.Channel.Close):
                seen.append(method.reply_code)
                peer.send(commands.Channel.CloseOk(), channel)
            elif isinstance(method, commands.Connection.Close):
                peer.send(commands.Connection.CloseOk())
            elif method.name in ("Channel.Open", "Basic.Qos"):
                peer.send(commands.Channel.OpenOk() if method.name == "Channel.Open" else commands.Basic.QosOk(), channel)
    except EOFError:
        pass


async def amqp1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[Any]) -> None:
    """Send a message of LIMIT bytes, and a larger one whose last frame never comes."""
    peer = amqp10.Peer(reader, writer)
    await peer.open()
    while True:
        frame = await peer.next()
        if isinstance(frame, Begin):
            peer.output.send(Begin(0, 100, 100, frame.channel, channel=frame.channel))
        elif isinstance(frame, Attach):
            seen.append(frame.max_message_size)
            assert isinstance(frame.source, Source)
            peer.output.send(Attach(frame.name, frame.handle, False, source=frame.source, channel=frame.channel))
        elif isinstance(frame, Flow) and frame.link_credit == 10:
            parts = [LARGEST, LARGEST[:600], LARGEST[600:], b"more"]
            for number, part in enumerate(parts):
                transfer = Transfer(frame.handle or 0, min(number, 1), b"%d" % min(number, 1), 0, True, number > 0)
                transfer.payload, transfer.channel = part, frame.channel
                peer.output.send(transfer)
        elif isinstance(frame, Detach):
            seen.append((frame.closed, frame.error and frame.error.condition))
            peer.output.send(Detach(frame.handle, True, channel=frame.channel))
        elif isinstance(frame, End | Close):
            peer.output.send(End(channel=frame.channel) if isinstance(frame, End) else Close())
        await peer.flush()


PROTOCOLS = pytest.mark.parametrize(
    ("protocol", "script", "expected", "code"),
    [
        ("0-9-1", amqp0, [TOO_LARGE], TOO_LARGE),
        ("0-9", amqp0, [TOO_LARGE], TOO_LARGE),
        ("1.0", amqp1, [LIMIT, (True, "amqp:link:message-size-exceeded")], 0),
    ],
    ids=["0-9-1", "0-9", "1.0"],
)


@PROTOCOLS
async def test_a_larger_message_closes_its_channel_or_link(
    protocol: str, script: Script, expected: list[Any], code: int
) -> None:
    seen: list[Any] = []
    async with scripted_server(lambda reader, writer: script(reader, writer, seen)) as port:
        connection: Any = await leveret.connect(
            f"amqp://127.0.0.1:{port}?max_message_size={LIMIT}", protocol=protocol, reconnect=False
        )
        async with connection:
            channel = await connection.open_channel(confirms=False)
            async with channel.consume("q", prefetch=10, no_ack=True) as consumer:
                assert len((await anext(consumer)).body) in (LIMIT, LIMIT - 8)
                with pytest.raises(ChannelClosed, match=r"\(option max_message_size\)") as closed:
                    await anext(consumer)
            assert closed.value.reply_code == code
            await connection.open_channel(confirms=False)
    assert seen == expected


@PROTOCOLS
async def test_a_larger_message_in_the_sync_api(protocol: str, script: Script, expected: list[Any], code: int) -> None:
    seen: list[Any] = []

    def receive(port: int) -> int:
        connection: Any = sync.connect(
            f"amqp://127.0.0.1:{port}", protocol=protocol, max_message_size=LIMIT, reconnect=False
        )
        with connection:
            channel = connection.open_channel(confirms=False)
            consumer = channel.consume("q", prefetch=10, no_ack=True)
            next(consumer)
            with pytest.raises(ChannelClosed, match=r"\(option max_message_size\)") as closed:
                next(consumer)
            return closed.value.reply_code

    async with scripted_server(lambda reader, writer: script(reader, writer, seen)) as port:
        assert await asyncio.to_thread(receive, port) == code
    assert seen == expected


async def test_the_client_limits_the_frame_size_that_a_server_proposes() -> None:
    async with (
        scripted_server(lambda reader, writer: amqp0(reader, writer, [])) as port,
        await leveret.connect(f"amqp://127.0.0.1:{port}") as connection,
    ):
        assert connection.core.engine.frame_max == 1 << 20


async def test_unexpected_frames_close_the_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = amqp10.Peer(reader, writer)
        await peer.open()
        for _ in range(100):
            peer.output.send(Open("peer"))
        await peer.flush()
        while not isinstance(await peer.next(), Close):
            pass

    async with scripted_server(script) as port:
        with pytest.raises(ConnectionFailed, match=r"not-allowed: .* did not ask for"):
            await leveret.connect(f"amqp://127.0.0.1:{port}", protocol="1.0")


# The number of messages that a server may send to a consumer, and the number that it sends.

PREFETCH = 10
EXCESS = 25

React = Callable[[Any, int], bytes]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, react: React) -> None:
    """Serve both versions of AMQP 0. The server also sends what `react` returns for a method and its channel."""
    await reader.readexactly(8)
    peer = Peer(reader, writer)
    peer.send(commands.Connection.Start(mechanisms="PLAIN"))
    await peer.tune(frame_max=2**31)
    peer.send(commands.Connection.OpenOk())
    while True:
        channel, method = await peer.next()
        if method.name == "Basic.Consume":
            peer.send(commands.Basic.ConsumeOk(method.consumer_tag), channel)
        elif method.name == "Connection.Close":
            peer.send(commands.Connection.CloseOk())
        elif method.name in ("Channel.Open", "Basic.Qos"):
            peer.send(commands.Channel.OpenOk() if method.name == "Channel.Open" else commands.Basic.QosOk(), channel)
        writer.write(react(method, channel))


def deliver(tag: str, count: int, first: int = 1) -> bytes:
    """Return messages for a consumer on channel 1."""
    return b"".join(
        content(1, commands.Basic.Deliver(tag, number, False, "", "q"), b"") for number in range(first, first + count)
    )


def method09(name: str, **arguments: Any) -> bytes:
    """Return a method of AMQP 0-9 on channel 1."""
    return frame_bytes(METHOD_FRAME, 1, encode_arguments(V0_9.by_name[name], arguments, QPID))


def exceed_prefetch(method: Any, channel: int) -> bytes:
    return deliver(method.consumer_tag, EXCESS) if method.name == "Basic.Consume" else b""


def after_open(*methods: bytes, once: bytes = b"") -> React:
    """Send one of the methods more often than a channel accepts it."""
    return lambda method, channel: once + b"".join(methods) * (MAX_OPEN + 1) if method.name == "Channel.Open" else b""


def exceed_credit(attaches: int = 1, resume: bool = False) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[Any]) -> None:
        peer = amqp10.Peer(reader, writer)
        await peer.open()
        while True:
            frame = await peer.next()
            if isinstance(frame, Begin):
                peer.output.send(Begin(0, 100, 100, frame.channel, channel=frame.channel))
            elif isinstance(frame, Attach):
                for handle in range(attaches):
                    assert isinstance(frame.source, Source)
                    peer.output.send(Attach(frame.name, handle, False, source=frame.source, channel=frame.channel))
            elif isinstance(frame, Flow) and frame.link_credit == PREFETCH:
                for number in range(EXCESS):
                    transfer = Transfer(0, number, b"%d" % number, 0, False, False, resume=resume)
                    transfer.payload, transfer.channel = LARGEST, frame.channel
                    peer.output.send(transfer)
            elif isinstance(frame, End | Close):
                peer.output.send(End(channel=frame.channel) if isinstance(frame, End) else Close())
            await peer.flush()

    return script


def amqp0_violation(react: React) -> Script:
    return lambda reader, writer, seen: serve(reader, writer, react)


@pytest.mark.parametrize(
    ("protocol", "script", "error"),
    [
        pytest.param("1.0", exceed_credit(attaches=2), "a second attach of link", id="attaches"),
        pytest.param("0-9", amqp0_violation(after_open(method09("channel.ping"))), "506 .* unanswered pongs", id="pings"),
        pytest.param("0-9", amqp0_violation(after_open(method09("file.open"))), "506 .* open files", id="files"),
        pytest.param(
            "0-9",
            lambda reader, writer, seen: serve(
                reader,
                writer,
                lambda method, channel: (
                    b"".join(method09("message.open", reference=f"{number}") for number in range(MAX_OPEN + 1))
                    if method.name == "Channel.Open"
                    else b""
                ),
            ),
            "506 .* open references",
            id="references",
        ),
        pytest.param(
            "0-9",
            amqp0_violation(after_open(method09("message.transfer", destination="none", body=(0, b"")))),
            "506 .* messages to unknown destinations",
            id="destinations",
        ),
    ],
)
async def test_more_than_the_client_allows_closes_the_connection(protocol: str, script: Script, error: str) -> None:
    async with scripted_server(lambda reader, writer: script(reader, writer, [])) as port:
        connection: Any = await leveret.connect(f"amqp://127.0.0.1:{port}", protocol=protocol, reconnect=False)
        with pytest.raises(ConnectionClosed, match=error):
            channel = await connection.open_channel(confirms=False)
            await channel.consume("q", prefetch=PREFETCH).start()
            await connection.wait_closed()
        with pytest.raises(ConnectionClosed, match=error):
            await connection.wait_closed()


@pytest.mark.parametrize(
    ("protocol", "script"),
    [
        pytest.param("0-9-1", amqp0_violation(exceed_prefetch), id="0-9-1"),
        pytest.param("0-9", amqp0_violation(exceed_prefetch), id="0-9"),
        pytest.param("1.0", exceed_credit(), id="1.0"),
        pytest.param("1.0", exceed_credit(resume=True), id="resumed"),
    ],
)
async def test_messages_beyond_the_prefetch_count_in_bytes(
    protocol: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers exceed the prefetch count or the link credit. The client then limits the bytes that it buffers."""
    size = len(LARGEST) if protocol == "1.0" else 0
    most = (EXCESS - 1) * (size + core_base.MESSAGE_OVERHEAD)
    for name, value in (("BUFFER_MAX", 2 * most), ("BUFFER_HIGH", most), ("BUFFER_LOW", most >> 1)):
        monkeypatch.setattr(core_base, name, value)
    async with scripted_server(lambda reader, writer: script(reader, writer, [])) as port:
        connection: Any = await leveret.connect(f"amqp://127.0.0.1:{port}", protocol=protocol, reconnect=False)
        async with connection:
            channel = await connection.open_channel(confirms=False)
            consumer = await channel.consume("q", prefetch=PREFETCH).start()
            await wait_until_async(lambda: len(consumer._core.messages) == EXCESS)
            assert connection.core.paused
            for number in range(EXCESS):
                message = await anext(consumer)
                assert message.delivery_tag == number + 1
            assert not connection.core.paused
            assert not connection.core._buffered


class Client:
    """A client of either API. The event loop runs the server, so the calls of the sync API run in threads."""

    def __init__(self, is_sync: bool) -> None:
        self.is_sync = is_sync

    async def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if self.is_sync:
            return await asyncio.to_thread(function, *arguments, **keywords)
        return await function(*arguments, **keywords)

    async def open(self, port: int) -> tuple[Any, Any]:
        """Return a connection and a channel."""
        url = f"amqp://127.0.0.1:{port}"
        connection = await self.call(sync.connect if self.is_sync else leveret.connect, url, reconnect=False)
        return connection, await self.call(connection.open_channel, confirms=False)

    async def next(self, consumer: Any) -> Any:
        return await (asyncio.to_thread(next, consumer) if self.is_sync else anext(consumer))

    async def take_all(self, consumer: Any) -> None:
        """Take messages until the connection is closed."""
        with suppress(Error):
            if self.is_sync:
                await asyncio.to_thread(lambda: sum(1 for _ in consumer))
            else:
                async for _ in consumer:
                    await asyncio.sleep(0)


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


async def test_a_server_that_does_not_read_is_not_read(client: Client) -> None:
    """The client stops reading while too many replies wait for the server, and resumes when it reads them."""
    cores: list[Any] = []
    asked = encode(commands.Basic.Cancel("x" * 250, False), 1) * 100
    replies = encode(commands.Basic.CancelOk("x" * 250), 1) * 100

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        consumed: list[str] = []

        def react(method: Any, channel: int) -> bytes:
            if method.name == "Basic.Consume":
                consumed.append(method.consumer_tag)
                raise EOFError  # leave `serve`
            return b""

        with pytest.raises(EOFError):
            await serve(reader, writer, react)
        await wait_until_async(lambda: cores)
        sent = 0
        while not cores[0].stalled:
            if writer.transport.get_write_buffer_size() < 1 << 20:
                writer.write(asked)
                sent += 1
                assert sent * len(replies) < 1 << 28
            await asyncio.sleep(0)
        writer.write(deliver(consumed[0], 1))
        for _ in range(sent):
            assert await reader.readexactly(len(replies)) == replies
        await reader.read()

    async with scripted_server(script) as port:
        connection, channel = await client.open(port)
        consumer = channel.consume("q")
        await client.call(consumer.start)
        cores.append(connection.core if not client.is_sync else connection.driver.core)
        assert (await client.next(consumer)).delivery_tag == 1
        assert not cores[0].stalled
        connection.driver.close_socket()


async def test_the_buffer_is_limited_while_a_call_waits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 20
    for name, value in (("BUFFER_MAX", limit), ("BUFFER_HIGH", limit >> 2), ("BUFFER_LOW", limit >> 3)):
        monkeypatch.setattr(core_base, name, value)
    cores: list[Any] = []
    stalled = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tags: list[str] = []

        async def flood() -> None:
            message = content(1, commands.Basic.Deliver(tags[0], 1, False, "", "q"), bytes(4096))
            sent = 0
            while not stalled.is_set():
                if writer.transport.get_write_buffer_size() < 1 << 20:
                    writer.write(message)
                    sent += len(message)
                    assert sent < 1 << 27
                await asyncio.sleep(0)
            writer.write(encode(commands.Queue.DeclareOk("q", 7, 1), 1))

        flooding: list[asyncio.Task[None]] = []

        def react(method: Any, channel: int) -> bytes:
            if method.name == "Basic.Consume":
                tags.append(method.consumer_tag)
            elif method.name == "Queue.Declare":
                flooding.append(asyncio.create_task(flood()))
            return b""

        try:
            await serve(reader, writer, react)
        finally:
            await flooding[0]

    async with scripted_server(script) as port:
        connection, channel = await client.open(port)
        consumer = channel.consume("q", no_ack=True)
        await client.call(consumer.start)
        cores.append(connection.driver.core)
        declaring = asyncio.create_task(client.call(channel.declare_queue, "q", passive=True))
        await wait_until_async(lambda: cores[0].stalled)
        assert cores[0]._buffered < limit + (1 << 20)
        stalled.set()
        taking = asyncio.create_task(client.take_all(consumer))
        assert (await declaring).message_count == 7
        await client.call(connection.close)
        await taking

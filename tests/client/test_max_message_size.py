"""The size of messages that a client accepts: a server cannot fill the memory of its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pamqp import commands

import leveret
from leveret import sync
from leveret.client import ChannelClosed, ConnectionFailed
from leveret.wire.amqp10.messaging import Source
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, End, Flow, Open, Transfer
from tests.client.amqp10 import peer as amqp10
from tests.client.fake import Peer, scripted_server
from tests.support.peers.framing import body_frames, header_frame

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

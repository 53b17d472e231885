"""Backpressure: publishes wait, up to a timeout, while the server blocks publishers. Everything else continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from leveret.client._async.channel import Channel
from leveret.client.errors import ChannelClosed, ConnectionLost, Timeout
from leveret.client.events import Blocked, Event, Unblocked
from tests.client.conftest import Connect
from tests.client.fake import Peer, fake_server
from tests.support.broker import Broker, LeveretProcess, basic_config
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitProcess

MIB = 1 << 20


async def count(channel: Channel, queue: str) -> int:
    return (await channel.declare_queue(queue, passive=True)).message_count


@asynccontextmanager
async def rabbit_alarm(node: RabbitProcess) -> AsyncIterator[None]:
    await asyncio.to_thread(node.control, "set_vm_memory_high_watermark", "0.000001")
    try:
        yield
    finally:
        await asyncio.to_thread(node.control, "set_vm_memory_high_watermark", "0.6")


async def test_blocked_by_rabbitmq(connect: Connect, server: Broker, name: str) -> None:
    if not isinstance(server, RabbitProcess):
        pytest.skip("RabbitMQ's own command sets the alarm")
    events: list[Event] = []
    connection = await connect(on_event=events.append, blocked_timeout=0.2)
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)
    async with rabbit_alarm(server):
        # The server blocks the client at its first publish during the alarm, which it accepts but does not confirm.
        first = asyncio.ensure_future(channel.publish(b"1", name, timeout=60))
        await wait_until_async(lambda: connection.blocked)
        with pytest.raises(Timeout, match="blocks publishers"):
            await channel.publish(b"2", name)
        with pytest.raises(Timeout, match="blocks publishers"):
            await channel.publisher(routing_key=name).publish(b"2")
    await first
    await wait_until_async(lambda: not connection.blocked)
    await channel.publish(b"3", name)
    assert await count(channel, name) == 2
    assert [type(event) for event in events[1:]] == [Blocked, Unblocked]


async def test_blocked_by_leveret(dial: Connect, tmp_path: Path, name: str) -> None:
    def start() -> LeveretProcess:
        probe = LeveretProcess(tmp_path / "probe")
        with probe.start():
            idle = probe.memory()
        config = basic_config() + f"\n[limits]\nmemory_high_watermark = {idle + 64 * MIB}\n"
        return LeveretProcess(tmp_path / "broker", config=config).start()

    process = await asyncio.to_thread(start)
    try:
        events: list[Event] = []
        connection = await dial(process.url(), on_event=events.append, blocked_timeout=0.2)
        channel = await connection.channel(confirms=False)
        holder = await (await dial(process.url())).channel()
        await holder.declare_queue(name)
        consumer = await holder.consume(name, prefetch=0).start()
        body = b"x" * 10_000
        while not connection.blocked:
            try:
                await channel.publish(body, name)
            except Timeout:
                # The socket may be full before the broker sends its reason.
                continue
            await asyncio.sleep(0)
        with pytest.raises(Timeout, match="blocks publishers") as caught:
            await channel.publish(body, name)
        assert connection.blocked in str(caught.value)
        # Connections that do not publish are not affected.
        assert (await holder.declare_queue(exclusive=True)).name
        waiting = asyncio.ensure_future(_publish_when_possible(channel, name))
        while True:
            message = await anext(consumer)
            message.ack(multiple=True)
            if not connection.blocked and not consumer._core.messages:
                break
        await waiting
        assert [type(event) for event in events[1:3]] == [Blocked, Unblocked]
        await holder.purge_queue(name)
        for opened in dial.opened:
            await opened.close()
    finally:
        await asyncio.to_thread(process.stop)


async def _publish_when_possible(channel: Channel, queue: str) -> None:
    while True:
        try:
            await channel.publish(b"last", queue)
            return
        except Timeout:
            continue


async def test_channel_flow(dial: Connect) -> None:
    """The server pauses one channel; the others are not affected."""
    resume = asyncio.Event()
    stopped = asyncio.Event()
    published: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.handshake()
        first, second = await peer.channel(), await peer.channel()
        peer.send(commands.Channel.Flow(False), first)
        await peer.expect("Channel.FlowOk")
        stopped.set()

        async def let_go() -> None:
            await resume.wait()
            peer.send(commands.Channel.Flow(True), first)

        going = asyncio.create_task(let_go())
        tags = {first: 0, second: 0}
        while True:
            try:
                number, method = await peer.next()
            except EOFError:
                break
            if method.name == "Basic.Publish":
                published.append(number)
                tags[number] += 1
                peer.send(commands.Basic.Ack(tags[number]), number)
            elif method.name == "Connection.Close":
                peer.send(commands.Connection.CloseOk())
        going.cancel()

    async with fake_server(script) as url:
        connection = await dial(url, blocked_timeout=1)
        first, second = await connection.channel(), await connection.channel()
        await stopped.wait()
        with pytest.raises(Timeout, match=r"channel\.flow"):
            await first.publish(b"x", "q")
        await second.publish(b"x", "q")
        waiting = [asyncio.ensure_future(first.publish(b"x", "q")) for _ in range(3)]
        await asyncio.sleep(0)
        resume.set()
        await asyncio.gather(*waiting)
        assert published == [second.number, *[first.number] * 3]
        await connection.close()


async def test_waiters_learn_the_outcome(dial: Connect) -> None:
    """Blocked publishes fail with their channel, and wait up to their timeout for the next connection."""
    publishing, closed = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.handshake()
        await peer.channel()
        second = await peer.channel()
        peer.send(commands.Connection.Blocked("low on everything"))
        await publishing.wait()
        peer.send(commands.Channel.Close(406, "gone", 60, 40), second)
        await closed.wait()

    async with fake_server(script) as url:
        connection = await dial(url, reconnect_delay=30)
        first, second = await connection.channel(), await connection.channel()
        await wait_until_async(lambda: connection.blocked)
        waiting = asyncio.ensure_future(first.publish(b"x", "q", timeout=2))
        failing = asyncio.ensure_future(second.publish(b"x", "q"))
        await asyncio.sleep(0)
        publishing.set()
        with pytest.raises(ChannelClosed) as caught:
            await failing
        assert caught.value.reply_code == 406
        closed.set()
        with pytest.raises(Timeout, match="no connection"):
            await waiting
        await connection.close()


async def test_publish_waits_for_a_full_socket(dial: Connect, proxy: Proxy, name: str) -> None:
    """Publishers without confirms wait for the socket instead of filling the memory."""
    connection = await dial(proxy.url(), blocked_timeout=1, heartbeat=0)
    channel = await connection.channel(confirms=False)
    await channel.declare_queue(name, exclusive=True)
    proxy.flowing.clear()
    sent = 0
    with pytest.raises(Timeout, match="socket"):
        while True:
            await channel.publish(b"x" * 65536, name)
            sent += 1
            await asyncio.sleep(0)
    assert sent < 1000
    transport = connection.driver.stream.transport  # type: ignore[union-attr]
    assert transport is not None and transport.get_write_buffer_size() < 4 * MIB
    proxy.flowing.set()
    async with asyncio.timeout(60):
        await _publish_when_possible(channel, name)
        while await count(channel, name) < sent + 1:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("closing", [True, False])
async def test_close_with_a_full_socket(dial: Connect, proxy: Proxy, name: str, closing: bool) -> None:
    """If the server stops reading, close takes no longer than connect_timeout."""
    connection = await dial(proxy.url(), heartbeat=0, connect_timeout=2, blocked_timeout=0.1)
    channel: Any = await connection.channel(confirms=False)
    proxy.half_open()
    with pytest.raises(Timeout):
        while True:
            await channel.publish(b"x" * 65536, name)
            await asyncio.sleep(0)
    if closing:
        async with asyncio.timeout(60):
            await connection.close()
        assert connection.is_closed
    else:
        assert connection.driver.stream is not None
        connection.driver.stream.abort()
        with pytest.raises((ConnectionLost, Timeout)):
            await channel.get(name, timeout=0.01)

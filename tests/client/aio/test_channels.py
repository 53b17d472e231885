"""Channels: numbers, closing, transactions, and many channels at once."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import pytest
from pamqp import commands

from leveret import aio
from leveret.client.errors import (
    ChannelClosed,
    ConnectionClosed,
    NotFound,
    PreconditionFailed,
    Timeout,
)
from tests.client.conftest import Connect
from tests.client.fake import Peer, fake_server
from tests.support.broker import Broker
from tests.support.polling import wait_until_async


async def test_channel_numbers_are_reused(connect: Connect) -> None:
    connection = await connect(channel_max=5)
    channels = [await connection.channel() for _ in range(5)]
    assert [channel.number for channel in channels] == [1, 2, 3, 4, 5]
    with pytest.raises(ConnectionClosed, match="channel_max"):
        await connection.channel()
    assert connection.is_open
    await channels[1].close()
    await channels[3].close()
    assert [(await connection.channel()).number for _ in range(2)] == [2, 4]
    for _ in range(50):
        broken = channels[0]
        with pytest.raises(NotFound):
            await broken.declare_queue("not there", passive=True)
        channels[0] = await connection.channel()
        assert channels[0].number == 1


async def test_thousands_of_channels_in_sequence(connect: Connect) -> None:
    connection = await connect()
    for _ in range(1000):
        async with connection.channel() as channel:
            assert channel.number == 1
    assert not connection.core.channels


async def test_many_channels_at_once(connect: Connect, name: str) -> None:
    connection = await connect()
    channels = await asyncio.gather(*(connection.channel()._open() for _ in range(1500)))
    assert sorted(channel.number for channel in channels) == list(range(1, 1501))
    await channels[0].declare_queue(name, exclusive=True)
    await asyncio.gather(*(channel.publish(b"x", name) for channel in channels))
    assert await channels[7].purge_queue(name) == 1500
    await asyncio.gather(*(channel.close() for channel in channels))
    assert not connection.core.channels


async def test_closed_channel(connect: Connect) -> None:
    connection = await connect()
    channel = await connection.channel()
    await channel.close()
    await channel.close()
    assert not channel.is_open and "not open" in repr(channel)
    for call in (
        channel.publish(b"x", "q"),
        channel.get("q"),
        channel.declare_queue(),
        channel.consume("q").start(),
        channel.request(b"x", "q"),
        channel.publisher().publish(b"x"),
    ):
        with pytest.raises(ChannelClosed) as caught:
            await call
        assert caught.value.reply_code == 0
    with pytest.raises(ChannelClosed):
        channel.ack(1)


async def test_both_sides_close_at_once(dial: Connect) -> None:
    """The number is free only after the server has replied."""

    async def script(peer: Peer) -> None:
        await peer.handshake()
        for _ in range(3):
            number = await peer.channel()
            await peer.expect("Queue.Declare")
            # The client's close crosses this one.
            peer.send(commands.Channel.Close(406, "no", 50, 10), number)
            await peer.expect("Channel.Close")
            await peer.expect("Channel.CloseOk")
            peer.send(commands.Channel.CloseOk(), number)
        await peer.closing()

    async with fake_server(script) as url:
        connection = await dial(url, timeout=5)
        for _ in range(3):
            channel = await connection.channel()
            assert channel.number == 1
            declaring = asyncio.ensure_future(channel.declare_queue("q"))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(channel.close())
            result = (await asyncio.gather(declaring, return_exceptions=True))[0]
            assert isinstance(result, ChannelClosed)
            await closing
        await connection.close()


async def test_server_that_never_answers(dial: Connect) -> None:
    """No call hangs: each times out, a late reply is ignored, and the connection stays usable."""
    late = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.handshake()
        number = await peer.channel()
        await peer.expect("Queue.Declare")
        await late.wait()
        peer.send(commands.Queue.DeclareOk("q", 7, 0), number)
        await peer.expect("Queue.Purge")
        peer.send(commands.Queue.PurgeOk(3), number)
        # One channel is never opened, the other never closed.
        await peer.expect("Channel.Open")
        await asyncio.Event().wait()

    async with fake_server(script) as url:
        connection = await dial(url, timeout=0.5, connect_timeout=2)
        channel = await connection.channel()
        with pytest.raises(Timeout, match=r"queue\.declare"):
            await channel.declare_queue("q")
        late.set()
        assert await channel.purge_queue("q") == 3
        with pytest.raises(Timeout, match=r"channel\.open"):
            await connection.channel()
        with pytest.raises(Timeout, match=r"channel\.close"):
            await channel.close()
        async with asyncio.timeout(60):
            await connection.close()


async def test_unexpected_replies(dial: Connect) -> None:
    async def script(peer: Peer) -> None:
        await peer.handshake()
        number = await peer.channel()
        await peer.expect("Queue.Declare")
        peer.send(commands.Queue.PurgeOk(3), number)
        await peer.closing()

    async with fake_server(script) as url:
        connection = await dial(url)
        channel = await connection.channel()
        with pytest.raises(ConnectionClosed, match=r"queue\.purge-ok"):
            await channel.declare_queue("q")
        assert connection.is_closed


async def test_confirms_out_of_order_and_multiple(dial: Connect) -> None:
    async def script(peer: Peer) -> None:
        await peer.handshake()
        number = await peer.channel()
        for _ in range(12):
            await peer.expect("Basic.Publish")
        for tag, multiple in ((3, False), (2, True), (3, False), (7, True), (12, False), (11, False)):
            peer.send(commands.Basic.Ack(tag, multiple), number)
        peer.send(commands.Basic.Nack(9, True, False), number)
        peer.send(commands.Basic.Ack(0, True), number)
        # Unknown tags.
        peer.send(commands.Basic.Ack(99, False), number)
        await peer.closing()

    async with fake_server(script) as url:
        connection = await dial(url)
        channel = await connection.channel()
        results = await asyncio.gather(*(channel.publish(b"%d" % n, "q") for n in range(12)), return_exceptions=True)
        assert [result is None for result in results] == [True] * 7 + [False] * 2 + [True] * 3
        assert [result.messages[0].body for result in results[7:9]] == [b"7", b"8"]  # type: ignore[union-attr]
        await connection.close()


# Transactions


async def test_commit_and_rollback(connect: Connect, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(transactional=True), await connection.channel()
    queue = await channel.declare_queue(name, exclusive=True)
    async with channel.transaction():
        await channel.publish(b"1", name)
        await channel.publish(b"2", name)
        assert (await other.declare_queue(name, passive=True)).message_count == 0
    assert (await other.declare_queue(name, passive=True)).message_count == 2
    with pytest.raises(ZeroDivisionError):
        async with channel.transaction():
            await channel.publish(b"3", name)
            message = await queue.get()
            assert message is not None
            message.ack()
            raise ZeroDivisionError
    await channel.publish(b"4", name)
    await channel.tx_commit()
    await channel.publish(b"5", name)
    await channel.tx_rollback()
    # Of the messages acknowledged in the transaction that was rolled back, 0-9 requeues all, and 0-9-1 none.
    bodies = []
    while (left := await other.get(name, no_ack=True)) is not None:
        bodies.append(left.body)
    assert bodies == [*([b"1"] if isinstance(connection, aio.Amqp09Connection) else []), b"2", b"4"]


async def test_transactions_need_a_transactional_channel(connect: Connect) -> None:
    connection = await connect()
    channel = await connection.channel()
    with pytest.raises(RuntimeError, match="transactional=True"):
        async with channel.transaction():
            pass
    with pytest.raises(PreconditionFailed):
        await channel.tx_commit()


async def test_concurrent_commits(connect: Connect, name: str) -> None:
    """Several tasks share a channel: work during a commit waits for it."""
    connection = await connect()
    channel = await connection.channel(transactional=True)
    await channel.declare_queue(name, exclusive=True)

    async def work(number: int) -> None:
        for _ in range(5):
            await channel.publish(b"x", name)
            await channel.tx_commit()

    await asyncio.gather(*(work(number) for number in range(10)))
    assert (await channel.declare_queue(name, passive=True)).message_count == 50


async def test_error_in_a_transaction(connect: Connect, name: str) -> None:
    """The error is raised, not that of the impossible rollback."""
    connection = await connect()
    channel = await connection.channel(transactional=True)
    with pytest.raises(NotFound):
        async with channel.transaction():
            await channel.publish(b"x", "", name)
            await channel.declare_queue(exclusive=True)


# Many tasks


async def test_200_tasks_on_one_channel(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    chance = random.Random(1)
    received: list[bytes] = []
    consumers = [channel.consume(name, prefetch=5) for _ in range(5)]

    async def publish(number: int) -> None:
        for part in range(10):
            await channel.publish(b"%d.%d" % (number, part), name)
            if chance.random() < 0.2:
                await channel.declare_queue(name, passive=True)

    async def take(consumer: Any) -> None:
        async for message in consumer:
            received.append(message.body)
            message.ack()

    async def get() -> None:
        while len(received) < 1800:
            message = await channel.get(name)
            if message is None:
                await asyncio.sleep(0.002)
            else:
                received.append(message.body)
                message.ack()

    taking = [asyncio.create_task(take(consumer)) for consumer in consumers]
    getting = [asyncio.create_task(get()) for _ in range(15)]
    await asyncio.gather(*(publish(number) for number in range(180)))
    await wait_until_async(lambda: len(received) >= 1800)
    for consumer in consumers:
        await consumer.cancel()
    await asyncio.gather(*taking, *getting)
    assert sorted(received) == sorted(b"%d.%d" % (number, part) for number in range(180) for part in range(10))


async def test_200_tasks_on_separate_channels(connect: Connect, name: str) -> None:
    connection = await connect()

    async def work(number: int) -> int:
        async with connection.channel(confirms=number % 2 == 0) as channel:
            queue = await channel.declare_queue(exclusive=True)
            async with channel.publisher(routing_key=queue.name, window=7) as publisher:
                for part in range(20):
                    await publisher.publish(b"%d" % part)
            seen = 0
            async with queue.consume(prefetch=3) as consumer:
                async for message in consumer:
                    assert message.body == b"%d" % seen
                    message.ack()
                    seen += 1
                    if seen == 20:
                        break
            await queue.delete()
            return seen

    assert sum(await asyncio.gather(*(work(number) for number in range(200)))) == 4000
    assert not connection.core.channels
    assert not connection.core.topology.queues


async def test_closed_objects_are_freed(connect: Connect, server: Broker, name: str) -> None:
    """Channels, consumers, messages and connections are freed with their last reference, messages without the collector."""
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)

    class Body(bytes):
        """Bytes that support weak references."""

    async def round() -> weakref.ref[Any]:
        async with connection.channel() as other:
            async with other.publisher(routing_key=name) as publisher:
                for _ in range(50):
                    await publisher.publish(Body(b"x" * 100))
            async with other.consume(name) as consumer:
                for _ in range(50):
                    (await anext(consumer)).ack()
            return weakref.ref(other)

    gone = [await round() for _ in range(3)]
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(10):
        await round()
    gc.collect()
    assert len(gc.get_objects()) - before < 300
    core = connection.core
    assert not any(isinstance(thing, Body) for thing in gc.get_objects())
    assert len(core.channels) == 1 and not core._awaited and not core._ready.waiting

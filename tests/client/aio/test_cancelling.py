"""Cancellation of a task at every await: the connection stays usable, and nothing is lost or stuck.

A task runs for 0, 1, 2 ... turns of the event loop and is then cancelled, until it finishes before the cancellation. The
number of turns that a reply takes depends on the load of the machine, so beyond 100 turns it grows by 1 % each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import leveret
from leveret.client._async.channel import Channel
from leveret.client._async.connection import Connection
from tests.client.conftest import Connect
from tests.support.broker import Broker
from tests.support.polling import wait_until_async

# Consecutive runs in which a task must finish by itself.
ENOUGH = 3
MOST = 1200


async def cancel_everywhere(
    start: Callable[[], Awaitable[Any]], check: Callable[[Any, bool], Awaitable[None]] | None = None, pause: float = 0.0
) -> int:
    """Run the task with each delay, and return the number of cancellations.

    `check` gets the result, None if there is none, and whether the task was cancelled.
    """
    ended = cancelled = steps = 0
    for _ in range(MOST):
        task = asyncio.ensure_future(start())
        for _ in range(steps):
            await asyncio.sleep(pause)
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        was_cancelled = isinstance(result, asyncio.CancelledError)
        if not was_cancelled and isinstance(result, BaseException):
            raise result
        if check is not None:
            await check(None if was_cancelled else result, was_cancelled)
        cancelled += was_cancelled
        ended = 0 if was_cancelled else ended + 1
        if ended == ENOUGH:
            return cancelled
        steps += 1 + steps // 100
    raise AssertionError("it never ended by itself")


async def usable(channel: Channel) -> None:
    """Check that calls, publishes and deliveries work."""
    async with asyncio.timeout(60):
        queue = await channel.declare_queue(exclusive=True)
        await channel.publish(b"x", queue.name)
        async with channel.consume(queue) as consumer:
            (await anext(consumer)).ack()
        assert await queue.delete() == 0


async def test_declare(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    assert await cancel_everywhere(lambda: channel.declare_queue(name, auto_delete=True)) > 1
    # The declaration is recorded even if its caller was cancelled.
    assert name in channel.connection.core.topology.queues
    await channel.delete_queue(name)
    await usable(channel)


async def test_publish(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    confirmed = 0

    async def check(result: Any, cancelled: bool) -> None:
        nonlocal confirmed
        confirmed += not cancelled

    cancelled = await cancel_everywhere(lambda: channel.publish(b"x", name), check)
    await usable(channel)
    assert confirmed <= await channel.purge_queue(name) <= confirmed + cancelled
    assert len(channel._core.pending_confirms) == 0


async def test_publisher(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)

    async def publish() -> None:
        async with channel.publisher(routing_key=name, window=2) as publisher:
            for _ in range(7):
                await publisher.publish(b"x")
            await publisher.flush()

    assert await cancel_everywhere(publish) > 2
    await usable(channel)
    assert len(channel._core.pending_confirms) == 0


async def test_get(connect: Connect, name: str) -> None:
    """A cancelled get requeues its message."""
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await other.declare_queue(name, exclusive=True)
    await other.publish(b"the one", name)

    async def check(result: Any, cancelled: bool) -> None:
        if result is not None:
            assert result.body == b"the one"
            result.nack()
        async with asyncio.timeout(60):
            while (message := await other.get(name)) is None:
                await asyncio.sleep(0.005)
        message.nack()
        # It has arrived before the next get.
        while (await other.declare_queue(name, passive=True)).message_count == 0:
            await asyncio.sleep(0.005)

    assert await cancel_everywhere(lambda: channel.get(name), check) > 1
    await usable(channel)


async def test_consume(connect: Connect, name: str) -> None:
    """Start, take two messages, cancel: a cancellation at any point requeues both and leaves no consumer."""
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await other.declare_queue(name)

    async def consume() -> None:
        async with channel.consume(name, prefetch=2) as consumer:
            for _ in range(2):
                (await anext(consumer)).nack()

    async def check(result: Any, cancelled: bool) -> None:
        async with asyncio.timeout(60):
            while True:
                queue = await other.declare_queue(name, passive=True)
                if (queue.message_count, queue.consumer_count) == (2, 0):
                    break
                await asyncio.sleep(0.005)

    for body in (b"1", b"2"):
        await other.publish(body, name)
    assert await cancel_everywhere(consume, check) > 3
    assert not channel._core.consumers
    await usable(channel)
    assert await other.delete_queue(name) == 2


async def test_restart_a_cancelled_start(connect: Connect, name: str) -> None:
    """A consumer whose start was cancelled starts again with the next message, also under an explicit tag."""
    connection = await connect()
    other = await connection.channel()
    await other.declare_queue(name)
    for tag in ("", "tag"):
        for steps in range(30):
            channel = await connection.channel()
            consumer = channel.consume(name, consumer_tag=tag)
            task = asyncio.ensure_future(consumer.start())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await other.publish(b"%d" % steps, name)
            async with asyncio.timeout(60):
                message = await anext(consumer)
            assert message.body == b"%d" % steps
            message.ack()
            await consumer.cancel()
            assert not channel._core.consumers
            await channel.close()
    queue = await other.declare_queue(name, passive=True)
    assert (queue.message_count, queue.consumer_count) == (0, 0)
    await queue.delete()


async def test_consumer_cancel(connect: Connect, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await other.declare_queue(name)
    for number in range(5):
        await other.publish(b"%d" % number, name)
    for steps in range(20):
        consumer = await channel.consume(name).start()
        task = asyncio.ensure_future(consumer.cancel())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await consumer.cancel()
        async with asyncio.timeout(60):
            while (await other.declare_queue(name, passive=True)).message_count < 5:
                await asyncio.sleep(0.005)
    assert not channel._core.consumers
    await usable(channel)
    assert await other.delete_queue(name) == 5


async def test_next_message(connect: Connect, name: str) -> None:
    """A cancelled wait consumes no message."""
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    consumer: Any = await channel.consume(name).start()
    for number in range(60):
        waiting = asyncio.ensure_future(anext(consumer))
        await channel.publish(b"%d" % number, name)
        for _ in range(number % 6):
            await asyncio.sleep(0)
        waiting.cancel()
        result = (await asyncio.gather(waiting, return_exceptions=True))[0]
        message = await anext(consumer) if isinstance(result, BaseException) else result
        assert message.body == b"%d" % number
        message.ack()


async def test_channels(connect: Connect) -> None:
    connection = await connect()

    async def open_and_close() -> None:
        async with connection.channel(prefetch=5):
            pass

    assert await cancel_everywhere(open_and_close) > 2
    await usable(await connection.channel())
    # All numbers but the last are free again.
    await wait_until_async(lambda: len(connection.core.channels) <= 1)


async def test_request(connect: Connect, name: str) -> None:
    connection = await connect()
    server, channel = await connection.channel(), await connection.channel()
    await server.declare_queue(name, exclusive=True)

    async def serve() -> None:
        async for message in server.consume(name, no_ack=True):
            await message.respond(message.body)

    serving = asyncio.create_task(serve())
    assert await cancel_everywhere(lambda: channel.request(b"?", name)) > 1
    assert (await channel.request(b"still", name)).body == b"still"
    assert channel._core.replies is not None and not channel._core.replies._requests
    serving.cancel()
    await asyncio.wait([serving])


async def test_transactions(connect: Connect, name: str) -> None:
    """A cancelled transaction takes effect completely or not at all."""
    connection = await connect()
    channel = await connection.channel(transactional=True)
    await channel.declare_queue(name, exclusive=True)
    other = await connection.channel()

    async def transact() -> None:
        async with channel.transaction():
            for _ in range(2):
                await channel.publish(b"x", name)

    async def check(result: Any, cancelled: bool) -> None:
        # When it replies, the server has processed everything sent on the channel.
        await channel.tx_rollback()
        count = await other.purge_queue(name)
        assert count in (0, 2) if cancelled else count == 2

    # A commit takes time.
    assert await cancel_everywhere(transact, check, pause=0.0005) >= 1


async def test_connecting(server: Broker) -> None:
    async def once() -> None:
        connection: Connection = await leveret.connect(server.url())
        await connection.close()

    # Each step takes several turns, as the server has to reply.
    assert await cancel_everywhere(once, pause=0.0002) > 2


async def test_closing(connect: Connect) -> None:
    for steps in range(8):
        connection = await connect()
        await connection.channel()
        task = asyncio.ensure_future(connection.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert connection.is_closed or steps == 0
        await connection.close()
        assert connection.is_closed

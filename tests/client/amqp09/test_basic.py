"""Class basic over AMQP 0-9 with both APIs: the differences from 0-9-1."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import leveret
from leveret import sync
from leveret.client import (
    ChannelClosed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    InvalidMessage,
    NotFound,
    NotSupported,
    Returned,
    TransactionLost,
)
from leveret.client.events import Disconnected, Event
from tests.client.amqp09.conftest import QUICK, Connect09, Open, reconnected
from tests.support.broker import Broker, LeveretProcess, basic_config
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy


async def test_publish_is_confirmed_by_a_ping(connect: Connect09, server: LeveretProcess, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, durable=True)
    await asyncio.gather(*(channel.publish(b"%d" % number, name, persistent=True) for number in range(300)))
    async with channel.publisher(routing_key=name, window=20, persistent=True) as publisher:
        for number in range(300, 1000):
            await publisher.publish(b"%d" % number)
    assert len(channel.core.pending_confirms) == 0
    queue = await channel.declare_queue(name, passive=True)
    assert queue.message_count == 1000
    found = [await channel.get(name, no_ack=True) for _ in range(1000)]
    assert [message.body for message in found if message is not None] == [b"%d" % number for number in range(1000)]
    await queue.delete()


def test_confirmed_messages_survive_kill_9(tmp_path: Path, block: Open) -> None:
    with LeveretProcess(tmp_path).start() as process:
        channel = block(process.url()).channel()
        channel.declare_queue("kept", durable=True)
        for number in range(20):
            channel.publish(b"%d" % number, "kept", persistent=True)
        process.kill()
        process.start()
        channel = block(process.url()).channel()
        assert [message.body for _ in range(20) if (message := channel.get("kept", no_ack=True))] == [
            b"%d" % number for number in range(20)
        ]


async def test_returns_and_errors(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    with pytest.raises(Returned, match="no queue is bound to exchange"):
        await channel.publish(b"x", name, mandatory=True)
    async with channel.publisher(mandatory=True) as publisher:
        await publisher.publish(b"x", name)
        with pytest.raises(Returned):
            await publisher.flush()
    with pytest.raises(NotFound):
        await channel.publish(b"x", "", name)
    assert not channel.is_open and connection.is_open
    channel = await connection.channel()
    with pytest.raises(NotFound):
        await channel.delete_queue(name)


async def test_unsupported_over_0_9(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue(name, auto_delete=True)
    with pytest.raises(NotSupported, match="exchanges"):
        await channel.bind_exchange("amq.topic", "amq.direct", "x")
    with pytest.raises(NotSupported, match="secret"):
        await connection.update_secret("guest")
    await channel.publish(b"x", name)
    message = await channel.get(name)
    assert message is not None
    with pytest.raises(NotSupported, match="no nack of several messages"):
        message.nack(multiple=True)
    with pytest.raises(NotSupported, match="no nack of several messages"):
        channel.nack(1, multiple=True)
    assert channel.is_open


async def test_rejected_messages_are_requeued_to_other_channels(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name)
    await channel.publish(b"1", name)
    async with channel.consume(name) as consumer:
        (await consumer.next(60)).nack(requeue=True)
        await channel.publish(b"2", name)
        message = await consumer.next(60)
        assert message.body == b"2"
        message.reject()
        again = await other.get(name)
        assert again is not None and again.redelivered and again.body == b"1"
        again.ack()
        await other.ping()
    assert await channel.delete_queue(name) == 0


async def test_recover(connect: Connect09, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name)
    for body in (b"1", b"2"):
        await channel.publish(body, name)
    first = [await channel.get(name) for _ in range(2)]
    await channel.recover()
    again = [await channel.get(name) for _ in range(2)]
    assert [message.body for message in again if message is not None] == [b"1", b"2"]
    for message in first:
        assert message is not None
        message.ack()  # a message of the lost connection: no effect
    for message in again:
        assert message is not None and message.redelivered
        message.ack()
    assert await channel.delete_queue(name) == 0


async def test_prefetch_window_of_the_channel(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(prefetch=2), await connection.channel()
    await channel.declare_queue(name)
    for number in range(5):
        await channel.publish(b"%d" % number, name)
    async with channel.consume(name, prefetch=5) as consumer:
        messages = [await consumer.next(60) for _ in range(2)]
        await channel.ping()
        assert not consumer._core.messages
        left = await other.get(name)
        assert left is not None and left.body == b"2"
        left.ack()
        messages[0].ack()
        assert (await consumer.next(60)).body == b"3"
    await other.delete_queue(name)


async def test_transactions(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel = await connection.channel(transactional=True)
    queue = await channel.declare_queue(name)
    async with channel.transaction():
        await channel.publish(b"1", name)
    with pytest.raises(RuntimeError, match="rolled"):
        async with channel.transaction():
            await channel.publish(b"2", name)
            raise RuntimeError("rolled back")
    message = await channel.get(name)
    assert message is not None and message.body == b"1"
    message.ack()
    await channel.tx_commit()
    assert await queue.delete() == 0


async def test_requests(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, server = await connection.channel(), await connection.channel()
    await server.declare_queue(name)

    async def serve() -> None:
        async with server.consume(name) as consumer:
            message = await anext(consumer)
            await message.respond(message.body.upper())
            message.ack()

    serving = asyncio.ensure_future(serve())
    assert (await channel.request(b"hello", name)).body == b"HELLO"
    await serving
    await server.delete_queue(name)


def test_sync_api(server: Broker, block: Open, name: str) -> None:
    connection = block(server.url())
    channel = connection.channel()
    channel.declare_exchange(f"{name}.x", "topic")
    queue = channel.declare_queue(name, exclusive=True)
    queue.bind(f"{name}.x", "a.*")
    with channel.publisher(f"{name}.x") as publisher:
        for number in range(100):
            publisher.publish(b"%d" % number, "a.b")
    with channel.consume(queue, prefetch=10) as consumer:
        for number, message in enumerate(consumer):
            assert message.body == b"%d" % number
            message.ack()
            if number == 99:
                break
    channel.delete_exchange(f"{name}.x")
    channel.ping()
    with pytest.raises(Returned):
        channel.publish(b"x", name, mandatory=True)
    with pytest.raises(NotSupported):
        channel.bind_exchange("amq.topic", "amq.direct")
    with pytest.raises(NotFound):
        channel.publish(b"x", "", name)
    with pytest.raises(ChannelClosed):
        channel.ping()


async def test_everything_is_restored(through: Connect09, proxy: Proxy, name: str) -> None:
    connection = await through(**QUICK)
    channel = await connection.channel()
    await channel.declare_exchange(f"{name}.x", auto_delete=True)
    queue = await channel.declare_queue(name, exclusive=True)
    await queue.bind(f"{name}.x", "key")
    named = await channel.declare_queue(exclusive=True)
    async with channel.consume(queue) as consumer, channel.consume(named) as other:
        for number in range(5):
            await channel.publish(b"%d" % number, "key", f"{name}.x")
            message = await consumer.next(60)
            assert message.body == b"%d" % number
            message.ack()
            await channel.publish(b"n", named.name)
            (await other.next(60)).ack()
            before = connection.core.generation
            assert proxy.cut()
            # Published again until some connection confirmed it, if the queue exists.
            await reconnected(connection, before)


async def test_unconfirmed_publishes_are_republished(through: Connect09, proxy: Proxy, name: str) -> None:
    connection = await through(**QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name, durable=True)
    proxy.flowing.clear()
    publishing = [asyncio.ensure_future(channel.publish(b"%d" % number, name, persistent=True)) for number in range(10)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in publishing)
    proxy.cut()
    proxy.flowing.set()
    await asyncio.gather(*publishing)
    bodies = {message.body for _ in range(20) if (message := await channel.get(name, no_ack=True)) is not None}
    assert bodies == {b"%d" % number for number in range(10)}
    await channel.delete_queue(name)


async def test_transaction_lost_with_its_connection(through: Connect09, proxy: Proxy, name: str) -> None:
    events: list[Event] = []
    connection = await through(on_event=events.append, **QUICK)
    channel = await connection.channel(transactional=True)
    await channel.declare_queue(name, exclusive=True)
    with pytest.raises(TransactionLost):
        async with channel.transaction():
            await channel.publish(b"1", name)
            proxy.cut()
            await wait_until_async(lambda: any(isinstance(event, Disconnected) for event in events))
            await channel.publish(b"2", name)
    assert await channel.get(name) is None


async def test_loss_unnoticed_by_the_server(through: Connect09, proxy: Proxy, name: str) -> None:
    """The channels of the lost connection still own their exclusive queue; recovery closes them first."""
    connection = await through(**QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)
    proxy.half_open()
    stream, connection.driver.stream = connection.driver.stream, None
    assert stream is not None
    connection.core.lost(ConnectionLost("only we know"))
    await channel.publish(b"x", name)
    stream.abort()
    assert connection.is_open and connection.core.generation == 2
    assert (await channel.declare_queue(name, passive=True)).name == name


async def test_exclusive_queue_of_another_connection(dial: Connect09, name: str, tmp_path: Path) -> None:
    """The server closes the connection (504); the next one may find the queue free."""
    config = basic_config() + "\n[amqp09]\nresume_timeout = 0\n"
    with LeveretProcess(tmp_path, config=config).start() as process, Proxy(process) as proxy:
        connection, other = await dial(proxy.url(), **QUICK), await dial(process.url())
        channel = await connection.channel()
        await channel.declare_queue(name, exclusive=True)
        proxy.flowing.clear()
        proxy.cut()
        theirs = await other.channel()
        while True:
            try:
                await theirs.declare_queue(name, exclusive=True)
                break
            except ConnectionClosed:
                other = await dial(process.url())  # the lost connection still had it
                theirs = await other.channel()
        proxy.flowing.set()
        await wait_until_async(lambda: connection.core.locked_attempts >= 1)
        await other.close()
        await channel.publish(b"x", name)
        assert connection.is_open
        await connection.close()


async def test_messages_of_a_lost_channel_are_requeued_at_once(
    through: Connect09, proxy: Proxy, connect: Connect09, name: str
) -> None:
    other = await (await connect()).channel()
    await other.declare_queue(name, durable=True)
    connection = await through(**QUICK)
    channel = await connection.channel()
    for body in (b"1", b"2"):
        await other.publish(body, name)
        assert await channel.get(name) is not None
    proxy.cut()
    await reconnected(connection, 1)
    found = []
    async with channel.consume(name) as consumer:
        for _ in range(2):
            message = await consumer.next(60)
            assert message.redelivered
            found.append(message.body)
            message.ack()
    assert found == [b"1", b"2"]
    assert await other.delete_queue(name) == 0


async def test_no_notification_of_a_deleted_queue(connect: Connect09, name: str) -> None:
    connection = await connect(client_properties={"capabilities": {"consumer_cancel_notify": True}})
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name)
    async with channel.consume(name) as consumer:
        await other.delete_queue(name)
        await channel.ping()
        assert not consumer._core.ended
    assert channel.is_open


async def test_redirect(server: Broker, tmp_path: Path) -> None:
    config = basic_config() + f'\n[amqp09]\nredirect = "{server.host}:{server.port}"\n'
    with LeveretProcess(tmp_path, config=config).start() as redirecting:
        async with leveret.connect(redirecting.url(), protocol="0-9") as connection:
            assert (connection.parameters.port, connection.is_open) == (server.port, True)
            await (await connection.channel()).ping()

        def block() -> None:
            with sync.connect(redirecting.url(), protocol="0-9") as connection:
                assert connection.parameters.port == server.port
                connection.channel().ping()

        await asyncio.to_thread(block)


async def test_redirect_loop(tmp_path: Path) -> None:
    redirecting = LeveretProcess(tmp_path)
    with Proxy(redirecting) as proxy:
        redirecting.config += f'\n[amqp09]\nredirect = "127.0.0.1:{proxy.port}"\n'
        with redirecting.start(), pytest.raises(ConnectionFailed, match="redirects in a row"):
            await leveret.connect(proxy.url(), protocol="0-9")


async def test_invalid_properties(connect: Connect09, name: str) -> None:
    channel = await (await connect()).channel()
    with pytest.raises(InvalidMessage, match="headers"):
        await channel.publish(b"x", name, headers={"a": object()})
    assert channel.is_open

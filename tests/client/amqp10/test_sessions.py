"""The calls of a session with names of queues and exchanges."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

import leveret
from leveret.client import InvalidMessage, NotFound, Returned, Timeout
from tests.client.amqp10.conftest import Connect1, other
from tests.support.broker import Broker


async def test_publish_and_get(connect: Connect1, name: str) -> None:
    old = await other(connect, name)
    connection = await connect()
    async with connection.session() as session:
        await session.publish("over 1.0", name, persistent=True, correlation_id="c")
        message = await old.get(name)
        assert message is not None
        assert (message.body, message.properties.correlation_id, message.properties.persistent) == (b"over 1.0", "c", True)
        message.ack()
        await old.publish("over 0-9-1", name, message_id="m")
        message = await session.get(name)
        assert message is not None
        assert (message.text(), message.properties.message_id, message.redelivered) == ("over 0-9-1", "m", False)
        message.nack()
        message = await session.get(name)
        assert message is not None and message.redelivered
        message.ack()
        assert await session.get(name) is None
        assert await session.get(name) is None
    assert (await old.declare_queue(name, passive=True)).message_count == 0


async def test_cancelled_get_requeues_the_message(connect: Connect1, name: str) -> None:
    old = await other(connect, name)
    session = await (await connect()).session()
    assert await session.get(name) is None
    await old.publish("x", name)
    getting = asyncio.create_task(session.get(name))
    await asyncio.sleep(0)  # one turn: the request is sent, and no answer has been read
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    message = await session.get(name)
    assert message is not None and message.body == b"x"
    message.ack()


async def test_no_ack(connect: Connect1, name: str) -> None:
    old = await other(connect, name)
    session = await (await connect()).session()
    for number in range(30):
        await old.publish(f"{number}", name)
    message = await session.get(name, no_ack=True)
    assert message is not None and message.settled
    async with session.consume(name, no_ack=True, prefetch=5) as consumer:
        assert [(await consumer.next(60)).text() for _ in range(29)] == [f"{number}" for number in range(1, 30)]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 131072, 131073, 3_000_000])
async def test_bodies_of_any_size(connect: Connect1, name: str, size: int) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await session.publish(body, name)
    async with session.consume(name, prefetch=1) as consumer:
        message = await consumer.next(60)
        assert message.body == body and message.size == size
        message.ack()


async def test_window_of_publishes_keeps_the_order(connect: Connect1, name: str) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    async with session.publisher(routing_key=name, window=100) as publisher:
        for number in range(3000):
            await publisher.publish(f"{number}")
    assert publisher.unconfirmed == 0
    async with session.consume(name, prefetch=70) as consumer:
        for number in range(3000):
            message = await consumer.next(60)
            assert message.text() == f"{number}"
            message.ack()
    assert await session.get(name) is None


async def test_prefetch_limits_unsettled_deliveries(connect: Connect1, name: str) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    for number in range(8):
        await session.publish(f"{number}", name)
    async with session.consume(name, prefetch=3) as consumer:
        held = [await consumer.next(60) for _ in range(3)]
        with pytest.raises(Timeout):
            await consumer.next(0.2)
        held[2].ack()
        assert (await consumer.next(60)).text() == "3"
        held[1].ack(multiple=True)
        taken = [await consumer.next(60) for _ in range(2)]
        assert [message.text() for message in taken] == ["4", "5"]


async def test_unsettled_deliveries_are_requeued(connect: Connect1, leveret_only: Broker, name: str) -> None:
    """RabbitMQ 3 drops deliveries that cross the detach, and keeps their messages unacked."""
    await other(connect, name)
    session = await (await connect()).session()
    for number in range(5):
        await session.publish(f"{number}", name)
    async with session.consume(name, prefetch=5) as consumer:
        first = await consumer.next(60)
    # A taken message can be settled after the end of the consumer.
    first.ack()
    left: list[str] = []
    async with asyncio.timeout(60):
        while len(left) < 4:
            message = await session.get(name)
            if message is None:
                # Messages in transit at the end of the consumer are released when they arrive.
                await asyncio.sleep(0.01)
                continue
            left.append(message.text())
            message.ack()
    assert sorted(left) == ["1", "2", "3", "4"]
    assert await session.get(name) is None


async def test_refused_address_fails_only_the_publish(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    with pytest.raises(Returned, match="no queue") as returned:
        await session.publish("x", f"{name}.none")
    assert returned.value.condition == "amqp:not-found" and returned.value.messages[0].body == b"x"
    with pytest.raises(NotFound, match="no exchange") as missing:
        await session.publish("x", "key", f"{name}.none")
    assert missing.value.condition == "amqp:not-found" and missing.value.reply_text
    with pytest.raises(NotFound):
        async for _ in session.consume(f"{name}.none"):
            pass
    with pytest.raises(NotFound):
        await session.get(f"{name}.none")
    await session.publish("x", name)
    assert session.is_open


async def test_unroutable(connect: Connect1, leveret_only: Broker, name: str) -> None:
    session = await (await connect()).session()
    with pytest.raises(Returned) as returned:
        await session.publish("lost", name, "amq.direct", mandatory=True, headers={"a": 1})
    message = returned.value.message
    assert message is not None and message.properties is not None
    assert (message.exchange, message.routing_key, message.body) == ("amq.direct", name, b"lost")
    assert message.properties.headers == {"a": 1}
    # No error, as with 0-9-1.
    await session.publish("lost", name, "amq.direct")
    with pytest.raises(Returned, match="2 messages"):
        async with session.publisher("amq.direct", name, mandatory=True) as publisher:
            await publisher.publish("1")
            await publisher.publish("2")


async def test_full_queue(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    session = await (await connect()).session()
    await session.publish("1", name)
    with pytest.raises(leveret.client.Nacked, match="rejected") as refused:
        await session.publish("2", name)
    assert refused.value.condition == "amqp:resource-limit-exceeded"


async def test_properties_round_trip(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    properties = leveret.Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"a": 1, "b": [1, {"c": "d"}], "x-e": "f", "g": 1.5},
        delivery_mode=2,
        priority=4,
        correlation_id="c",
        reply_to="answers/to me",
        expiration=100000,
        message_id="m",
        timestamp=moment,
        type="t",
        user_id="guest",
        app_id="app",
        cluster_id="cl",
    )
    await session.publish("x", name, properties=properties)
    message = await session.get(name)
    assert message is not None
    back = message.properties
    assert isinstance(back.expiration, int) and 0 < back.expiration <= 100000
    back.expiration = 100000
    properties.reply_to = back.reply_to
    assert back == properties
    message.ack()


async def test_invalid_publishes(connect: Connect1, name: str) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    with pytest.raises(TypeError, match="immediate"):
        await session.publish("x", name, immediate=True)
    with pytest.raises(InvalidMessage, match="neither"):
        await session.publish("x")
    with pytest.raises(InvalidMessage, match="properties"):
        await session.publish("x", name, headers={"a": object()})
    await session.publish("x", name)


async def test_many_targets_of_one_channel(connect: Connect1, leveret_only: Broker, name: str) -> None:
    """More targets than the links that a session keeps."""
    session = await (await connect()).session()
    queue = await session.declare_queue(name)
    await queue.bind("amq.topic", "many.#")
    await asyncio.gather(*[session.publish(f"{number}", f"many.{number}", "amq.topic") for number in range(200)])
    assert await queue.purge() == 200


async def test_settle_several(connect: Connect1, name: str) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    for number in range(4):
        await session.publish(f"{number}", name)
    first = await session.get(name)
    second = await session.get(name)
    assert first is not None and second is not None and second.delivery_tag == first.delivery_tag + 1
    second.ack(multiple=True)
    third = await session.get(name)
    fourth = await session.get(name)
    assert third is not None and fourth is not None
    assert (third.text(), fourth.text()) == ("2", "3")
    fourth.ack(multiple=True)
    assert await session.get(name) is None


async def test_flow(connect: Connect1, name: str) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    async with session.consume(name) as consumer:
        await session.flow(False)
        await session.publish("x", name)
        with pytest.raises(Timeout):
            await consumer.next(0.1)
        await session.flow(True)
        (await consumer.next(30)).ack()


async def test_priority_of_a_consumer(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name)
    session = await (await connect()).session()
    async with session.consume(name) as low, session.consume(name, priority=5) as high:
        await session.publish("x", name)
        (await high.next(30)).ack()
        with pytest.raises(Timeout):
            await low.next(0.05)


async def test_requests(connect: Connect1, leveret_only: Broker, name: str) -> None:
    connection = await connect()
    session = await connection.session()
    for protocol in ("1.0", "0-9-1"):
        answering = await connect.channel(protocol)
        queue = await answering.declare_queue(f"{name}.{protocol}")

        async def answer(channel: leveret.aio.BaseChannel, queue: str) -> None:
            async for message in channel.consume(queue):
                await message.respond(b"answer to " + message.body)
                message.ack()

        task = asyncio.create_task(answer(answering, queue.name))
        try:
            answers = await asyncio.gather(*[session.request(f"{number}", queue.name) for number in range(20)])
            assert [reply.text() for reply in answers] == [f"answer to {number}" for number in range(20)]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(Returned):
        await session.request("x", f"{name}.none")


async def test_deleted_queue_ends_its_consumer(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, name)
    session = await (await connect()).session()
    consumer = session.consume(name)
    await consumer.start()
    await old.delete_queue(name)
    with pytest.raises(leveret.client.ConsumerCancelled) as ended:
        await consumer.next(60)
    assert ended.value.condition == "amqp:resource-deleted"
    assert session.is_open

"""Consumers, gets, acknowledgements, prefetch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.client._async.channel import Channel
from leveret.client._async.consumer import Consumer
from leveret.client.engine.common import connection as core_base
from leveret.client.errors import AccessRefused, ChannelClosed, ConsumerCancelled, Error, PreconditionFailed, Timeout
from leveret.client.message import Message
from tests.client.conftest import Connect
from tests.support.broker import Broker
from tests.support.polling import wait_until_async


async def fill(channel: Channel, queue: str, count: int, body: bytes = b"") -> None:
    async with channel.publisher(routing_key=queue) as publisher:
        for number in range(count):
            await publisher.publish(body or b"%d" % number)


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await anext(consumer) for _ in range(count)]


async def get_soon(channel: Channel, queue: str) -> Message:
    """Return the next message, waiting for it if necessary."""
    found: list[Message] = []

    async def got() -> bool:
        message = await channel.get(queue, no_ack=True)
        found.extend([message] if message is not None else [])
        return bool(found)

    await wait_until_async(got)
    return found[0]


async def quiet(consumer: Consumer) -> bool:
    """Return whether no message is left when the server has sent all that it sends without further events.

    Two round trips through the queue prove it: the effects of the turn of the first one may follow its reply.
    """
    for _ in range(2):
        await consumer._channel.declare_queue(consumer.queue, passive=True)
    try:
        async with asyncio.timeout(0):
            await anext(consumer)
    except TimeoutError:
        return True
    return False


async def test_get(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(name, exclusive=True)
    assert await channel.get(name) is None
    await fill(channel, name, 3)
    first = await queue.get()
    assert first is not None
    assert (first.body, first.message_count, first.delivery_tag, first.redelivered) == (b"0", 2, 1, False)
    assert (first.exchange, first.routing_key, first.consumer_tag, first.settled) == ("", name, "", False)
    first.nack()
    again = await queue.get()
    assert again is not None and again.redelivered and again.body == b"0"
    again.ack()
    second = await queue.get(no_ack=True)
    assert second is not None and second.settled
    with pytest.raises(RuntimeError, match="settled"):
        second.ack()
    third = await queue.get()
    assert third is not None
    third.reject()
    assert await queue.get() is None


async def test_consumer(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(name, exclusive=True)
    await fill(channel, name, 300)
    seen = []
    async for message in queue.consume(prefetch=20):
        seen.append(message.body)
        message.ack()
        if len(seen) == 300:
            break
    assert seen == [b"%d" % number for number in range(300)]


async def test_leaving_the_block_cancels_and_requeues(connect: Connect, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)
    await fill(channel, name, 50)
    async with channel.consume(name, prefetch=30) as consumer:
        assert consumer.tag and consumer.queue == name
        (await anext(consumer)).ack()
        held = await anext(consumer)
    # Untaken messages are requeued; taken ones are still unacked.
    bodies = [(await get_soon(channel, name)).body for _ in range(48)]
    assert sorted(bodies) == sorted(b"%d" % number for number in range(2, 50))
    assert await channel.get(name) is None
    held.nack()
    assert (await get_soon(channel, name)).body == b"1"
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)
    # Cancelling twice is allowed.
    await consumer.cancel()


async def test_explicit_consumer_tag(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    async with channel.consume(name, consumer_tag="mine ü") as consumer:
        await channel.publish(b"x", name)
        assert (await anext(consumer)).consumer_tag == consumer.tag == "mine ü"
    # The tag is free again.
    await channel.publish(b"y", name)
    async with channel.consume(name, consumer_tag="mine ü") as consumer:
        assert (await anext(consumer)).body == b"y"


async def test_prefetch_limits_unacked_messages(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    await fill(channel, name, 20)
    async with channel.consume(name, prefetch=3) as consumer:
        messages = await take(consumer, 3)
        assert await quiet(consumer)
        messages[1].ack()
        assert (await anext(consumer)).body == b"3"
        assert await quiet(consumer)


async def test_prefetch_per_consumer(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    for suffix in ("a", "b"):
        await channel.declare_queue(f"{name}.{suffix}", exclusive=True)
        await fill(channel, f"{name}.{suffix}", 10)
    async with channel.consume(f"{name}.a", prefetch=1) as one, channel.consume(f"{name}.b", prefetch=4) as four:
        await take(one, 1)
        await take(four, 4)
        assert await quiet(one) and await quiet(four)


async def test_prefetch_per_channel(connect: Connect, name: str) -> None:
    connection = await connect()
    channel = await connection.channel(prefetch=5)
    await channel.declare_queue(name, exclusive=True)
    await fill(channel, name, 20)
    async with channel.consume(name) as first, channel.consume(name) as second:
        count = 0
        for consumer in (first, second, first, second):
            while not await quiet(consumer):
                count += 1
        # Either one of the consumers had all messages, or both had some.
        assert count == 5


async def test_qos(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    await fill(channel, name, 20)
    await channel.qos(2, global_=True)
    async with channel.consume(name) as consumer:
        await take(consumer, 2)
        assert await quiet(consumer)
        await channel.qos(4, global_=True)
        await take(consumer, 2)
        assert await quiet(consumer)


async def test_multiple(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    await fill(channel, name, 10)
    async with channel.consume(name, prefetch=0) as consumer:
        messages = await take(consumer, 10)
        messages[4].ack(multiple=True)
        messages[7].nack(multiple=True, requeue=False)
        messages[9].nack(multiple=True)
        assert [message.body for message in await take(consumer, 2)] == [b"8", b"9"]
    # By tag, as in the protocol.
    await channel.purge_queue(name)
    await fill(channel, name, 4)
    tags = [(await channel.get(name)).delivery_tag for _ in range(4)]  # type: ignore[union-attr]
    channel.ack(tags[0])
    channel.nack(tags[1], requeue=False)
    channel.reject(tags[2])
    channel.nack(tags[3])
    again = await channel.get(name)
    assert again is not None and again.body == b"3" and again.redelivered
    channel.reject(again.delivery_tag, requeue=True)
    assert (await channel.get(name)) is not None


async def test_unknown_delivery_tag(connect: Connect) -> None:
    channel = await (await connect()).channel()
    channel.ack(77)
    with pytest.raises(PreconditionFailed) as caught:
        await channel.declare_queue(exclusive=True)
    assert (caught.value.reply_code, caught.value.method) == (406, "basic.ack")
    with pytest.raises(PreconditionFailed):
        channel.ack(1)


async def test_process(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(f"{name}.dead", exclusive=True)
    await channel.declare_queue(
        name, exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    )
    await fill(channel, name, 4)
    async with channel.consume(name, prefetch=1) as consumer:
        with (await anext(consumer)).process() as message:
            assert message.body == b"0"
        with pytest.raises(ZeroDivisionError), (await anext(consumer)).process():
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), (await anext(consumer)).process(requeue=True) as message:
            assert message.body == b"2"
            raise ZeroDivisionError
        message = await anext(consumer)
        assert (message.body, message.redelivered) == (b"2", True)
        with message.process():
            message.nack(requeue=False)
        (await anext(consumer)).ack()
    dead = [(await channel.get(f"{name}.dead", no_ack=True)).body for _ in range(2)]  # type: ignore[union-attr]
    assert dead == [b"1", b"2"]
    assert await channel.get(f"{name}.dead") is None


async def test_json_and_text(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    await channel.publish('{"ü": [1, 2.5, null]}', name)
    message = await channel.get(name, no_ack=True)
    assert message is not None
    assert message.json() == {"ü": [1, 2.5, None]} and message.text() == '{"ü": [1, 2.5, null]}'
    assert message.headers == {}


async def test_deleted_queue_ends_the_consumer(connect: Connect, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name)
    await fill(channel, name, 3)
    consumer = channel.consume(name)
    first = await anext(consumer)
    await other.delete_queue(name)
    await channel.declare_queue(exclusive=True)
    # Messages that have arrived can be taken.
    assert [message.body for message in [first, *await take(consumer, 2)]] == [b"0", b"1", b"2"]
    for _ in range(2):
        with pytest.raises(ConsumerCancelled) as caught:
            await anext(consumer)
        assert caught.value.consumer_tag == consumer.tag and name in str(caught.value)
    assert channel.is_open
    await consumer.cancel()


async def test_deletion_wakes_a_waiting_consumer(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name)
    consumer = await channel.consume(name).start()
    waiting = [asyncio.create_task(anext(consumer)) for _ in range(3)]
    await asyncio.sleep(0)
    await channel.delete_queue(name)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [ConsumerCancelled] * 3


async def test_several_tasks_share_a_consumer(connect: Connect, name: str) -> None:
    """The queue may even be deleted during the start: the waiting consumer ends."""
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    await fill(channel, name, 200)
    consumer = channel.consume(name, prefetch=10)
    seen = []

    async def work() -> None:
        for _ in range(20):
            message = await anext(consumer)
            seen.append(int(message.body))
            message.ack()
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(10)))
    assert sorted(seen) == list(range(200))
    await consumer.cancel()


async def test_exclusive_consumers(connect: Connect, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue(name, auto_delete=True)
    async with channel.consume(name, exclusive=True):
        other = await connection.channel()
        with pytest.raises(AccessRefused):
            await other.consume(name).start()


async def test_consumer_arguments(connect: Connect, name: str) -> None:
    """Consumer priorities: the consumer with the higher priority receives all messages while it has credit."""
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    async with channel.consume(name) as low, channel.consume(name, arguments={"x-priority": 10}) as high:
        await fill(channel, name, 20)
        await take(high, 20)
        assert await quiet(low)


async def test_no_local(connect: Connect, server: Broker, name: str) -> None:
    if server.kind == "rabbitmq":
        pytest.skip("RabbitMQ has no no-local")
    channel = await (await connect()).channel()
    await channel.declare_queue(name)
    async with channel.consume(name, no_local=True) as consumer:
        await channel.publish(b"ours", name)
        other = await (await connect()).channel()
        await other.publish(b"theirs", name)
        assert (await anext(consumer)).body == b"theirs"
    await channel.delete_queue(name)


async def test_recover(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    await fill(channel, name, 10)
    async with channel.consume(name, prefetch=0) as consumer:
        old = await take(consumer, 3)
        await channel.recover()
        new = await take(consumer, 10)
        assert sorted(int(message.body) for message in new) == list(range(10))
        assert all(message.redelivered for message in new[:3])
        # The server no longer knows these; settling them must not close the channel.
        for message in old:
            message.ack()
        for message in new:
            message.ack()
        await channel.declare_queue(name, passive=True)
    assert await channel.get(name) is None


async def test_flow(connect: Connect, server: Broker, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    if server.kind == "rabbitmq":
        await channel.flow(True)
        return
    async with channel.consume(name) as consumer:
        await channel.flow(False)
        await channel.publish(b"x", name)
        assert await quiet(consumer)
        await channel.flow(True)
        assert (await anext(consumer)).body == b"x"


async def test_consumer_of_a_closed_channel(connect: Connect, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue(name)
    await fill(channel, name, 5)
    consumer = channel.consume(name)
    message = await anext(consumer)
    await channel.close()
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)
    with pytest.raises(ChannelClosed):
        message.ack()
    with pytest.raises(ChannelClosed):
        await anext(channel.consume(name))
    channel = await connection.channel()
    consumer = await channel.consume(name).start()
    waiting = asyncio.create_task(anext(consumer))
    with pytest.raises(PreconditionFailed):
        await channel.declare_queue(name, durable=True)
    for _ in range(2):
        with pytest.raises(PreconditionFailed):
            await anext(consumer)
    # It has taken the first message, which was requeued.
    assert (await asyncio.gather(waiting, return_exceptions=True))[0] is not None
    await consumer.cancel()
    channel = await connection.channel()
    assert await channel.delete_queue(name) == 5


async def test_backpressure_stops_reading(connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untaken messages of a consumer without prefetch pause reading; taking them resumes it."""
    monkeypatch.setattr(core_base, "BUFFER_HIGH", 1 << 20)
    monkeypatch.setattr(core_base, "BUFFER_LOW", 1 << 18)
    feeder = await (await connect()).channel()
    await feeder.declare_queue(name)
    connection = await connect()
    channel = await connection.channel()
    count = 3000
    await fill(feeder, name, count, b"x" * 4096)
    consumer = await channel.consume(name, no_ack=True).start()
    await wait_until_async(lambda: connection.core.reading_paused)
    held = len(consumer._core.messages)
    await asyncio.sleep(0.05)
    assert len(consumer._core.messages) == held < count
    seen = 0
    async for _ in consumer:
        seen += 1
        if seen == count:
            break
    assert connection.core._buffered == 0
    await feeder.delete_queue(name)


async def test_calls_complete_under_backpressure(connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that publishes for each message must not wait for itself; neither must a cancel."""
    monkeypatch.setattr(core_base, "BUFFER_HIGH", 1 << 19)
    monkeypatch.setattr(core_base, "BUFFER_LOW", 1 << 17)
    feeder = await (await connect()).channel()
    await feeder.declare_queue(name)
    await fill(feeder, name, 2000, b"x" * 4096)
    connection = await connect(timeout=20)
    channel = await connection.channel()
    target = await channel.declare_queue(exclusive=True)
    async with channel.consume(name, no_ack=True) as consumer:
        await wait_until_async(lambda: connection.core.reading_paused)
        for _ in range(5):
            await anext(consumer)
            await channel.publish(b"y", target.name)
        publisher = channel.publisher(routing_key=target.name, window=2)
        for _ in range(5):
            await anext(consumer)
            await publisher.publish(b"y")
        await publisher.flush()
        assert (await channel.declare_queue(target.name, passive=True)).message_count == 10
        other = await connection.channel()
        await other.close()
    assert connection.core._buffered == 0 and not connection.core.reading_paused
    await feeder.delete_queue(name)


async def test_request_and_respond(connect: Connect, name: str) -> None:
    connection = await connect()
    server = await connection.channel()
    await server.declare_queue(name, exclusive=True)

    async def serve() -> None:
        async for message in server.consume(name, no_ack=True):
            await message.respond(message.body * 2, headers={"of": message.text()})

    serving = asyncio.create_task(serve())
    channel = await (await connect()).channel()
    answers = await asyncio.gather(*(channel.request(b"%d" % number, name, type="q") for number in range(100)))
    assert [answer.body for answer in answers] == [b"%d%d" % (number, number) for number in range(100)]
    assert answers[3].headers == {"of": "3"} and answers[3].settled
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("confirms", [True, False])
async def test_failed_requests(connect: Connect, name: str, confirms: bool) -> None:
    from leveret.client.errors import Returned

    channel = await (await connect()).channel(confirms=confirms)
    with pytest.raises(Returned):
        await channel.request(b"x", name)
    await channel.declare_queue(name, exclusive=True)
    with pytest.raises(Timeout, match="reply"):
        await channel.request(b"x", name, timeout=0.05)
    message = await channel.get(name, no_ack=True)
    assert message is not None
    # The request has timed out: the reply is dropped, and the channel stays usable.
    await message.respond(b"late")
    with pytest.raises(ValueError, match="reply_to"):
        await channel.publish(b"x", name)
        plain = await channel.get(name, no_ack=True)
        assert plain is not None
        await plain.respond(b"y")
    asking = asyncio.create_task(channel.request(b"again", name))
    while (question := await channel.get(name, no_ack=True)) is None:
        await asyncio.sleep(0.01)
    await question.respond(b"in time")
    assert (await asking).body == b"in time"


async def test_message_of_a_closed_connection(connect: Connect, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue(name, exclusive=True)
    await channel.publish(b"x", name)
    message = await channel.get(name)
    assert message is not None
    await connection.close()
    with pytest.raises(Error):
        message.ack()


async def test_polling_does_not_accumulate_waiters(connect: Connect, name: str) -> None:
    """A consumer that is polled with a short timeout keeps no waiters of expired polls."""
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    consumer: Any = await channel.consume(name).start()
    for _ in range(2000):
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert len(consumer._core._waiters.waiting) < 50


async def test_a_stream_with_chunks_larger_than_the_prefetch(connect: Connect, name: str) -> None:
    """RabbitMQ before 3.13 delivers a whole chunk of a stream once there is room for one message."""
    channel = await (await connect()).channel()
    await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    await fill(channel, name, 2000)
    async with channel.consume(name, prefetch=10, arguments={"x-stream-offset": "first"}) as consumer:
        for number in range(2000):
            message = await consumer.next(60)
            assert message.text() == f"{number}"
            message.ack()
    await channel.delete_queue(name)

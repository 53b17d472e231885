"""aio-pika: asyncio, robust connections, RPC pattern."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    QueueEmpty,
)
from aio_pika.patterns import RPC, Master

from tests.support.broker import Broker
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy

WITHIN = 120.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 240)

    asyncio.run(limited())


@asynccontextmanager
async def opened(broker: Broker, **options: Any) -> AsyncIterator[Any]:
    connection = await aio_pika.connect(broker.url(), **options)
    async with connection:
        yield await connection.channel(on_return_raises=True)


def test_publish_and_iterate(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel:
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, auto_delete=True)
            queue = await channel.declare_queue(f"{name}.queue", exclusive=True)
            await queue.bind(exchange, "a.*")
            for number in range(50):
                message = aio_pika.Message(
                    b"%d" % number,
                    headers={"n": number, "nested": {"list": [1, "x", None]}},
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=str(number),
                )
                await exchange.publish(message, "a.b")
            received: list[bytes] = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        assert message.headers == {"n": len(received), "nested": {"list": [1, "x", None]}}
                        received.append(message.body)
                    if len(received) == 50:
                        break
            assert received == [b"%d" % number for number in range(50)]

    run(test)


def test_reject_requeue_and_get(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel:
            queue = await channel.declare_queue(name, exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(b"x"), name)
            message = await queue.get()
            await message.reject(requeue=True)
            again = await queue.get(timeout=WITHIN)
            assert again.redelivered
            await again.nack(requeue=False)
            with pytest.raises(QueueEmpty):
                await queue.get()
            assert await queue.get(fail=False) is None

    run(test)


def test_unroutable(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel:
            with pytest.raises(AMQPError) as caught:
                await channel.default_exchange.publish(aio_pika.Message(b"x"), f"{name}.nowhere", mandatory=True)
            assert "NO_ROUTE" in str(caught.value) or "312" in repr(caught.value)

    run(test)


def test_nacked_publish(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel:
            arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await channel.declare_queue(name, exclusive=True, arguments=arguments)
            await channel.default_exchange.publish(aio_pika.Message(b"1"), name)
            with pytest.raises(DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b"2"), name)

    run(test)


def test_many_publishes_at_once(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel:
            queue = await channel.declare_queue(name, durable=True)
            message = aio_pika.Message(b"x" * 1000, delivery_mode=2)
            await asyncio.gather(*(channel.default_exchange.publish(message, name) for _ in range(500)))
            declared = await channel.declare_queue(name, passive=True)
            assert declared.declaration_result.message_count == 500
            assert (await queue.purge()).message_count == 500
            await queue.delete()

    run(test)


def test_transaction(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with await aio_pika.connect(broker.url()) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(name, exclusive=True)
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"1"), name)
            with pytest.raises(ValueError):
                async with channel.transaction():
                    await channel.default_exchange.publish(aio_pika.Message(b"2"), name)
                    raise ValueError
            assert (await queue.get(timeout=WITHIN)).body == b"1"
            assert await queue.get(fail=False) is None

    run(test)


def test_exceptions(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with await aio_pika.connect(broker.url()) as connection:
            channel = await connection.channel()
            with pytest.raises(ChannelNotFoundEntity):
                await channel.declare_queue(name, passive=True)
            channel = await connection.channel()
            await channel.declare_queue(name, exclusive=True)
            with pytest.raises(ChannelPreconditionFailed):
                await channel.declare_queue(name, exclusive=True, arguments={"x-max-length": 1})
            channel = await connection.channel()
            with pytest.raises((ChannelClosed, AMQPError)):
                await channel.declare_exchange("amq.not-allowed")
        with pytest.raises(AMQPConnectionError):
            await aio_pika.connect(broker.url(password="wrong"))
        with pytest.raises(AMQPError):
            await aio_pika.connect(broker.url(vhost="missing"))

    run(test)


def test_ten_megabytes(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel:
            queue = await channel.declare_queue(name, exclusive=True)
            body = bytes(range(256)) * 40960
            await channel.default_exchange.publish(aio_pika.Message(body), name)
            assert (await queue.get(timeout=WITHIN)).body == body

    run(test)


def test_headers_exchange_and_exchange_binding(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel:
            source = await channel.declare_exchange(f"{name}.in", aio_pika.ExchangeType.FANOUT, auto_delete=True)
            target = await channel.declare_exchange(f"{name}.out", aio_pika.ExchangeType.HEADERS, auto_delete=True)
            queue = await channel.declare_queue(f"{name}.queue", exclusive=True)
            await target.bind(source)
            await queue.bind(target, arguments={"x-match": "all", "kind": "good"})
            await source.publish(aio_pika.Message(b"bad", headers={"kind": "bad"}), "", mandatory=False)
            await source.publish(aio_pika.Message(b"good", headers={"kind": "good"}), "")
            assert (await queue.get(timeout=WITHIN)).body == b"good"
            assert await queue.get(fail=False) is None

    run(test)


def test_rpc_pattern(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel:
            rpc = await RPC.create(channel)

            async def multiply(*, x: int, y: int) -> int:
                return x * y

            async def fail() -> None:
                raise ValueError("on the other side")

            await rpc.register(f"{name}.multiply", multiply, auto_delete=True)
            await rpc.register(f"{name}.fail", fail, auto_delete=True)
            results = await asyncio.gather(*(rpc.call(f"{name}.multiply", {"x": x, "y": 2}) for x in range(30)))
            assert results == [2 * x for x in range(30)]
            with pytest.raises(ValueError):
                await rpc.call(f"{name}.fail")
            await rpc.close()

    run(test)


def test_master_worker_pattern(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with opened(broker) as channel, opened(broker) as worker_channel:
            done: list[int] = []

            async def work(*, task: int) -> None:
                done.append(task)

            worker = await Master(worker_channel).create_worker(name, work, auto_delete=True)
            master = Master(channel)
            for task in range(20):
                await master.create_task(name, {"task": task})
            await wait_until_async(lambda: len(done) >= 20)
            assert sorted(done) == list(range(20))
            await worker.close()

    run(test)


def test_robust_connection_reconnects(broker: Broker, name: str) -> None:
    """After the socket breaks, queues, bindings and consumers are declared again and continue."""

    async def test() -> None:
        proxy = Proxy(broker)
        connection = await aio_pika.connect_robust(proxy.url(), reconnect_interval=0.1)
        with proxy:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, auto_delete=True)
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def on_message(message: AbstractIncomingMessage) -> None:
                await received.put(message.body)
                await message.ack()

            await queue.consume(on_message)
            await channel.default_exchange.publish(aio_pika.Message(b"before"), name)
            assert await asyncio.wait_for(received.get(), WITHIN) == b"before"
            assert proxy.cut() == 1
            # A message that comes before the consumer is restored is deleted with the queue.
            async with asyncio.timeout(WITHIN):
                while received.empty():
                    try:
                        await channel.default_exchange.publish(aio_pika.Message(b"after"), name, timeout=5)
                    except (TimeoutError, AMQPError, ConnectionError, RuntimeError):
                        pass
                    await asyncio.sleep(0.02)
            assert received.get_nowait() == b"after"
            await connection.close()

    run(test)


def test_many_channels(broker: Broker, name: str) -> None:
    async def test() -> None:
        async with await aio_pika.connect(broker.url()) as connection:
            channels = await asyncio.gather(*(connection.channel() for _ in range(100)))
            queues = await asyncio.gather(*(channel.declare_queue(exclusive=True) for channel in channels))
            await asyncio.gather(
                *(
                    channel.default_exchange.publish(aio_pika.Message(queue.name.encode()), queue.name)
                    for channel, queue in zip(channels, queues, strict=True)
                )
            )
            for queue in queues:
                assert (await queue.get(timeout=WITHIN)).body == queue.name.encode()

    run(test)

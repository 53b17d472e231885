"""Links and sessions are freed, even after a cancellation."""

from __future__ import annotations

import asyncio
import random

import pytest

from leveret.client import Error
from tests.client.amqp10.conftest import Connect1, other
from tests.support.broker import Broker
from tests.support.polling import wait_until_async


async def test_more_links_than_sessions(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name)
    connection = await connect()
    most = connection.core.engine.channel_max
    for _ in range(most + 20):
        async with connection.sender(f"/queues/{name}", settled=True):
            pass
    await wait_until_async(lambda: not connection.core.channels)


async def test_closed_receiver_lasts_until_its_deliveries_are_settled(
    connect: Connect1, leveret_only: Broker, name: str
) -> None:
    old = await other(connect, name)
    for number in range(4):
        await old.publish(f"{number}", name)
    connection = await connect()
    receiver = await connection.receiver(f"/queues/{name}")
    first, second = await receiver.next(60), await receiver.next(60)
    await receiver.close()
    with pytest.raises(StopAsyncIteration):
        await receiver.next(60)
    first.accept()
    assert len(connection.core.channels) == 1
    second.reject()
    await wait_until_async(lambda: not connection.core.channels)
    left = [await old.get(name) for _ in range(3)]
    assert [message.text() for message in left if message is not None] == ["2", "3"]


async def test_cancellation_leaves_the_connection_usable(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, name)
    connection = await connect()
    session = await connection.session()
    chance = random.Random(1)

    async def work() -> None:
        async with connection.sender(f"/queues/{name}") as sender, connection.receiver(f"/queues/{name}") as receiver:
            await sender.send("x")
            (await receiver.next(60)).accept()
            await session.publish("y", name)
            message = await session.get(name)
            if message is not None:
                message.ack()
            await session.declare_queue(name, passive=True)
            async with connection.transaction() as tx:
                await sender.send("z", transaction=tx)
            with pytest.raises(Error):
                await connection.sender(f"/queues/{name}.none")

    for _ in range(60):
        task = asyncio.create_task(work())
        await asyncio.sleep(chance.uniform(0, 0.02))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert connection.is_open and session.is_open
    await wait_until_async(lambda: len(connection.core.channels) <= 2)
    await old.purge_queue(name)
    await work()

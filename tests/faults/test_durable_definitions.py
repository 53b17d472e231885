"""Every operation with an -ok reply survives an immediate kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pamqp import commands

from tests.support.broker import Broker, LeveretProcess, leveret_only
from tests.support.peers.async_amqp091 import Closed, Connection


@pytest.fixture
def process(tmp_path: Path) -> LeveretProcess:
    leveret_only("it is killed")
    return LeveretProcess(tmp_path)


async def exists(broker: Broker, method: object) -> bool:
    connection = await Connection.open(broker)
    try:
        channel = await connection.channel()
        await channel.call(method)
    except Closed as error:
        assert error.code == 404, error
        return False
    finally:
        await connection.close()
    return True


def test_declarations_survive(process: LeveretProcess) -> None:
    async def declare() -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()
        await channel.call(commands.Exchange.Declare(exchange="e", exchange_type="topic", durable=True))
        await channel.call(commands.Exchange.Declare(exchange="f", exchange_type="fanout", durable=True))
        await channel.call(commands.Exchange.Bind(destination="f", source="e", routing_key="a.#"))
        await channel.declare("q", durable=True, arguments={"x-max-length": 5})
        await channel.call(commands.Queue.Bind(queue="q", exchange="f", routing_key=""))

    async def look() -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()
        # Declaring with the same arguments succeeds, so they survived.
        await channel.declare("q", durable=True, arguments={"x-max-length": 5})
        channel.publish("e", "a.b", b"through both bindings")
        delivery = await channel.get("q")
        assert delivery is not None and delivery.body == b"through both bindings"
        await connection.close()

    with process.start():
        for _ in range(2):
            asyncio.run(declare())
            process.kill()
            process.start()
            asyncio.run(look())


def test_deletions_survive(process: LeveretProcess) -> None:
    """A deletion is as durable as a declaration."""

    async def change() -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()
        await channel.call(commands.Exchange.Declare(exchange="e", exchange_type="fanout", durable=True))
        for queue in ("q", "unbound"):
            await channel.declare(queue, durable=True)
            await channel.call(commands.Queue.Bind(queue=queue, exchange="e", routing_key=""))
        await channel.call(commands.Queue.Unbind(queue="unbound", exchange="e", routing_key=""))
        await channel.call(commands.Queue.Delete(queue="q"))

    async def look() -> None:
        assert not await exists(process, commands.Queue.Declare(queue="q", passive=True))
        connection = await Connection.open(process)
        channel = await connection.channel()
        channel.publish("e", "", b"nowhere to go")
        assert await channel.get("unbound") is None
        await connection.close()

    with process.start():
        asyncio.run(change())
        process.kill()
        process.start()
        asyncio.run(look())


def test_a_queue_of_the_same_name_is_empty(process: LeveretProcess) -> None:
    """Delete and declare again: messages of the first queue do not appear in the second."""

    async def change() -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()
        await channel.call(commands.Confirm.Select())
        await channel.declare("q", durable=True)
        for _ in range(100):
            channel.publish("", "q", b"old", commands.Basic.Properties(delivery_mode=2))
        while await channel.count("q") < 100:
            await asyncio.sleep(0.01)
        await channel.call(commands.Queue.Delete(queue="q"))
        await channel.declare("q", durable=True)

    async def look() -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()
        assert await channel.count("q") == 0
        await connection.close()

    with process.start():
        asyncio.run(change())
        process.kill()
        process.start()
        asyncio.run(look())


def test_purges_survive(process: LeveretProcess) -> None:
    async def change() -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()
        await channel.declare("q", durable=True)
        for _ in range(100):
            channel.publish("", "q", b"old", commands.Basic.Properties(delivery_mode=2))
        while await channel.count("q") < 100:
            await asyncio.sleep(0.01)
        await channel.call(commands.Queue.Purge(queue="q"))

    async def look() -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()
        assert await channel.count("q") == 0
        await connection.close()

    with process.start():
        asyncio.run(change())
        process.kill()
        process.start()
        asyncio.run(look())

"""Connections of AMQP 1.0 are restored with their sessions, links and unconfirmed messages."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from leveret.client import Error, Event, NotFound, Recovered, RecoveryFailed, Timeout
from leveret.client._async.base_channel import BaseChannel
from leveret.client._async.connection import Amqp10Connection
from tests.client.amqp10.conftest import Connect1, other
from tests.client.conftest import Connect
from tests.support.broker import Broker, LeveretProcess
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy

OPTIONS: dict[str, Any] = {"reconnect_delay": 0.01, "reconnect_max_delay": 0.05}


async def cut(proxy: Proxy, connection: Amqp10Connection) -> None:
    """Wait until the connection is lost and restored."""
    before = connection.core.generation
    proxy.cut()
    await wait_until_async(lambda: connection.core.generation > before and connection.is_open)


async def drain(channel: BaseChannel, queue: str) -> list[str]:
    """Return all messages of the queue."""
    found = []
    while (message := await channel.get(queue)) is not None:
        found.append(message.text())
        message.ack()
    return found


def at(server: Broker, name: str) -> str:
    return f"/queues/{name}" if server.kind == "leveret" else f"/amq/queue/{name}"


async def test_recovery(connect: Connect1, through: Connect1, proxy: Proxy, server: Broker, name: str) -> None:
    old = await other(connect, name)
    await old.declare_queue(f"{name}.2")
    events: list[Event] = []
    connection = await through(on_event=events.append, **OPTIONS)
    session = await connection.session()
    consumer = session.consume(name, prefetch=5)
    await consumer.start()
    sender = await connection.sender(at(server, f"{name}.2"))
    receiver = await connection.receiver(at(server, f"{name}.2"))
    for round in range(3):
        await session.publish(f"{round}", name)
        await sender.send(f"{round}")
        for source in (consumer, receiver):
            while True:
                message = await source.next(60)
                message.ack()
                if message.text() == f"{round}":
                    break
        await cut(proxy, connection)
    await wait_until_async(lambda: [event for event in events if isinstance(event, Recovered)][2:])
    recovered = [event for event in events if isinstance(event, Recovered)]
    assert [(event.channels, event.consumers) for event in recovered] == [(3, 2)] * 3
    assert not [event for event in events if isinstance(event, RecoveryFailed)]


async def test_unsettled_deliveries_are_redelivered_after_a_loss(
    connect: Connect1, through: Connect1, proxy: Proxy, name: str
) -> None:
    await other(connect, name)
    connection = await through(**OPTIONS)
    session = await connection.session()
    for number in range(3):
        await session.publish(f"{number}", name)
    consumer = session.consume(name)
    held = [await consumer.next(60) for _ in range(2)]
    await cut(proxy, connection)
    # There is nothing to settle any more.
    held[0].ack()
    again = [await consumer.next(60) for _ in range(3)]
    assert sorted(message.text() for message in again) == ["0", "1", "2"]
    for message in again:
        message.ack()
    await consumer.cancel()
    assert await drain(session, name) == []


async def test_topology_is_restored(
    connect: Connect1, leveret_only: Broker, through: Connect1, proxy: Proxy, name: str
) -> None:
    connection = await through(**OPTIONS)
    session = await connection.session()
    exchange = await session.declare_exchange(name, "fanout")
    queue = await session.declare_queue(exclusive=True)
    await queue.bind(exchange)
    consumer = queue.consume()
    await consumer.start()
    await cut(proxy, connection)
    await session.publish("x", exchange=exchange, mandatory=True)
    assert (await consumer.next(60)).text() == "x"


async def test_consumer_of_a_missing_queue(
    connect: Connect1, leveret_only: Broker, through: Connect1, proxy: Proxy, name: str
) -> None:
    old = await other(connect, name)
    events: list[Event] = []
    connection = await through(on_event=events.append, **OPTIONS)
    session = await connection.session()
    consumer = session.consume(name)
    await consumer.start()
    proxy.flowing.clear()
    proxy.cut()
    await old.delete_queue(name)
    proxy.flowing.set()
    with pytest.raises(NotFound):
        await consumer.next(60)
    await wait_until_async(lambda: [event for event in events if isinstance(event, RecoveryFailed)])
    assert session.is_open


async def test_pending_calls_fail_and_publishes_wait(
    connect: Connect1, leveret_only: Broker, through: Connect1, proxy: Proxy, name: str
) -> None:
    await other(connect, name)
    connection = await through(**OPTIONS)
    session = await connection.session()
    await session.publish("first", name)
    pairs = proxy.half_open()
    publishing = asyncio.create_task(session.publish("second", name))
    declaring = asyncio.create_task(session.declare_queue(name, passive=True))
    getting = asyncio.create_task(session.get(f"{name}.none"))
    await wait_until_async(lambda: session.core.expecting)
    for pair in pairs:
        pair.cut()
    with pytest.raises(Error):
        await declaring
    with pytest.raises(Error):
        await getting
    await publishing
    assert sorted(set(await drain(session, name))) == ["first", "second"]


@pytest.mark.parametrize("seed", [1, 2])
async def test_cuts_lose_no_messages(
    connect: Connect1, through: Connect1, proxy: Proxy, server: Broker, name: str, seed: int
) -> None:
    """A window of publishes and one of a sender, consumers with acks, and connections that are cut at random."""
    old = await other(connect, name)
    chance = random.Random(seed)
    connection = await through(**OPTIONS)
    session = await connection.session()
    sender = await connection.sender(at(server, name), window=30)
    confirmed: set[str] = set()
    received: set[str] = set()
    stop = asyncio.Event()

    async def publish(what: str) -> None:
        number = 0
        while not stop.is_set():
            body = f"{what}.{number}"
            number += 1
            if what == "sender":
                await sender.send(body)
            else:
                await session.publish(body, name)
            confirmed.add(body)

    async def window() -> None:
        number = 0
        while not stop.is_set():
            bodies = [f"window.{number + more}" for more in range(40)]
            number += 40
            async with session.publisher(routing_key=name, window=20) as publisher:
                for body in bodies:
                    await publisher.publish(body)
            confirmed.update(bodies)

    async def consume() -> None:
        async for message in session.consume(name, prefetch=10):
            received.add(message.text())
            message.ack()

    consuming = asyncio.create_task(consume())
    await wait_until_async(lambda: session.core.consumers and all(one.active for one in session.core.consumers.values()))
    tasks = [asyncio.create_task(publish("sender")), asyncio.create_task(publish("single")), asyncio.create_task(window())]
    for _ in range(15):
        await asyncio.sleep(chance.uniform(0.01, 0.05))
        proxy.cut_after = chance.randrange(600, 60000) if chance.random() < 0.5 else None
        proxy.cut()
    proxy.cut_after = None
    await asyncio.sleep(0.05)
    proxy.cut()
    await wait_until_async(lambda: len(confirmed) > 50)
    stop.set()
    await asyncio.gather(*tasks)
    await wait_until_async(lambda: not confirmed - received)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    await connection.close()
    assert set(await drain(old, name)) <= confirmed


async def test_durable_sender_publishes_no_duplicates(
    connect: Connect1, leveret_only: Broker, through: Connect1, proxy: Proxy, name: str
) -> None:
    """Deliveries that the server knows are resumed, not sent again."""
    old = await other(connect, name)
    chance = random.Random(3)
    connection = await through(**OPTIONS)
    sender = await connection.sender(f"/queues/{name}", name=name, durable=True, window=50)
    sent = 0
    for _ in range(15):
        for _ in range(chance.randrange(20, 120)):
            await sender.publish(f"{sent}")
            sent += 1
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 0.02))
        proxy.cut()
    await sender.flush()
    await sender.close()
    assert await drain(old, name) == [f"{number}" for number in range(sent)]


async def test_kill_9(dial: Connect, tmp_path: Path, name: str) -> None:
    """A durable sender and a consumer resume after the broker was killed and restarted."""
    with LeveretProcess(tmp_path) as broker:
        broker.start()
        port = broker.port
        connection = await dial.open("1.0", broker.url(), **OPTIONS)
        session = await connection.session()
        await session.declare_queue(name, durable=True)
        sender = await connection.sender(f"/queues/{name}", name=name, durable=True, window=100)
        sent = 0
        for _ in range(3):
            for _ in range(200):
                await sender.publish(f"{sent}", durable=True)
                sent += 1
            broker.kill()
            broker.port = port
            await asyncio.to_thread(broker.start)
        await sender.flush()
        assert await drain(session, name) == [f"{number}" for number in range(sent)]
        await connection.close()


async def test_close_while_the_connection_is_lost(connect: Connect1, through: Connect1, proxy: Proxy, name: str) -> None:
    await other(connect, name)
    connection = await through(reconnect_delay=20, reconnect_max_delay=30)
    session = await connection.session()
    consumer = session.consume(name)
    await consumer.start()
    proxy.cut()
    await wait_until_async(lambda: not connection.is_open)
    with pytest.raises(Timeout):
        await session.publish("x", name, timeout=0.05)
    await consumer.cancel()
    await session.close()
    await connection.close()
    assert connection.is_closed

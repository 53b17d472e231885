"""Connections that are cut at random while everything is in use, and an account of the messages at the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from leveret.client._async.channel import Channel
from leveret.client._async.consumer import Consumer
from leveret.client.errors import ConnectionClosed, ConnectionLost, Error, Returned, Timeout
from leveret.client.events import Connected, Event
from tests.client.conftest import Connect
from tests.support.broker import Broker
from tests.support.polling import wait_until_async
from tests.support.proxy import Proxy

CUTS = 40
OPTIONS: dict[str, Any] = {"reconnect_delay": 0.005, "reconnect_max_delay": 0.05, "timeout": 60}


class Account:
    """Account of confirmed and received messages."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.received: Counter[int] = Counter()
        self.published = 0

    def next(self) -> int:
        self.published += 1
        return self.published

    def check(self) -> None:
        lost = self.confirmed - set(self.received)
        assert not lost, f"{len(lost)} of {len(self.confirmed)} confirmed messages are lost: {sorted(lost)[:10]}"


async def await_each(channel: Channel, queue: str, account: Account, stop: asyncio.Event) -> None:
    while not stop.is_set():
        number = account.next()
        await channel.publish(b"%d" % number, queue, persistent=True)
        account.confirmed.add(number)


async def in_a_window(channel: Channel, queue: str, account: Account, stop: asyncio.Event) -> None:
    publisher = channel.publisher(routing_key=queue, window=50)
    while not stop.is_set():
        batch = [account.next() for _ in range(100)]
        for number in batch:
            await publisher.publish(b"%d" % number)
        await publisher.flush()
        account.confirmed.update(batch)


async def consume(consumer: Consumer, account: Account) -> None:
    async for message in consumer:
        account.received[int(message.body)] += 1
        message.ack()


async def ask(channel: Channel, queue: str, stop: asyncio.Event, answered: list[int]) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        try:
            answer = await channel.request(b"%d" % number, queue, timeout=60)
        except (ConnectionClosed, Returned):
            # The connection was cut, or that of the responder was.
            continue
        assert answer.body == b"re %d" % number
        answered[0] += 1
        await asyncio.sleep(0.001)


async def answer(consumer: Consumer) -> None:
    async for message in consumer:
        await message.respond(b"re " + message.body)
        message.ack()


async def run(
    dial: Connect, proxy: Proxy, name: str, spoil: Callable[[random.Random], object], cuts: int, seed: int
) -> tuple[Account, list[Event]]:
    chance = random.Random(seed)
    account = Account()
    events: list[Event] = []
    stop = asyncio.Event()
    answered = [0]
    publishing, consuming = await dial(proxy.url(), on_event=events.append, **OPTIONS), await dial(proxy.url(), **OPTIONS)
    first, second, asking = [await publishing.channel() for _ in range(3)]
    taking = [await consuming.channel() for _ in range(2)]
    answering = await consuming.channel()
    await first.declare_queue(name, durable=True)
    questions = await answering.declare_queue(f"{name}.questions", auto_delete=True)
    server_named = await taking[0].declare_queue(exclusive=True)
    exchange = await taking[0].declare_exchange(f"{name}.x", "fanout", auto_delete=True)
    await server_named.bind(exchange)
    # A start fails if it is cut; a consumer that has started is restored.
    started = [await channel.consume(name, prefetch=20).start() for channel in taking]
    responder = await answering.consume(questions.name).start()
    publishers = [asyncio.create_task(await_each(first, name, account, stop)) for _ in range(3)]
    publishers.append(asyncio.create_task(in_a_window(second, name, account, stop)))
    publishers.append(asyncio.create_task(ask(asking, questions.name, stop, answered)))
    consumers = [asyncio.create_task(consume(consumer, account)) for consumer in started]
    consumers.append(asyncio.create_task(answer(responder)))
    for _ in range(cuts):
        await asyncio.sleep(chance.uniform(0.005, 0.05))
        spoil(chance)
        for task in (*publishers, *consumers):
            if task.done():
                await task
                raise AssertionError(f"{task} has ended")
    proxy.cut_after = None
    proxy.delay = 0
    proxy.rate = 0
    if spoil is not nothing:
        # Replace the proxies that cut after a number of bytes by ones that do not.
        await asyncio.sleep(0.05)
        proxy.cut()
    before = answered[0]
    await wait_until_async(lambda: answered[0] != before and len(account.confirmed) > 100, "no progress")
    stop.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*publishers)
        # The remaining messages arrive.
        while (await first.declare_queue(name, passive=True)).message_count or account.confirmed - set(account.received):
            await asyncio.sleep(0.01)
    # The server-named queue is still bound, whatever its name.
    await first.publish(b"bound", exchange=exchange.name, mandatory=True)
    assert (await server_named.get()).body == b"bound"  # type: ignore[union-attr]
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    assert not publishing.core.channels[first.number].pending_confirms._by_tag
    await first.delete_queue(name)
    account.check()
    return account, events


def nothing(chance: random.Random) -> None:
    pass


async def test_no_duplicates_without_cuts(dial: Connect, proxy: Proxy, name: str) -> None:
    account, _ = await run(dial, proxy, name, nothing, 10, 1)
    assert set(account.received.values()) == {1}
    assert set(account.received) == account.confirmed


async def test_random_cuts(dial: Connect, proxy: Proxy, name: str) -> None:
    _, events = await run(dial, proxy, name, lambda chance: proxy.cut(), CUTS, 2)
    # The number of cuts that hit an open connection depends on the machine; some did.
    assert any(isinstance(event, Connected) and not event.first for event in events)


async def test_cuts_inside_frames(dial: Connect, proxy: Proxy, name: str) -> None:
    def spoil(chance: random.Random) -> None:
        proxy.cut_after = chance.randrange(400, 30000)
        if chance.random() < 0.3:
            proxy.cut()

    await run(dial, proxy, name, spoil, CUTS, 3)


async def test_slow_network(dial: Connect, proxy: Proxy, name: str) -> None:
    def spoil(chance: random.Random) -> None:
        proxy.delay = chance.choice([0, 0.001, 0.005])
        proxy.rate = chance.choice([0, 200_000])
        if chance.random() < 0.2:
            proxy.cut()

    await run(dial, proxy, name, spoil, CUTS // 2, 4)


async def test_half_open_connections(dial: Connect, proxy: Proxy, server: Broker, name: str) -> None:
    """Heartbeats detect them, on the server too, which keeps its unacked messages until then."""
    connection = await dial(proxy.url(), heartbeat=1, **OPTIONS)
    channel = await connection.channel()
    await channel.declare_queue(name)
    account = Account()
    stop = asyncio.Event()
    publishing = asyncio.create_task(await_each(channel, name, account, stop))
    stalled = []
    for _ in range(2):
        before = len(account.confirmed)
        await wait_until_async(lambda before=before: len(account.confirmed) > before)  # type: ignore[misc]
        count = len(account.confirmed)
        stalled += proxy.half_open()
        await wait_until_async(lambda count=count: len(account.confirmed) > count + 1)  # type: ignore[misc]
    stop.set()
    await publishing
    for pair in stalled:
        pair.cut()
    while (message := await channel.get(name, no_ack=True)) is not None:
        account.received[int(message.body)] += 1
    account.check()
    await channel.delete_queue(name)


async def test_all_errors_during_cuts_are_client_errors(dial: Connect, proxy: Proxy, name: str) -> None:
    """Calls of all kinds, some of them cancelled: each ends with a result or an `Error`, and nothing is left."""
    chance = random.Random(5)
    connection = await dial(proxy.url(), **{**OPTIONS, "timeout": 5})
    shared = await connection.channel()
    await shared.declare_queue(name)
    outcomes: Counter[str] = Counter()

    async def call(number: int) -> None:
        channel = shared if number % 3 else await connection.channel()
        kind = chance.randrange(7)
        if kind == 0:
            await channel.declare_queue(f"{name}.{number % 5}", auto_delete=True)
        elif kind == 1:
            await channel.publish(b"x", name)
        elif kind == 2:
            message = await channel.get(name)
            if message is not None:
                message.ack()
        elif kind == 3:
            async with channel.consume(name, prefetch=1) as consumer:
                try:
                    async with asyncio.timeout(0.01):
                        (await anext(consumer)).ack()
                except TimeoutError:
                    pass
        elif kind == 4:
            await channel.bind_queue(name, "amq.topic", f"k.{number}")
            await channel.unbind_queue(name, "amq.topic", f"k.{number}")
        elif kind == 5:
            async with channel.publisher(routing_key=name, window=3) as publisher:
                for _ in range(5):
                    await publisher.publish(b"y")
        else:
            await channel.qos(chance.randrange(1, 10), global_=True)
        if channel is not shared:
            await channel.close()

    async def attempt(number: int) -> None:
        try:
            async with asyncio.timeout(chance.choice([0.002, 0.02, 60])):
                await call(number)
            outcomes["done"] += 1
        except Error as error:
            outcomes[type(error).__name__] += 1
        except TimeoutError:
            outcomes["given up"] += 1

    for round in range(30):
        tasks = [asyncio.create_task(attempt(round * 20 + number)) for number in range(20)]
        await asyncio.sleep(chance.uniform(0, 0.02))
        if round % 2:
            proxy.cut()
        await asyncio.gather(*tasks)
    assert outcomes["done"] > 50, outcomes
    assert set(outcomes) <= {"done", "given up", "ConnectionLost", "Timeout"}, outcomes
    # The last cut may not have been noticed.
    async with asyncio.timeout(60):
        while True:
            try:
                queue = await shared.declare_queue(name)
                break
            except ConnectionLost:
                continue
        await shared.publish(b"last", name)
    async with asyncio.timeout(60):
        while len(connection.core.channels) > 1:
            # Channels whose opening was cancelled are closed.
            left = next(channel for channel in connection.core.channels.values() if channel is not shared._core)
            if left.api_channel is not None and left.opened:
                await left.api_channel.close()
            await asyncio.sleep(0.01)
    while (await shared.declare_queue(name, passive=True)).consumer_count:
        await asyncio.sleep(0.01)
    await queue.delete()


@pytest.mark.parametrize("seconds", [0.3])
async def test_blocked_timeout_needs_an_open_connection(dial: Connect, proxy: Proxy, name: str, seconds: float) -> None:
    connection = await dial(proxy.url(), blocked_timeout=0.05, reconnect_delay=30)
    channel = await connection.channel()
    connection.core.parameters = replace(connection.parameters, timeout=seconds)
    proxy.cut()
    await wait_until_async(lambda: not connection.is_open)
    begun = time.monotonic()
    with pytest.raises(Timeout, match="no connection"):
        await channel.publish(b"x", name)
    assert time.monotonic() - begun > seconds * 0.9

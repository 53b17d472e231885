"""A few rounds of the crash checker (`bench/kill9.py` runs two hundred), and crashes at chosen moments."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pamqp import commands

from tests.faults.crash.model import make_body, read_body
from tests.faults.crash.rounds import CrashTest
from tests.support.broker import Broker, LeveretProcess, leveret_only
from tests.support.peers.async_amqp091 import Connection
from tests.support.peers.framing import content
from tests.support.polling import wait_until_async

KEPT = commands.Basic.Properties(delivery_mode=2)


@pytest.fixture
def process(tmp_path: Path) -> LeveretProcess:
    leveret_only("it is killed")
    return LeveretProcess(tmp_path)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rounds(process: LeveretProcess, tmp_path: Path, seed: int) -> None:
    test = CrashTest(process, seed, tmp_path / "journal.jsonl")
    try:
        test.run(3, (0.1, 0.8), found=100)
        process.check_log()
    finally:
        process.kill()


async def confirmed(broker: Broker, queue: str, bodies: list[bytes], **options: object) -> None:
    """Declare a durable queue and publish confirmed messages to it."""
    connection = await Connection.open(broker)
    channel = await connection.channel()
    await channel.declare(queue, durable=True, **options)
    await channel.call(commands.Confirm.Select())
    done: set[int] = set()
    channel.on_confirm = lambda tag, multiple, ack: done.update(range(1, tag + 1) if multiple else [tag])
    for body in bodies:
        channel.publish("", queue, body, KEPT)
    await connection.drain()

    async def all_done() -> bool:
        return len(done) == len(bodies)

    await wait_until_async(all_done, "the confirms")
    await connection.close()


async def bodies_of(broker: Broker, queue: str) -> list[bytes]:
    connection = await Connection.open(broker)
    channel = await connection.channel()
    bodies = []
    while (delivery := await channel.get(queue)) is not None:
        bodies.append(delivery.body)
    await connection.close()
    return bodies


def test_large_bodies(process: LeveretProcess) -> None:
    """Ten megabytes in several pieces, twice."""
    bodies = [make_body((1, number), 10 * 1024 * 1024) for number in range(2)]
    with process.start() as broker:
        asyncio.run(confirmed(broker, "large", bodies))
        process.kill()
        process.start()
        assert asyncio.run(bodies_of(broker, "large")) == bodies


def test_an_incomplete_body_is_discarded(process: LeveretProcess) -> None:
    async def half(broker: Broker) -> None:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        await channel.declare("half", durable=True)
        await confirmed(broker, "other", [b"x"])
        frames = content(channel.number, commands.Basic.Publish(routing_key="half"), b"x" * 5_000_000, KEPT)
        connection.write(frames[: len(frames) // 2])
        await connection.drain()
        # The broker has read them once it answers on another connection later.
        await confirmed(broker, "other", [b"y" * 1000] * 50)

    with process.start() as broker:
        asyncio.run(half(broker))
        process.kill()
        process.start()
        assert asyncio.run(bodies_of(broker, "half")) == []
        assert len(asyncio.run(bodies_of(broker, "other"))) == 51


def test_transient_objects_do_not_survive(process: LeveretProcess) -> None:
    async def prepare(broker: Broker) -> None:
        await confirmed(broker, "durable", [b"kept"])
        connection = await Connection.open(broker)
        channel = await connection.channel()
        await channel.declare("transient")
        await channel.call(commands.Exchange.Declare(exchange="transient", exchange_type="fanout"))
        await channel.call(commands.Exchange.Declare(exchange="durable", exchange_type="fanout", durable=True))
        await channel.call(commands.Queue.Bind(queue="durable", exchange="durable", routing_key=""))
        channel.publish("", "durable", b"transient")
        channel.publish("", "transient", b"lost", KEPT)
        await channel.count("durable")

    async def look(broker: Broker) -> None:
        connection = await Connection.open(broker)
        for missing in (
            commands.Queue.Declare(queue="transient", passive=True),
            commands.Exchange.Declare(exchange="transient", passive=True),
        ):
            channel = await connection.channel()
            with pytest.raises(Exception, match="404"):
                await channel.call(missing)
            del connection.channels[channel.number]
        channel = await connection.channel()
        channel.publish("durable", "", b"through the binding")
        got = [await channel.get("durable") for _ in range(3)]
        assert [delivery.body for delivery in got if delivery] == [b"kept", b"through the binding"]
        assert got[0] is not None and got[1] is not None
        assert not got[1].method.redelivered
        await connection.close()

    with process.start() as broker:
        asyncio.run(prepare(broker))
        process.kill()
        process.start()
        asyncio.run(look(broker))


def test_exclusive_queues_do_not_survive(process: LeveretProcess) -> None:
    async def prepare(broker: Broker) -> None:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        await channel.declare("mine", durable=True, exclusive=True)

    async def look(broker: Broker) -> None:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        with pytest.raises(Exception, match="404"):
            await channel.declare("mine", passive=True)

    with process.start() as broker:
        asyncio.run(prepare(broker))
        process.kill()
        process.start()
        asyncio.run(look(broker))


def test_overlay_survives(process: LeveretProcess) -> None:
    """Headers added by dead-lettering are as durable as the message."""

    async def prepare(broker: Broker) -> None:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        await channel.declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await confirmed(broker, "source", [b"body"], arguments=arguments)
        delivery = await channel.get("source", no_ack=False)
        assert delivery is not None
        await channel.call(commands.Tx.Select())
        channel.send(commands.Basic.Reject(delivery.method.delivery_tag, requeue=False))
        await channel.call(commands.Tx.Commit())

    async def look(broker: Broker) -> None:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        delivery = await channel.get("dead")
        assert delivery is not None
        assert delivery.properties.headers["x-first-death-queue"] == "source"
        assert delivery.properties.headers["x-death"][0]["count"] == 1
        assert await channel.get("source") is None

    with process.start() as broker:
        asyncio.run(prepare(broker))
        process.kill()
        process.start()
        asyncio.run(look(broker))


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_redelivered_survives(process: LeveretProcess, end: str) -> None:
    """Messages that a consumer received are marked, whether the stop was clean or not; others may be."""

    async def take(broker: Broker, number: int) -> list[tuple[bytes, bool]]:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        got = [await channel.get("queue", no_ack=False) for _ in range(number)]
        return [(delivery.body, delivery.method.redelivered) for delivery in got if delivery]

    with process.start() as broker:
        asyncio.run(confirmed(broker, "queue", [b"0", b"1", b"2"]))
        assert asyncio.run(take(broker, 2)) == [(b"0", False), (b"1", False)]
        if end == "stop":
            process.stop()
        else:
            process.kill()
        process.start()
        again = asyncio.run(take(broker, 3))
        assert [body for body, _ in again] == [b"0", b"1", b"2"]
        assert [redelivered for _, redelivered in again][:2] == [True, True]
        if end == "stop":
            assert again[2][1] is False


def test_delivery_counts_survive(process: LeveretProcess) -> None:
    """A poison message must not live forever by crashing the broker."""
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5}

    async def attempt(broker: Broker) -> int | None:
        connection = await Connection.open(broker)
        channel = await connection.channel()
        delivery = await channel.get("poison", no_ack=False)
        if delivery is None:
            return None
        channel.send(commands.Basic.Nack(delivery.method.delivery_tag, requeue=True))
        # A later publish is confirmed, so both are committed.
        await confirmed(broker, "other", [b""])
        return int((delivery.properties.headers or {}).get("x-delivery-count", 0))

    with process.start() as broker:
        asyncio.run(confirmed(broker, "poison", [b"poison"], arguments=arguments))
        seen = []
        for _ in range(4):
            seen.append(asyncio.run(attempt(broker)))
            process.kill()
            process.start()
        assert seen == [0, 1, 2, 3]


def test_bodies_identify_their_messages() -> None:
    body = make_body((3, 77), 100)
    assert read_body(body) == (3, 77)
    assert read_body(body[:-1] + b"?") is None
    assert read_body(body[:-1]) is None
    assert read_body(b"") is None

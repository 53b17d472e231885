"""Streams and tunnels over AMQP 0-9."""

from __future__ import annotations

import time

import pytest

from leveret.client import NotFound, Returned
from leveret.wire.amqp0.methods import encode_arguments
from leveret.wire.amqp0.table_amqp09 import V0_9
from tests.client.amqp09.conftest import QUICK, Connect09, Open, reconnected
from tests.support.broker import Broker
from tests.support.proxy import Proxy


async def test_streams(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.declare_queue(name)
    async with other.consume_stream(name) as stream:
        for number in range(50):
            await channel.publish_stream(b"%d" % number, name, priority=3, content_type="t", headers={"n": number})
        for number in range(50):
            message = await stream.next(60)
            assert (message.body, message.routing_key, message.headers["n"]) == (b"%d" % number, name, number)
            assert message.settled and message.properties.content_type == "t"
        await channel.publish(b"basic", name)
        await channel.publish_stream(b"last", name, immediate=True)
        assert (await stream.next(60)).body == b"last"
    with pytest.raises(Returned):
        await channel.publish_stream(b"no consumer", name, immediate=True)
    with pytest.raises(Returned):
        await channel.publish_stream(b"nowhere", f"{name}.no", mandatory=True)
    basic = await channel.get(name, no_ack=True)
    assert basic is not None and basic.body == b"basic"
    await channel.delete_queue(name)


async def test_stream_rate(connect: Connect09, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name)
    await channel.stream_qos(100_000, 20_000)
    async with channel.consume_stream(name) as stream:
        begun = time.monotonic()
        for _ in range(10):
            await channel.publish_stream(b"x" * 10_000, name)
        for _ in range(10):
            await stream.next(60)
        # 100,000 bytes, of which two windows may be ahead.
        assert time.monotonic() - begun > 0.5
    await channel.delete_queue(name)


async def test_streams_are_restored(through: Connect09, proxy: Proxy, name: str) -> None:
    connection = await through(**QUICK)
    channel = await connection.channel()
    await channel.declare_queue(name, auto_delete=True)
    await channel.stream_qos(1_000_000)
    async with channel.consume_stream(name) as stream, channel.consume(name) as consumer:
        for body in (b"1", b"2"):
            await channel.publish_stream(body, name)
            assert (await stream.next(60)).body == body
            await channel.publish(body, name)
            (await consumer.next(60)).ack()
            before = connection.core.generation
            proxy.cut()
            await reconnected(connection, before)


async def test_tunnels(connect: Connect09, name: str) -> None:
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    declare = encode_arguments(
        V0_9.by_name["queue.declare"], {"queue": name, "nowait": True, "auto_delete": True}, connection.core.engine.dialect
    )
    await channel.tunnel("amqp", declare, headers={"a": 1}, meta_data={"b": 2})
    assert (await other.declare_queue(name, passive=True)).name == name
    await other.delete_queue(name)
    with pytest.raises(NotFound, match="no handler"):
        await channel.tunnel("unknown", b"x")
    assert other.is_open


def test_sync_api(server: Broker, block: Open, name: str) -> None:
    channel = block(server.url()).channel()
    channel.declare_queue(name)
    channel.stream_qos(1_000_000)
    with channel.consume_stream(name) as stream:
        channel.publish_stream(b"frame", name)
        assert stream.next(60).body == b"frame"
    with pytest.raises(Returned):
        channel.publish_stream(b"x", name, immediate=True)
    channel.delete_queue(name)
    with pytest.raises(NotFound, match="no handler"):
        channel.tunnel("unknown")

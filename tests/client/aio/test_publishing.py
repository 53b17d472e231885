"""Publishing: properties, confirms, nacks, returns, windows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from leveret import Properties
from leveret.client._async.channel import Channel
from leveret.client.errors import ChannelClosed, InvalidMessage, Nacked, NotFound, PublishFailed, Returned
from tests.client.conftest import Connect
from tests.support.broker import Broker
from tests.support.proxy import Proxy


async def taken(channel: Channel, queue: str) -> list[bytes]:
    """Return all ready messages of a queue."""
    bodies = []
    while (message := await channel.get(queue, no_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


async def test_every_property_arrives(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    when = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    headers = {
        "text": "ü",
        "int": 2**40,
        "small": -1,
        "float": 1.5,
        "none": None,
        "true": True,
        "bytes": b"\0\xff",
        "time": when,
        "decimal": Decimal("1.25"),
        "list": [1, "x", [None]],
        "table": {"a": {"b": False}},
    }
    sent = Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration=timedelta(minutes=5),
        message_id="m",
        timestamp=when,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="k",
    )
    await channel.publish("bödy", queue.name, properties=sent)
    message = await queue.get(no_ack=True)
    assert message is not None and message.text() == "bödy"
    got = message.properties
    assert (got.content_type, got.content_encoding, got.delivery_mode, got.priority) == ("text/plain", "utf-8", 2, 7)
    assert (got.correlation_id, got.reply_to, got.expiration, got.message_id) == ("c", "r", 300000, "m")
    assert (got.timestamp, got.type, got.user_id, got.app_id, got.cluster_id) == (when, "t", "guest", "a", "k")
    assert got.persistent
    for key, value in headers.items():
        assert message.headers[key] == value, key


async def test_keywords_are_properties(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    await channel.publish(b"", queue.name, persistent=True, expiration=60000, headers={"a": 1})
    await channel.publish(b"", queue.name, properties=Properties(priority=1, type="x"), priority=2)
    first, second = await queue.get(no_ack=True), await queue.get(no_ack=True)
    assert first is not None and second is not None
    assert (first.properties.delivery_mode, first.properties.expiration, first.headers) == (2, 60000, {"a": 1})
    assert (second.properties.priority, second.properties.type) == (2, "x")
    with pytest.raises(TypeError, match="priority"):
        await channel.publish(b"", queue.name, prioritty=1)


@pytest.mark.parametrize(
    "body",
    [b"", b"x", "text", "ü" * 70000, bytearray(b"ba"), memoryview(b"mv"), memoryview(b"abcdef")[::2], b"\0" * (5 << 20)],
    ids=["empty", "one", "str", "long str", "bytearray", "memoryview", "strided", "5 MiB"],
)
async def test_bodies(connect: Connect, body: Any) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    await channel.publish(body, queue.name)
    expected = body.encode() if isinstance(body, str) else bytes(body)
    message = await queue.get(no_ack=True)
    assert message is not None and message.body == expected and message.size == len(expected)
    await channel.publish(body, queue.name)
    async for message in channel.consume(queue, no_ack=True):
        assert message.body == expected
        break


async def test_concurrent_large_bodies_with_small_frames(connect: Connect) -> None:
    connection = await connect(frame_max=4096)
    channel = await connection.channel()
    queue = await channel.declare_queue(exclusive=True)
    bodies = [bytes([number]) * (1 << 20) for number in range(12)]
    async with channel.publisher(routing_key=queue.name) as publisher:
        for body in bodies:
            await publisher.publish(body)
    assert await taken(channel, queue.name) == bodies


async def test_invalid_message_is_not_sent(dial: Connect, proxy: Proxy) -> None:
    connection = await dial(proxy.url(), heartbeat=0)
    channel = await connection.channel()
    queue = await channel.declare_queue(exclusive=True)
    publisher = channel.publisher(routing_key=queue.name)
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"d": deep}
    bad: list[dict[str, Any]] = [
        {"headers": {"x": object()}},
        {"headers": {"k" * 256: 1}},
        {"headers": {1: 2}},
        {"headers": {"x": 2**64}},
        {"headers": deep},
        {"headers": [1]},
        {"headers": {"big": "x" * 200000}},
        {"content_type": "x" * 256},
        {"content_type": "\ud800"},
        {"message_id": 5},
        {"priority": 256},
        {"priority": -1},
        {"delivery_mode": 300},
        {"expiration": -1},
        {"expiration": "x" * 300},
        {"timestamp": -5},
        {"timestamp": datetime(1960, 1, 1, tzinfo=UTC)},
        {"app_id": b"\xff" * 300},
    ]
    sent = proxy.to_server
    for keywords in bad:
        for publish in (channel.publish, publisher.publish, channel.request):
            with pytest.raises(InvalidMessage):
                await publish(b"x", queue.name, **keywords)
    for body in (5, None, ["x"], "\ud800", object()):
        with pytest.raises(InvalidMessage):
            await channel.publish(body, queue.name)  # type: ignore[arg-type]
    for routing_key, exchange in (("k" * 256, ""), ("", "e" * 256), ("ü" * 200, ""), ("\ud800", ""), (5, ""), (b"k", "")):
        with pytest.raises(InvalidMessage):
            await channel.publish(b"x", routing_key, exchange)  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    # The request that exceeds a frame has started the consumer of replies, and nothing else.
    assert proxy.to_server - sent < 200
    assert publisher.unconfirmed == 0
    await publisher.publish(b"good")
    await publisher.flush()
    assert await taken(channel, queue.name) == [b"good"]


async def test_properties_larger_than_a_frame(connect: Connect) -> None:
    connection = await connect(frame_max=4096)
    channel = await connection.channel()
    queue = await channel.declare_queue(exclusive=True)
    with pytest.raises(InvalidMessage, match="frame"):
        await channel.publish(b"x", queue.name, headers={"x": "y" * 4200})
    await channel.publish(b"x", queue.name, headers={"x": "y" * 4000})
    assert len((await queue.get(no_ack=True)).headers["x"]) == 4000  # type: ignore[union-attr]


async def test_concurrent_confirms(connect: Connect) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    await asyncio.gather(*(channel.publish(b"%d" % number, queue.name) for number in range(500)))
    assert await taken(channel, queue.name) == [b"%d" % number for number in range(500)]


async def test_without_confirms(connect: Connect) -> None:
    channel = await (await connect()).channel(confirms=False)
    queue = await channel.declare_queue(exclusive=True)
    for number in range(300):
        await channel.publish(b"%d" % number, queue.name)
    async with channel.publisher(routing_key=queue.name) as publisher:
        for number in range(300, 400):
            await publisher.publish(b"%d" % number)
        assert publisher.unconfirmed == 0
    found = []
    async for message in channel.consume(queue, no_ack=True):
        found.append(message.body)
        if len(found) == 400:
            break
    assert found == [b"%d" % number for number in range(400)]


async def test_full_queue(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    results = await asyncio.gather(
        *(channel.publish(b"%d" % number, name, type="t") for number in range(10)), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, Nacked)]
    assert results[:3] == [None] * 3 and len(refused) >= 6
    assert len(refused) + results.count(None) == len(results)
    for error in refused:
        assert error.messages[0].routing_key == name and error.messages[0].properties is not None
        assert error.messages[0].properties.type == "t"
    assert {error.messages[0].body for error in refused} <= {b"%d" % number for number in range(10)}
    assert channel.is_open


async def test_publisher_reports_nacked_messages(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    publisher = channel.publisher(routing_key=name, window=500)
    for number in range(100):
        await publisher.publish(b"%d" % number)
    with pytest.raises(Nacked) as caught:
        await publisher.flush()
    kept = await taken(channel, name)
    # Each message is in one of the two sets.
    assert sorted(kept + [message.body for message in caught.value.messages]) == sorted(b"%d" % n for n in range(100))
    assert all(message[1] == name for message in caught.value.messages)
    # The error was reported; the publisher is usable again.
    await publisher.flush()
    await publisher.publish(b"more")
    await publisher.flush()
    assert await taken(channel, name) == [b"more"]


async def test_next_publish_reports_nacked_messages(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with pytest.raises(PublishFailed) as caught:
        async with channel.publisher(routing_key=name, window=1) as publisher:
            for number in range(5):
                await publisher.publish(b"%d" % number)
    assert len(caught.value.messages) >= 1


async def test_returned_messages(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    with pytest.raises(Returned) as caught:
        await channel.publish(b"nowhere", name, mandatory=True, headers={"a": 1})
    error = caught.value
    assert (error.reply_code, error.reply_text) == (312, "NO_ROUTE")
    message = error.message
    assert message is not None and message.properties is not None
    assert (message.exchange, message.routing_key, message.body, message.properties.headers) == (
        "",
        name,
        b"nowhere",
        {"a": 1},
    )
    # Without mandatory it is confirmed and dropped.
    await channel.publish(b"nowhere", name)
    assert channel.is_open


async def test_returns_are_matched_with_publishes(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)

    async def publish(number: int) -> bool:
        """Return whether the message was returned. Every third has no route; most bodies are equal."""
        try:
            await channel.publish(b"%d" % (number % 7), name if number % 3 == 0 else queue.name, mandatory=True)
        except Returned as error:
            assert error.message is not None and error.message.body == b"%d" % (number % 7)
            return True
        return False

    results = await asyncio.gather(*(publish(number) for number in range(600)))
    assert results == [number % 3 == 0 for number in range(600)]
    assert await queue.purge() == 400


async def test_equal_messages_with_different_headers(connect: Connect, name: str) -> None:
    """Address and body are not enough to match a return: CC decides whether there is a route."""
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    exchange = await channel.declare_exchange(name, "direct", auto_delete=True)
    await queue.bind(exchange, "known")

    async def publish(number: int) -> bool:
        headers: dict[str, Any] = {"CC": ["known"]} if number % 2 else {"CC": ["unknown"]}
        try:
            await exchange.publish(b"same", "elsewhere", mandatory=True, headers=headers)
        except Returned:
            return True
        return False

    results = await asyncio.gather(*(publish(number) for number in range(50)))
    assert results == [number % 2 == 0 for number in range(50)]
    assert await queue.purge() == 25


async def test_returned_message_lacks_bcc(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    with pytest.raises(Returned):
        await channel.publish(b"x", name, mandatory=True, headers={"BCC": [f"{name}.b"], "a": 1})


async def test_publisher_reports_returned_messages(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    with pytest.raises(Returned) as caught:
        async with channel.publisher(mandatory=True, window=50) as publisher:
            for number in range(20):
                await publisher.publish(b"%d" % number, f"{name}.{number}")
    assert [message.body for message in caught.value.messages] == [b"%d" % number for number in range(20)]
    assert "20 messages" in str(caught.value)


async def test_window_limits_pending_confirms(connect: Connect) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    most = 0
    async with channel.publisher(routing_key=queue.name, window=10) as publisher:

        async def publish(number: int) -> None:
            nonlocal most
            await publisher.publish(b"%d" % number)
            most = max(most, publisher.unconfirmed)

        await asyncio.gather(*(publish(number) for number in range(200)))
    assert publisher.unconfirmed == 0 and 1 <= most <= 10
    assert await queue.purge() == 200
    for window in (0, -1):
        with pytest.raises(ValueError, match="window"):
            channel.publisher(window=window)


async def test_publisher_defaults(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    exchange = await channel.declare_exchange(name, "direct", auto_delete=True)
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange, "a")
    await queue.bind(exchange, "b")
    async with exchange.publisher("a", persistent=True, headers={"x": 1}, type="t") as publisher:
        await publisher.publish(b"1")
        await publisher.publish(b"2", "b", headers={"y": 2})
        await publisher.publish(b"3", properties=Properties(priority=3))
    found = [await queue.get(no_ack=True) for _ in range(3)]
    assert [(m.body, m.routing_key, m.exchange) for m in found if m] == [
        (b"1", "a", name),
        (b"2", "b", name),
        (b"3", "a", name),
    ]
    first, second, third = (message.properties for message in found if message)
    assert (first.delivery_mode, first.headers, first.type) == (2, {"x": 1}, "t")
    assert (second.delivery_mode, second.headers, second.type) == (2, {"y": 2}, "t")
    assert (third.priority, third.delivery_mode) == (3, None)


async def test_publish_to_a_missing_exchange(connect: Connect, name: str) -> None:
    """It closes the channel: all pending confirms fail with the same error."""
    channel = await (await connect()).channel()
    results = await asyncio.gather(*(channel.publish(b"x", "", name) for _ in range(20)), return_exceptions=True)
    assert {type(result) for result in results} == {NotFound}
    channel = await channel.connection.channel()
    publisher = channel.publisher(name)
    with pytest.raises(NotFound):
        for _ in range(1000):
            await publisher.publish(b"x")
            await asyncio.sleep(0)
        await publisher.flush()
    assert publisher.unconfirmed == 0


async def test_user_id_must_match(connect: Connect) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    with pytest.raises(ChannelClosed) as caught:
        await channel.publish(b"x", queue.name, user_id="other")
    assert (caught.value.reply_code, caught.value.method) == (406, "basic.publish")


async def test_immediate(connect: Connect, server: Broker) -> None:
    if server.kind == "rabbitmq":
        pytest.skip("RabbitMQ has no immediate")
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    with pytest.raises(Returned) as caught:
        await channel.publish(b"x", queue.name, immediate=True)
    assert caught.value.reply_code == 313


async def test_repeated_errors_do_not_grow(connect: Connect, name: str) -> None:
    """A channel's error is raised repeatedly: its traceback is that of the last raise."""
    channel = await (await connect()).channel()
    for _ in range(50):
        with pytest.raises(NotFound) as caught:
            await channel.publish(b"x", "", name)
    depth, trace = 0, caught.value.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 12

"""Queues, exchanges and bindings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leveret import aio
from leveret.client.errors import (
    AccessRefused,
    ChannelClosed,
    InvalidMessage,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from leveret.client.message import Message
from tests.client.conftest import Connect
from tests.support.broker import Broker

Call = Callable[[aio.Channel], Awaitable[Any]]


async def take(queue: aio.Queue) -> Message:
    """Return the next message, which must exist."""
    message = await queue.get(no_ack=True)
    assert message is not None
    return message


async def test_queue_lifecycle(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(name, auto_delete=True)
    assert (queue.name, queue.message_count, queue.consumer_count, str(queue)) == (name, 0, 0, name)
    for number in range(5):
        await channel.publish(b"%d" % number, name)
    again = await channel.declare_queue(name, passive=True)
    assert (again.message_count, again.consumer_count) == (5, 0)
    assert await queue.purge() == 5
    await channel.publish(b"left", name)
    assert await queue.delete() == 1
    with pytest.raises(NotFound) as caught:
        await channel.declare_queue(name, passive=True)
    assert (caught.value.reply_code, caught.value.method) == (404, "queue.declare")
    assert not channel.is_open


async def test_server_named_queue(connect: Connect) -> None:
    channel = await (await connect()).channel()
    first = await channel.declare_queue(exclusive=True)
    second = await channel.declare_queue(exclusive=True)
    assert first.name and second.name and first.name != second.name
    await channel.publish(b"x", first.name)
    assert (await channel.purge_queue(first), await channel.purge_queue(second.name)) == (1, 0)


async def test_direct_bindings(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    exchange = await channel.declare_exchange(name, auto_delete=True)
    assert (exchange.name, exchange.type, str(exchange)) == (name, "direct", name)
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange, "a")
    await channel.bind_queue(queue, name, "b")
    for key in ("a", "b", "c"):
        await exchange.publish(key, key)
    assert [(await take(queue)).text() for _ in range(2)] == ["a", "b"]
    assert await queue.get() is None
    await queue.unbind(exchange, "a")
    await exchange.publish("a", "a")
    assert await queue.get() is None
    await channel.unbind_queue(queue, exchange, "b")
    # auto_delete: the exchange was deleted with its last binding.
    with pytest.raises(NotFound):
        await channel.declare_exchange(name, passive=True)


async def test_topic_fanout_and_headers_exchanges(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    topic = await channel.declare_exchange(f"{name}.topic", "topic", auto_delete=True)
    await queue.bind(topic, "a.*.#")
    await topic.publish(b"1", "a.b.c.d")
    await topic.publish(b"no", "b.a")
    fanout = await channel.declare_exchange(f"{name}.fanout", "fanout", auto_delete=True)
    await queue.bind(fanout)
    await fanout.publish(b"2", "whatever")
    headers = await channel.declare_exchange(f"{name}.headers", "headers", auto_delete=True)
    await queue.bind(headers, arguments={"x-match": "all", "color": "red", "size": 3})
    await headers.publish(b"3", headers={"color": "red", "size": 3, "more": None})
    await headers.publish(b"no", headers={"color": "red"})
    assert [(await take(queue)).body for _ in range(3)] == [b"1", b"2", b"3"]
    assert await queue.get() is None


async def test_exchange_to_exchange_bindings(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    source = await channel.declare_exchange(f"{name}.source", "fanout")
    target = await channel.declare_exchange(f"{name}.target", "direct", internal=True)
    queue = await channel.declare_queue(exclusive=True)
    await target.bind(source, "key")
    await queue.bind(target, "key")
    await source.publish(b"through", "key")
    assert (await take(queue)).body == b"through"
    await target.unbind(source, "key")
    await source.publish(b"no", "key")
    assert await queue.get() is None
    await channel.bind_exchange(target, source.name, "key")
    await channel.unbind_exchange(target.name, source, "key")
    await channel.delete_exchange(target)
    await source.delete()
    with pytest.raises(NotFound):
        await channel.declare_exchange(source.name, passive=True)


async def test_if_unused_and_if_empty(connect: Connect, name: str) -> None:
    connection = await connect()
    channel = await connection.channel()
    queue = await channel.declare_queue(name)
    exchange = await channel.declare_exchange(name)
    await queue.bind(exchange)
    await channel.publish(b"x", name)
    with pytest.raises(PreconditionFailed) as caught:
        await queue.delete(if_empty=True)
    assert (caught.value.reply_code, caught.value.method) == (406, "queue.delete")
    assert "if_empty" in str(caught.value)
    channel = await connection.channel()
    with pytest.raises(PreconditionFailed) as caught:
        await channel.delete_exchange(exchange, if_unused=True)
    assert caught.value.method == "exchange.delete"
    channel = await connection.channel()
    async with channel.consume(name):
        other = await connection.channel()
        with pytest.raises(PreconditionFailed):
            await other.delete_queue(name, if_unused=True)
    assert await channel.delete_queue(name, if_unused=True) == 1
    await channel.delete_exchange(name, if_unused=True)


async def test_inequivalent_declarations(connect: Connect, name: str) -> None:
    connection = await connect()
    first = await connection.channel()
    await first.declare_queue(name, arguments={"x-max-length": 5})
    await first.declare_exchange(name, "topic")
    calls: tuple[tuple[Call, str], ...] = (
        (lambda channel: channel.declare_queue(name, arguments={"x-max-length": 6}), "queue.declare"),
        (lambda channel: channel.declare_exchange(name, "fanout"), "exchange.declare"),
    )
    for declare, method in calls:
        channel = await connection.channel()
        with pytest.raises(PreconditionFailed) as caught:
            await declare(channel)
        assert (caught.value.reply_code, caught.value.method) == (406, method)
        assert caught.value.reply_text and caught.value.class_id and caught.value.method_id
    assert first.is_open
    await first.delete_queue(name)
    await first.delete_exchange(name)


async def test_missing_queues_and_exchanges(connect: Connect, name: str) -> None:
    connection = await connect()
    calls: dict[str, Call] = {
        "queue.bind": lambda channel: channel.bind_queue(name, name),
        "queue.purge": lambda channel: channel.purge_queue(name),
        "basic.get": lambda channel: channel.get(name),
        "basic.consume": lambda channel: channel.consume(name).start(),
        "exchange.bind": lambda channel: channel.bind_exchange(name, name),
        "basic.publish": lambda channel: channel.publish(b"", "key", name),
    }
    for method, call in calls.items():
        channel = await connection.channel()
        with pytest.raises(NotFound) as caught:
            await call(channel)
        assert (caught.value.reply_code, caught.value.method) == (404, method)
        # Everything on the closed channel raises its error.
        with pytest.raises(NotFound):
            await channel.declare_queue(name)
        with pytest.raises(NotFound):
            await channel.publish(b"", name)
    assert connection.is_open


async def test_refused_declarations(connect: Connect, server: Broker, name: str) -> None:
    connection = await connect(server.url(user="limited", password="secret", vhost="interop"))
    channel = await connection.channel()
    with pytest.raises(AccessRefused) as caught:
        await channel.declare_queue(name)
    assert (caught.value.reply_code, caught.value.method) == (403, "queue.declare")
    channel = await connection.channel()
    mine = await channel.declare_queue(f"mine-{name}", auto_delete=True)
    assert mine.name == f"mine-{name}"
    await mine.delete()


async def test_exclusive_queues(connect: Connect, name: str) -> None:
    owner = await connect()
    await (await owner.channel()).declare_queue(name, exclusive=True)
    await (await (await owner.channel()).declare_queue(name, exclusive=True)).purge()
    other = await connect()
    calls: tuple[Call, ...] = (
        lambda channel: channel.declare_queue(name, passive=True),
        lambda channel: channel.purge_queue(name),
        lambda channel: channel.consume(name).start(),
    )
    for call in calls:
        channel = await other.channel()
        with pytest.raises(ResourceLocked) as caught:
            await call(channel)
        assert caught.value.reply_code == 405
    await owner.close()
    channel = await other.channel()
    with pytest.raises(NotFound):
        await channel.declare_queue(name, passive=True)


async def test_invalid_names(connect: Connect) -> None:
    channel = await (await connect()).channel()
    calls = (
        lambda: channel.declare_queue("x" * 256),
        lambda: channel.declare_queue("ü" * 128),
        lambda: channel.declare_queue(5),  # type: ignore[arg-type]
        lambda: channel.declare_queue("x", arguments={"x": object()}),  # type: ignore[dict-item]
        lambda: channel.declare_queue("x", arguments={5: 1}),  # type: ignore[dict-item]
        lambda: channel.bind_queue("x", "y", "k" * 300),
        lambda: channel.bind_queue("x", "y", 5),  # type: ignore[arg-type]
        lambda: channel.declare_exchange("x", "t" * 300),
        lambda: channel.get("q" * 256),
        lambda: channel.consume("q", consumer_tag="t" * 256).start(),
        lambda: channel.consume("q", prefetch=70000).start(),
        lambda: channel.consume("q", arguments={"x": {1}}).start(),  # type: ignore[dict-item]
        lambda: channel.qos(-1),
        lambda: channel.qos(2**16),
    )
    for call in calls:
        with pytest.raises(InvalidMessage):
            await call()
    # The server has received none of it.
    assert (await channel.declare_queue(exclusive=True)).name
    assert channel.is_open


async def test_arguments_of_every_type(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(
        name,
        exclusive=True,
        arguments={
            "x-max-priority": 5,
            "x-message-ttl": 60000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": name,
            "ours": [1, "two", {"three": None}],
            "flag": True,
            "bytes": b"\0\xff",
        },
    )
    await channel.publish(b"low", name, priority=1)
    await channel.publish(b"high", name, priority=5)
    assert [(await take(queue)).body for _ in range(2)] == [b"high", b"low"]


async def test_handle_without_declaration(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    await channel.declare_queue(name, exclusive=True)
    queue = channel.queue(name)
    await channel.exchange().publish(b"1", name)
    await channel.exchange("amq.direct").publish(b"nowhere", name)
    assert (await take(queue)).body == b"1"
    assert await queue.get() is None
    assert repr(queue) == f"<Queue '{name}'>"


async def test_reserved_names(connect: Connect) -> None:
    connection = await connect()
    calls: tuple[Call, ...] = (
        lambda channel: channel.declare_queue("amq.mine"),
        lambda channel: channel.declare_exchange("amq.mine"),
    )
    for call in calls:
        channel = await connection.channel()
        with pytest.raises(ChannelClosed) as caught:
            await call(channel)
        assert caught.value.reply_code == 403

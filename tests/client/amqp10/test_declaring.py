"""Queues, exchanges and bindings over AMQP 1.0, through the management node."""

from __future__ import annotations

import pytest

from leveret.client import AccessRefused, NotFound, NotSupported, PreconditionFailed, Returned
from tests.client.amqp10.conftest import Connect1, other
from tests.support.broker import Broker


async def test_queue_lifecycle(connect: Connect1, leveret_only: Broker, name: str) -> None:
    session = await (await connect()).session()
    queue = await session.declare_queue(name, durable=True, arguments={"x-max-length": 100})
    assert (queue.name, queue.message_count, queue.consumer_count) == (name, 0, 0)
    for number in range(3):
        await session.publish(f"{number}", queue)
    again = await session.declare_queue(name, passive=True)
    assert again.message_count == 3
    with pytest.raises(PreconditionFailed, match="x-max-length") as differs:
        await session.declare_queue(name, durable=True, arguments={"x-max-length": 5})
    assert differs.value.reply_code == 409
    assert await queue.purge() == 3
    await session.publish("x", queue)
    assert await queue.delete() == 1
    with pytest.raises(NotFound):
        await session.declare_queue(name, passive=True)
    unnamed = await session.declare_queue(exclusive=True)
    assert unnamed.name
    await session.publish("x", unnamed)
    assert session.is_open


async def test_exchanges_and_bindings(connect: Connect1, leveret_only: Broker, name: str) -> None:
    session = await (await connect()).session()
    queue = await session.declare_queue(f"{name}/with a slash", auto_delete=False)
    exchange = await session.declare_exchange(f"{name} ü/x", "topic", durable=True)
    inner = await session.declare_exchange(f"{name}.inner", "headers")
    await queue.bind(exchange, "a.*")
    await session.publish("1", "a.b", exchange, mandatory=True)
    await queue.unbind(exchange, "a.*")
    with pytest.raises(Returned):
        await session.publish("2", "a.b", exchange, mandatory=True)
    await inner.bind(exchange, "#")
    await queue.bind(inner, arguments={"x-match": "all", "colour": "red"})
    await session.publish("3", "k", exchange, mandatory=True, headers={"colour": "red"})
    await queue.unbind(inner, arguments={"x-match": "all", "colour": "red"})
    with pytest.raises(Returned):
        await session.publish("4", "k", exchange, mandatory=True, headers={"colour": "red"})
    await inner.unbind(exchange, "#")
    assert await queue.purge() == 2
    with pytest.raises(PreconditionFailed):
        await session.declare_exchange(exchange.name, "fanout")
    for gone in (exchange, inner):
        await gone.delete()
    with pytest.raises(NotFound):
        await session.publish("5", "k", exchange)
    await queue.delete()


async def test_permissions(connect: Connect1, leveret_only: Broker, name: str) -> None:
    url = leveret_only.url(user="limited", password="secret", vhost="interop")
    session = await (await connect(url)).session()
    with pytest.raises(AccessRefused, match="refused") as refused:
        await session.declare_queue(name)
    assert refused.value.reply_code == 403
    queue = await session.declare_queue(f"mine-{name}")
    await session.publish("x", queue)
    assert await queue.delete() == 1


async def test_servers_without_a_management_node(connect: Connect1, server: Broker, name: str) -> None:
    await other(connect, name)
    if server.kind == "leveret":
        session = await (await connect(addresses="plain")).session()
    else:
        session = await (await connect()).session()
    with pytest.raises(NotSupported, match="management node"):
        await session.declare_queue(name)
    await session.publish("x", name)
    message = await session.get(name)
    assert message is not None
    message.ack()

"""Transactions over AMQP 1.0: transactional channels, and transactions of the connection."""

from __future__ import annotations

import pytest

from leveret.client import Returned, TransactionLost
from tests.client.amqp10.conftest import Connect1, other
from tests.support.broker import Broker
from tests.support.proxy import Proxy


class Fault(Exception):
    """Raised by the block."""


async def test_transactional_channel(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, name)
    session = await (await connect()).session(transactional=True)
    for round in range(3):
        async with session.transaction():
            for number in range(10):
                await session.publish(f"{round}.{number}", name)
            assert (await old.declare_queue(name, passive=True)).message_count == 10 * round
    assert (await old.declare_queue(name, passive=True)).message_count == 30
    with pytest.raises(Fault):
        async with session.transaction():
            await session.publish("never", name)
            raise Fault
    assert (await old.declare_queue(name, passive=True)).message_count == 30
    message = await session.get(name)
    assert message is not None
    message.ack()
    await session.tx_rollback()
    # It is still unsettled.
    message.ack()
    await session.tx_commit()
    assert (await old.declare_queue(name, passive=True)).message_count == 29


async def test_failed_message_rolls_back_the_transaction(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, name)
    session = await (await connect()).session(transactional=True)
    await session.publish("1", name)
    await session.publish("2", name, "amq.direct", mandatory=True)
    with pytest.raises(Returned):
        await session.tx_commit()
    assert (await old.declare_queue(name, passive=True)).message_count == 0
    await session.publish("3", name)
    await session.tx_commit()
    assert (await old.declare_queue(name, passive=True)).message_count == 1


async def test_transaction_over_several_links(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, name)
    await old.declare_queue(f"{name}.out")
    connection = await connect()
    async with connection.sender(f"/queues/{name}.out") as sender, connection.receiver(f"/queues/{name}") as receiver:
        await old.publish("in", name)
        delivery = await receiver.next(60)
        with pytest.raises(Fault):
            async with connection.transaction() as tx:
                await sender.send("out", transaction=tx)
                delivery.accept(tx)
                raise Fault
        assert not tx.is_open
        assert (await old.declare_queue(f"{name}.out", passive=True)).message_count == 0
        async with connection.transaction() as first, connection.transaction() as second:
            await sender.send("of the first", transaction=first)
            await sender.send("of the second", transaction=second)
            delivery.accept(first)
            await second.rollback()
        assert [message.text() for message in [await old.get(f"{name}.out")] if message] == ["of the first"]
        assert (await old.declare_queue(f"{name}.out", passive=True)).message_count == 0
        with pytest.raises(RuntimeError, match="has ended"):
            await sender.send("late", transaction=first)
    assert (await old.declare_queue(name, passive=True)).message_count == 0


async def test_large_transaction(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, name)
    connection = await connect()
    async with connection.sender(f"/queues/{name}", window=500) as sender, connection.transaction() as tx:
        for number in range(2500):
            await sender.publish(f"{number}", transaction=tx)
    assert (await old.declare_queue(name, passive=True)).message_count == 2500


async def test_lost_connection_rolls_back(
    leveret_only: Broker, connect: Connect1, through: Connect1, proxy: Proxy, name: str
) -> None:
    old = await other(connect, name)
    connection = await through(reconnect_delay=0.01)
    session = await connection.session(transactional=True)
    await session.publish("1", name)
    async with connection.sender(f"/queues/{name}") as sender:
        with pytest.raises(TransactionLost):
            async with connection.transaction() as tx:
                await sender.send("2", transaction=tx)
                proxy.cut()
                await sender.send("3")
                assert tx.core.lost
    with pytest.raises(TransactionLost):
        await session.tx_commit()
    await session.publish("4", name)
    await session.tx_commit()
    taken = []
    while (message := await old.get(name)) is not None:
        taken.append(message.text())
        message.ack()
    assert taken == ["3", "4"]

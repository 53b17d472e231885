"""Batches over AMQP 1.0."""

from __future__ import annotations

import pytest

from leveret.client.errors import BatchFailed, Nacked
from leveret.wire.record_batches import MAX_BYTES, MAX_ROWS
from tests.client.aio.test_publishing import taken
from tests.client.amqp10.conftest import Connect1, other
from tests.support.broker import Broker


async def test_a_batch_is_published_in_order(connect: Connect1, name: str) -> None:
    channel = await other(connect, name)
    session = await (await connect()).session()
    bodies = [b"%d" % number for number in range(MAX_ROWS + 10)]
    bodies[100] = bytes(MAX_BYTES)
    assert await session.publish_batch(bodies, name, persistent=True) == len(bodies)
    assert await taken(channel, name) == bodies


async def test_messages_that_were_not_published_have_their_numbers(
    connect: Connect1, leveret_only: Broker, name: str
) -> None:
    channel = await other(connect, name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    session = await (await connect()).session()
    with pytest.raises(BatchFailed) as caught:
        await session.publish_batch([b"1", b"2", b"3"], [name, f"{name} nowhere", name], mandatory=True)
    assert (caught.value.unroutable, caught.value.refused) == ([1], [2])
    assert [message.body for message in caught.value.messages] == [b"2", b"3"]
    assert await taken(channel, name) == [b"1"]
    assert await session.publish_batch([b"4"], f"{name} nowhere") == 1


async def test_a_missing_exchange_refuses_the_batch(connect: Connect1, leveret_only: Broker, name: str) -> None:
    channel = await other(connect, name)
    session = await (await connect()).session()
    with pytest.raises(Nacked, match=f"row 1 of the record batch: no exchange '{name}'"):
        await session.publish_batch([b"1", b"2"], name, ["", name])
    assert await taken(channel, name) == []

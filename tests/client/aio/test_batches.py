"""Batches: record batches to Leveret, single messages to other servers, with the same results."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from leveret import Properties
from leveret.client.engine.common.encoding import Body
from leveret.client.errors import BatchFailed, InvalidMessage, NotFound, Unpublished
from leveret.wire.record_batches import MAX_BYTES, MAX_ROWS
from tests.client.aio.test_publishing import taken
from tests.client.conftest import Connect
from tests.support.proxy import Proxy


async def test_a_list_of_bodies(connect: Connect) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    bodies: list[Body] = [b"bytes", "text", bytearray(b"array")]
    assert await channel.publish_batch(bodies, queue, persistent=True) == 3
    message = await channel.get(queue, no_ack=True)
    assert message is not None and message.properties.delivery_mode == 2 and message.exchange == ""
    assert await taken(channel, queue.name) == [b"text", b"array"]


async def test_two_columns(connect: Connect) -> None:
    channel = await (await connect()).channel()
    one, two = [await channel.declare_queue(exclusive=True) for _ in range(2)]
    keys = [one.name, two.name, one.name]
    await channel.publish_batch([b"1", b"2", b"3"], keys)
    await channel.publish_batch(pa.array([b"4", b"5"]), pa.chunked_array([[two.name], [one.name]]))
    assert await taken(channel, one.name) == [b"1", b"3", b"5"]
    assert await taken(channel, two.name) == [b"2", b"4"]


async def test_an_arrow_table(connect: Connect) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    table = pa.table(
        {
            "body": ["a", "b"],
            "routing_key": [queue.name, queue.name],
            "message_id": ["1", None],
            "priority": pa.array([None, 3], pa.int32()),
        }
    )
    await channel.publish_batch(table, app_id="tests")
    for sent in (table.to_batches()[0], table):
        messages = [await channel.get(queue, no_ack=True) for _ in range(2)]
        found = [(message.properties.message_id, message.properties.priority) for message in messages if message]
        assert found == [("1", None), (None, 3)]
        assert {message.properties.app_id for message in messages if message} == {"tests"}
        if sent is not table:
            await channel.publish_batch(sent, app_id="tests")


async def test_messages_of_an_error_can_be_published_again(connect: Connect) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    rows = [Unpublished("", name, Properties(type=name), name.encode()) for name in (queue.name, "nowhere 1", "nowhere 2")]
    with pytest.raises(BatchFailed, match="2 of 3 messages were not published: 2 unroutable, the first is row 1") as caught:
        await channel.publish_batch(rows, mandatory=True)
    assert (caught.value.unroutable, caught.value.refused) == ([1, 2], [])
    assert [(message.routing_key, message.body) for message in caught.value.messages] == [
        ("nowhere 1", b"nowhere 1"),
        ("nowhere 2", b"nowhere 2"),
    ]
    assert [message.properties and message.properties.type for message in caught.value.messages] == [
        "nowhere 1",
        "nowhere 2",
    ]
    with pytest.raises(BatchFailed):
        await channel.publish_batch(caught.value.messages, mandatory=True)
    assert await taken(channel, queue.name) == [queue.name.encode()]


async def test_refused_messages_have_their_numbers(connect: Connect) -> None:
    channel = await (await connect()).channel()
    full = await channel.declare_queue(exclusive=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for number in range(2):
        await channel.publish(f"{number}", full)
    with pytest.raises(
        BatchFailed, match=r"1 unroutable, the first is row 1; 2 refused, the first is row 0: .* full"
    ) as caught:
        await channel.publish_batch([b"lost"] * 3, [full.name, "nowhere", full.name], mandatory=True)
    assert (caught.value.unroutable, caught.value.refused) == ([1], [0, 2])


async def test_large_batches_keep_their_order(connect: Connect) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    large = bytes(MAX_BYTES)
    bodies = [b"%d" % number for number in range(MAX_ROWS + 10)]
    bodies[100] = large
    bodies[200:203] = [large[:-1000]] * 3
    assert await channel.publish_batch(bodies, queue) == len(bodies)
    received = await taken(channel, queue.name)
    assert len(received) == len(bodies) and received == bodies


async def test_an_empty_batch_publishes_nothing(connect: Connect) -> None:
    channel = await (await connect()).channel()
    assert await channel.publish_batch([], "q") == 0


async def test_a_missing_exchange_closes_the_channel(connect: Connect, name: str) -> None:
    channel = await (await connect()).channel()
    queue = await channel.declare_queue(exclusive=True)
    with pytest.raises(NotFound, match=name):
        await channel.publish_batch([b"", b""], "", ["amq.fanout", name])
    assert not channel.is_open and queue.name


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (b"bytes", "expected an Arrow table"),
        ([b"", 5], "row 1: body: expected bytes or text"),
        ([("", "q", None)], "row 0: expected .exchange, routing key, properties, body."),
        (pa.table({"value": [b""]}), "unknown column 'value'"),
        (pa.table({"type": [""]}), "no column 'body'"),
        (pa.table({"body": [b""], "priority": [1000]}), "row 0: priority: 1000"),
    ],
)
async def test_invalid_batches_are_not_sent(connect: Connect, messages: Any, text: str) -> None:
    channel = await (await connect()).channel()
    with pytest.raises(InvalidMessage, match=text):
        await channel.publish_batch(messages)


async def test_columns_must_have_the_same_length(connect: Connect) -> None:
    channel = await (await connect()).channel()
    with pytest.raises(InvalidMessage, match="routing_key: 1 values for 2 messages; expected one for each"):
        await channel.publish_batch([b"", b""], ["one"])


async def test_messages_of_a_batch_share_frames(connect: Connect, dial: Connect, proxy: Proxy) -> None:
    channel = await (await dial(proxy.url(), heartbeat=0)).channel()
    queue = await channel.declare_queue(exclusive=True)
    before = proxy.to_server
    await channel.publish_batch([b""] * 1000, queue)
    size = (proxy.to_server - before) / 1000
    assert size < 20 + len(queue.name) if channel.core.batches else size > 30 + len(queue.name)


async def test_transactions_contain_batches(connect: Connect) -> None:
    channel = await (await connect()).channel(transactional=True)
    queue = await channel.declare_queue(exclusive=True)
    await channel.publish_batch([b"a", b"b"], queue)
    assert await taken(channel, queue.name) == []
    await channel.tx_commit()
    assert await taken(channel, queue.name) == [b"a", b"b"]


async def test_a_lost_connection_publishes_the_batch_again(dial: Connect, proxy: Proxy, name: str) -> None:
    channel = await (await dial(proxy.url())).channel()
    await channel.declare_queue(name)
    bodies = [b"%d" % number for number in range(20_000)]
    publishing = asyncio.ensure_future(channel.publish_batch(bodies, name))
    await asyncio.sleep(0)
    proxy.cut()
    assert await publishing == len(bodies)
    assert set(await taken(channel, name)) == set(bodies)
    await channel.delete_queue(name)

"""Shovels between two embedded brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import leveret
from leveret import Error
from leveret.wire.amqp10 import message as amqp10
from tests.support.polling import DEADLINE, wait_until_async

COUNT = 300


def call(broker: Any, operation: str, **arguments: Any) -> Any:
    """Execute an operation in an embedded broker."""
    return broker._thread.run(broker._node.call(operation, **arguments))


class Brokers:
    """Two brokers in this process; the first one runs the shovels."""

    def __init__(self, own: Any, far: Any) -> None:
        self.own = own
        self.far = far

    async def shovel(self, name: str = "s", **values: Any) -> None:
        value = {key.replace("_", "-"): item for key, item in values.items()}
        value = {"src-uri": "amqp://", "dest-uri": self.far.url, "reconnect-delay": 1, **value}
        call(self.own, "parameters.set", component="shovel", name=name, value=value)

    def delete(self, name: str) -> None:
        call(self.own, "parameters.delete", component="shovel", name=name)

    async def parameters(self) -> list[str]:
        return [item.name for item in call(self.own, "parameters.list", component="shovel")]


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    # URIs without a host lead to the first one.
    with leveret.Broker() as own, leveret.Broker() as far:
        yield Brokers(own, far)


@contextlib.asynccontextmanager
async def channel_of(url: str) -> AsyncIterator[Any]:
    async with leveret.connect(url) as connection, connection.channel() as channel:
        yield channel


async def fill(url: str, queue: str, count: int = COUNT, **keywords: Any) -> None:
    async with channel_of(url) as channel:
        await channel.declare_queue(queue, durable=True)
        async with channel.publisher("", queue) as publisher:
            for number in range(count):
                await publisher.publish(str(number), persistent=True, **keywords)


async def drain(url: str, queue: str, count: int) -> list[Any]:
    async with channel_of(url) as channel:
        await channel.declare_queue(queue, durable=True)
        async with channel.consume(queue, prefetch=0) as consumer:
            found = [await consumer.next(DEADLINE) for _ in range(count)]
            for message in found:
                message.ack()
        return found


async def length(url: str, queue: str) -> int:
    async with channel_of(url) as channel:
        return int((await channel.declare_queue(queue, passive=True)).message_count)


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
async def test_messages_move_in_order_and_unchanged(brokers: Brokers, ack_mode: str) -> None:
    await fill(brokers.own.url, "in", headers={"small": 1, "text": "x"}, type="t")
    await brokers.shovel(src_queue="in", dest_queue="out", ack_mode=ack_mode)
    found = await drain(brokers.far.url, "out", COUNT)
    assert [int(message.body) for message in found] == list(range(COUNT))
    assert found[0].headers == {"small": 1, "text": "x"}
    assert found[0].properties.type == "t"
    assert found[0].properties.persistent
    assert await length(brokers.own.url, "in") == 0


@pytest.mark.parametrize(("source", "destination"), [("amqp10", "amqp091"), ("amqp091", "amqp10"), ("amqp10", "amqp10")])
async def test_both_protocols_in_either_direction(brokers: Brokers, source: str, destination: str) -> None:
    await fill(brokers.own.url, "in", headers={"text": "x"})
    async with channel_of(brokers.far.url) as channel:
        await channel.declare_queue("out", durable=True)
    ends = {"src_queue": "in"} if source == "amqp091" else {"src_protocol": source, "src_address": "/queues/in"}
    ends |= (
        {"dest_queue": "out"} if destination == "amqp091" else {"dest_protocol": destination, "dest_address": "/queues/out"}
    )
    await brokers.shovel(**ends)
    found = await drain(brokers.far.url, "out", COUNT)
    assert [int(message.body) for message in found] == list(range(COUNT))
    assert found[0].headers["text"] == "x"
    assert found[0].properties.persistent
    await wait_until_async(lambda: is_empty(brokers.own.url, "in"))


@pytest.mark.parametrize("source", ["amqp10", "amqp091"])
async def test_additions_over_amqp10(brokers: Brokers, source: str) -> None:
    await fill(brokers.own.url, "in", 1, headers={"kept": "x", "replaced": "x", "x-replaced": "x"}, content_type="old")
    async with channel_of(brokers.far.url) as channel:
        await channel.declare_queue("out", durable=True)
    ends = {"src_queue": "in"} if source == "amqp091" else {"src_protocol": source, "src_address": "/queues/in"}
    await brokers.shovel(
        **ends,
        dest_protocol="amqp10",
        dest_address="/queues/out",
        dest_application_properties={"replaced": "y", "number": 5, "x-flag": True},
        dest_message_annotations={"x-replaced": "y", "x-opt-new": "z"},
        dest_properties={"content-type": "text/plain", "subject": "s", "group-id": "g", "creation_time": 1000},
    )
    async with (
        leveret.connect(brokers.far.url, protocol="1.0") as connection,
        connection.session() as session,
        session.receiver("/queues/out") as receiver,
    ):
        delivery = await receiver.next(DEADLINE)
    sections = delivery.sections
    application = dict(amqp10.application_properties(sections) or ())
    annotations = {str(name): value for name, value in dict(amqp10.message_annotations(sections) or ()).items()}
    properties = amqp10.properties(sections)
    assert application == {"kept": "x", "replaced": "y", "number": 5, "x-flag": True}
    assert annotations["x-replaced"] == "y" and annotations["x-opt-new"] == "z"
    assert (properties.content_type, properties.subject, properties.group_id) == ("text/plain", "s", "g")
    assert properties.creation_time == 1000
    assert delivery.body == b"0"


async def is_empty(url: str, queue: str) -> bool:
    return await length(url, queue) == 0


@pytest.mark.parametrize(("delete_after", "moved"), [("queue-length", COUNT), (10, 10), (0, 0)])
async def test_a_shovel_ends_and_deletes_its_parameter(brokers: Brokers, delete_after: Any, moved: int) -> None:
    await fill(brokers.own.url, "in")
    await brokers.shovel(src_queue="in", dest_queue="out", src_delete_after=delete_after)

    async def ended() -> bool:
        return await brokers.parameters() == []

    await wait_until_async(ended)
    assert await length(brokers.far.url, "out") == moved

    async def left() -> bool:
        return await length(brokers.own.url, "in") == COUNT - moved

    await wait_until_async(left)


async def test_additions(brokers: Brokers) -> None:
    await fill(brokers.own.url, "in", 1)
    await brokers.shovel(
        src_uri="amqp://guest:guest@/",
        src_queue="in",
        dest_queue="out",
        dest_add_forward_headers=True,
        dest_add_timestamp_header=True,
        dest_add_origin_headers=True,
        dest_publish_properties={"content_type": "text/plain"},
    )
    (message,) = await drain(brokers.far.url, "out", 1)
    assert message.properties.content_type == "text/plain"
    assert message.headers["x-shovelled-timestamp"] > 0
    assert (message.headers["x-shovelled-exchange"], message.headers["x-shovelled-routing-key"]) == ("", "in")
    (hop,) = message.headers["x-shovelled"]
    assert hop["shovelled-by"]
    assert hop["shovel-name"] == "s"
    assert hop["src-queue"] == "in"
    assert hop["src-uri"] == "amqp://"


async def test_an_exchange_is_a_source_and_a_destination(brokers: Brokers) -> None:
    async with channel_of(brokers.far.url) as far:
        queue = await far.declare_queue("out")
        await queue.bind("amq.topic", "orders.#")
        await brokers.shovel(src_exchange="amq.topic", src_exchange_key="orders.*", dest_exchange="amq.topic")
        async with channel_of(brokers.own.url) as own:
            # Unroutable until the shovel has bound its queue.
            async def is_bound() -> bool:
                with contextlib.suppress(Error):
                    await own.publish("x", "orders.one", "amq.topic", mandatory=True)
                    return True
                return False

            await wait_until_async(is_bound)
        async with queue.consume() as consumer:
            assert (await consumer.next(DEADLINE)).routing_key == "orders.one"


async def test_a_deleted_parameter_ends_the_shovel(brokers: Brokers) -> None:
    await brokers.shovel(src_queue="in", dest_queue="out")
    await drain_when_filled(brokers)
    brokers.delete("s")

    async def has_no_consumer() -> bool:
        async with channel_of(brokers.own.url) as channel:
            return bool((await channel.declare_queue("in", passive=True)).consumer_count == 0)

    await wait_until_async(has_no_consumer)


async def drain_when_filled(brokers: Brokers) -> None:
    await fill(brokers.own.url, "in", 1)
    await drain(brokers.far.url, "out", 1)


async def test_a_loop_leaves_the_event_loop_to_others(brokers: Brokers) -> None:
    await fill(brokers.own.url, "in")
    await brokers.shovel(src_queue="in", dest_uri="amqp://", dest_queue="in")
    await brokers.shovel("other", src_queue="work", dest_queue="out")
    await fill(brokers.own.url, "work")
    assert len(await drain(brokers.far.url, "out", COUNT)) == COUNT
    brokers.delete("s")

    async def all_returned() -> bool:
        return await length(brokers.own.url, "in") >= COUNT

    await wait_until_async(all_returned)


async def test_an_invalid_definition_is_refused(brokers: Brokers) -> None:
    with pytest.raises(Exception, match="'ack-mode' is 'maybe'"):
        await brokers.shovel(src_queue="in", dest_queue="out", ack_mode="maybe")
    assert await brokers.parameters() == []


async def test_a_shovel_waits_for_a_full_destination(brokers: Brokers) -> None:
    """A refused message returns to its place, and is published again after the delay."""
    async with channel_of(brokers.far.url) as far:
        await far.declare_queue("out", durable=True, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
        await fill(brokers.own.url, "in", 30)
        await brokers.shovel(src_queue="in", dest_queue="out", dest_predeclared=True)
        found: list[int] = []
        while len(set(found)) < 30:
            message = await far.get("out")
            if message is None:
                await asyncio.sleep(0)
                continue
            found.append(int(message.body))
            message.ack()
    assert list(dict.fromkeys(found)) == sorted(set(found)) == list(range(30))

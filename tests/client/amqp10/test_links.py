"""Senders and receivers: what only AMQP 1.0 has."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from leveret.client import LinkClosed, Nacked, NotFound, Returned, Timeout, amqp10
from leveret.client.errors import InvalidMessage
from leveret.wire.amqp10 import descriptors
from tests.client.amqp10.conftest import Connect1, other
from tests.support.broker import Broker


def at(server: Broker, name: str) -> str:
    return f"/queues/{name}" if server.kind == "leveret" else f"/amq/queue/{name}"


BODIES = [
    b"octets",
    [b"several", b"sections"],
    amqp10.Value("text"),
    amqp10.Value({"a": [amqp10.UInt(1), None, 2.5]}),
    amqp10.Value(None),
    amqp10.Sequence([1, "two", b"three"]),
    [amqp10.Sequence([1]), amqp10.Sequence([2])],
]


@pytest.mark.parametrize("body", BODIES, ids=["data", "datas", "text", "map", "null", "sequence", "sequences"])
async def test_bodies(connect: Connect1, leveret_only: Broker, name: str, body: Any) -> None:
    await other(connect, name)
    connection = await connect()
    async with connection.sender(at(leveret_only, name)) as sender, connection.receiver(at(leveret_only, name)) as receiver:
        await sender.send(amqp10.Message(body=body))
        delivery = await receiver.next(60)
        assert delivery.content == body and delivery.message.body == body
        delivery.accept()


async def test_every_section(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name)
    connection = await connect()
    number = UUID(int=5)
    sent = amqp10.Message(
        body=b"x",
        durable=True,
        priority=7,
        ttl=600000,
        annotations={amqp10.Symbol("x-opt-a"): 1},
        message_id=amqp10.ULong(3),
        user_id=b"guest",
        to="there",
        subject="s",
        reply_to="here",
        correlation_id=number,
        content_type="a/b",
        content_encoding="gzip",
        absolute_expiry_time=4000000000000,
        creation_time=1000,
        group_id="g",
        group_sequence=2,
        reply_to_group_id="r",
        application_properties={"k": amqp10.UByte(1), "l": number},
        footer={amqp10.Symbol("x-opt-f"): "foot"},
    )
    async with connection.sender(at(leveret_only, name)) as sender, connection.receiver(at(leveret_only, name)) as receiver:
        await sender.send(sent)
        delivery = await receiver.next(60)
        message = delivery.message
        assert message.ttl is not None and 0 < message.ttl <= 600000
        message.ttl = 600000
        annotations = dict(delivery.annotations)
        assert annotations.pop("x-opt-a") == 1
        message.annotations, message.first_acquirer = sent.annotations, sent.first_acquirer
        assert message == sent
        assert delivery.application_properties == sent.application_properties and delivery.footer == sent.footer
        assert isinstance(delivery.application_properties["k"], amqp10.UByte)
        delivery.accept()
        await sender.send("y", subject="by keyword", application_properties={"a": "b"})
        delivery = await receiver.next(60)
        assert (delivery.body, delivery.message.subject) == (b"y", "by keyword")
        assert delivery.headers == {"a": "b"}
        delivery.accept()
        with pytest.raises(InvalidMessage):
            await sender.send(amqp10.Value(object()))
        with pytest.raises(TypeError, match="nonsense"):
            await sender.send(b"", nonsense=1)


async def test_outcomes(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, f"{name}.dead")
    await old.declare_queue(
        name, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    )
    connection = await connect()
    async with connection.sender(f"/queues/{name}") as sender, connection.receiver(f"/queues/{name}") as receiver:
        await sender.send("x")
        delivery = await receiver.next(60)
        delivery.release()
        with pytest.raises(RuntimeError, match="settled"):
            delivery.accept()
        delivery = await receiver.next(60)
        assert delivery.delivery_count == 0 and delivery.redelivered
        delivery.modify(annotations={"x-opt-why": "again"})
        delivery = await receiver.next(60)
        assert delivery.delivery_count == 1 and delivery.annotations["x-opt-why"] == "again"
        delivery.modify(delivery_failed=False)
        delivery = await receiver.next(60)
        assert delivery.delivery_count == 1
        delivery.reject(condition="app:bad", description="no")
    dead = None
    async with connection.receiver(f"/queues/{name}.dead") as receiver:
        dead = await receiver.next(60)
        assert dead.properties.headers is not None and "x-death" in dead.properties.headers
        dead.accept()
    async with connection.sender(None) as anonymous:
        assert anonymous.address is None
        await anonymous.send("to", to=f"/queues/{name}")
        with pytest.raises(Nacked, match="not-found") as refused:
            await anonymous.send("nowhere", to=f"/queues/{name}.none")
        assert refused.value.condition == "amqp:not-found"
    async with connection.sender("/exchanges/amq.direct/unbound") as sender:
        with pytest.raises(Returned, match="released"):
            await sender.send("x")
    message = await old.get(name)
    assert message is not None and message.body == b"to"


async def test_sender_window(connect: Connect1, server: Broker, name: str) -> None:
    await other(connect, name)
    connection = await connect()
    async with connection.sender(at(server, name), window=50) as sender:
        for number in range(1000):
            await sender.publish(f"{number}")
    assert sender.unconfirmed == 0 and not sender.is_open
    async with connection.receiver(at(server, name), prefetch=0) as receiver:
        for number in range(1000):
            delivery = await receiver.next(60)
            assert delivery.text() == f"{number}"
            delivery.accept()
    async with connection.sender(at(server, name), settled=True) as sender:
        await sender.send("settled")
    async with connection.receiver(at(server, name), settled=True) as receiver:
        assert (await receiver.next(60)).settled


async def test_settle_mode_second(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name)
    connection = await connect()
    async with (
        connection.sender(f"/queues/{name}", settle_second=True) as sender,
        connection.receiver(f"/queues/{name}", settle_second=True, prefetch=1) as receiver,
    ):
        for number in range(3):
            await sender.send(f"{number}")
        for number in range(3):
            delivery = await receiver.next(60)
            assert delivery.text() == f"{number}"
            delivery.accept()
        with pytest.raises(Timeout):
            await receiver.next(0.1)
        assert delivery.state is not None and delivery.state.kind == descriptors.ACCEPTED


async def test_filters(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name)
    connection = await connect()
    filters = {"mine": amqp10.selector("colour = 'red'"), "other": amqp10.Filter("example:unknown", "x")}
    async with connection.sender(f"/queues/{name}") as sender:
        for colour in ("red", "blue", "red"):
            await sender.send(colour, application_properties={"colour": colour}, subject=f"of {colour}")
    async with connection.receiver(f"/queues/{name}", filters=filters) as receiver:
        assert list(receiver.filters) == ["mine"]
        for _ in range(2):
            delivery = await receiver.next(60)
            assert delivery.text() == "red"
            delivery.accept()
    async with connection.receiver(f"/queues/{name}", filters=amqp10.properties_filter(subject="&p:of b")) as receiver:
        delivery = await receiver.next(60)
        assert delivery.text() == "blue"
        delivery.release()
    async with connection.receiver(
        f"/queues/{name}",
        filters=[
            amqp10.sql_filter("properties.subject = 'of blue'"),
            amqp10.application_properties_filter({"colour": "blue"}),
        ],
    ) as receiver:
        assert len(receiver.filters) == 2
        (await receiver.next(60)).accept()
    with pytest.raises(LinkClosed, match="invalid-field"):
        await connection.receiver(f"/queues/{name}", filters=amqp10.selector("colour ="))


async def test_browsing(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, name)
    connection = await connect()
    for number in range(3):
        await old.publish(f"{number}", name)
    for _ in range(2):
        async with connection.receiver(f"/queues/{name}", browse=True) as browser:
            seen = [await browser.next(60) for _ in range(3)]
            assert [delivery.text() for delivery in seen] == ["0", "1", "2"]
            for delivery in seen:
                delivery.accept()
    assert (await old.declare_queue(name, passive=True)).message_count == 3


async def test_dynamic_nodes(connect: Connect1, leveret_only: Broker) -> None:
    connection = await connect()
    async with connection.receiver(None, dynamic=True) as receiver:
        assert receiver.address
        async with connection.sender(receiver.address) as sender:
            await sender.send("x")
        (await receiver.next(60)).accept()
    with pytest.raises(InvalidMessage, match="dynamic"):
        await connection.sender("x", dynamic=True)


async def test_durable_receivers(connect: Connect1, leveret_only: Broker, name: str) -> None:
    session = await (await connect()).session()
    await session.declare_exchange(name, "fanout")
    with pytest.raises(InvalidMessage, match="name"):
        await (await connect()).receiver(f"/exchanges/{name}", durable=True)
    for number in range(3):
        connection = await connect(container_id=f"container of {name}")
        async with connection.receiver(f"/exchanges/{name}", durable=True, name="news") as receiver:
            for missed in range(number):
                delivery = await receiver.next(60)
                assert delivery.text() == f"{number}.{missed}"
                delivery.accept()
        await connection.close()
        for missed in range(number + 1):
            await session.publish(f"{number + 1}.{missed}", exchange=name, mandatory=True)
    connection = await connect(container_id=f"container of {name}")
    receiver = await connection.receiver(f"/exchanges/{name}", durable=True, name="news")
    await receiver.unsubscribe()
    with pytest.raises(Returned):
        await session.publish("unbound", exchange=name, mandatory=True)


async def test_links_of_one_session(connect: Connect1, leveret_only: Broker, name: str) -> None:
    await other(connect, name)
    async with await connect() as connection, connection.session() as session:
        sender = await session.sender(f"/queues/{name}")
        receiver = await session.receiver(f"/queues/{name}")
        with pytest.raises(NotFound):
            await session.sender(f"/queues/{name}.none")
        await sender.send("x")
        (await receiver.next(60)).accept()
        await sender.close()
        with pytest.raises(LinkClosed, match="was closed"):
            await sender.send("y")
        await receiver.close()
        assert session.is_open
        assert len(connection.core.channels) == 1


async def test_sender_to_a_deleted_queue(connect: Connect1, leveret_only: Broker, name: str) -> None:
    old = await other(connect, name)
    connection = await connect()
    sender = await connection.sender(f"/queues/{name}")
    await sender.send("x")
    await old.delete_queue(name)
    with pytest.raises((Returned, NotFound)):
        await sender.send("y")

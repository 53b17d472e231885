"""Messages sent over one protocol and received over the other have the same properties."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from leveret.client import InvalidMessage, Properties, amqp10
from leveret.client.engine.amqp10.addresses import Addresses, choose
from leveret.client.engine.amqp10.messages import decode_message, encode_message
from leveret.client.engine.amqp10.properties import decode_sections, encode_sections
from leveret.wire.amqp10.sections import split
from tests.client.amqp10.conftest import Connect1, other
from tests.support.broker import Broker

MOMENT = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
FULL: dict[str, Any] = {
    "content_type": "a/b",
    "content_encoding": "c",
    "delivery_mode": 2,
    "priority": 5,
    "correlation_id": "cid",
    "reply_to": "back",
    "message_id": "mid",
    "timestamp": MOMENT,
    "type": "kind",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
    "headers": {
        "text": "t",
        "number": -5,
        "real": 1.5,
        "yes": True,
        "octets": b"\x00\xff",
        "when": MOMENT,
        "none": None,
        "x-mine": "annotation",
        "list": [1, "two", [3]],
        "table": {"a": {"b": 1}},
    },
}


@pytest.mark.parametrize("ways", [("0-9-1", "1.0"), ("1.0", "0-9-1"), ("1.0", "1.0")], ids="-to-".join)
async def test_properties_via_the_broker(connect: Connect1, leveret_only: Broker, name: str, ways: tuple[str, str]) -> None:
    await other(connect, name)
    sending = await connect.channel(ways[0])
    taking = await connect.channel(ways[1])
    await sending.publish(b"body", name, **FULL)
    message = await taking.get(name)
    assert message is not None
    assert message.body == b"body"
    found = message.properties
    assert found == Properties(**FULL)
    message.ack()


BODIES: list[tuple[Any, bytes]] = [
    (b"octets", b"octets"),
    ([b"two ", b"parts"], b"two parts"),
    (amqp10.Value("tëxt"), "tëxt".encode()),
]


@pytest.mark.parametrize(("body", "seen"), BODIES, ids=["data", "several", "text"])
async def test_bodies_via_the_broker(connect: Connect1, leveret_only: Broker, name: str, body: Any, seen: bytes) -> None:
    old = await other(connect, name)
    connection = await connect()
    async with connection.sender(f"/queues/{name}") as sender:
        await sender.send(amqp10.Message(body=body))
    async with connection.receiver(f"/queues/{name}") as receiver:
        delivery = await receiver.next(60)
        assert delivery.body == seen and delivery.content == body
        delivery.release()
    message = await old.get(name)
    assert message is not None and message.body == seen
    # A received message can be published again unchanged.
    await old.publish(message.body, name, properties=message.properties)
    message.ack()
    async with connection.receiver(f"/queues/{name}") as receiver:
        delivery = await receiver.next(60)
        assert delivery.body == seen
        if isinstance(body, amqp10.Value):
            assert delivery.content == body
        delivery.accept()


def test_properties_round_trip() -> None:
    for addresses in (Addresses("v2"), Addresses("plain")):
        properties = Properties(**FULL, expiration=timedelta(seconds=5))
        back = decode_sections(split(encode_sections(properties, addresses)))
        properties.expiration = 5000
        assert back == properties
    assert decode_sections(split(encode_sections(Properties(), Addresses("v2")))) == Properties(delivery_mode=1)
    kept = decode_sections(split(encode_sections(Properties(headers={"d": Decimal("1.5")}), Addresses("v2"))))
    assert kept.headers == {"d": "1.5"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 256},
        {"expiration": -1},
        {"expiration": 1 << 32},
        {"headers": {5: 1}},
        {"headers": {"a": object()}},
        {"message_id": 5},
        {"headers": {"a": 1 << 70}},
        {"timestamp": "x"},
        {"content_type": "ü"},
    ],
    ids=["priority", "expiration", "long", "name", "object", "id", "integer", "timestamp", "symbol"],
)
def test_invalid_properties(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        encode_sections(Properties(**wrong), Addresses("v2"))


def test_messages_round_trip() -> None:
    sent = amqp10.Message(
        body=[b"a", b"b"],
        durable=True,
        priority=0,
        ttl=0,
        first_acquirer=True,
        delivery_count=2,
        delivery_annotations={amqp10.Symbol("x-opt-d"): 1},
        message_id=UUID(int=1),
        correlation_id=b"\0",
        application_properties={"a": amqp10.Char("c")},
    )
    assert decode_message(split(encode_message(sent))) == sent
    assert decode_message(split(encode_message(amqp10.Message(message_id=7)))).message_id == amqp10.ULong(7)
    for wrong in (
        amqp10.Message(ttl=-1),
        amqp10.Message(priority=300),
        amqp10.Message(body=5),
        amqp10.Message(body=[b"", 5]),
        amqp10.Message(application_properties={"a": [1]}),
        amqp10.Message(annotations={5: 1}),
    ):
        with pytest.raises(InvalidMessage):
            encode_message(wrong)


def test_addresses() -> None:
    assert Addresses("v2").of_queue("a/b ü") == "/queues/a%2Fb%20%C3%BC"
    assert Addresses("v2").of_exchange("x", "a.b") == "/exchanges/x/a.b"
    assert Addresses("v2").of_exchange("x", "") == "/exchanges/x"
    assert Addresses("v1").of_exchange("x", "k") == "/exchange/x/k"
    assert Addresses("v1").of_queue("q") == Addresses("v1").of_exchange("", "q") == "/amq/queue/q"
    assert Addresses("plain").of_queue("q") == "q" and Addresses("plain").of_exchange("x", "k") == "x/k"
    for form in ("v1", "v2", "plain"):
        addresses = Addresses(form)
        assert (
            addresses.of_queue(amqp10.Address("jms.queue.x"))
            == addresses.of_exchange("", amqp10.Address("jms.queue.x"))
            == "jms.queue.x"
        )
        assert addresses.queue_at(addresses.of_queue("a/b c")) == "a/b c"
        with pytest.raises(InvalidMessage):
            addresses.of_exchange("x", amqp10.Address("y"))
    assert choose("auto", {"product": "RabbitMQ", "version": "4.1.2"}).form == "v2"
    assert choose("auto", {"product": "RabbitMQ", "version": "3.13.7"}).form == "v1"
    assert choose("auto", {"product": "apache-activemq-artemis"}).form == choose("auto", {}).form == "plain"
    assert choose("v1", {"product": "RabbitMQ", "version": "4.1.2"}).form == "v1"

"""Contents of the classes file, stream and message: conversion to and from 0-9-1 and 1.0, and handling by the broker."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocols.convert.values import plain
from leveret.storage.memory import MemoryLog
from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.decode import section_pairs
from leveret.wire.amqp10.messaging import Header, Properties, Source
from leveret.wire.amqp10.sections import Sections, split
from leveret.wire.amqp10.values import Described, Symbol
from tests.protocols.amqp09.contents import KINDS, consume, got, put, take
from tests.protocols.amqp09.support import Channel, Clock
from tests.protocols.amqp10 import support as amqp10
from tests.protocols.support import Channel as Channel091
from tests.protocols.support import Site, bytes_of, properties_of
from tests.support.queues import classic

NOW = 1_700_000_000_000
TABLE = {"n": 1, "s": "x"}
# All fields that a publisher sets, as the consumer gets them.
FIELDS: dict[str, dict[str, Any]] = {
    "file": {
        "content_type": "text/csv",
        "content_encoding": "gzip",
        "headers": TABLE,
        "priority": 3,
        "reply_to": "r",
        "message_id": "m",
        "filename": "orders.csv",
        "timestamp": 5,
        "cluster_id": "cluster",
    },
    "stream": {"content_type": "text/csv", "content_encoding": "gzip", "headers": TABLE, "priority": 3, "timestamp": 5},
    "message": {
        "content_type": "text/csv",
        "content_encoding": "gzip",
        "application_headers": TABLE,
        "priority": 3,
        "reply_to": "r",
        "message_id": "m",
        "correlation_id": "c",
        "user_id": "user",
        "app_id": "a",
        "transaction_id": "t",
        "delivery_mode": 2,
        "ttl": 60_000,
    },
}
# Fields that only consumers of class message get.
SECRET: dict[str, dict[str, Any]] = {"file": {}, "stream": {}, "message": {"security_token": "secret"}}
# The same as class basic.
BASIC: dict[str, dict[str, Any]] = {
    "file": {
        "content_type": "text/csv",
        "content_encoding": "gzip",
        "headers": {**TABLE, "x-filename": "orders.csv"},
        "priority": 3,
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 5,
        "cluster_id": "cluster",
        "delivery_mode": 2,
    },
    "stream": {
        "content_type": "text/csv",
        "content_encoding": "gzip",
        "headers": TABLE,
        "priority": 3,
        "timestamp": 5,
        "delivery_mode": 1,
    },
    "message": {
        "content_type": "text/csv",
        "content_encoding": "gzip",
        "headers": {**TABLE, "x-transaction-id": "t"},
        "priority": 3,
        "reply_to": "r",
        "message_id": "m",
        "correlation_id": "c",
        "user_id": "user",
        "app_id": "a",
        "delivery_mode": 2,
        "expiration": "60000",
        "timestamp": NOW // 1000,
    },
}
# Every property of class basic.
ALL: dict[str, Any] = {
    "content_type": "text/csv",
    "content_encoding": "gzip",
    "delivery_mode": 2,
    "priority": 3,
    "headers": {**TABLE, "x-filename": "f", "x-transaction-id": "t"},
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 5,
    "type": "kind",
    "user_id": "user",
    "app_id": "a",
    "cluster_id": "cluster",
}


@pytest.fixture
def site() -> Site:
    return amqp10.make_site(overflow=MemoryLog())


@pytest.fixture(autouse=True)
def clock(site: Site) -> Clock:
    clock = Clock(site)
    clock.time = NOW
    return clock


@pytest.fixture
def other(site: Site) -> Channel091:
    """A channel of 0-9-1."""
    return site.channel()


@pytest.fixture
def session(site: Site) -> amqp10.Session:
    return amqp10.connect(site).begin()


def basic(channel: Channel091, queue: str = "q") -> tuple[bytes, dict[str, Any]]:
    """The next message over 0-9-1."""
    message = channel.get(queue)
    assert message is not None
    return bytes_of(message.body), properties_of(message)


def chosen(fields: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the received fields that publishers set."""
    return {name: fields[name] for name in FIELDS[kind]} if kind == "message" else fields


def headers_of(fields: dict[str, Any]) -> dict[str, Any]:
    headers: dict[str, Any] = fields["application_headers"] if "application_headers" in fields else fields["headers"]
    return headers


# Conversion to other protocols and back


@pytest.mark.parametrize("kind", KINDS)
def test_over_0_9_1_and_back(channel: Channel, other: Channel091, kind: str) -> None:
    channel.declare(durable=True)
    put(channel, kind, **FIELDS[kind])
    body, properties = basic(other)
    assert body == b"body" and properties == BASIC[kind]
    other.publish("q", body, **properties)
    other.run()
    consume(channel, kind)
    again, fields = got(channel, kind)
    assert again == body and chosen(fields, kind) == FIELDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_over_1_0_and_back(channel: Channel, session: amqp10.Session, kind: str) -> None:
    channel.declare(durable=True)
    put(channel, kind, **FIELDS[kind])
    receiver = session.receiver(credit=1)
    (delivery,) = receiver.deliveries()
    receiver.accept(0)
    receiver.detach()
    sections = split(delivery.payload)
    header = decoded(sections, "header")
    assert isinstance(header, Header)
    assert (bool(header.durable), header.priority) == (kind != "stream", 3)
    assert header.ttl == (60_000 if kind == "message" else None)
    properties = decoded(sections, "properties")
    assert isinstance(properties, Properties)
    assert (str(properties.content_type), str(properties.content_encoding)) == ("text/csv", "gzip")
    named = BASIC[kind]
    for field, name in (("message_id", "message_id"), ("correlation_id", "correlation_id"), ("group_id", "app_id")):
        assert getattr(properties, field) == named.get(name)
    assert properties.reply_to == ("/queues/r" if "reply_to" in named else None)
    assert properties.creation_time == named["timestamp"] * 1000
    assert table_at(sections, "application_properties") == TABLE
    extra = {
        "file": {"x-filename": "orders.csv", "x-opt-cluster-id": "cluster"},
        "stream": {},
        "message": {"x-transaction-id": "t"},
    }[kind]
    assert table_at(sections, "message_annotations") == {"x-exchange": "", "x-routing-key": "q", **extra}
    session.sender().send(delivery.payload)
    consume(channel, kind)
    body, fields = got(channel, kind)
    assert body == b"body" and chosen(fields, kind) == FIELDS[kind]


def decoded(sections: Sections, name: str) -> Any:
    return decode_composite(sections.data, getattr(sections, name), getattr(sections, f"{name}_end"))[0]


def table_at(sections: Sections, name: str) -> dict[Any, Any]:
    begin = getattr(sections, name)
    if begin < 0:
        return {}
    pairs = section_pairs(sections.data, begin, getattr(sections, f"{name}_end"))
    return {str(key): plain(item) for key, item in pairs}


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("file", {"delivery_mode": 2, "expiration": None, "user_id": None}),
        ("stream", {"delivery_mode": 1, "expiration": None, "user_id": None}),
        ("message", {}),
    ],
    ids=KINDS,
)
def test_properties_of_class_basic_survive_a_class(
    channel: Channel, other: Channel091, kind: str, lost: dict[str, Any]
) -> None:
    """A message of 0-9-1 is received as a content of a class and published again."""
    channel.declare(durable=True)
    other.publish("q", b"m", **ALL)
    other.run()
    consume(channel, kind)
    body, fields = got(channel, kind)
    names = ("exchange", "routing_key", "destination", "redelivered", "immediate", "ticket", "body", "expiration")
    given = {name: value for name, value in fields.items() if name not in names} if kind == "message" else fields
    channel.declare("again", durable=True)
    put(channel, kind, body, key="again", **given)
    _, properties = basic(other, "again")
    if kind == "message":
        assert (fields["ttl"], fields["expiration"]) == (60_000, NOW // 1000 + 60)
        lost = {"timestamp": NOW // 1000}  # the broker's
    assert properties == {name: value for name, value in {**ALL, **lost}.items() if value is not None}


def test_a_header_is_not_taken_for_a_user_id(channel: Channel, other: Channel091) -> None:
    channel.declare()
    put(channel, "file", headers={"x-basic-user-id": "root"})
    assert basic(other)[1] == {"headers": {"x-basic-user-id": "root"}, "delivery_mode": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_content_without_fields_has_none_in_other_protocols(channel: Channel, other: Channel091, kind: str) -> None:
    channel.declare()
    put(channel, kind, b"")
    body, properties = basic(other)
    expected = {
        "file": {"delivery_mode": 2},
        "stream": {"delivery_mode": 1},
        "message": {"priority": 0, "timestamp": NOW // 1000},
    }[kind]
    assert body == b"" and properties == expected


@pytest.mark.parametrize("kind", KINDS)
def test_properties_of_1_0_only_are_in_headers(channel: Channel, session: amqp10.Session, kind: str) -> None:
    channel.declare()
    session.sender().send(amqp10.message(b"m", properties=Properties(subject="s", to="/queues/q", group_sequence=7)))
    consume(channel, kind)
    body, fields = got(channel, kind)
    assert body == b"m"
    assert headers_of(fields) == {"x-opt-subject": "s", "x-opt-to": "/queues/q", "x-opt-group-sequence": 7}


# Handling by the broker


@pytest.mark.parametrize("kind", KINDS)
def test_dead_letters(channel: Channel, other: Channel091, session: amqp10.Session, kind: str) -> None:
    channel.declare("dead")
    for reader in ("dead-1", "dead-2"):
        channel.declare(reader)
        channel.call("queue.bind", "queue.bind-ok", queue=reader, exchange="amq.fanout")
    channel.call("queue.bind", "queue.bind-ok", queue="dead", exchange="amq.fanout")
    channel.declare(arguments={"x-dead-letter-exchange": "amq.fanout"})
    put(channel, kind, **FIELDS[kind], **SECRET[kind])
    message = other.get(no_ack=False)
    assert message is not None
    other.reject(message.arguments["delivery_tag"], requeue=False)
    other.run()
    consume(channel, kind, "dead")
    body, fields = got(channel, kind)
    assert body == b"body"
    headers = headers_of(fields)
    death = headers["x-death"][0]
    assert {name: death[name] for name in ("count", "exchange", "queue", "reason", "routing-keys")} == {
        "count": 1,
        "exchange": "",
        "queue": "q",
        "reason": "rejected",
        "routing-keys": ["q"],
    }
    assert death.get("original-expiration") == ("60000" if kind == "message" else None)
    assert headers["x-first-death-queue"] == "q"
    kept = {"application_headers": None, "headers": None, "ttl": 0 if kind == "message" else None}
    for name, value in {**FIELDS[kind], **SECRET[kind]}.items():
        assert name in ("headers", "application_headers") or fields[name] == (kept.get(name, value)), name
    _, properties = basic(other, "dead-1")
    assert properties["headers"]["x-death"] == headers["x-death"]
    assert {name: value for name, value in properties.items() if name != "headers"} == {
        name: value for name, value in BASIC[kind].items() if name not in ("headers", "expiration")
    }
    (delivery,) = session.receiver("dead-2", credit=1).deliveries()
    annotations = table_at(split(delivery.payload), "message_annotations")
    assert annotations["x-opt-deaths"][0]["queue"] == "q" and annotations["x-exchange"] == "amq.fanout"


@pytest.mark.parametrize("kind", KINDS)
def test_expiry_in_the_queue(channel: Channel, other: Channel091, kind: str) -> None:
    channel.declare("dead")
    channel.declare(arguments={"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    put(channel, kind)
    assert other.get() is None
    consume(channel, kind, "dead")
    body, fields = got(channel, kind)
    assert body == b"body" and headers_of(fields)["x-death"][0]["reason"] == "expired"


def test_expiry_by_the_message(clock: Clock, channel: Channel, other: Channel091) -> None:
    channel.declare("dead")
    channel.declare(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    put(channel, "message", ttl=1000)
    clock.advance(1001)
    assert other.get() is None
    _, properties = basic(other, "dead")
    assert properties["headers"]["x-death"][0]["original-expiration"] == "1000" and "expiration" not in properties


def test_an_expiration_that_is_a_point_in_time(
    clock: Clock, channel: Channel, other: Channel091, session: amqp10.Session
) -> None:
    """Qpid's clients send it in class basic."""
    channel.declare()
    for _ in range(3):
        channel.publish(expiration=str(NOW + 5000))
    channel.run()
    clock.advance(2000)
    assert basic(other)[1]["expiration"] == str(NOW + 5000)
    receiver = session.receiver(credit=1)
    sections = split(receiver.deliveries()[0].payload)
    header = decode_composite(sections.data, sections.header, sections.header_end)[0]
    assert isinstance(header, Header) and header.ttl == 3000
    clock.advance(3001)
    assert other.get() is None


@pytest.mark.parametrize("kind", KINDS)
def test_priorities(channel: Channel, other: Channel091, kind: str) -> None:
    channel.declare(arguments={"x-max-priority": 9})
    for priority in (1, 8, 4):
        put(channel, kind, b"%d" % priority, priority=priority)
    assert other.bodies() == [b"8", b"4", b"1"]


@pytest.mark.parametrize("kind", KINDS)
def test_contents_published_later_over_1_0(clock: Clock, channel: Channel, session: amqp10.Session, kind: str) -> None:
    channel.declare()
    name = b"x-opt-delivery-delay"
    pair = b"\xa3" + bytes((len(name),)) + name + b"\x71" + (5000).to_bytes(4, "big")
    annotations = b"\x00\x53\x72\xc1" + bytes((len(pair) + 1, 2)) + pair
    session.sender().send(amqp10.message(b"late", before=annotations))
    consume(channel, kind)
    assert take(channel, kind) is None
    clock.advance(5000)
    assert got(channel, kind)[0] == b"late"


@pytest.mark.parametrize("kind", KINDS)
def test_paged_out_contents(site: Site, channel: Channel, other: Channel091, kind: str) -> None:
    channel.declare()
    site.broker.page_above = 20_000
    for number in range(200):
        put(channel, kind, b"%d" % number, **FIELDS[kind])
    for _ in range(3):
        site.broker.page_down()
        assert site.broker.overflow is not None
        site.broker.overflow.flush()
        site.run()
    assert classic(site.vhost.queues["q"]).ready.backlog.chunks
    body, properties = basic(other)
    assert body == b"0" and properties == BASIC[kind]
    options: dict[str, Any] = {} if kind == "stream" else {"no_ack": True}
    consume(channel, kind, **options)
    for number in range(1, 200):
        body, fields = got(channel, kind)
        assert body == b"%d" % number and chosen(fields, kind) == FIELDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_alternate_exchanges_and_copies(channel: Channel, other: Channel091, session: amqp10.Session, kind: str) -> None:
    other.call(
        "exchange.declare",
        "exchange.declare-ok",
        exchange="main",
        type="direct",
        arguments={"alternate-exchange": "amq.fanout"},
    )
    for queue in ("mine", "basic", "one"):
        channel.declare(queue)
        channel.call("queue.bind", "queue.bind-ok", queue=queue, exchange="amq.fanout")
    put(channel, kind, exchange="main", key="nowhere", **FIELDS[kind])
    consume(channel, kind, "mine")
    assert got(channel, kind)[0] == b"body"
    assert basic(other, "basic") == (b"body", BASIC[kind])
    assert session.receiver("one", credit=1).bodies() == [b"body"]


@pytest.mark.parametrize("kind", KINDS)
def test_exchanges_that_look_at_keys_and_headers(channel: Channel, other: Channel091, kind: str) -> None:
    table = "application_headers" if kind == "message" else "headers"
    channel.declare("by-key")
    channel.call("queue.bind", "queue.bind-ok", queue="by-key", exchange="amq.topic", routing_key="orders.*.new")
    channel.declare("by-header")
    other.call("queue.bind", "queue.bind-ok", queue="by-header", exchange="amq.match", arguments={"x-match": "all", "n": 1})
    for key in ("orders.1.new", "orders.2.old"):
        put(channel, kind, key.encode(), key, exchange="amq.topic")
    for number in (1, 2):
        put(channel, kind, b"%d" % number, "", exchange="amq.match", **{table: {"n": number}})
    assert other.bodies("by-key") == [b"orders.1.new"]
    assert other.bodies("by-header") == [b"1"]


@pytest.mark.parametrize(
    ("descriptor", "selector"),
    [
        ("apache.org:selector-filter:string", "n = 2 AND JMSPriority > 1"),
        ("amqp:sql-filter", "application_properties.n = 2"),
        ("amqp:sql-filter", "properties.content_type = 'type/2'"),
    ],
    ids=["selector", "application-properties", "properties"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_selectors_over_1_0(channel: Channel, session: amqp10.Session, kind: str, descriptor: str, selector: str) -> None:
    channel.declare()
    table = "application_headers" if kind == "message" else "headers"
    for number in (1, 2, 3):
        more: dict[str, Any] = {table: {"n": number}}
        put(channel, kind, b"%d" % number, priority=number, content_type=f"type/{number}", **more)
    source = Source("q", filter={Symbol("f"): Described(Symbol(descriptor), selector)})
    assert session.receiver(source=source, credit=5).bodies() == [b"2"]


@pytest.mark.parametrize("kind", KINDS)
def test_streams_keep_them(site: Site, channel: Channel, other: Channel091, session: amqp10.Session, kind: str) -> None:
    """A stream is read by every protocol, repeatedly."""
    channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    put(channel, kind, key="s", **FIELDS[kind], **SECRET[kind])
    other.publish("s", b"plain")
    other.run()
    for _ in range(2):
        reader = site.channel()
        reader.qos(10)
        reader.consume("s", arguments={"x-stream-offset": "first"})
        reader.run()
        first, second = reader.deliveries()
        assert bytes_of(first.body) == b"body" and bytes_of(second.body) == b"plain"
        properties = properties_of(first)
        assert properties["headers"].pop("x-stream-offset") == 0
        assert properties == BASIC[kind]
    source = Source("s", filter={Symbol("o"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")})
    assert session.receiver(source=source, credit=5).bodies() == [b"body", b"plain"]
    if kind == "stream":
        return  # which never reads a queue of that type
    channel.qos(10)
    consume(channel, kind, "s", filter={"x-stream-offset": "first"})
    body, fields = got(channel, kind)
    assert body == b"body"
    assert headers_of(fields)["x-stream-offset"] == 0
    table = "application_headers" if kind == "message" else "headers"
    fields[table] = {name: value for name, value in fields[table].items() if name != "x-stream-offset"}
    assert chosen(fields, kind) == FIELDS[kind] and fields.items() >= SECRET[kind].items()

"""Messages published over 0-9-1 and consumed over 1.0, and vice versa; and round trips."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.decode import section_pairs
from leveret.wire.amqp10.encode import encode_pairs, encode_value
from leveret.wire.amqp10.messaging import Header, Properties, Rejected
from leveret.wire.amqp10.sections import Sections, split
from leveret.wire.amqp10.values import Decimal64, Described, Int, Map, Symbol, Timestamp, UByte, ULong
from tests.protocols import support as amqp0
from tests.protocols.amqp10.support import Session, body_of, connect, make_site, message
from tests.protocols.support import Site, bytes_of, properties_of


@pytest.fixture
def site() -> Site:
    site = make_site()
    site.vhost.declare_queue("q", None, durable=True)
    return site


@pytest.fixture
def channel(site: Site) -> amqp0.Channel:
    return site.channel()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def section(sections: Sections, name: str) -> dict[str, Any]:
    """A section that is a map."""
    begin = getattr(sections, name)
    if begin < 0:
        return {}
    return {str(key): value for key, value in section_pairs(sections.data, begin, getattr(sections, name + "_end"))}


def properties(sections: Sections) -> Properties:
    found = decode_composite(sections.data, sections.properties, sections.properties_end)[0]
    assert isinstance(found, Properties)
    return found


def received(session: Session, queue: str = "q") -> Sections:
    return split(session.receiver(queue, credit=1, snd_settle_mode=1).deliveries()[0].payload)


FIELDS = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)
HEADERS = {
    "n": 1,
    "text": "ü",
    "yes": True,
    "bytes": b"\x00\xff",
    "pi": 3.5,
    "none": None,
    "time": datetime(2026, 1, 2, tzinfo=UTC),
    "nested": {"list": [1, "two"]},
    "x-mine": "x",
    "decimal": Decimal("1.5"),
}


def test_to_amqp10(channel: amqp0.Channel, session: Session) -> None:
    channel.publish(
        body=b"body",
        headers=HEADERS,
        content_type="text/plain",
        content_encoding="gzip",
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="re ply",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="kind",
        user_id="user",
        app_id="app",
        cluster_id="cluster",
    )
    channel.run()
    sections = received(session)
    assert (sections.durable, sections.priority) == (True, 3)
    assert 0 < sections.ttl <= 60000
    found = properties(sections)
    assert (found.message_id, found.correlation_id, found.reply_to) == ("m", "c", "/queues/re%20ply")
    assert (found.content_type, found.content_encoding) == ("text/plain", "gzip")
    assert (found.user_id, found.creation_time, found.group_id) == (b"user", 1_700_000_000_000, "app")
    application = section(sections, "application_properties")
    assert application == {
        "n": 1,
        "text": "ü",
        "yes": True,
        "bytes": b"\x00\xff",
        "pi": 3.5,
        "none": None,
        "time": Timestamp(1767312000000),
        "decimal": "1.5",
    }
    annotations = section(sections, "message_annotations")
    assert annotations == {
        "x-exchange": "",
        "x-routing-key": "q",
        "x-basic-type": "kind",
        "x-opt-cluster-id": "cluster",
        "x-opt-header-nested": {"list": [1, "two"]},
        "x-mine": "x",
    }
    assert body_of(sections.data) == b"body"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70000, 300000])
def test_bodies_to_amqp10(channel: amqp0.Channel, session: Session, size: int) -> None:
    channel.publish(body=b"x" * size)
    channel.run()
    payload = b"".join(frame.payload for frame in session.receiver("q", credit=1).deliveries())
    assert body_of(payload) == b"x" * size


def test_to_amqp0(session: Session, channel: amqp0.Channel) -> None:
    annotations = b"\x00\x53\x72" + encode_pairs([(Symbol("x-opt-a"), 1), (Symbol("x-b"), 2)])
    fields = Properties(
        UUID(int=5),
        b"user",
        "to",
        "subject",
        "/queues/re%20ply",
        b"\x01\xff",
        "text/plain",
        "gzip",
        1_900_000_000_000,
        1_700_000_000_123,
        "group",
        7,
        "reply-group",
    )
    application = b"\x00\x53\x74" + encode_pairs(
        [
            ("n", Int(-1)),
            ("u", ULong(1 << 63)),
            ("b", UByte(4)),
            ("s", Symbol("sym")),
            ("uuid", UUID(int=1)),
            ("d", Decimal64.of("2.5")),
            ("t", Timestamp(1_700_000_000_000)),
            ("f", 1.5),
            ("z", None),
        ]
    )
    octets = message(b"body", header=Header(True, 3, 60000), before=annotations, properties=fields)
    at = octets.index(b"\x00\x53\x75")
    session.sender().send(octets[:at] + application + octets[at:])
    got = channel.get()
    assert got is not None
    found = properties_of(got)
    headers = found.pop("headers")
    assert bytes_of(got.body) == b"body"
    assert found == {
        "message_id": str(UUID(int=5)),
        "user_id": "user",
        "reply_to": "re ply",
        "correlation_id": "01ff",
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "timestamp": 1_700_000_000,
        "app_id": "group",
        "delivery_mode": 2,
        "priority": 3,
        "expiration": "60000",
    }
    assert headers == {
        "x-opt-a": 1,
        "x-b": 2,
        "n": -1,
        "u": str(1 << 63),
        "b": 4,
        "s": "sym",
        "uuid": str(UUID(int=1)),
        "d": Decimal("2.5"),
        "t": datetime.fromtimestamp(1_700_000_000, UTC),
        "f": 1.5,
        "z": None,
        "x-opt-to": "to",
        "x-opt-subject": "subject",
        "x-opt-absolute-expiry-time": datetime.fromtimestamp(1_900_000_000, UTC),
        "x-opt-group-sequence": 7,
        "x-opt-reply-to-group-id": "reply-group",
        "x-opt-message-id-type": "uuid",
        "x-opt-correlation-id-type": "binary",
    }


def test_fields_survive_a_round_trip(session: Session, channel: amqp0.Channel) -> None:
    """1.0 to 0-9-1 and back: fields without a property in 0-9-1 are kept in headers."""
    fields = Properties(
        ULong(5),
        b"user",
        "to",
        "subject",
        "/queues/q2",
        UUID(int=9),
        "a/b",
        None,
        1_900_000_000_000,
        1_700_000_000_000,
        "group",
        7,
        "reply-group",
    )
    session.sender().send(message(b"body", properties=fields))
    got = channel.get()
    assert got is not None
    channel.publish(body=bytes_of(got.body), **properties_of(got))
    channel.run()
    found = properties(received(session))
    assert {name: getattr(found, name) for name in FIELDS} == {name: getattr(fields, name) for name in FIELDS}
    assert isinstance(found.message_id, ULong)
    assert isinstance(found.correlation_id, UUID)


VALUES = [
    b"\x00\x53\x77" + encode_value("text"),
    b"\x00\x53\x77" + encode_value({"a": [1, 2]}),
    b"\x00\x53\x77\x40",
    b"\x00\x53\x76" + encode_value([1]) + b"\x00\x53\x76" + encode_value(["b"]),
    b"\x00\x53\x75\xa0\x01a",
]


@pytest.mark.parametrize("body", VALUES)
def test_bodies_survive_a_round_trip(session: Session, channel: amqp0.Channel, body: bytes) -> None:
    session.sender().send(body)
    got = channel.get()
    assert got is not None
    channel.publish(body=bytes_of(got.body), **properties_of(got))
    channel.run()
    sections = received(session)
    assert sections.data[sections.body : sections.body_end] == body


def test_texts_and_pieces_of_data(session: Session, channel: amqp0.Channel) -> None:
    session.sender().send(b"\x00\x53\x77" + encode_value("text"))
    session.sender().send(b"\x00\x53\x75\xa0\x01a\x00\x53\x75\xb0\x00\x00\x00\x01b", delivery_id=1)
    assert channel.bodies() == [b"text", b"ab"]


def test_a_large_body_to_amqp0(session: Session, channel: amqp0.Channel) -> None:
    session.sender().send(message(b"x" * 2_000_000))
    channel.consume()
    assert channel.delivered() == [b"x" * 2_000_000]


def test_delivered_over_amqp0(session: Session, channel: amqp0.Channel) -> None:
    channel.consume()
    session.sender().send(message(b"1", properties=Properties("id")))
    found = channel.deliveries()
    assert bytes_of(found[0].body) == b"1"
    assert properties_of(found[0])["message_id"] == "id"


def test_dead_letters_of_both(site: Site, session: Session, channel: amqp0.Channel) -> None:
    channel.declare("dead")
    channel.declare("dl", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    session.sender("dl").send(message(b"1.0"))
    channel.publish("dl", b"0-9-1", headers={"mine": 1})
    channel.run()
    receiver = session.receiver("dl", credit=10)
    receiver.deliveries()
    session.dispose(0, 1, Rejected())
    first = channel.get("dead")
    assert first is not None
    deaths = properties_of(first)["headers"]["x-death"]
    assert (deaths[0]["queue"], deaths[0]["reason"], deaths[0]["count"]) == ("dl", "rejected", 1)
    assert bytes_of(first.body) == b"1.0"
    sections = received(session, "dead")
    deaths = section(sections, "message_annotations")["x-opt-deaths"]
    assert (deaths[0]["queue"], deaths[0]["reason"]) == ("dl", "rejected")
    assert section(sections, "application_properties") == {"mine": 1}


def test_a_headers_exchange_reads_application_properties(site: Site, session: Session) -> None:
    queue = site.vhost.declare_queue("matched", None)
    site.vhost.bind(queue, "amq.headers", "", {"x-match": "all", "a": 1, "b": "x"})
    application = b"\x00\x53\x74" + encode_pairs([("a", Int(1)), ("b", "x")])
    sender = session.sender("/exchanges/amq.headers")
    sender.send(application + message(b"1"))
    sender.send(message(b"2"))
    assert [item[3] for item in sender.outcomes()] == ["Accepted", "Released"]


def test_properties_that_cannot_be_expressed(session: Session, channel: amqp0.Channel) -> None:
    """A name or a text that is too long for 0-9-1 is left out, the message is not."""
    application = b"\x00\x53\x74" + encode_pairs([("n" * 300, 1), ("short", 2)])
    octets = message(b"body", properties=Properties("i" * 300, content_type="a/b"))
    at = octets.index(b"\x00\x53\x75")
    session.sender().send(octets[:at] + application + octets[at:])
    got = channel.get()
    assert got is not None
    assert properties_of(got)["headers"] == {"short": 2}
    assert "message_id" not in properties_of(got)
    assert properties_of(got)["content_type"] == "a/b"


def test_names_that_are_no_unicode(channel: amqp0.Channel, session: Session) -> None:
    channel.publish(body=b"1", headers={"\udcff": "\udcfe"}, message_id="\udcff", content_type="\xfc\udcff")
    channel.run()
    sections = received(session)
    assert section(sections, "application_properties") == {"�": b"\xfe"}
    assert properties(sections).message_id == "�"
    assert body_of(sections.data) == b"1"


def test_maps_of_all_kinds_become_tables(session: Session, channel: amqp0.Channel) -> None:
    annotations = b"\x00\x53\x72" + encode_pairs(
        [(Symbol("x-opt-m"), Map([(1, "one"), ("1", "text")])), (Symbol("x-opt-d"), Described(Symbol("d"), "value"))]
    )
    session.sender().send(message(before=annotations))
    got = channel.get()
    assert got is not None
    headers = properties_of(got)["headers"]
    assert headers["x-opt-d"] == "value"
    assert headers["x-opt-m"] == {"1": "text"}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"t": value}
    return value


def test_unconvertible_messages(channel: amqp0.Channel, session: Session) -> None:
    """No conversion fails a delivery: 1.0 nests less deep than a table may be."""
    channel.publish(body=b"1", headers={"deep": nested(63)}, message_id="m")
    channel.run()
    sections = received(session)
    assert body_of(sections.data) == b"1"
    assert properties(sections).message_id == "m"
    annotations = section(sections, "message_annotations")
    assert annotations["x-opt-headers-lost"] is True


MALFORMED = [
    b"\x00\x53\x72\xc1\x04\x02\xa3\x7fx" + b"\x00\x53\x75\xa0\x01a",  # annotations
    b"\x00\x53\x73\xc0\x03\x01\x56\x07" + b"\x00\x53\x75\xa0\x01a",  # a message id of another type
    b"\x00\x53\x74\xc1\x03\x02\xa1\x09" + b"\x00\x53\x75\xa0\x01a",  # application properties
    b"\x00\x53\x77\xc0\x03\x02\xa1\x09",  # a value
    b"\x00\x53\x77" + b"\xc0\x7f\x01" * 3 + b"\x40" * 125,
]


@pytest.mark.parametrize("octets", MALFORMED)
def test_malformed_sections(site: Site, session: Session, channel: amqp0.Channel, octets: bytes) -> None:
    """Sections are not checked on arrival; consumers of them do not fail."""
    channel.declare("dead")
    channel.declare("dl", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    session.sender("dl").send(octets)
    session.client.run()
    if not site.vhost.queues["dl"].ready_count:
        return  # refused at once
    session.receiver("dl", credit=1).deliveries()
    session.dispose(0, None, Rejected())
    again = session.receiver("dead", credit=1)
    assert len(again.deliveries()) == 1
    again.detach()
    got = channel.get("dead")
    assert got is not None

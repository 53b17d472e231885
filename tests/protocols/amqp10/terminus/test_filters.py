"""Filters of sources (messaging section 3.5.8)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Header, Modified, Properties, Rejected, Source
from leveret.wire.amqp10.transport import Detach, Flow
from leveret.wire.amqp10.values import Described, Symbol, ULong
from tests.protocols.amqp10.support import Receiver, Session, body_of, connect, make_site, message
from tests.protocols.support import Site


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def filtered(session: Session, descriptor: Any, value: Any, address: str = "q", credit: int = 10) -> Receiver:
    name = Symbol(descriptor) if isinstance(descriptor, str) else ULong(descriptor)
    return session.receiver(source=Source(address, filter={Symbol("any name"): Described(name, value)}), credit=credit)


def fill(session: Session) -> None:
    sender = session.sender(name="filling")
    for number in range(6):
        application = b"\x00\x53\x74" + encode_pairs([("n", number), ("kind", "even" if number % 2 == 0 else "odd")])
        octets = message(b"%d" % number, header=Header(priority=number), properties=Properties(subject=f"s{number}"))
        at = octets.index(b"\x00\x53\x75")
        sender.send(octets[:at] + application + octets[at:])
    sender.detach()


@pytest.mark.parametrize(
    ("descriptor", "value", "bodies"),
    [
        ("apache.org:selector-filter:string", "n >= 4", [b"5", b"4"]),
        (0x468C00000004, "kind = 'odd' AND n < 4", [b"3", b"1"]),
        ("apache.org:selector-filter:string", "JMSPriority = 2", [b"2"]),
        ("amqp:sql-filter", "properties.subject = 's3'", [b"3"]),
        (0x120, "n IN (0, 5)", [b"5", b"0"]),
        (0x173, {Symbol("subject"): "&s:4"}, [b"4"]),
        ("amqp:application-properties-filter", {"kind": "even", "n": 2}, [b"2"]),
        ("apache.org:no-local-filter:list", [], []),
    ],
)
def test_filters(session: Session, descriptor: Any, value: Any, bodies: list[bytes]) -> None:
    fill(session)
    receiver = filtered(session, descriptor, value)
    assert receiver.bodies() == bodies
    in_place = receiver.attached.source.filter
    assert list(in_place) == ["any name"]
    assert in_place["any name"].value == value
    # The others stay for other consumers.
    assert len(connect(session.client.site).begin().receiver(credit=10).bodies()) == 6 - len(bodies)


def test_an_unknown_filter_is_left_out(session: Session) -> None:
    fill(session)
    receiver = filtered(session, "example:filter", "x", credit=2)
    assert receiver.attached.source.filter is None
    assert len(receiver.bodies()) == 2


@pytest.mark.rule("1.0", "messaging.3.5.8.filters-described")
@pytest.mark.parametrize(
    ("descriptor", "value"),
    [
        ("apache.org:selector-filter:string", "n >="),
        ("amqp:sql-filter", 5),
        (0x173, {Symbol("no-field"): 1}),
        (0x174, "x"),
    ],
)
def test_filters_that_cannot_be_understood(session: Session, descriptor: Any, value: Any) -> None:
    receiver = filtered(session, descriptor, value, credit=0)
    assert receiver.attached.source is None
    session.client.run()
    error = session.client.take(Detach).error
    assert error is not None
    assert error.condition == "amqp:invalid-field"


def test_the_position_of_the_error(session: Session) -> None:
    filtered(session, "apache.org:selector-filter:string", "n >= ) 5", credit=0)
    error = session.client.take(Detach).error
    assert error is not None
    assert "position 5" in (error.description or "")
    assert error.info == {"invalid-field": "filter", "position": 5}


def test_new_messages_too(session: Session) -> None:
    receiver = filtered(session, "apache.org:selector-filter:string", "n = 3")
    assert receiver.bodies() == []
    fill(session)
    assert receiver.bodies() == [b"3"]


def test_messages_of_amqp0(site: Site, session: Session) -> None:
    channel = site.channel()
    channel.declare("q", durable=True)
    for number in range(3):
        channel.publish("q", b"%d" % number, headers={"n": number}, message_id=f"id{number}")
    channel.run()
    assert filtered(session, 0x468C00000004, "n = 1").bodies() == [b"1"]
    assert filtered(session, 0x468C00000004, "JMSMessageID = 'ID:AMQP_NO_PREFIX:id2'").bodies() == [b"2"]


def test_drain_with_a_filter(session: Session) -> None:
    fill(session)
    receiver = filtered(session, 0x468C00000004, "n = 1", credit=0)
    receiver.flow(5, drain=True)
    assert receiver.bodies() == [b"1"]
    assert session.client.take(Flow).delivery_count == 5


def test_bindings_of_subscriptions(site: Site, session: Session) -> None:
    topic = filtered(session, 0x468C00000001, "a.*", "amq.topic")
    direct = filtered(session, "apache.org:legacy-amqp-direct-binding:string", "k", "amq.direct")
    headers = filtered(session, 0x468C00000002, {"x-match": "all", "n": 1}, "amq.headers")
    channel = site.channel()
    channel.publish("a.b", b"topic", exchange="amq.topic")
    channel.publish("b", b"no", exchange="amq.topic")
    channel.publish("k", b"direct", exchange="amq.direct")
    channel.publish("", b"headers", exchange="amq.headers", headers={"n": 1})
    channel.run()
    frames = topic.deliveries()
    found = {frame.handle: frame.payload for frame in frames}
    assert found.keys() == {topic.handle, direct.handle, headers.handle}
    assert found[topic.handle].endswith(b"topic")
    assert not any(frame.payload.endswith(b"no") for frame in frames)


def test_filters_see_the_changes_of_outcomes(session: Session) -> None:
    """Messaging section 3.5.1: a filter may change its mind when the state or the annotations of a message change."""
    sender = session.sender()
    sender.send(message(b"a"))
    sender.send(message(b"b"))
    selective = filtered(session, 0x120, "m.[x-opt-mark] = 5 AND h.delivery_count = 1")
    assert selective.bodies() == []
    other = session.receiver(credit=1)
    first = other.deliveries()[0]
    assert body_of(first.payload) == b"a"
    session.dispose(first.delivery_id or 0, state=Modified(True, None, {Symbol("x-opt-mark"): 5}))
    assert selective.bodies() == [b"a"]


def test_filters_see_the_marks_of_dead_letters(site: Site, session: Session) -> None:
    site.vhost.declare_queue("dead", None, durable=True)
    site.vhost.declare_queue(
        "q", None, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    session.sender().send(message(b"1.0"))
    channel = site.channel()
    channel.publish("q", b"0-9-1")
    channel.run()
    receiver = session.receiver(credit=2)
    numbers = [frame.delivery_id or 0 for frame in receiver.deliveries()]
    session.dispose(numbers[0], numbers[1], Rejected())
    wrong = filtered(session, "amqp:sql-filter", "m.[x-first-death-reason] = 'expired'", "dead")
    assert wrong.bodies() == []
    right = filtered(session, "amqp:sql-filter", "m.[x-first-death-reason] = 'rejected'", "dead")
    assert right.bodies() == [b"1.0", b"0-9-1"]

"""The sections of a message: preservation, defaults, and the header (messaging section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.wire.amqp10 import message as sections_of
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.messaging import Header, Properties, Released, Source, Target
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.values import Symbol, ULong
from tests.conformance.amqp10.conftest import Begin, Connect
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp091 import Channel
from tests.support.peers.amqp10 import Session, body_of, header_of, message, section

# A bare message in an unusual encoding: long codes, a list32 with trailing nulls, a map with an array, three
# data sections of which one is empty, a section by its symbolic descriptor; and a footer.
LONG = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00"  # a descriptor of eight bytes, of which the last is missing
PROPERTIES = (
    LONG
    + b"\x73\xd0"
    + (24).to_bytes(4, "big")
    + (6).to_bytes(4, "big")
    + b"\x80\x00\x00\x00\x00\x00\x00\x00\x07"
    + b"\x40\x40"
    + b"\xb1\x00\x00\x00\x02hi"
    + b"\x40\x40"
)
PAIR = b"\xb1\x00\x00\x00\x01a" + b"\x71\x00\x00\x00\x05"
APPLICATION = (
    b"\x00\xa3\x1famqp:application-properties:map\xd1" + (len(PAIR) + 4).to_bytes(4, "big") + (2).to_bytes(4, "big") + PAIR
)
DATA = b"\x00\x53\x75\xb0\x00\x00\x00\x02ab" + b"\x00\x53\x75\xa0\x00" + LONG + b"\x75\xa0\x01c"
SEQUENCE = b"\x00\x53\x76\xd0\x00\x00\x00\x06\x00\x00\x00\x01\x54\x01" + b"\x00\x53\x76\x45"
VALUE = b"\x00\x53\x77\x70\x00\x00\x00\x01"
BARE = PROPERTIES + APPLICATION + DATA


def bare_of(payload: bytes) -> bytes:
    found = split(payload)
    return payload[found.bare : found.footer if found.footer >= 0 else len(payload)]


@pytest.mark.rule("1.0", "messaging.3.2.bare-message")
@pytest.mark.rule("1.0", "types.1.2.map-ordered")
@pytest.mark.rule("1.0", "messaging.3.2.nothing-inserted")
@pytest.mark.rule("1.0", "messaging.3.2.4.properties-unaltered")
@pytest.mark.parametrize("body", [DATA, SEQUENCE, VALUE], ids=["data", "sequence", "value"])
def test_the_bare_message_stays_byte_for_byte(begin: Begin, name: str, body: bytes) -> None:
    bare = PROPERTIES + APPLICATION + body
    footer = section(0x78, {Symbol("x-opt-hash"): b"1234"})
    annotations = section(0x71, {Symbol("x-opt-hop"): 1}) + section(0x72, {Symbol("x-opt-way"): 2})
    session = begin()
    session.sender(name).deliver(encode_composite(Header(True, 7, 100000)) + annotations + bare + footer)
    receiver = session.receiver(name, 1)
    first = receiver.get()
    assert bare_of(first.payload) == bare
    # Released and redelivered.
    session.dispose(first.id, state=Released())
    receiver.flow(1)
    again = receiver.get()
    assert bare_of(again.payload) == bare
    assert again.payload.endswith(footer)


@pytest.mark.rule("1.0", "messaging.3.2.bare-message")
@pytest.mark.rule("1.0", "messaging.3.2.1.durable-kept")
def test_durable_messages_survive_a_kill_unchanged(own_broker: LeveretProcess, connect: Connect) -> None:
    session = connect(at=own_broker).begin()
    sender = session.sender("kept")
    numbers = [
        sender.send(encode_composite(Header(True)) + BARE),
        sender.send(message(b"second", durable=True)),
        sender.send(message(b"not durable", durable=False)),
    ]
    for number in numbers:
        assert session.outcome(number).settled
    own_broker.kill()
    own_broker.start()
    receiver = connect(at=own_broker).begin().receiver("kept", 10)
    first = receiver.get()
    assert header_of(first.payload).durable
    assert bare_of(first.payload) == BARE
    assert receiver.get().body == b"second"
    receiver.nothing()


@pytest.mark.rule("1.0", "messaging.3.2.1.durable-refused")
@pytest.mark.mode("rabbitmq")
def test_a_transient_queue_accepts_durable_messages(session: Session, channel0: Callable[..., Channel], name: str) -> None:
    channel0().queue(name, exclusive=False, durable=False)
    session.sender(name).deliver(message(b"x", durable=True))
    assert session.receiver(name, 1).get().body == b"x"


@pytest.mark.rule("1.0", "messaging.3.2.1.durable-refused")
@pytest.mark.mode("strict")
def test_a_transient_queue_refuses_durable_messages(connect: Connect, channel0: Callable[..., Channel], name: str) -> None:
    channel0("strict").queue(name, exclusive=False, durable=False)
    session = connect(hostname="vhost:strict").begin()
    sender = session.sender(name)
    state = session.outcome(sender.send(message(b"x", durable=True))).state
    assert state.error.condition == "amqp:precondition-failed"
    sender.deliver(message(b"y"))
    # Without support for the outcome, the link is detached.
    relay = session.sender(target=Target(None))
    number = relay.send(message(b"x", durable=True, properties=Properties(to=f"/queues/{name}")))
    assert session.outcome(number).state.error.condition == "amqp:precondition-failed"
    other = session.sender(name, source=Source("here", outcomes=("amqp:accepted:list",)))
    other.send(message(b"z", durable=True))
    assert other.detached_with() == "amqp:precondition-failed"
    assert session.receiver(name, 9).get().body == b"y"
    # A node that is deleted with its client cannot survive a crash anyway.
    dynamic = session.sender(target=Target(dynamic=True))
    dynamic.deliver(message(durable=True))
    session.sender(dynamic.attached.target.address).deliver(message(durable=True))


@pytest.mark.rule("1.0", "messaging.3.2.1.absent-header")
def test_a_message_without_a_header_has_the_defaults(session: Session, name: str) -> None:
    sender = session.sender(name)
    for data in (
        message(b"5", header=Header(priority=5)),
        message(b"4", header=Header(priority=4)),
        message(b"none"),
        message(b"4 again", header=Header(priority=4)),
        message(b"3", header=Header(priority=3)),
    ):
        sender.send(data, settled=True)
    session.sync()
    receiver = session.receiver(name, 10)
    found = [receiver.get() for _ in range(5)]
    assert [item.body for item in found] == [b"5", b"4", b"none", b"4 again", b"3"]
    header = header_of(found[2].payload)
    assert not header.durable
    assert header.priority in (None, 4)
    assert header.ttl is None
    assert not header.delivery_count


@pytest.mark.rule("1.0", "messaging.3.2.1.absent-header")
def test_a_message_without_a_header_is_not_durable(own_broker: LeveretProcess, connect: Connect) -> None:
    session = connect(at=own_broker).begin()
    sender = session.sender("kept")
    sender.deliver(message(b"none"))
    sender.deliver(message(b"durable", durable=True))
    own_broker.kill()
    own_broker.start()
    receiver = connect(at=own_broker).begin().receiver("kept", 10)
    assert receiver.get().body == b"durable"
    receiver.nothing()


# Priorities


def order(session: Session, name: str, priorities: list[int]) -> list[int]:
    """Return the priorities of received messages; each was sent twice, ascending, then descending."""
    sender = session.sender(name)
    for priority in [*sorted(priorities), *sorted(priorities, reverse=True)]:
        sender.send(message(b"%d" % priority, header=Header(priority=priority)), settled=True)
    session.sync()
    receiver = session.receiver(name, 100)
    return [int(receiver.get().body) for _ in range(2 * len(priorities))]


def levels(found: list[int], priorities: list[int]) -> list[set[int]]:
    """Return groups of priorities with one level, highest first. Those of one level arrived ascending, then
    descending."""
    groups: list[set[int]] = []
    rest = list(found)
    while rest:
        group = 1
        while True:
            members = set(rest[:group])
            expected = [*sorted(members), *sorted(members, reverse=True)]
            if rest[: 2 * len(members)] == expected:
                break
            group += 1
            assert group <= len(rest), f"not in order: {found}"
        groups.append(members)
        rest = rest[2 * len(members) :]
    assert set().union(*groups) == set(priorities)
    return groups


@pytest.mark.rule("1.0", "messaging.3.2.1.priority-levels")
@pytest.mark.rule("1.0", "messaging.3.2.1.many-distinct")
@pytest.mark.rule("1.0", "messaging.3.2.1.many-above-equal")
def test_ten_levels_of_priority(session: Session, name: str) -> None:
    priorities = [*range(10), 10, 11, 100, 255]
    found = levels(order(session, name, priorities), priorities)
    assert found == [{9, 10, 11, 100, 255}, *({level} for level in range(8, -1, -1))]


@pytest.mark.rule("1.0", "messaging.3.2.1.priority-levels")
@pytest.mark.rule("1.0", "messaging.3.2.1.many-distinct")
@pytest.mark.rule("1.0", "messaging.3.2.1.many-above-equal")
@pytest.mark.parametrize("highest", [9, 12])
def test_as_many_levels_as_a_queue_is_declared_with(
    session: Session, channel0: Callable[..., Channel], name: str, highest: int
) -> None:
    channel0().queue(name, exclusive=False, durable=True, arguments={"x-max-priority": highest})
    priorities = [*range(highest + 1), highest + 1, 200]
    found = levels(order(session, name, priorities), priorities)
    assert found == [{highest, highest + 1, 200}, *({level} for level in range(highest - 1, -1, -1))]


@pytest.mark.rule("1.0", "messaging.3.2.1.few-lowest-equal")
@pytest.mark.rule("1.0", "messaging.3.2.1.few-lowest-last")
@pytest.mark.rule("1.0", "messaging.3.2.1.few-highest-equal")
@pytest.mark.rule("1.0", "messaging.3.2.1.few-highest-first")
@pytest.mark.rule("1.0", "messaging.3.2.1.few-middle-distinct")
@pytest.mark.mode("strict")
@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (1, [range(5, 11), range(5)]),
        (2, [range(5, 11), [4], range(4)]),
        (4, [range(6, 11), [5], [4], [3], range(3)]),
        (8, [range(8, 11), [7], [6], [5], [4], [3], [2], [1], [0]]),
    ],
)
def test_fewer_than_ten_levels(
    connect: Connect, channel0: Callable[..., Channel], name: str, highest: int, expected: list[Any]
) -> None:
    channel0("strict").queue(name, exclusive=False, durable=True, arguments={"x-max-priority": highest})
    session = connect(hostname="vhost:strict").begin()
    found = levels(order(session, name, list(range(11))), list(range(11)))
    assert found == [set(level) for level in expected]


@pytest.mark.rule("1.0", "messaging.3.2.1.few-lowest-equal")
@pytest.mark.rule("1.0", "messaging.3.2.1.few-lowest-last")
@pytest.mark.rule("1.0", "messaging.3.2.1.few-highest-equal")
@pytest.mark.rule("1.0", "messaging.3.2.1.few-highest-first")
@pytest.mark.rule("1.0", "messaging.3.2.1.few-middle-distinct")
@pytest.mark.mode("rabbitmq")
def test_fewer_than_ten_levels_as_rabbitmq_has_them(session: Session, channel0: Callable[..., Channel], name: str) -> None:
    channel0().queue(name, exclusive=False, durable=True, arguments={"x-max-priority": 4})
    found = levels(order(session, name, list(range(11))), list(range(11)))
    assert found == [set(range(4, 11)), {3}, {2}, {1}, {0}]


# Annotations


@pytest.mark.rule("1.0", "messaging.3.2.3.annotations-pass")
def test_message_annotations_are_passed_on(session: Session, name: str) -> None:
    annotations = {Symbol("x-opt-one"): [1, "two", {"three": b"4"}], Symbol("x-opt-two"): None}
    session.sender(name).send(message(before=section(0x72, annotations)), settled=True)
    found = sections_of.message_annotations(split(session.receiver(name, 1).get().payload))
    assert {key: value for key, value in found.items() if key in annotations} == annotations


@pytest.mark.rule("1.0", "messaging.3.2.10.unknown-annotations")
@pytest.mark.rule("1.0", "transport.amqp-error.not-implemented.choice")
@pytest.mark.parametrize("code", [0x71, 0x72, 0x78], ids=["delivery", "message", "footer"])
@pytest.mark.parametrize("key", [Symbol("reserved"), ULong(7), Symbol("X-opt-a")], ids=["symbol", "ulong", "upper case"])
def test_reserved_annotations_that_are_not_known_detach_the_link(session: Session, name: str, code: int, key: Any) -> None:
    sender = session.sender(name)
    data = section(code, {Symbol("x-opt-fine"): 1, key: 2})
    sender.send(message(before=b"" if code == 0x78 else data, after=data if code == 0x78 else b""))
    assert sender.detached_with() == "amqp:not-implemented"
    session.receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "messaging.3.2.10.unknown-annotations")
@pytest.mark.mode("strict")
def test_annotations_that_begin_with_x_are_restricted(connect: Connect, name: str) -> None:
    session = connect(hostname="vhost:strict").begin()
    sender = session.sender(name)
    sender.deliver(message(before=section(0x72, {Symbol("x-opt-mine"): 1})))
    sender.send(message(before=section(0x72, {Symbol("x-mine"): 1})))
    assert sender.detached_with() == "amqp:not-implemented"


@pytest.mark.rule("1.0", "messaging.3.2.10.unknown-annotations")
@pytest.mark.mode("rabbitmq")
def test_annotations_that_begin_with_x_are_accepted(session: Session, name: str) -> None:
    session.sender(name).deliver(message(before=section(0x72, {Symbol("x-mine"): 1})))
    found = sections_of.message_annotations(split(session.receiver(name, 1).get().payload))
    assert found["x-mine"] == 1


# Conversion of messages of other protocols


@pytest.mark.rule("1.0", "messaging.3.2.4.encoding-of-data")
def test_a_content_encoding_is_used_with_data_only(session: Session, channel0: Callable[..., Channel], name: str) -> None:
    """A message of AMQP 0-9-1 may have one; its body is bytes."""
    channel = channel0()
    channel.queue(name, exclusive=False, durable=True)
    channel.publish(b"octets", name, content_encoding="gzip", content_type="application/json")
    payload = session.receiver(name, 1).get().payload
    properties = sections_of.properties(split(payload))
    assert isinstance(properties, Properties)
    assert (properties.content_encoding, properties.content_type) == ("gzip", "application/json")
    assert body_of(payload) == b"octets"

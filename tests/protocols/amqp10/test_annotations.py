"""The sections of received messages (messaging section 3.2): their order, their number, and the keys of annotations."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Header, Properties
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transport import Detach, Disposition
from leveret.wire.amqp10.values import Symbol, ULong
from tests.protocols.amqp10.support import Session, connect, make_site, message
from tests.protocols.support import Site

DELIVERY = b"\x00\x53\x71"
MESSAGE = b"\x00\x53\x72"
FOOTER = b"\x00\x53\x78"
DATA = b"\x00\x53\x75\xa0\x01a"
SEQUENCE = b"\x00\x53\x76\x45"
VALUE = b"\x00\x53\x77\x40"
EMPTY = b"\xc1\x01\x00"
HEADER = encode_composite(Header(True))
PROPERTIES = encode_composite(Properties("id"))
APPLICATION = b"\x00\x53\x74" + encode_pairs([("a", 1)])


def make_session(strict: bool = False) -> Session:
    site = make_site(strict=strict)
    site.vhost.declare_queue("q", None, durable=True)
    return connect(site).begin()


def annotated(section: bytes, pairs: list[tuple[Any, Any]]) -> bytes:
    """Return a message with these annotations in the section of a descriptor."""
    annotations = section + encode_pairs(pairs)
    return message(after=annotations) if section == FOOTER else message(before=annotations)


def refusal(session: Session, payload: bytes) -> str:
    """Return the condition of the link's detach, "" if the message is accepted."""
    site: Site = session.client.site
    sender = session.sender()
    before = site.vhost.queues["q"].ready_count
    sender.send(payload)
    detach = session.client.find(Detach)
    if detach is None:
        assert session.client.take(Disposition).settled
        assert site.vhost.queues["q"].ready_count == before + 1
        return ""
    assert detach.closed
    assert detach.error is not None
    assert site.vhost.queues["q"].ready_count == before
    # Other links are not affected.
    assert refusal(session, message()) == ""
    return detach.error.condition


@pytest.mark.parametrize("section", [DELIVERY, MESSAGE, FOOTER], ids=["delivery", "message", "footer"])
@pytest.mark.parametrize(
    ("pairs", "condition", "in_strict_mode"),
    [
        ([(Symbol("x-opt-a"), 1)], "", ""),
        ([], "", ""),
        ([(Symbol("x-a"), [1, {"b": 2}]), (Symbol("x-opt-a"), None)], "", "amqp:not-implemented"),
        ([(Symbol("x-opt-a"), 1), (Symbol("other"), 1)], "amqp:not-implemented", "amqp:not-implemented"),
        ([(Symbol(""), 1)], "amqp:not-implemented", "amqp:not-implemented"),
        ([(ULong(5), 1)], "amqp:not-implemented", "amqp:not-implemented"),
        ([("x-opt-a", 1)], "amqp:decode-error", "amqp:decode-error"),
        ([(5, 1)], "amqp:decode-error", "amqp:decode-error"),
        ([(None, 1)], "amqp:decode-error", "amqp:decode-error"),
        ([(Symbol("other"), 1), (b"x-opt-", 1)], "amqp:decode-error", "amqp:decode-error"),
    ],
    ids=["x-opt", "empty", "x", "reserved symbol", "empty symbol", "ulong", "string", "long", "null", "both"],
)
def test_keys_of_annotations(section: bytes, pairs: list[tuple[Any, Any]], condition: str, in_strict_mode: str) -> None:
    payload = annotated(section, pairs)
    assert refusal(make_session(), payload) == condition
    assert refusal(make_session(strict=True), payload) == in_strict_mode


@pytest.mark.parametrize(
    "content",
    [
        b"\xc1\x01\x01",  # an odd number of values
        b"\xc1\x04\x02\xa3\x7fx",  # a key that is longer than the map
        b"\xc1\x03\x02\xa3\x00",  # a key without a value
        b"\xc1\x05\x00\xa3\x01x\x40",  # more than its count
        b"\xc1\x00",  # no count
        b"\xd1\x00\x00\x00\x02\x00\x00",  # half of a count
        b"\xc1\x05\x02\x3f\x01x\x40",  # an unknown format code
        b"\x00\x53\x01\xc1\x01\x00",  # a map with a descriptor
    ],
    ids=["odd", "long key", "no value", "more", "no count", "half count", "code", "described"],
)
def test_annotations_that_cannot_be_read(content: bytes) -> None:
    assert refusal(make_session(), MESSAGE + content + DATA) == "amqp:decode-error"


@pytest.mark.parametrize(
    "payload",
    [
        HEADER + DELIVERY + EMPTY + MESSAGE + EMPTY + PROPERTIES + APPLICATION + DATA + FOOTER + EMPTY,
        DATA + DATA,
        SEQUENCE + SEQUENCE,
        VALUE,
        HEADER,
        b"\x00\xa3\x10amqp:data:binary\xa0\x01a",
    ],
    ids=["all", "data twice", "sequence twice", "value", "no body", "symbolic descriptor"],
)
def test_sections_in_order(payload: bytes) -> None:
    assert refusal(make_session(), payload) == ""


@pytest.mark.parametrize(
    "payload",
    [
        HEADER + HEADER + DATA,
        PROPERTIES + PROPERTIES + DATA,
        APPLICATION + APPLICATION + DATA,
        VALUE + VALUE,
        DATA + FOOTER + EMPTY + FOOTER + EMPTY,
        PROPERTIES + HEADER + DATA,
        DATA + PROPERTIES,
        FOOTER + EMPTY + DATA,
        APPLICATION + PROPERTIES + DATA,
        DATA + SEQUENCE,
        DATA + VALUE,
        SEQUENCE + VALUE,
        VALUE + DATA,
        b"\x00\x53\x24\x45" + DATA,
        b"plain text",
        DATA[:-1],
        DATA + b"\x00",
        b"\x00\x53\x75\xa1\x01a",
        b"\x00\x53\x76" + EMPTY,
        b"\x00\x53\x70" + EMPTY + DATA,
    ],
    ids=[
        "two headers",
        "two properties",
        "two applications",
        "two values",
        "two footers",
        "header late",
        "properties late",
        "footer early",
        "application early",
        "data and sequence",
        "data and value",
        "sequence and value",
        "value and data",
        "no section",
        "text",
        "cut off",
        "half a section",
        "text as data",
        "map as sequence",
        "map as header",
    ],
)
def test_sections_out_of_order(payload: bytes) -> None:
    assert refusal(make_session(), payload) == "amqp:decode-error"


@pytest.mark.rule("1.0", "messaging.3.2.2.delivery-annotations-stay")
def test_delivery_annotations_are_for_one_hop_only() -> None:
    session = make_session()
    before = DELIVERY + encode_pairs([(Symbol("x-opt-hop"), 1)]) + MESSAGE + encode_pairs([(Symbol("x-opt-way"), 2)])
    session.sender().send(message(before=before))
    payload = session.receiver(credit=1).deliveries()[0].payload
    sections = split(payload)
    assert sections.delivery_annotations < 0
    assert payload[sections.message_annotations : sections.message_annotations_end] == MESSAGE + encode_pairs(
        [(Symbol("x-opt-way"), 2), (Symbol("x-exchange"), ""), (Symbol("x-routing-key"), "q")]
    )

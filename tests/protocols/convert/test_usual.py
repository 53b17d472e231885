"""Cached conversions give the same bytes as conversions from scratch."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.broker.message import FORMAT_AMQP1, Entry, Message, make_address
from leveret.protocols.convert import to_amqp0, to_amqp10, usual_amqp0, usual_amqp10
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.messaging import Header, Properties
from leveret.wire.amqp10.values import Symbol, Timestamp, ULong
from tests.protocols.amqp10.support import make_site

QUEUE = make_site().vhost.declare_queue("q", None)
TEXT = st.sampled_from(["", "a", "id-4711", "ü", "x" * 127, "x" * 128, "x" * 255, "\udcff"])
SHORT = st.sampled_from(["", "text/plain", "kind", "ü"])
VALUE = st.sampled_from([1, "x", True, None, 2.5, b"\x00", {"deep": [1, "two"]}, "y" * 300])
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "n",
            "x-mine",
            "x-death",
            "x-opt-message-id-type",
            "x-opt-correlation-id-type",
            "x-opt-amqp-body",
            "x-opt-to",
            "x-opt-group-sequence",
            "ü",
        ]
    ),
    st.one_of(VALUE, st.sampled_from(["uuid", "string", "ulong"])),
    max_size=3,
)
STABLE0 = {
    "content_type": SHORT,
    "content_encoding": SHORT,
    "headers": HEADERS,
    "delivery_mode": st.sampled_from([1, 2]),
    "priority": st.integers(0, 9),
    "reply_to": TEXT,
    "expiration": st.just("1000"),
    "type": st.sampled_from(["kind", "amqp-1.0"]),
    "user_id": SHORT,
    "app_id": SHORT,
    "cluster_id": SHORT,
}
DIFFERING0 = {
    "message_id": TEXT,
    "correlation_id": TEXT,
    "timestamp": st.sampled_from([0, 1, 1_700_000_000, 2**63, 2**64 - 1]),
}


@given(st.fixed_dictionaries({}, optional=STABLE0), st.lists(st.fixed_dictionaries({}, optional=DIFFERING0), max_size=4))
@example({}, [{"timestamp": 2**64 - 1}, {"message_id": ""}, {"correlation_id": "c"}])
@example({"app_id": "a", "headers": {"x-opt-to": "there"}}, [{"message_id": "m"}, {"message_id": "n", "timestamp": 1}])
@example({"headers": {"x-opt-message-id-type": "ulong"}}, [{"message_id": "17"}, {"message_id": "18"}])
def test_sections(stable: dict[str, Any], differing: list[dict[str, Any]]) -> None:
    usual_amqp10._cache.clear()
    to_amqp10._cache.clear()
    for ids in differing:
        address = make_address("exchange", "key")
        message = Message(address, encode_header(60, 0, {**stable, **ids}), b"", 0, False)
        expected = to_amqp10._sections(address, to_amqp10._properties(message))
        assert to_amqp10._plain_sections(message, address) == expected


IDS = st.sampled_from(["", "a", "id-4711", "ü", "x" * 255, "x" * 256, UUID(int=1), ULong(7), b"\xff", None])
STABLE1 = {
    "user_id": st.just(b"guest"),
    "to": TEXT,
    "subject": TEXT,
    "reply_to": TEXT,
    "content_type": st.just("text/plain"),
    "content_encoding": st.just("gzip"),
    "absolute_expiry_time": st.just(Timestamp(5)),
    "group_id": SHORT,
    "group_sequence": st.just(5),
    "reply_to_group_id": SHORT,
}
DIFFERING1 = {
    "message_id": IDS,
    "correlation_id": IDS,
    "creation_time": st.sampled_from([Timestamp(0), Timestamp(-1), Timestamp(1_700_000_000_999)]),
}


def sections(header: bool, annotations: bool, properties: dict[str, Any], application: dict[str, Any]) -> bytes:
    octets = encode_composite(Header(durable=True, ttl=1000)) if header else b""
    if annotations:
        octets += b"\x00\x53\x72" + encode_pairs([(Symbol("x-opt-mine"), 1), (Symbol("x-basic-type"), "kind")])
    octets += encode_composite(Properties(**properties)) if properties else b""
    return octets + (b"\x00\x53\x74" + encode_pairs(list(application.items())) if application else b"")


@given(
    st.booleans(),
    st.booleans(),
    st.fixed_dictionaries({}, optional=STABLE1),
    st.lists(st.fixed_dictionaries({}, optional=DIFFERING1), max_size=4),
    st.dictionaries(st.sampled_from(["n", "x-opt-message-id-type", "ü"]), st.sampled_from([1, "x", True]), max_size=2),
)
@example(
    True, True, {"group_id": "g"}, [{"message_id": "a"}, {"message_id": "b"}, {"creation_time": Timestamp(5)}], {"n": 1}
)
@example(False, False, {}, [{"correlation_id": "a"}, {"correlation_id": "x" * 255}], {})
def test_properties(
    header: bool, annotations: bool, stable: dict[str, Any], differing: list[dict[str, Any]], application: dict[str, Any]
) -> None:
    usual_amqp0._cache.clear()
    to_amqp0._cache.clear()
    for ids in differing:
        try:
            octets = sections(header, annotations, {**stable, **ids}, application)
        except EncodeError:
            return  # an invalid text
        message = Message(make_address("exchange", "key"), octets, b"", 0, True, 4, format=FORMAT_AMQP1)
        properties = to_amqp0._properties_of(message)
        if not properties["headers"]:
            del properties["headers"]
        converted = to_amqp0.convert(Entry(QUEUE, message, 1))
        assert converted.header == to_amqp0._encode(0, properties)


@pytest.mark.parametrize(
    "octets",
    [
        b"\x00\x53\x73",
        b"\x00\x53\x73\xc0\x05\x01\xa1\x09id",
        b"\x00\x53\x73\xd0\x00",
        b"\x00\x53\x73\xc0\x04\x01\xa1\x02id\x00",
        b"\x00\x53\x73\xc0\x03\x01\xa1\xff",
        b"\x00\x53\x73\xc0\x06\x0e\xa1\x03abc",
        b"\x00\x53\x73\x45",
        b"\x00",
    ],
    ids=["cut", "long-id", "wide", "rest", "short-list", "count", "empty", "nothing"],
)
def test_malformed_sections_are_converted_as_before(octets: bytes) -> None:
    message = Message(make_address("", "q"), octets, b"", 0, False, format=FORMAT_AMQP1)
    properties = to_amqp0._properties_of(message)
    if not properties["headers"]:
        del properties["headers"]
    assert to_amqp0.convert(Entry(QUEUE, message, 1)).header == to_amqp0._encode(0, properties)


def test_ids_and_times_do_not_fill_the_memory() -> None:
    usual_amqp0._cache.clear()
    usual_amqp10._cache.clear()
    address = make_address("", "q")
    for number in range(50):
        header = encode_header(60, 0, {"message_id": f"m{number}", "timestamp": number, "headers": {"n": 1}})
        to_amqp10._plain_sections(Message(address, header, b"", 0, False), address)
        octets = sections(True, True, {"message_id": f"m{number}", "creation_time": Timestamp(number)}, {"n": 1})
        message = Message(address, octets, b"", 0, False, format=FORMAT_AMQP1)
        to_amqp0.convert(Entry(QUEUE, message, 1))
    assert len(usual_amqp0._cache) == len(usual_amqp10._cache) == 1

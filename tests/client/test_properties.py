"""Message properties: compatibility with pika and pamqp, and invalid properties."""

from __future__ import annotations

import pickle
import struct
from collections import UserDict
from copy import copy
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import pamqp.commands
import pamqp.header
import pika.spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.client.errors import InvalidMessage
from leveret.client.properties import (
    NAMES,
    NO_PROPERTIES,
    Properties,
    decode_properties,
    encode_properties,
    from_keywords,
)
from leveret.wire.amqp0.errors import EncodeError
from leveret.wire.amqp0.properties import decode_header, encode_basic, encode_header
from leveret.wire.amqp0.specs import V0_9_1
from tests.wire.amqp0.strategies import arguments_of

MOMENT = datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC)
TEXTS = [
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
]
EVERY = Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"a": 1},
    delivery_mode=2,
    priority=9,
    correlation_id="c",
    reply_to="r",
    expiration=60000,
    message_id="m",
    timestamp=MOMENT,
    type="t",
    user_id="u",
    app_id="app",
    cluster_id="cl",
)


class Level(IntEnum):
    HIGH = 7


def header_of(properties: Properties, size: int = 0) -> bytes:
    return struct.pack(">HHQ", 60, 0, size) + encode_properties(properties)


def there_and_back(properties: Properties) -> Properties:
    return decode_properties(header_of(properties))


def sent(**keywords: Any) -> dict[str, Any]:
    """Return the properties on the wire, without the client's conversions."""
    return decode_header(header_of(Properties(**keywords)))[2]


def test_every_property_round_trips() -> None:
    assert there_and_back(EVERY) == EVERY
    assert {field.name for field in fields(Properties)} == set(NAMES)
    assert list(NAMES) == [field.name for field in V0_9_1.classes[60].properties]


@pytest.mark.parametrize("name", NAMES)
def test_each_property_alone_round_trips(name: str) -> None:
    properties = Properties(**{name: getattr(EVERY, name)})
    assert there_and_back(properties) == properties
    assert encode_properties(Properties(**{name: None})) == NO_PROPERTIES == encode_properties(Properties())


def test_empty_values_are_kept() -> None:
    texts: dict[str, Any] = dict.fromkeys(TEXTS, "")
    empty = Properties(headers={}, priority=0, timestamp=0, expiration=0, **texts)
    back = there_and_back(empty)
    assert (back.headers, back.priority, back.expiration, back.timestamp) == ({}, 0, 0, datetime(1970, 1, 1, tzinfo=UTC))
    assert all(getattr(back, name) == "" for name in TEXTS)


def _encode(*values: Any) -> bytes:
    """Encode the properties of class basic, in their order."""
    return encode_basic(*values)


@given(arguments_of(V0_9_1.classes[60].properties), st.integers(0, 2**64 - 1))
def test_fast_encoder_agrees_with_the_tables(values: dict[str, Any], size: int) -> None:
    ours = struct.pack(">HHQ", 60, 0, size) + _encode(*[values.get(name) for name in NAMES])
    assert ours == encode_header(60, size, values)
    properties = decode_properties(ours)
    assert decode_properties(header_of(properties)) == properties


# Compatibility with other clients

VALUES: dict[str, Any] = {
    "true": True,
    "false": False,
    "zero": 0,
    "byte": -128,
    "short": 32767,
    "int": -(2**31),
    "unsigned": 2**31,
    "long": 2**63 - 1,
    "lowest": -(2**63),
    "float": 2.5,
    "large": 1e300,
    "decimal": Decimal("-12.345"),
    "text": "grüß dich",
    "empty": "",
    "bytes": b"\x00\xff\xfe",
    "moment": MOMENT,
    "none": None,
    "table": {"list": [1, "two", {"three": [None, b"4"]}], "empty": {}},
    "list": [],
    "ä" * 100: "a name of 200 bytes",
}


# pika reads a double as an integer and cannot write one. pamqp writes 32-bit floats, no bytes, and truncates names.
FLOATS = ("float", "large")
NOT_OF_PAMQP = ("large", "bytes", "table", "ä" * 100)


@pytest.mark.parametrize("name", [name for name in VALUES if name not in FLOATS])
def test_headers_are_compatible_with_pika(name: str) -> None:
    value = VALUES[name]
    theirs = pika.spec.BasicProperties()
    theirs.decode(encode_properties(Properties(headers={name: value})))
    found = theirs.headers[name]
    if name == "moment":
        found = found.replace(tzinfo=UTC)
    assert found == value
    assert isinstance(found, type(value))
    if name == "moment":
        theirs.headers = {name: value.replace(tzinfo=None)}
    headers = decode_properties(struct.pack(">HHQ", 60, 0, 0) + b"".join(theirs.encode())).headers
    assert headers is not None
    assert headers == {name: value}
    assert type(headers[name]) is type(value)


@pytest.mark.parametrize("name", VALUES)
def test_pamqp_decodes_our_headers(name: str) -> None:
    theirs = pamqp.header.ContentHeader()
    theirs.unmarshal(header_of(Properties(headers={name: VALUES[name]})))
    assert theirs.properties.headers == {name: VALUES[name]}
    assert type(theirs.properties.headers[name]) in (type(VALUES[name]), bytearray)


@pytest.mark.parametrize("name", [name for name in VALUES if name not in NOT_OF_PAMQP])
def test_pamqp_headers_are_decoded(name: str) -> None:
    theirs = pamqp.header.ContentHeader(0, 5, pamqp.commands.Basic.Properties(headers={name: VALUES[name]}))
    headers = decode_properties(theirs.marshal()).headers
    assert headers == {name: VALUES[name]}
    assert type(headers[name]) is type(VALUES[name])


def test_pika_and_pamqp_decode_every_property() -> None:
    properties = copy(EVERY)
    properties.cluster_id = None  # pamqp requires it to be empty
    seconds = int(MOMENT.timestamp())
    pikas = pika.spec.BasicProperties()
    pikas.decode(encode_properties(properties))
    pamqps = pamqp.header.ContentHeader()
    pamqps.unmarshal(header_of(properties))
    for name in NAMES:
        expected = getattr(properties, name)
        theirs = getattr(pamqps.properties, "message_type" if name == "type" else name, None)
        if name == "expiration":
            expected = "60000"
        if name == "cluster_id":
            continue
        assert theirs == expected
        assert getattr(pikas, name) == (seconds if name == "timestamp" else expected)


# Python values


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (0, "0"),
        (1500, "1500"),
        (1500.4, "1500"),
        (1.1 * 1000, "1100"),
        ("1500", "1500"),
        ("later", "later"),
        (timedelta(seconds=2), "2000"),
        (timedelta(days=30), "2592000000"),
        (timedelta(microseconds=1500), "2"),
    ],
)
def test_expirations(value: Any, milliseconds: str) -> None:
    assert sent(expiration=value) == {"expiration": milliseconds}


def test_received_expirations() -> None:
    assert there_and_back(Properties(expiration="100")).expiration == 100
    for odd in ("", "soon", "-5", "1.5", "٣", " 7", "9" * 200):
        assert there_and_back(Properties(expiration=odd)).expiration == odd


@pytest.mark.parametrize(
    "value",
    [
        1709209815,
        1709209815.9,
        MOMENT,
        MOMENT.replace(tzinfo=None),
        MOMENT.replace(microsecond=999999),
        MOMENT.astimezone(timezone(timedelta(hours=-9))),
    ],
)
def test_timestamps(value: Any) -> None:
    assert sent(timestamp=value) == {"timestamp": 1709209815}
    received = there_and_back(Properties(timestamp=value)).timestamp
    assert isinstance(received, datetime)
    assert received == MOMENT
    assert received.tzinfo is UTC


def test_timestamps_beyond_the_year_9999() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert there_and_back(Properties(timestamp=last)).timestamp == last
    for seconds in (253402300800, 2**64 - 1):
        assert there_and_back(Properties(timestamp=seconds)).timestamp == seconds


def test_numbers_may_be_enumerations() -> None:
    assert sent(priority=Level.HIGH, headers={"level": Level.HIGH}) == {"priority": 7, "headers": {"level": 7}}


def test_persistent_and_copies() -> None:
    assert Properties(delivery_mode=2).persistent
    assert not Properties(delivery_mode=1).persistent
    assert not Properties().persistent
    assert copy(EVERY) == EVERY == pickle.loads(pickle.dumps(EVERY))
    assert EVERY.encode() == encode_properties(EVERY)


# Invalid properties

CYCLE: dict[str, Any] = {}
CYCLE["again"] = [CYCLE]


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        *[({name: "x" * 256}, f"^{name}: .*256 bytes, expected at most 255") for name in TEXTS],
        *[({name: 5}, f"^{name}: 5; expected a str") for name in TEXTS],
        ({"content_type": "é" * 128}, "^content_type: .*256 bytes, expected at most 255"),
        ({"app_id": "\ud800"}, "^app_id: .*Unicode"),
        ({"priority": 256}, "^priority: 256; expected an integer from 0 to 255"),
        ({"priority": -1}, "^priority: -1;"),
        ({"priority": "5"}, "^priority: '5';"),
        ({"priority": 1.5}, "^priority: 1.5;"),
        ({"delivery_mode": 1000}, "^delivery_mode: 1000;"),
        ({"delivery_mode": 10**5000}, "^delivery_mode: "),
        ({"expiration": -1}, "^expiration: -1; expected milliseconds"),
        ({"expiration": timedelta(seconds=-1)}, "^expiration: .*; expected milliseconds"),
        ({"expiration": float("nan")}, "^expiration: nan;"),
        ({"expiration": float("inf")}, "^expiration: inf;"),
        ({"expiration": True}, "^expiration: True;"),
        ({"expiration": b"5"}, "^expiration: b'5';"),
        ({"expiration": 10**5000}, "^expiration: "),
        ({"expiration": "1" * 256}, "^expiration: .*256 bytes, expected at most 255"),
        ({"timestamp": -1}, "^timestamp: -1; expected a datetime or seconds"),
        ({"timestamp": 2**64}, "^timestamp: .*; expected a datetime or seconds"),
        ({"timestamp": float("nan")}, "^timestamp: nan;"),
        ({"timestamp": "now"}, "^timestamp: 'now';"),
        ({"timestamp": datetime(1969, 12, 31)}, "^timestamp: .*1970"),
        ({"headers": ["a"]}, r"^headers: \['a'\]; expected a dict"),
        ({"headers": UserDict(a=1)}, "^headers: .*; expected a dict"),
        ({"headers": {5: "x"}}, "^headers: the name 5; expected a str"),
        ({"headers": {"n" * 256: 1}}, "^headers: the name .*256 bytes, expected at most 255"),
        (
            {"headers": {"a": {"b": [1, {"c": UUID(int=5)}]}}},
            r"^headers\['a'\]\['b'\]\[1\]\['c'\]: .*UUID; expected bool, int",
        ),
        ({"headers": {"a": {"b": {7: 1}}}}, r"^headers\['a'\]\['b'\]: the name 7"),
        ({"headers": {"a": 1, "b": 2**63}}, r"^headers\['b'\]: 9223372036854775808 does not fit 64 bits"),
        ({"headers": {"a": 10**5000}}, r"^headers\['a'\]: "),
        ({"headers": {"a": Decimal("1e100")}}, r"^headers\['a'\]: .*32 bits"),
        ({"headers": {"a": Decimal("NaN")}}, r"^headers\['a'\]: .*NaN"),
        ({"headers": {"a": datetime(1900, 1, 1)}}, r"^headers\['a'\]: .*1970"),
        ({"headers": {"a": [{"b": "\ud800"}]}}, r"^headers\['a'\]\[0\]\['b'\]: .*Unicode"),
        ({"headers": {"a": {1, 2}}}, r"^headers\['a'\]: .*set; expected bool"),
        ({"headers": CYCLE}, r"^headers\['again'\]\[0\].*at most 64 levels"),
    ],
)
def test_errors_name_the_invalid_property(keywords: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidMessage, match=complaint) as caught:
        encode_properties(Properties(**keywords))
    assert len(str(caught.value)) < 1000
    assert isinstance(caught.value, ValueError)


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.datetimes(),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.complex_numbers(),
    st.just(object()),
    st.text(st.characters(categories=["Cs"]), max_size=3),
)
nested = st.recursive(
    anything,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(NAMES), nested)
def test_any_value_is_encoded_or_refused(name: str, value: Any) -> None:
    try:
        encoded = header_of(Properties(**{name: value}))
    except InvalidMessage as error:
        assert str(error).startswith(name)
    else:
        decode_properties(encoded)


@given(st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        decode_properties(b"\0\x3c" + bytes(10) + data)
    except InvalidMessage as error:
        assert "malformed" in str(error)


@pytest.mark.parametrize(
    "header", [b"", bytes(5), bytes(14), b"\0\x3c" + bytes(10) + b"\x80\0", header_of(EVERY)[:-1], header_of(EVERY) + b"\0"]
)
def test_malformed_headers(header: bytes) -> None:
    with pytest.raises(InvalidMessage, match="malformed"):
        decode_properties(header)


def test_wire_encoder_raises_encode_errors() -> None:
    with pytest.raises(EncodeError):
        _encode("x" * 256, *[None] * 13)


# Keywords


def test_keywords_replace_properties_of_a_copy() -> None:
    before = copy(EVERY)
    merged = from_keywords(EVERY, {"priority": 1, "headers": {"b": 2}, "message_id": None, "persistent": False})
    assert before == EVERY
    assert (merged.priority, merged.headers, merged.message_id, merged.delivery_mode) == (1, {"b": 2}, None, 1)
    assert merged.app_id == "app"
    assert from_keywords(EVERY, {}) == EVERY
    assert from_keywords(EVERY, {}) is not EVERY


@pytest.mark.parametrize(
    ("keywords", "mode"),
    [
        ({"persistent": True}, 2),
        ({"persistent": False}, 1),
        ({"persistent": None}, None),
        ({}, None),
        ({"persistent": True, "delivery_mode": None}, 2),
        ({"delivery_mode": None, "persistent": True}, 2),
        ({"persistent": None, "delivery_mode": 1}, 1),
    ],
)
def test_persistent(keywords: dict[str, Any], mode: int | None) -> None:
    assert from_keywords(None, keywords).delivery_mode == mode


@pytest.mark.parametrize("keywords", [{"persistent": True, "delivery_mode": 2}, {"delivery_mode": 1, "persistent": False}])
def test_persistent_and_delivery_mode_are_exclusive(keywords: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="persistent and delivery_mode"):
        from_keywords(None, keywords)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("prioritty", "priority"),
        ("header", "headers"),
        ("persistant", "persistent"),
        ("encode", ""),
        ("messageId", "message_id"),
        ("", ""),
        ("__class__", ""),
    ],
)
def test_unknown_keywords(name: str, nearest: str) -> None:
    with pytest.raises(TypeError, match=f"unknown property '{name}'; did you mean '{nearest}"):
        from_keywords(EVERY, {name: 1})

"""Contents of class file, stream and message as those of class basic, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp0.classes import (
    BASIC,
    FILE,
    MESSAGE,
    STREAM,
    decode_transfer,
    encode_transfer,
    from_basic,
    to_basic,
    with_headers,
)
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.specs import V0_9

TRANSFER: dict[str, Any] = {
    "ttl": 5000,
    "priority": 7,
    "timestamp": 1234567890,
    "delivery_mode": 2,
    "expiration": 99,
    "message_id": "m",
    "correlation_id": "c",
    "reply_to": "r",
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "user_id": "u",
    "app_id": "a",
    "transaction_id": "t",
    "security_token": "secret",
    "application_headers": {"n": 1, "s": "x"},
}


def test_transfers_survive_a_round_trip() -> None:
    assert decode_transfer(encode_transfer(3, TRANSFER)) == TRANSFER


def test_a_transfer_as_basic() -> None:
    kind, size, properties = decode_header(to_basic(encode_transfer(3, TRANSFER)))
    assert (kind, size) == (BASIC, 3)
    assert properties == {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "5000",
        "message_id": "m",
        "timestamp": 1234567890,
        "user_id": "u",
        "app_id": "a",
        "headers": {"n": 1, "s": "x", "x-transaction-id": "t"},
    }
    assert b"secret" not in to_basic(encode_transfer(3, TRANSFER))


def test_a_file_as_basic_and_back() -> None:
    given_ = {
        "content_type": "text/csv",
        "headers": {"a": 1},
        "priority": 3,
        "reply_to": "r",
        "message_id": "m",
        "filename": "orders.csv",
        "timestamp": 5,
    }
    header = encode_header(FILE, 9, given_, QPID, V0_9)
    properties = decode_header(to_basic(header))[2]
    assert properties["headers"] == {"a": 1, "x-filename": "orders.csv"} and "filename" not in properties
    assert properties["delivery_mode"] == 2
    assert decode_header(from_basic(to_basic(header), FILE, 9), QPID, V0_9) == (FILE, 9, given_)


TEXTS = {"correlation_id": "c", "reply_to": "r", "message_id": "m", "type": "t", "app_id": "a", "cluster_id": "u"}


@pytest.mark.parametrize(
    ("kind", "hidden"),
    [
        (FILE, {"correlation_id", "type", "app_id"}),
        (STREAM, set(TEXTS)),
        (MESSAGE, {"type", "cluster_id"}),
    ],
    ids=["file", "stream", "message"],
)
def test_texts_without_a_field_become_headers(kind: int, hidden: set[str]) -> None:
    header = encode_header(BASIC, 1, {**TEXTS, "headers": {"n": 1}, "delivery_mode": 2})
    made = from_basic(header, kind, 1)
    fields = decode_transfer(made) if kind == MESSAGE else decode_header(made, QPID, V0_9)[2]
    table = fields["application_headers" if kind == MESSAGE else "headers"]
    assert table == {"n": 1, **{f"x-basic-{name.replace('_', '-')}": TEXTS[name] for name in hidden}}
    back = decode_header(to_basic(made))[2]
    assert {name: back[name] for name in TEXTS} == TEXTS
    assert back["headers"] == {"n": 1}
    assert back["delivery_mode"] == (1 if kind == STREAM else 2)


def test_headers_are_set_and_removed_in_each_class() -> None:
    made = decode_transfer(with_headers(encode_transfer(3, TRANSFER), {"n": None, "x": 5}, True))
    assert made == {**TRANSFER, "ttl": 0, "expiration": 0, "application_headers": {"s": "x", "x": 5}}
    header = encode_header(FILE, 9, {"filename": "f"}, QPID, V0_9)
    fields = decode_header(with_headers(header, {"x": 5}, True), QPID, V0_9)[2]
    assert fields == {"filename": "f", "headers": {"x": 5}}
    assert with_headers(header[:-1], {"x": 5}, False) == header[:-1]


def test_properties_without_a_stream_field_are_omitted() -> None:
    header = encode_header(BASIC, 1, {"content_type": "t", "user_id": "u", "expiration": "5", "priority": 2})
    assert decode_header(from_basic(header, STREAM, 1), QPID, V0_9)[2] == {"content_type": "t", "priority": 2}


@pytest.mark.parametrize("value", [7, "x" * 256, "\u00fc" * 128, None], ids=["number", "long", "octets", "void"])
def test_other_headers_stay_headers(value: Any) -> None:
    header = encode_header(STREAM, 1, {"headers": {"x-basic-type": value}}, QPID, V0_9)
    assert decode_header(to_basic(header))[2] == {"headers": {"x-basic-type": value}, "delivery_mode": 1}


def test_a_header_does_not_set_the_user_id() -> None:
    header = encode_header(FILE, 1, {"headers": {"x-basic-user-id": "root"}}, QPID, V0_9)
    assert "user_id" not in decode_header(to_basic(header))[2]


@pytest.mark.parametrize("kind", [FILE, STREAM, MESSAGE])
@given(st.binary(max_size=60))
def test_garbage_becomes_a_content_with_or_without_properties(kind: int, garbage: bytes) -> None:
    header = kind.to_bytes(2, "big") + b"\0\0" + (5).to_bytes(8, "big") + garbage
    made, size, _ = decode_header(to_basic(header))
    assert (made, size) == (BASIC, 5)
    from_basic(b"\0\x3c\0\0" + (5).to_bytes(8, "big") + garbage, kind, 5)

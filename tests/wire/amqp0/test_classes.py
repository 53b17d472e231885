"""Contents of class file, stream and message as those of class basic, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp0.classes import BASIC, FILE, MESSAGE, STREAM, decode_transfer, encode_transfer, from_basic, to_basic
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.specs import V0_9

TRANSFER: dict[str, Any] = {
    "ttl": 5000, "priority": 7, "timestamp": 1234567890, "delivery_mode": 2, "expiration": 99, "message_id": "m",
    "correlation_id": "c", "reply_to": "r", "content_type": "text/plain", "content_encoding": "gzip", "user_id": "u",
    "app_id": "a", "transaction_id": "t", "security_token": "secret", "application_headers": {"n": 1, "s": "x"},
}


def test_a_transfer_comes_back_as_it_was() -> None:
    assert decode_transfer(encode_transfer(3, TRANSFER)) == TRANSFER


def test_a_transfer_as_basic() -> None:
    kind, size, properties = decode_header(to_basic(encode_transfer(3, TRANSFER)))
    assert (kind, size) == (BASIC, 3)
    assert properties == {
        "content_type": "text/plain", "content_encoding": "gzip", "delivery_mode": 2, "priority": 7, "correlation_id": "c",
        "reply_to": "r", "expiration": "5000", "message_id": "m", "timestamp": 1234567890, "user_id": "u", "app_id": "a",
        "headers": {"n": 1, "s": "x", "x-transaction-id": "t"},
    }
    assert b"secret" not in to_basic(encode_transfer(3, TRANSFER))


def test_a_file_as_basic_and_back() -> None:
    given_ = {"content_type": "text/csv", "headers": {"a": 1}, "priority": 3, "reply_to": "r", "message_id": "m",
              "filename": "orders.csv", "timestamp": 5}
    header = encode_header(FILE, 9, given_, QPID, V0_9)
    properties = decode_header(to_basic(header))[2]
    assert properties["headers"] == {"a": 1, "x-filename": "orders.csv"} and "filename" not in properties
    assert decode_header(from_basic(to_basic(header), FILE, 9), QPID, V0_9) == (FILE, 9, given_)


def test_what_a_class_has_no_field_for_is_left_out() -> None:
    header = encode_header(BASIC, 1, {"correlation_id": "c", "content_type": "t", "type": "x", "priority": 2})
    assert decode_header(from_basic(header, STREAM, 1), QPID, V0_9)[2] == {"content_type": "t", "priority": 2}


@pytest.mark.parametrize("kind", [FILE, STREAM, MESSAGE])
@given(st.binary(max_size=60))
def test_garbage_becomes_a_content_without_properties_or_some(kind: int, garbage: bytes) -> None:
    header = kind.to_bytes(2, "big") + b"\0\0" + (5).to_bytes(8, "big") + garbage
    made, size, _ = decode_header(to_basic(header))
    assert (made, size) == (BASIC, 5)
    from_basic(b"\0\x3c\0\0" + (5).to_bytes(8, "big") + garbage, kind, 5)

"""The header with the stream offset in deliveries to stream consumers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp0.offsets import with_stream_offset
from leveret.wire.amqp0.properties import decode_header, encode_header

HEADERS = {
    "none": {},
    "type": {"content_type": "text/plain"},
    "encoding": {"content_encoding": "gzip", "delivery_mode": 2},
    "both": {"content_type": "application/json", "content_encoding": "gzip", "message_id": "7", "app_id": "a"},
    "empty": {"headers": {}},
    "headers": {"content_type": "text/plain", "headers": {"a": 1, "b": {"c": ["d", 2**40]}}, "priority": 3},
    "before": {"headers": {"x-stream-offset": "mine", "a": 1}, "timestamp": 5},
    "alike": {"headers": {"x-stream-offset-too": 9}, "type": "x-stream-offset"},
}


@pytest.mark.parametrize("properties", HEADERS.values(), ids=HEADERS)
def test_the_offset_is_an_additional_header(properties: dict[str, Any]) -> None:
    header = with_stream_offset(encode_header(60, 1234, properties), 2**40 + 1)
    expected = dict(properties)
    expected["headers"] = {**properties.get("headers", {}), "x-stream-offset": 2**40 + 1}
    assert decode_header(header) == (60, 1234, expected)


@given(st.integers(0, 2**63 - 1))
def test_any_offset_is_a_signed_integer_of_64_bits(offset: int) -> None:
    header = with_stream_offset(encode_header(60, 0, {}), offset)
    assert decode_header(header)[2]["headers"] == {"x-stream-offset": offset}
    assert header[14:] == b"\0\0\0\x19\x0fx-stream-offsetl" + offset.to_bytes(8, "big")


@given(st.binary(max_size=40))
def test_a_header_that_cannot_be_read_is_left_or_added_to(octets: bytes) -> None:
    """Queues contain no such headers, but no header may stop a delivery."""
    assert with_stream_offset(octets, 1)[:12] == octets[:12]

"""Records of content headers of 0-9 and 0-9-1."""

from __future__ import annotations

import struct
from typing import Any, Final

from leveret.segments import typed_json
from leveret.segments.records import DEATHS, DELIVERY_COUNT, NOTHING, Record
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.fieldtable import encode_table
from leveret.wire.amqp0.values import LongLong

# Class, weight and body size come first: messages that differ in these alone have one record.
PROPERTIES_AT: Final = 12
_LAST_SECOND: Final = 253402300799
_LARGEST: Final = (1 << 63) - 1
# What the broker puts into the headers of a delivery: a signed integer of 64 bits.
_OFFSET: Final = b"\x0fx-stream-offsetl"
_OFFSET_SIZE: Final = len(_OFFSET) + 8
_WRONG: Final = (WireError, IndexError, ValueError, struct.error)


def parse(properties: bytes) -> Record:
    """The record of the octets from the property flags on. NOTHING where they are malformed; of the field table only its
    length is looked at."""
    try:
        return _parse(properties)
    except IndexError:
        return NOTHING


def _parse(data: bytes) -> Record:
    flags = data[0] << 8 | data[1]
    pos = 2
    content_type = content_encoding = correlation_id = reply_to = message_id = kind = user_id = app_id = None
    table: bytes | None = None
    priority: int | None = None
    ttl: int | None = None
    timestamp: int | None = None
    durable = False
    if flags & 3:
        return NOTHING  # class basic has one word of flags
    if flags & 0x8000:
        start = pos + 1
        pos = start + data[pos]
        content_type = data[start:pos].decode("utf-8", "replace")
    if flags & 0x4000:
        start = pos + 1
        pos = start + data[pos]
        content_encoding = data[start:pos].decode("utf-8", "replace")
    if flags & 0x2000:
        start = pos + 4
        pos = start + (data[pos] << 24 | data[pos + 1] << 16 | data[pos + 2] << 8 | data[pos + 3])
        table = data[start:pos]
    if flags & 0x1000:
        durable = data[pos] == 2
        pos += 1
    if flags & 0x0800:
        priority = data[pos]
        pos += 1
    if flags & 0x0400:
        start = pos + 1
        pos = start + data[pos]
        correlation_id = data[start:pos].decode("utf-8", "replace")
    if flags & 0x0200:
        start = pos + 1
        pos = start + data[pos]
        reply_to = data[start:pos].decode("utf-8", "replace")
    if flags & 0x0100:
        start = pos + 1
        pos = start + data[pos]
        expiration = data[start:pos]
        if expiration.isdigit():
            ttl = int(expiration)
            if ttl > _LARGEST:
                ttl = None
    if flags & 0x0080:
        start = pos + 1
        pos = start + data[pos]
        message_id = data[start:pos].decode("utf-8", "replace")
    if flags & 0x0040:
        seconds = int.from_bytes(data[pos : pos + 8], "big")
        pos += 8
        if seconds <= _LAST_SECOND:
            timestamp = seconds * 1_000_000
    if flags & 0x0020:
        start = pos + 1
        pos = start + data[pos]
        kind = data[start:pos].decode("utf-8", "replace")
    if flags & 0x0010:
        start = pos + 1
        pos = start + data[pos]
        user_id = data[start:pos].decode("utf-8", "replace")
    if flags & 0x0008:
        start = pos + 1
        pos = start + data[pos]
        app_id = data[start:pos].decode("utf-8", "replace")
    if flags & 0x0004:
        pos += 1 + data[pos]
    if pos != len(data):
        return NOTHING
    return (content_type, content_encoding, durable, priority, correlation_id, reply_to, ttl, message_id, timestamp, kind,
            user_id, app_id, table, None, None, -1)


def decode(table: bytes) -> dict[str, Any] | None:
    """The fields as JSON data; None where they are malformed."""
    try:
        return typed_json.from_table(table, 0, len(table))
    except _WRONG:
        return None


def added(headers: dict[str, Any]) -> dict[str, Any]:
    """Headers of an overlay as JSON data, typed as consumers get them: counts in 64 bits. Names are in order at every
    level, wherever the overlay comes from."""
    found: dict[str, Any] = {}
    for name in sorted(headers):
        value = _ordered(headers[name])
        if name == DEATHS and isinstance(value, list):
            value = [_with_long_count(item) for item in value]
        elif name == DELIVERY_COUNT and isinstance(value, int):
            value = LongLong(value)
        try:
            octets = encode_table({name: value}, RABBITMQ)
            found.update(typed_json.from_table(octets, 4, len(octets)))
        except (EncodeError, *_WRONG):
            continue
    return found


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value


def _with_long_count(death: Any) -> Any:
    if isinstance(death, dict) and isinstance(death.get("count"), int):
        return {**death, "count": LongLong(death["count"])}
    return death


def take_offset(header: bytes) -> tuple[int, bytes]:
    """The offset that the broker has put into the headers of a delivery, and the header without it; -1 and the header as it
    is where there is none. The header is one that a broker has sent: it is not checked."""
    flags = header[PROPERTIES_AT]
    if not flags & 0x20:
        return -1, header
    pos = PROPERTIES_AT + 2
    if flags & 0x80:
        pos += 1 + header[pos]
    if flags & 0x40:
        pos += 1 + header[pos]
    # First in the table, or last where the publisher's octets look like it.
    end = pos + 4 + int.from_bytes(header[pos : pos + 4], "big")
    at = pos + 4
    if header[at : at + 17] != _OFFSET:
        at = end - _OFFSET_SIZE
        if header[at : at + 17] != _OFFSET:
            return -1, header
    stop = at + _OFFSET_SIZE
    size = end - pos - 4 - _OFFSET_SIZE
    offset = int.from_bytes(header[at + 17 : stop], "big")
    return offset, header[:pos] + size.to_bytes(4, "big") + header[pos + 4 : at] + header[stop:]


def headers_at(header: bytes) -> int:
    """Where the headers begin in a content header, as `Message.headers_at` has it; -1 without any."""
    try:
        flags = header[PROPERTIES_AT]
        if not flags & 0x20:
            return -1
        pos = PROPERTIES_AT + 2
        if flags & 0x80:
            pos += 1 + header[pos]
        if flags & 0x40:
            pos += 1 + header[pos]
    except IndexError:
        return -1
    return pos

"""Records from the content headers of 0-9 and 0-9-1."""

from __future__ import annotations

import struct
from typing import Final

from leveret.segments import typed_json
from leveret.segments.records import DEATHS, DELIVERY_COUNT, EMPTY_RECORD, Record, with_raw_timestamp
from leveret.segments.typed_json import JsonObject
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.fieldtable import encode_table
from leveret.wire.amqp0.values import FieldTable, FieldValue, LongLong

# Class, weight and body size precede the properties and are not part of the record.
PROPERTIES_START: Final = 12
_LAST_SECOND: Final = 253402300799
_MAX_INT64: Final = (1 << 63) - 1
# The header that the broker adds to a delivery: a signed 64-bit integer.
_OFFSET: Final = b"\x0fx-stream-offsetl"
_OFFSET_SIZE: Final = len(_OFFSET) + 8
_DECODE_ERRORS: Final = (WireError, IndexError, ValueError, struct.error)


def parse(properties: bytes) -> Record:
    """Parse encoded properties, from the property flags on.

    Returns EMPTY_RECORD if they are malformed. The field table is not decoded, only its length is checked, unless a
    timestamp that is out of range is added to it.
    """
    try:
        return _parse(properties)
    except IndexError:
        return EMPTY_RECORD


def _parse(data: bytes) -> Record:
    flags = data[0] << 8 | data[1]
    pos = 2
    content_type = content_encoding = correlation_id = reply_to = message_id = kind = user_id = app_id = None
    table: bytes | None = None
    headers: bytes | JsonObject | None = None
    priority: int | None = None
    ttl: int | None = None
    timestamp: int | None = None
    durable = False
    if flags & 3:
        return EMPTY_RECORD  # class basic has a single word of flags
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
        headers = table = data[start:pos]
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
            if ttl > _MAX_INT64:
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
        else:
            headers = with_raw_timestamp(None if table is None else decode(table), seconds)
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
        return EMPTY_RECORD
    return (
        content_type,
        content_encoding,
        durable,
        priority,
        correlation_id,
        reply_to,
        ttl,
        message_id,
        timestamp,
        kind,
        user_id,
        app_id,
        headers,
        None,
        None,
        -1,
    )


def decode(table: bytes) -> JsonObject | None:
    """Decode a field table to JSON data; None if it is malformed."""
    try:
        return typed_json.from_table(table, 0, len(table))
    except _DECODE_ERRORS:
        return None


def overlay_to_json(headers: FieldTable) -> JsonObject:
    """Return the headers of an overlay as JSON data, typed as consumers receive them (counts are 64-bit).

    Names are sorted at every level, so the result does not depend on where the overlay comes from.
    """
    found: JsonObject = {}
    for name in sorted(headers):
        value = _ordered(headers[name])
        if name == DEATHS and isinstance(value, list):
            value = [_with_long_count(item) for item in value]
        elif name == DELIVERY_COUNT and isinstance(value, int):
            value = LongLong(value)
        try:
            encoded = encode_table({name: value}, RABBITMQ)
            found.update(typed_json.from_table(encoded, 4, len(encoded)))
        except (EncodeError, *_DECODE_ERRORS):
            continue
    return found


def _ordered(value: FieldValue) -> FieldValue:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value


def _with_long_count(death: FieldValue) -> FieldValue:
    count = death.get("count") if isinstance(death, dict) else None
    return {**death, "count": LongLong(count)} if isinstance(death, dict) and isinstance(count, int) else death


def strip_offset(header: bytes) -> tuple[int, bytes]:
    """Remove the offset that the broker added to the headers of a delivery.

    The header comes from a broker, so it is not validated.

    Returns:
        The offset and the header without it; -1 and the unchanged header if it has none.
    """
    flags = header[PROPERTIES_START]
    if not flags & 0x20:
        return -1, header
    pos = PROPERTIES_START + 2
    if flags & 0x80:
        pos += 1 + header[pos]
    if flags & 0x40:
        pos += 1 + header[pos]
    # It is the first field of the table, or the last one if the publisher's own first field looks like it.
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
    """Return where the headers begin in a content header (see `Message.headers_at`); -1 if it has none."""
    try:
        flags = header[PROPERTIES_START]
        if not flags & 0x20:
            return -1
        pos = PROPERTIES_START + 2
        if flags & 0x80:
            pos += 1 + header[pos]
        if flags & 0x40:
            pos += 1 + header[pos]
    except IndexError:
        return -1
    return pos

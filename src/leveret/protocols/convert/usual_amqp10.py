"""Cached 1.0 sections for 0-9-1 messages that differ only in ids and times.

Most publishers repeat the same headers and change only message-id, correlation-id and timestamp. The rest, converted by
`to_amqp10`, is cached in pieces, between which these three are inserted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.protocols.convert.names import ID_MARKS
from leveret.wire.amqp0.errors import WireError
from leveret.wire.amqp0.properties import decode_header
from leveret.wire.amqp0.values import ContentProperties
from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.decode import value_end
from leveret.wire.amqp10.encode import encode_compound
from leveret.wire.amqp10.sections import split

# Flags of content properties (0-9-1 section 4.2.6.1).
_CONTENT_TYPE: Final = 0x8000
_CONTENT_ENCODING: Final = 0x4000
_HEADERS: Final = 0x2000
_DELIVERY_MODE: Final = 0x1000
_PRIORITY: Final = 0x0800
_CORRELATION_ID: Final = 0x0400
_REPLY_TO: Final = 0x0200
_EXPIRATION: Final = 0x0100
_MESSAGE_ID: Final = 0x0080
_TIMESTAMP: Final = 0x0040
# The continuation flag and the unused flag.
_UNUSUAL: Final = 0x0003
DIFFERING: Final = _CORRELATION_ID | _MESSAGE_ID | _TIMESTAMP
# Properties that the cached sections depend on. The others are in the header section or the body.
_CACHED_FIELDS: Final = 0xFFFF & ~(DIFFERING | _DELIVERY_MODE | _PRIORITY | _EXPIRATION)

_FLAGS_AT: Final = 12
_PROPERTIES: Final = b"\x00\x53\x73"
_NULL: Final = b"\x40"
_FIELDS: Final = 13
_MESSAGE_ID_FIELD: Final = 0
_CORRELATION_ID_FIELD: Final = 5
_CREATION_TIME_FIELD: Final = 9
_LAST_SECOND: Final = (1 << 63) // 1000 - 1
_MAX_CACHED: Final = 1024
_MAX_HEADER_SIZE: Final = 2048

_Key = tuple[bytes, int, bytes, bytes, bytes]


class Pieces:
    """Encoded sections without message-id, correlation-id and creation-time.

    Attributes:
        before: bytes before the properties section.
        after: bytes after it.
        first: fields between message-id and correlation-id; `first_short` omits trailing nulls.
        second: fields between correlation-id and creation-time; `second_short` omits trailing nulls.
        third: fields after creation-time, without trailing nulls.
        first_count: number of fields of a list that ends with `first_short`; 0 if that is empty. `second_count` and
            `third_count` likewise.
    """

    __slots__ = (
        "after",
        "before",
        "first",
        "first_count",
        "first_short",
        "second",
        "second_count",
        "second_short",
        "third",
        "third_count",
    )

    def __init__(self, data: bytes) -> None:
        """Split `data`: one byte of the caller, then the sections."""
        sections = split(data[1:])
        begin = 1 + sections.bare
        end = 1 + sections.properties_end if sections.properties >= 0 else begin
        self.before = data[:begin]
        self.after = data[end:]
        fields = _fields(data, begin, end)
        self.first = b"".join(fields[1:5])
        self.second = b"".join(fields[6:9])
        self.third, self.third_count = _trimmed(fields, 10, _FIELDS)
        self.second_short, self.second_count = _trimmed(fields, 6, 9)
        self.first_short, self.first_count = _trimmed(fields, 1, 5)

    def sections(self, message_id: bytes, correlation_id: bytes, creation_time: bytes) -> bytes:
        """Return the sections with these encoded fields inserted."""
        if self.third_count:
            count = self.third_count
            content = message_id + self.first + correlation_id + self.second + creation_time + self.third
        elif creation_time != _NULL:
            count = _CREATION_TIME_FIELD + 1
            content = message_id + self.first + correlation_id + self.second + creation_time
        elif self.second_count:
            count = self.second_count
            content = message_id + self.first + correlation_id + self.second_short
        elif correlation_id != _NULL:
            count = _CORRELATION_ID_FIELD + 1
            content = message_id + self.first + correlation_id
        elif self.first_count:
            count = self.first_count
            content = message_id + self.first_short
        else:
            count = _MESSAGE_ID_FIELD + 1
            content = message_id
        return self.before + _PROPERTIES + encode_compound(codes.LIST_8, count, content) + self.after


def _fields(data: bytes, begin: int, end: int) -> list[bytes]:
    """Return the encoded fields of the properties section, with nulls for absent ones."""
    fields: list[bytes] = []
    if begin < end:
        at = begin + len(_PROPERTIES)
        pos = at + (3 if data[at] == codes.LIST_8 else 9)
        while pos < end:
            stop = value_end(data, pos, end)
            fields.append(data[pos:stop])
            pos = stop
    return fields + [_NULL] * (_FIELDS - len(fields))


def _trimmed(fields: list[bytes], begin: int, end: int) -> tuple[bytes, int]:
    """Return fields without trailing nulls, and the length of a list that ends with them; 0 if no field remains."""
    while end > begin and fields[end - 1] == _NULL:
        end -= 1
    return b"".join(fields[begin:end]), end if end > begin else 0


_cache: dict[_Key, Pieces | None] = {}


def usual_sections(header: bytes, address: bytes, make: Callable[[bytes, ContentProperties], bytes]) -> bytes | None:
    """Return the sections for an address and a content header with an id or a timestamp.

    Args:
        header: the content header.
        address: the address of the message.
        make: converts properties that are not cached.

    Returns:
        None if the header has an unusual form.
    """
    flags = header[_FLAGS_AT] << 8 | header[_FLAGS_AT + 1]
    if flags & _UNUSUAL:
        return None
    pos = begin = _FLAGS_AT + 2
    correlation_id = reply_to = message_id = b""
    seconds = -1
    try:
        if flags & _CONTENT_TYPE:
            pos += 1 + header[pos]
        if flags & _CONTENT_ENCODING:
            pos += 1 + header[pos]
        if flags & _HEADERS:
            pos += 4 + (header[pos] << 24 | header[pos + 1] << 16 | header[pos + 2] << 8 | header[pos + 3])
        stop = pos
        if flags & _DELIVERY_MODE:
            pos += 1
        if flags & _PRIORITY:
            pos += 1
        if flags & _CORRELATION_ID:
            correlation_id = header[pos : pos + 1 + header[pos]]
            pos += len(correlation_id)
        if flags & _REPLY_TO:
            reply_to = header[pos : pos + 1 + header[pos]]
            pos += len(reply_to)
        if flags & _EXPIRATION:
            pos += 1 + header[pos]
        if flags & _MESSAGE_ID:
            message_id = header[pos : pos + 1 + header[pos]]
            pos += len(message_id)
        if flags & _TIMESTAMP:
            seconds = int.from_bytes(header[pos : pos + 8], "big")
            pos += 8
    except IndexError:
        return None
    if not (message_id.isascii() and correlation_id.isascii()):
        return None
    # The check includes the length bytes, so ids of 128 bytes and more are not cached.
    key = (address, flags & _CACHED_FIELDS, header[begin:stop], reply_to, header[pos:])
    pieces = _cache.get(key)
    if pieces is None:
        if key in _cache:
            return None
        pieces = _split(header, address, make)
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        if len(header) < _MAX_HEADER_SIZE:
            _cache[key] = pieces
        if pieces is None:
            return None
    return pieces.sections(
        b"\xa1" + message_id if message_id else _NULL,
        b"\xa1" + correlation_id if correlation_id else _NULL,
        b"\x83" + (min(seconds, _LAST_SECOND) * 1000).to_bytes(8, "big") if seconds >= 0 else _NULL,
    )


def _split(header: bytes, address: bytes, make: Callable[[bytes, ContentProperties], bytes]) -> Pieces | None:
    """Return the pieces; None if a header contains the original type of an id."""
    try:
        properties = decode_header(header)[2]
    except WireError:
        return None
    headers = properties.get("headers") or {}
    if any(mark in headers for mark in ID_MARKS):
        return None
    for name in ("message_id", "correlation_id", "timestamp"):
        properties.pop(name, None)
    return Pieces(make(address, properties))

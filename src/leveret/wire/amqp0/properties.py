"""The content header: class, body size and content properties (0-9-1 section 4.2.6.1).

    class (2)  weight (2)  body size (8)  property flags (2, and 2 more for each word whose last bit is set)  properties

A property is present if its flag is set; the first property has the highest bit. Headers are stored and delivered as
received. `scan` extracts the properties that routing and queueing need; the others are decoded on demand.
"""

from __future__ import annotations

import struct
from typing import Final

from leveret.wire.amqp0 import dialects
from leveret.wire.amqp0.commands import Publish
from leveret.wire.amqp0.constants import SYNTAX_ERROR
from leveret.wire.amqp0.dialects import RABBITMQ, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.fieldtable import (
    check_table,
    decode_table,
    encode_short_string,
    encode_table,
    find_text,
    value_end,
)
from leveret.wire.amqp0.methods import decode_field, encode_field, field_end
from leveret.wire.amqp0.model import FieldSpec, Version
from leveret.wire.amqp0.table_amqp091 import V0_9_1
from leveret.wire.amqp0.values import ContentProperties, FieldTable

_U32: Final = struct.Struct(">I").unpack_from
_FIXED: Final = struct.Struct(">HHQ")
_PACK_U16: Final = struct.Struct(">H").pack
_PACK_U32: Final = struct.Struct(">I").pack
_PACK_U64: Final = struct.Struct(">Q").pack

# Offset of the property flags, and the minimum size of a header in bytes.
FLAGS_AT: Final = 12
HEADER_MIN_SIZE: Final = 14
_BASIC: Final = 60

_Text = str | bytes | None

_MALFORMED: Final = "the content header's properties are malformed"


def scan(publish: Publish, header: bytes, dialect: Dialect) -> bool:
    """Set the properties of `publish` from a header of class basic.

    Returns:
        False if the header is malformed, exactly when `decode_header` raises an error.
    """
    try:
        flags = header[FLAGS_AT] << 8 | header[FLAGS_AT + 1]
        pos = HEADER_MIN_SIZE
        if flags & 3:
            if flags & 2:
                return False
            more = True
            while more:
                if header[pos] or header[pos + 1] > 1:
                    return False
                more = header[pos + 1] == 1
                pos += 2
        if flags & 0x8000:  # content-type
            pos += 1 + header[pos]
        if flags & 0x4000:  # content-encoding
            pos += 1 + header[pos]
        if flags & 0x2000:
            publish.headers_at = pos
            end = pos + 4 + (header[pos] << 24 | header[pos + 1] << 16 | header[pos + 2] << 8 | header[pos + 3])
            if end > len(header) or not check_table(header, pos + 4, end, dialect):
                return False
            pos = end
        if flags & 0x1000:
            publish.delivery_mode = header[pos]
            pos += 1
        if flags & 0x0800:
            publish.priority = header[pos]
            pos += 1
        if flags & 0x0400:  # correlation-id
            pos += 1 + header[pos]
        if flags & 0x0200:  # reply-to
            pos += 1 + header[pos]
        if flags & 0x0100:
            start = pos + 1
            pos = start + header[pos]
            publish.expiration = header[start:pos]
        if flags & 0x0080:  # message-id
            pos += 1 + header[pos]
        if flags & 0x0040:  # timestamp
            pos += 8
        if flags & 0x0020:  # type
            pos += 1 + header[pos]
        if flags & 0x0010:
            start = pos + 1
            pos = start + header[pos]
            publish.user_id = header[start:pos]
        if flags & 0x0008:  # app-id
            pos += 1 + header[pos]
        if flags & 0x0004:  # cluster-id
            pos += 1 + header[pos]
    except IndexError:
        return False
    return pos == len(header)


def check_header(header: bytes, dialect: Dialect, version: Version) -> bool:
    """Return whether `decode_header` accepts the header, of any class."""
    try:
        decode_header(header, dialect, version)
    except WireError:
        return False
    return True


def decode_header(
    header: bytes, dialect: Dialect = RABBITMQ, version: Version = V0_9_1
) -> tuple[int, int, ContentProperties]:
    """Return class, body size and the present properties by name (`content_type`). `timestamp` is in seconds.

    Raises:
        WireError: 502, the header is malformed: it is too short, its class has no content, a flag has no property, or bytes
            follow the last property.
    """
    class_id, body_size, present, pos = _properties_of(header, version)
    properties: ContentProperties = {}
    end = len(header)
    for field in present:
        stop = field_end(field.type, header, pos, end)
        if stop > end:
            raise WireError(SYNTAX_ERROR, f"the content header ends within {field.spec_name}")
        properties[field.name] = decode_field(field.type, header, pos, stop, dialect)
        pos = stop
    if pos != end:
        raise WireError(SYNTAX_ERROR, f"the content header has {end - pos} bytes after its last property")
    return class_id, body_size, properties


def _properties_of(header: bytes, version: Version) -> tuple[int, int, list[FieldSpec], int]:
    """Return class, body size, the properties whose flags are set, and the position of the first of them."""
    if len(header) < HEADER_MIN_SIZE:
        raise WireError(SYNTAX_ERROR, "the content header is too short")
    class_id: int
    body_size: int
    class_id, _, body_size = _FIXED.unpack_from(header)
    flags = header[FLAGS_AT] << 8 | header[FLAGS_AT + 1]
    owner = version.classes.get(class_id)
    if owner is None:
        raise WireError(SYNTAX_ERROR, f"class {class_id} has no content")
    present: list[FieldSpec] = []
    pos = HEADER_MIN_SIZE
    word = 0
    while True:
        for bit in range(15):
            if flags >> (15 - bit) & 1:
                index = word * 15 + bit
                if index >= len(owner.properties):
                    raise WireError(SYNTAX_ERROR, f"{owner.name} has no content property {index + 1}")
                present.append(owner.properties[index])
        if not flags & 1:
            return class_id, body_size, present, pos
        if pos + 2 > len(header):
            raise WireError(SYNTAX_ERROR, "the content header ends within its property flags")
        flags = header[pos] << 8 | header[pos + 1]
        pos += 2
        word += 1


def encode_header(
    class_id: int, body_size: int, properties: ContentProperties, dialect: Dialect = RABBITMQ, version: Version = V0_9_1
) -> bytes:
    """Return the payload of a content header frame. Properties that are None are omitted.

    Raises:
        EncodeError: a property is unknown or does not fit its field.
    """
    owner = version.classes.get(class_id)
    if owner is None:
        raise EncodeError(f"class {class_id} has no content")
    words = [0] * (1 + max(0, len(owner.properties) - 1) // 15)
    pieces: list[bytes] = []
    known = 0
    for index, field in enumerate(owner.properties):
        if field.name not in properties:
            continue
        known += 1
        value = properties[field.name]
        if value is None:
            continue
        words[index // 15] |= 0x8000 >> index % 15
        try:
            pieces.append(encode_field(field, value, dialect))
        except (ValueError, struct.error) as error:
            raise EncodeError(f"{field.name}: {error}") from error
    if known != len(properties):
        unknown = set(properties) - {field.name for field in owner.properties}
        raise EncodeError(f"{owner.name} has no {', '.join(sorted(unknown))}")
    while len(words) > 1 and words[-1] == 0:
        words.pop()
    for index in range(len(words) - 1):
        words[index] |= 1
    flags = b"".join([_PACK_U16(word) for word in words])
    return _FIXED.pack(class_id, 0, body_size) + flags + b"".join(pieces)


def encode_basic(
    content_type: _Text,
    content_encoding: _Text,
    headers: FieldTable | None,
    delivery_mode: int | None,
    priority: int | None,
    correlation_id: _Text,
    reply_to: _Text,
    expiration: _Text,
    message_id: _Text,
    timestamp: int | None,
    type: _Text,
    user_id: _Text,
    app_id: _Text,
    cluster_id: _Text,
    dialect: Dialect = RABBITMQ,
) -> bytes:
    """Return flags and properties of a header of class basic, the part after the body size. `timestamp` is in seconds.

    For callers that build the rest of the header for each message.

    Raises:
        EncodeError, ValueError, struct.error: a value does not fit its field. `encode_header` has better messages.
    """
    flags = 0
    pieces: list[bytes] = [b""]
    if content_type is not None:
        flags |= 0x8000
        pieces.append(encode_short_string(content_type))
    if content_encoding is not None:
        flags |= 0x4000
        pieces.append(encode_short_string(content_encoding))
    if headers is not None:
        flags |= 0x2000
        pieces.append(encode_table(headers, dialect))
    if delivery_mode is not None:
        flags |= 0x1000
        pieces.append(bytes((delivery_mode,)))
    if priority is not None:
        flags |= 0x0800
        pieces.append(bytes((priority,)))
    if correlation_id is not None:
        flags |= 0x0400
        pieces.append(encode_short_string(correlation_id))
    if reply_to is not None:
        flags |= 0x0200
        pieces.append(encode_short_string(reply_to))
    if expiration is not None:
        flags |= 0x0100
        pieces.append(encode_short_string(expiration))
    if message_id is not None:
        flags |= 0x0080
        pieces.append(encode_short_string(message_id))
    if timestamp is not None:
        flags |= 0x0040
        pieces.append(_PACK_U64(timestamp))
    if type is not None:
        flags |= 0x0020
        pieces.append(encode_short_string(type))
    if user_id is not None:
        flags |= 0x0010
        pieces.append(encode_short_string(user_id))
    if app_id is not None:
        flags |= 0x0008
        pieces.append(encode_short_string(app_id))
    if cluster_id is not None:
        flags |= 0x0004
        pieces.append(encode_short_string(cluster_id))
    pieces[0] = _PACK_U16(flags)
    return b"".join(pieces)


def decode_headers_table(header: bytes, headers_at: int, dialect: Dialect = RABBITMQ) -> FieldTable:
    """Decode the `headers` table of a header. The length of the table is at `headers_at`.

    Raises:
        WireError: 502, the table is malformed.
    """
    return decode_table(header, headers_at + 4, _headers_end(header, headers_at), dialect)


def find_header(header: bytes, headers_at: int, name: bytes, dialect: Dialect = RABBITMQ) -> str:
    """Return a text in the `headers` table of a header, as `find_text`. The length of the table is at `headers_at`.

    Raises:
        WireError: 502, the table is malformed.
    """
    return find_text(header, headers_at + 4, _headers_end(header, headers_at), name, dialect)


def _headers_end(header: bytes, headers_at: int) -> int:
    if headers_at + 4 > len(header):
        raise WireError(SYNTAX_ERROR, _MALFORMED)
    length: int = _U32(header, headers_at)[0]
    end = headers_at + 4 + length
    if end > len(header):
        raise WireError(SYNTAX_ERROR, _MALFORMED)
    return end


def overlay_header(header: bytes, headers: FieldTable, drop_expiration: bool, dialect: Dialect = RABBITMQ) -> bytes:
    """Set some of the `headers` of class basic (None removes one), and optionally remove `expiration`.

    Everything else stays unchanged, byte for byte.

    Raises:
        WireError: 502, the header is malformed.
        EncodeError: the dialect does not support a value.
    """
    _, _, present, pos = _properties_of(header, V0_9_1)
    end = len(header)
    flags = header[FLAGS_AT] << 8 | header[FLAGS_AT + 1]
    pieces: list[bytes] = [header[HEADER_MIN_SIZE:pos]]
    added: FieldTable = {name: value for name, value in headers.items() if value is not None}
    for field in present:
        stop = field_end(field.type, header, pos, end)
        if stop > end:
            raise WireError(SYNTAX_ERROR, _MALFORMED)
        if field.name == "headers" and headers:
            kept = _without(header, pos + 4, stop, headers, dialect)
            pieces.append(_join_table(kept, encode_table(added, dialect)))
        elif field.name == "expiration" and drop_expiration:
            flags &= ~0x0100
        else:
            pieces.append(header[pos:stop])
        pos = stop
    if pos != end:
        raise WireError(SYNTAX_ERROR, _MALFORMED)
    if added and not flags & 0x2000:
        before = 1 + (flags >> 15) + (flags >> 14 & 1)
        pieces.insert(before, encode_table(added, dialect))
        flags |= 0x2000
    return header[:FLAGS_AT] + _PACK_U16(flags) + b"".join(pieces)


def shorten_array(header: bytes, name: bytes, limit: int, dialect: Dialect = RABBITMQ) -> bytes:
    """Remove the last elements of an array in the `headers` of class basic until the header has at most `limit` bytes.

    Everything else stays unchanged, byte for byte. The header is returned as it is if no element can stay.

    Raises:
        WireError: 502, the header is malformed.
    """
    _, _, present, pos = _properties_of(header, V0_9_1)
    end = len(header)
    for field in present:
        stop = field_end(field.type, header, pos, end)
        if stop > end:
            raise WireError(SYNTAX_ERROR, _MALFORMED)
        if field.name == "headers":
            return _with_shorter_array(header, pos, stop, name, len(header) - limit, dialect)
        pos = stop
    return header


def _with_shorter_array(header: bytes, pos: int, end: int, name: bytes, excess: int, dialect: Dialect) -> bytes:
    """Shorten an array in the table between `pos` and `end` by at least `excess` bytes, unless it would be empty."""
    at = pos + 4
    while at < end:
        tag = at + 1 + header[at]
        if tag >= end:
            raise WireError(SYNTAX_ERROR, _MALFORMED)
        stop = value_end(header, tag, end, dialect)
        if header[at + 1 : tag] == name and dialect.types[header[tag]] == dialects.ARRAY:
            first = last = tag + 5
            while last < stop and (after := value_end(header, last, stop, dialect)) <= stop - excess:
                last = after
            if last == first:
                return header
            before = _PACK_U32(end - pos - 4 - (stop - last)) + header[pos + 4 : tag + 1]
            return header[:pos] + before + _PACK_U32(last - first) + header[first:last] + header[stop:]
        at = stop
    return header


def _without(header: bytes, pos: int, end: int, names: FieldTable, dialect: Dialect) -> bytes:
    """Return the encoded fields of a table, except those with the given names."""
    kept: list[bytes] = []
    while pos < end:
        stop = pos + 1 + header[pos]
        if stop >= end:
            raise WireError(SYNTAX_ERROR, _MALFORMED)
        name = header[pos + 1 : stop].decode("utf-8", "surrogateescape")
        stop = value_end(header, stop, end, dialect)
        if name not in names:
            kept.append(header[pos:stop])
        pos = stop
    return b"".join(kept)


def _join_table(kept: bytes, added: bytes) -> bytes:
    return struct.pack(">I", len(kept) + len(added) - 4) + kept + added[4:]

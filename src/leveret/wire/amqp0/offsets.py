"""The header `x-stream-offset` for stream consumers, which is added to a content header without decoding it."""

from __future__ import annotations

import struct
from typing import Final

from leveret.wire.amqp0.errors import WireError
from leveret.wire.amqp0.properties import FLAGS_AT, HEADER_MIN_SIZE, overlay_header
from leveret.wire.amqp0.values import LongLong

NAME: Final = "x-stream-offset"
_NAME_BYTES: Final = NAME.encode()
# The field of the table: its name, and the tag of a signed 64-bit integer.
_FIELD: Final = bytes((len(_NAME_BYTES),)) + _NAME_BYTES + b"l"
_FIELD_SIZE: Final = len(_FIELD) + 8
_ALONE: Final = struct.pack(">I", _FIELD_SIZE) + _FIELD
_PACK_OFFSET: Final = struct.Struct(">q").pack
_PACK_SIZE: Final = struct.Struct(">I").pack


def with_stream_offset(header: bytes, offset: int) -> bytes:
    """Set the stream offset in the `headers` of a content header of class basic, replacing an existing one.

    Everything else stays unchanged, byte for byte. A header that cannot be parsed is returned unchanged.
    """
    try:
        return _with_offset(header, offset)
    except (IndexError, WireError):
        return header


def _with_offset(header: bytes, offset: int) -> bytes:
    if header[FLAGS_AT + 1] & 3 or _NAME_BYTES in header:
        return overlay_header(header, {NAME: LongLong(offset)}, False)
    flags = header[FLAGS_AT]
    at = HEADER_MIN_SIZE
    if flags & 0x80:  # content-type
        at += 1 + header[at]
    if flags & 0x40:  # content-encoding
        at += 1 + header[at]
    packed: bytes = _PACK_OFFSET(offset)
    if flags & 0x20:
        size = (header[at] << 24 | header[at + 1] << 16 | header[at + 2] << 8 | header[at + 3]) + _FIELD_SIZE
        wider: bytes = _PACK_SIZE(size)
        return header[:at] + wider + _FIELD + packed + header[at + 4 :]
    return header[:FLAGS_AT] + bytes((flags | 0x20,)) + header[FLAGS_AT + 1 : at] + _ALONE + packed + header[at:]

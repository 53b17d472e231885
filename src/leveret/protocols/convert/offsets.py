"""The message annotation `x-stream-offset`, which stream readers receive."""

from __future__ import annotations

import struct
from typing import Final

from leveret.protocols.convert.annotations import merged
from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.decode import value_end
from leveret.wire.amqp10.errors import DecodeError, EncodeError

NAME: Final = "x-stream-offset"
_NAME_BYTES: Final = NAME.encode()
# The key and the format code of its value, a 64-bit signed integer.
_PAIR: Final = bytes((codes.SYMBOL_8, len(_NAME_BYTES))) + _NAME_BYTES + bytes((codes.LONG,))
_PAIR_SIZE: Final = len(_PAIR) + 8
_SECTION: Final = b"\x00\x53\x72"
_ALONE: Final = _SECTION + bytes((codes.MAP_8, _PAIR_SIZE + 1, 2)) + _PAIR
_PACK_OFFSET: Final = struct.Struct(">q").pack


def with_stream_offset(sections: bytes, offset: int) -> bytes:
    """Return the sections after the delivery annotations, with the offset set in the message annotations.

    Malformed annotations stay unchanged.
    """
    packed: bytes = _PACK_OFFSET(offset)
    if not sections.startswith(_SECTION):
        if sections and sections[1] != codes.SMALL_ULONG:
            return _general(sections, offset)  # descriptors in another form
        return _ALONE + packed + sections
    code = sections[3]
    if code == codes.MAP_8:
        size = sections[4] + _PAIR_SIZE
        count = sections[5] + 2
        at = 6
        stop = 5 + sections[4]
    elif code == codes.MAP_32:
        size = int.from_bytes(sections[4:8], "big") + _PAIR_SIZE
        count = int.from_bytes(sections[8:12], "big") + 2
        at = 12
        stop = value_end(sections, 3, len(sections))
    else:
        return _general(sections, offset)
    if sections.find(_NAME_BYTES, at, stop) >= 0:
        return _general(sections, offset)
    if code == codes.MAP_8 and size < 256 and count < 256:
        return _SECTION + bytes((codes.MAP_8, size, count)) + _PAIR + packed + sections[at:]
    if code == codes.MAP_8:
        size += 3  # the count is wider
    return (
        _SECTION
        + bytes((codes.MAP_32,))
        + size.to_bytes(4, "big")
        + count.to_bytes(4, "big")
        + _PAIR
        + packed
        + sections[at:]
    )


def _general(sections: bytes, offset: int) -> bytes:
    try:
        return merged(sections, {NAME: offset})
    except (DecodeError, EncodeError):
        return sections

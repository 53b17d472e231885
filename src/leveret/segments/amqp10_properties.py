"""The properties section of AMQP 1.0 as a list of fields.

Common encodings are parsed here; all others go to the generic decoder.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from leveret.wire.amqp10 import codes, message
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.message import PROPERTY_FIELDS
from leveret.wire.amqp10.sections import Sections
from leveret.wire.amqp10.values import Checked, ULong

NO_FIELDS: Final[list[Checked]] = [None] * len(PROPERTY_FIELDS)

_IDENTIFIER: Final = frozenset((codes.STRING_8, codes.ULONG, codes.SMALL_ULONG, codes.UUID, codes.BINARY_8))
_STRING: Final = frozenset((codes.STRING_8,))
_SYMBOL: Final = frozenset((codes.SYMBOL_8,))
_TIMESTAMP: Final = frozenset((codes.TIMESTAMP,))
# Format codes that the fast path accepts, by field.
_COMMON_CODES: Final = (
    _IDENTIFIER,
    frozenset((codes.BINARY_8,)),
    _STRING,
    _STRING,
    _STRING,
    _IDENTIFIER,
    _SYMBOL,
    _SYMBOL,
    _TIMESTAMP,
    _TIMESTAMP,
    _STRING,
    frozenset((codes.SMALL_UINT, codes.UINT)),
    _STRING,
)


def fields_of(sections: Sections) -> list[Checked]:
    """Return the fields, None for each absent one; all are None if the section is absent or malformed."""
    if sections.properties < 0:
        return NO_FIELDS
    found = _decode_common(sections.data, sections.properties, sections.properties_end)
    if found is not None:
        return found
    try:
        fields = message.properties(sections)
    except (DecodeError, IndexError, ValueError, OverflowError):
        return NO_FIELDS
    return NO_FIELDS if fields is None else [getattr(fields, name) for name in PROPERTY_FIELDS]


def _decode_common(data: bytes, pos: int, end: int) -> list[Checked] | None:
    """Parse a section whose fields have common encodings; None if it has others."""
    if end - pos < 6 or data[pos + 1] != codes.SMALL_ULONG or data[pos + 3] != codes.LIST_8:
        return None
    count = data[pos + 5]
    pos += 6
    if count > len(PROPERTY_FIELDS):
        return None
    fields: list[Checked] = []
    try:
        for index in range(count):
            code = data[pos]
            pos += 1
            if code == codes.NULL:
                fields.append(None)
                continue
            if code not in _COMMON_CODES[index]:
                return None
            if code == codes.STRING_8 or code == codes.SYMBOL_8:
                start = pos + 1
                pos = start + data[pos]
                fields.append(data[start:pos].decode("utf-8" if code == codes.STRING_8 else "ascii"))
            elif code == codes.TIMESTAMP:
                fields.append(int.from_bytes(data[pos : pos + 8], "big", signed=True))
                pos += 8
            elif code == codes.BINARY_8:
                start = pos + 1
                pos = start + data[pos]
                fields.append(data[start:pos])
            elif code == codes.UUID:
                fields.append(UUID(bytes=data[pos : pos + 16]))
                pos += 16
            elif code == codes.ULONG:
                fields.append(ULong(int.from_bytes(data[pos : pos + 8], "big")))
                pos += 8
            elif code == codes.SMALL_ULONG:
                fields.append(ULong(data[pos]))
                pos += 1
            elif code == codes.UINT:
                fields.append(int.from_bytes(data[pos : pos + 4], "big"))
                pos += 4
            else:
                fields.append(data[pos])
                pos += 1
    except (IndexError, ValueError):
        return None
    if pos != end:
        return None
    return fields + NO_FIELDS[count:]

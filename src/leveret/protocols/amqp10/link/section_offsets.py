"""Positions in a message, as in `received` states: a section number and an offset in the section (messaging 3.4.1)."""

from __future__ import annotations

from typing import Final

from leveret.broker.bodies import Body, StoredBody, whole
from leveret.wire.amqp10.decode import value_end
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.sections import section_ranges

# The usual head of a data section, up to its length.
_SHORT_DATA = b"\x00\x53\x75\xa0"
_LONG_DATA = b"\x00\x53\x75\xb0"


# Maximum number of sections to search for a position, which limits the time.
MAX_SECTIONS: Final = 1000


def end_of(data: bytes) -> tuple[int, int]:
    """Return the position after the received part of a message.

    Raises DecodeError if it is not a message, or has too many sections.
    """
    ranges = section_ranges(data, MAX_SECTIONS)
    if not ranges:
        return 0, 0
    last = ranges[len(ranges) - 1]
    return len(ranges) - 1, last[2] - last[1]


def offset_in(data: bytes, section: int, offset: int) -> int:
    """Return the byte offset of a position in a message or its first part; more than its size for a later position.

    Raises DecodeError as `end_of` does.
    """
    if not section and not offset:
        return 0
    ranges = section_ranges(data, MAX_SECTIONS)
    if section == len(ranges):
        return len(data) + offset
    return ranges[section][1] + offset if section < len(ranges) else len(data) + 1


def offset_of(head: bytes, body: Body, tail: bytes, section: int, offset: int) -> int:
    """Return the byte offset of a position in a message of head, body and tail.

    The result is the end of the message for a later position, and 0 if the message has too many sections to search.
    """
    try:
        return _offset_of(head, body, tail, section, offset)
    except DecodeError:
        return 0


def _offset_of(head: bytes, body: Body, tail: bytes, section: int, offset: int) -> int:
    ranges = [(begin, end) for _, begin, end in section_ranges(head)]
    at = len(head)
    data = b"" if isinstance(body, StoredBody) else whole(body)
    size = body.size if isinstance(body, StoredBody) else len(data)
    if ranges and _is_cut(head, ranges[len(ranges) - 1][0]):
        # A converted body: its section begins in the head.
        ranges.append((ranges.pop()[0], at + size))
    elif isinstance(body, StoredBody):
        ranges += [(at + begin, at + end) for begin, end in _stored(body)]
    else:
        ranges += [(at + begin, at + end) for _, begin, end in section_ranges(data, MAX_SECTIONS)]
    at += size
    ranges += [(at + begin, at + end) for _, begin, end in section_ranges(tail)]
    if section >= len(ranges):
        return at + len(tail)
    begin, end = ranges[section]
    return min(begin + offset, end)


def _is_cut(data: bytes, begin: int) -> bool:
    """Return whether the section at `begin` continues after the data."""
    try:
        value_end(data, begin, len(data))
    except DecodeError as error:
        return error.short
    return False


def _stored(body: StoredBody) -> list[tuple[int, int]]:
    """Return the sections of a stored body. Only the heads of data sections are read."""
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < body.size:
        head = body.read(at, 8)
        if head.startswith(_LONG_DATA) and len(head) == 8:
            end = at + 8 + int.from_bytes(head[4:8], "big")
        elif head.startswith(_SHORT_DATA) and len(head) > 4:
            end = at + 5 + head[4]
        else:
            return [(begin, end) for _, begin, end in section_ranges(whole(body), MAX_SECTIONS)]
        if len(ranges) == MAX_SECTIONS:
            raise DecodeError(at, f"a message has more than {MAX_SECTIONS} sections, the maximum")
        ranges.append((at, end))
        at = end
    return ranges

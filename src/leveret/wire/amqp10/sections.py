"""Positions of the sections of a message (messaging 3.2), and the fields that queueing needs, without decoding the rest.

The bare message stays unchanged, byte for byte. A node that forwards a message encodes `header` and `delivery-annotations`
again and puts them before the unchanged rest, which starts at `Sections.rest`, or at `Sections.bare` if the node also
encodes the message annotations again.
"""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.codes import TYPES, WIDTHS
from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.constants import DECODE_ERROR, RESOURCE_LIMIT_EXCEEDED
from leveret.wire.amqp10.decode import Decoder, constructor, content_end, value_end
from leveret.wire.amqp10.descriptors import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Header
from leveret.wire.amqp10.specs import SECTIONS
from leveret.wire.amqp10.specs import TYPES as SPECS

ABSENT: Final = -1
# Maximum number of sections in a message, which limits the time to parse it.
MAX_SECTIONS: Final = 10_000
# More bytes than any message has.
ENDLESS: Final = 1 << 40

# By descriptor: the name of the section, and its primitive type.
_NAMES: Final[dict[int, str]] = {
    HEADER: "header",
    PROPERTIES: "properties",
    **{code: spec.name for code, spec in SECTIONS.items()},
}
_TYPES: Final[dict[int, str]] = {HEADER: "list", PROPERTIES: "list", **{code: spec.base for code, spec in SECTIONS.items()}}
# By section, starting with the header: its format codes.
_CODES: Final[list[bytes]] = [
    bytes(code for code in range(256) if TYPES.get(code) == _TYPES.get(kind)) for kind in range(HEADER, FOOTER + 1)
]
_PROPERTIES_COUNT: Final = 13
_BY_SYMBOL: Final[dict[bytes, int]] = {name.encode(): number for name, number in SPECS.descriptors.items()}
# Bytes of an unknown descriptor that an error shows.
MAX_SHOWN: Final = 100


class Sections:
    """The start and end of each section of a message, as offsets in `data`; ABSENT (-1) if there is none.

    header, ..., footer  the start of each section, at the `0x00` of its descriptor, and `..._end` its end. `body` is the
                start of the first section with application data, and `body_end` the end of the last one
    body_kind   the descriptor of the body sections: DATA, AMQP_SEQUENCE or AMQP_VALUE; 0 if there are none
    rest        the start of the message annotations, or of the bare message if there are none
    bare        the start of the bare message: properties, application properties or body
    end         the end of the parsed data: all of it, or the start of a truncated section

    durable, priority, ttl (ms), first_acquirer, delivery_count: fields of the header; False, -1, -1, False, 0 if absent
    user_id, to, subject: the bytes of these properties; None if absent
    absolute_expiry_time: ms since 1970; -1 if absent
    """

    # Class attributes save time: every received message has such an object, and most fields keep these values.
    header: int = ABSENT
    header_end: int = ABSENT
    delivery_annotations: int = ABSENT
    delivery_annotations_end: int = ABSENT
    message_annotations: int = ABSENT
    message_annotations_end: int = ABSENT
    properties: int = ABSENT
    properties_end: int = ABSENT
    application_properties: int = ABSENT
    application_properties_end: int = ABSENT
    body: int = ABSENT
    body_end: int = ABSENT
    footer: int = ABSENT
    footer_end: int = ABSENT
    body_kind: int = 0
    rest: int = ABSENT
    bare: int = ABSENT
    end: int = 0
    durable: bool = False
    priority: int = -1
    ttl: int = -1
    first_acquirer: bool = False
    delivery_count: int = 0
    user_id: bytes | None = None
    to: bytes | None = None
    subject: bytes | None = None
    absolute_expiry_time: int = -1

    def __init__(self, data: bytes) -> None:
        self.data = data


def split(data: bytes, whole: bool = True) -> Sections:
    """Find the sections of a message.

    If `whole` is false, `data` may be truncated anywhere: a truncated section is omitted. A message without a body is
    accepted, because some clients send it. Raises DecodeError for an invalid section, for sections out of order, and for a
    malformed field that `Sections` records; the rest of the content is not checked.
    """
    sections = Sections(data)
    pos = 0
    end = len(data)
    last = 0
    repeated = 0
    while pos < end:
        start = pos
        try:
            if end - pos > 3 and data[pos] == codes.DESCRIBED and data[pos + 1] == codes.SMALL_ULONG:
                kind = data[pos + 2]
                pos += 3
                if kind < HEADER or kind > FOOTER:
                    raise DecodeError(start, f"expected a section, not 0x{kind:02x}")
            else:
                kind = _descriptor(data, pos, end)
                pos = value_end(data, pos + 1, end)
            width = WIDTHS[data[pos]] if pos < end else 0
            if width == codes.ONE_BYTE_SIZE and pos + 1 < end:
                stop = pos + 2 + data[pos + 1]
            elif width == codes.FOUR_BYTE_SIZE and pos + 4 < end:
                stop = pos + 5 + (data[pos + 1] << 24 | data[pos + 2] << 16 | data[pos + 3] << 8 | data[pos + 4])
            else:
                stop = value_end(data, pos, end)
            if stop > end:
                stop = value_end(data, pos, end)  # raises the appropriate error
        except DecodeError as error:
            if whole or not error.short:
                raise
            pos = start
            break
        if kind <= last or last >= DATA:
            check_order(kind, last, start)
            repeated += 1
            if repeated > MAX_SECTIONS:
                raise too_many_sections(start)
        last = kind
        _note(sections, kind, start, pos, stop)
        pos = stop
    sections.end = pos
    if sections.bare == ABSENT:
        sections.bare = sections.footer if sections.footer >= 0 else pos
    if sections.rest == ABSENT:
        sections.rest = sections.bare
    return sections


def too_many_sections(position: int) -> DecodeError:
    return DecodeError(position, f"a message has more than {MAX_SECTIONS} sections, the maximum", RESOURCE_LIMIT_EXCEEDED)


def check_order(kind: int, last: int, position: int) -> None:
    """Raise DecodeError if the section `kind` cannot follow `last`, which is 0 before the first one."""
    if kind <= last:
        if kind != last or (kind != DATA and kind != AMQP_SEQUENCE):
            raise DecodeError(position, f"{_NAMES[kind]} cannot follow {_NAMES[last]}")
    elif last >= DATA and kind != FOOTER:
        raise DecodeError(position, f"{_NAMES[kind]} cannot follow {_NAMES[last]}")


def section_at(data: bytes, pos: int, end: int) -> tuple[int, int, int]:
    """Return the descriptor of the section at `pos`, the format code of its value, and its size in bytes.

    The section may extend beyond `end`. Raises DecodeError for an invalid section; the error is `short` if more data is
    needed.
    """
    kind = _descriptor(data, pos, end)
    at = constructor(data, value_end(data, pos + 1, end), end, 0)
    code = data[at]
    width = WIDTHS[code]
    if (width == codes.ONE_BYTE_SIZE and at + 1 >= end) or (width == codes.FOUR_BYTE_SIZE and at + 4 >= end):
        raise DecodeError(at, f"expected the size of a {TYPES[code]}", short=True)
    return kind, code, content_end(data, code, at + 1, ENDLESS) - pos


def check_type(kind: int, position: int, code: int) -> None:
    """Raise DecodeError if the value of a section of application data does not have the type of its descriptor."""
    if kind == DATA:
        if code != codes.BINARY_8 and code != codes.BINARY_32:
            raise _wrong_type(kind, position, code)
    elif kind != AMQP_VALUE and TYPES.get(code, "described value") != _TYPES[kind]:
        raise _wrong_type(kind, position, code)


def section_ranges(data: bytes, max_sections: int = 0) -> list[tuple[int, int, int]]:
    """Return descriptor, start and end of each section, in the order of a `received` state (messaging 3.4.1).

    Each `data` or `amqp-sequence` section counts as one. The last section may be truncated; its descriptor is 0 if even
    that is incomplete. Raises DecodeError for an invalid section, and for more than `max_sections` (0: no limit).
    """
    ranges: list[tuple[int, int, int]] = []
    pos = 0
    end = len(data)
    while pos < end:
        if max_sections and len(ranges) == max_sections:
            raise DecodeError(pos, f"a message has more than {max_sections} sections, the maximum")
        start = pos
        kind = 0
        try:
            kind = _descriptor(data, pos, end)
            pos = value_end(data, pos, end)
        except DecodeError as error:
            if not error.short:
                raise
            pos = end
        ranges.append((kind, start, pos))
    return ranges


def _descriptor(data: bytes, pos: int, end: int) -> int:
    """Return the numeric descriptor of the section at `pos`."""
    if data[pos] != codes.DESCRIBED:
        raise DecodeError(pos, f"expected a section, not a value with the format code 0x{data[pos]:02x}")
    start = pos + 1
    stop = value_end(data, start, end)
    code = data[start]
    number = 0
    shown = f"a descriptor of the type {TYPES.get(code, 'described value')}"
    if code == codes.SMALL_ULONG or code == codes.ULONG or code == codes.ULONG_0:
        number = int.from_bytes(data[start + 1 : stop], "big")
        shown = f"0x{number:02x}"
    elif code == codes.SYMBOL_8 or code == codes.SYMBOL_32:
        name = data[start + (2 if code == codes.SYMBOL_8 else 5) : stop]
        number = _BY_SYMBOL.get(name, 0)
        shown = f"'{name[:MAX_SHOWN].decode('ascii', 'replace')}'"
    if number not in _NAMES:
        raise DecodeError(pos, f"expected a section, not {shown}")
    return number


def _note(sections: Sections, kind: int, start: int, pos: int, stop: int) -> None:
    """Record the section `kind` between `start` and `stop`, whose value begins at `pos`."""
    data = sections.data
    if kind == DATA:
        code = data[pos]
        if code != codes.BINARY_8 and code != codes.BINARY_32:
            raise _wrong_type(kind, pos, code)
        _note_body(sections, kind, start, stop)
        return
    if kind != AMQP_VALUE and data[pos] not in _CODES[kind - HEADER]:
        raise _wrong_type(kind, pos, data[pos])
    if kind == HEADER:
        sections.header = start
        sections.header_end = stop
        _note_header(sections, start, pos, stop)
        return
    if kind == DELIVERY_ANNOTATIONS:
        sections.delivery_annotations = start
        sections.delivery_annotations_end = stop
        return
    if kind == FOOTER:
        sections.footer = start
        sections.footer_end = stop
        return
    if kind > DATA:
        _note_body(sections, kind, start, stop)
        return
    if sections.rest == ABSENT:
        sections.rest = start
    if kind == MESSAGE_ANNOTATIONS:
        sections.message_annotations = start
        sections.message_annotations_end = stop
        return
    if sections.bare == ABSENT:
        sections.bare = start
    if kind == PROPERTIES:
        sections.properties = start
        sections.properties_end = stop
        _note_properties(sections, pos, stop)
    else:
        sections.application_properties = start
        sections.application_properties_end = stop


def _note_body(sections: Sections, kind: int, start: int, stop: int) -> None:
    if sections.body == ABSENT:
        sections.body = start
        sections.body_kind = kind
        if sections.bare == ABSENT:
            sections.bare = start
            if sections.rest == ABSENT:
                sections.rest = start
    sections.body_end = stop


def _wrong_type(kind: int, pos: int, code: int) -> DecodeError:
    return DecodeError(pos, f"{_NAMES[kind]}: expected a {_TYPES[kind]}, not {TYPES.get(code, 'a described value')}")


def _note_header(sections: Sections, start: int, pos: int, stop: int) -> None:
    """Record the fields of the header whose list is at `pos`."""
    if _scan_header(sections, pos, stop):
        return
    header = decode_composite(sections.data, start, stop)[0]
    if isinstance(header, Header):
        sections.durable = bool(header.durable)
        sections.priority = -1 if header.priority is None else header.priority
        sections.ttl = -1 if header.ttl is None else header.ttl
        sections.first_acquirer = bool(header.first_acquirer)
        sections.delivery_count = header.delivery_count or 0


def _scan_header(sections: Sections, pos: int, stop: int) -> bool:
    """Record the fields of a header in a usual form. Return False for any other, possibly after setting some fields."""
    data = sections.data
    if data[pos] == codes.LIST_0:
        return True
    if data[pos] != codes.LIST_8 or stop - pos < 3:
        return False
    count = data[pos + 2]
    pos += 3
    if count > 5:
        return False
    for index in range(count):
        if pos >= stop:
            return False
        code = data[pos]
        pos += 1
        if index == 0 or index == 3:
            if code == codes.TRUE:
                if index == 0:
                    sections.durable = True
                else:
                    sections.first_acquirer = True
            elif code != codes.FALSE and code != codes.NULL:
                return False
            continue
        if code == codes.NULL:
            continue
        if code == codes.UINT_0 and index != 1:
            number = 0
        elif pos >= stop:
            return False
        elif code == (codes.UBYTE if index == 1 else codes.SMALL_UINT):
            number = data[pos]
            pos += 1
        elif code == codes.UINT and index != 1 and pos + 4 <= stop:
            number = data[pos] << 24 | data[pos + 1] << 16 | data[pos + 2] << 8 | data[pos + 3]
            pos += 4
        else:
            return False
        if index == 1:
            sections.priority = number
        elif index == 2:
            sections.ttl = number
        else:
            sections.delivery_count = number
    return pos == stop


def _note_properties(sections: Sections, pos: int, stop: int) -> None:
    """Record `user-id`, `to`, `subject` and `absolute-expiry-time` of the properties whose list is at `pos`."""
    data = sections.data
    if data[pos] == codes.LIST_8 and stop - pos > 2 and data[pos + 2] <= stop - pos - 3:
        count = data[pos + 2]
        begin = pos + 3
    else:
        decoder = Decoder(data, pos, stop)
        count = decoder.enter_list()
        begin = decoder.pos
    if count > _PROPERTIES_COUNT:
        raise DecodeError(pos, f"properties: expected at most {_PROPERTIES_COUNT} fields, not {count}")
    pos = begin
    for index in range(min(count, 9)):
        start = pos
        code = data[start] if start < stop else codes.DESCRIBED
        if code == codes.NULL:
            pos += 1
            continue
        width = WIDTHS[code]
        if width == codes.ONE_BYTE_SIZE and start + 1 < stop:
            pos += 2 + data[start + 1]
        else:
            pos = value_end(data, start, stop)
        if pos > stop:
            pos = value_end(data, start, stop)  # raises the appropriate error
        if index == 2 or index == 3:
            content = _sized(data, start, pos, codes.STRING_8, codes.STRING_32, "to" if index == 2 else "subject")
            if index == 2:
                sections.to = content
            else:
                sections.subject = content
        elif index == 1:
            sections.user_id = _sized(data, start, pos, codes.BINARY_8, codes.BINARY_32, "user-id")
        elif index == 8:
            if code != codes.TIMESTAMP:
                raise DecodeError(start, "properties: absolute-expiry-time: expected a timestamp", DECODE_ERROR)
            sections.absolute_expiry_time = int.from_bytes(data[start + 1 : pos], "big", signed=True)


def _sized(data: bytes, start: int, stop: int, short: int, long: int, name: str) -> bytes:
    """Return the content of a variable-width value, whose format code must be `short` or `long`."""
    code = data[start]
    if code == short:
        return data[start + 2 : stop]
    if code == long:
        return data[start + 5 : stop]
    raise DecodeError(start, f"properties: {name}: expected a {TYPES[short]}", DECODE_ERROR)

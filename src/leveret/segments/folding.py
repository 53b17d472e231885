"""The columns `raw_header` and `body` of an AMQP 1.0 message.

`body` is the content of the body sections: of consecutive `data` sections, or the string or binary of an `amqp-value`. Any
other body is stored in `body` as encoded sections. `raw_header` is the encoded message without those bytes. A section
states the length of its content, so the two columns restore the message byte for byte.

A header that is not a sequence of sections is stored unchanged after a byte that cannot begin a section.
"""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.decode import constructor, value_end
from leveret.wire.amqp10.descriptors import AMQP_SEQUENCE, AMQP_VALUE, DATA, FOOTER, HEADER
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.sections import Sections, section_at, split

# Types of bodies: the content of data sections, of an `amqp-value` with a string or a binary, or encoded sections.
DATA_BODY: Final = "data"
STRING_BODY: Final = "string"
BINARY_BODY: Final = "binary"
SEQUENCE_BODY: Final = "sequence"
VALUE_BODY: Final = "value"

_UNSPLIT: Final = b"\xff"
_DATA_HEAD: Final = b"\x00\x53\x75"
_SHORT_DATA_HEAD: Final = b"\x00\x53\x75\xa0"
# Format codes of values whose content is the body; only a length separates code and content.
_SHORT: Final = (codes.BINARY_8, codes.STRING_8)
_LONG: Final = (codes.BINARY_32, codes.STRING_32)
_STRINGS: Final = (codes.STRING_8, codes.STRING_32)


def footer_start(header: bytes) -> int:
    """Return where the footer begins in a header, or the header's end; -1 if it is not a sequence of sections."""
    try:
        sections = split(header)
    except (DecodeError, IndexError, ValueError):
        return -1
    return footer_start_of(sections)


def footer_start_of(sections: Sections) -> int:
    """Like `footer_start`, for sections that are parsed already."""
    if sections.body >= 0 or sections.end != len(sections.data):
        return -1
    return sections.footer if sections.footer >= 0 else len(sections.data)


def fold(header: bytes, footer: int, body: bytes) -> tuple[bytes, bytes, str | None]:
    """Return `raw_header`, `body` and the type of the body (DATA_BODY, ...; None without a body).

    Args:
        header: The encoded sections around the body.
        footer: The result of `footer_start` for the header.
        body: The encoded body sections.
    """
    if footer < 0:
        return _UNSPLIT + header, body, None
    if body[:3] == _DATA_HEAD and len(body) > 4:
        head = 0
        if body[3] == codes.BINARY_8:
            head = 5
            size = body[4]
        elif body[3] == codes.BINARY_32 and len(body) > 7:
            head = 8
            size = int.from_bytes(body[4:8], "big")
        if head and head + size == len(body):
            return header[:footer] + body[:head] + header[footer:], body[head:], DATA_BODY
    if not body:
        return header, body, None
    try:
        heads, content, kind = _split_body(body)
    except (DecodeError, IndexError, ValueError):
        return _UNSPLIT + header, body, None
    return header[:footer] + heads + header[footer:], content, kind


def _split_body(body: bytes) -> tuple[bytes, bytes, str]:
    heads = []
    contents = []
    pos = 0
    kind = code = 0
    while pos < len(body):
        kind, code, begin, stop = _content_range(body, pos)
        if stop > len(body):
            raise ValueError("the body is cut off")
        if begin < 0:
            return b"", body, SEQUENCE_BODY if kind == AMQP_SEQUENCE else VALUE_BODY
        heads.append(body[pos:begin])
        contents.append(body[begin:stop])
        pos = stop
    if kind == DATA:
        return b"".join(heads), b"".join(contents), DATA_BODY
    return b"".join(heads), b"".join(contents), STRING_BODY if code in _STRINGS else BINARY_BODY


def _content_range(data: bytes, pos: int) -> tuple[int, int, int, int]:
    """Return the section at `pos` as (descriptor, format code, start, stop); start is -1 unless it is bytes or text."""
    end = len(data)
    kind, code, size = section_at(data, pos, end)
    stop = pos + size
    if kind not in (DATA, AMQP_VALUE):
        return kind, code, -1, stop
    at = constructor(data, value_end(data, pos + 1, end), end, 0)
    if code in _SHORT:
        return kind, code, at + 2, stop
    if code in _LONG:
        return kind, code, at + 5, stop
    return kind, code, -1, stop


def unfold(raw_header: bytes, body: bytes) -> tuple[bytes, int, bytes]:
    """Restore the message from `raw_header` and `body`.

    Returns:
        The header, where its footer begins (-1 without one), and the encoded body.

    Raises:
        ValueError: The two columns do not belong to the same message.
    """
    if raw_header[:1] == _UNSPLIT:
        return raw_header[1:], -1, body
    try:
        return _join_body(raw_header, body)
    except (DecodeError, IndexError) as error:
        raise ValueError(f"the raw header of an AMQP 1.0 message is damaged: {error}") from error


def _join_body(raw: bytes, body: bytes) -> tuple[bytes, int, bytes]:
    end = len(raw)
    pos = 0
    bare = -1
    pieces: list[bytes] = []
    consumed = 0
    while pos < end:
        kind = raw[pos + 2] if raw[pos] == codes.DESCRIBED and raw[pos + 1] == codes.SMALL_ULONG else 0
        if not HEADER <= kind <= FOOTER:
            kind = section_at(raw, pos, end)[0]
        if kind == FOOTER:
            break
        if kind < DATA:
            # Fast path: a list or map with a one-byte size.
            short = raw[pos + 1] == codes.SMALL_ULONG and raw[pos + 3] in (codes.LIST_8, codes.MAP_8)
            pos = pos + 5 + raw[pos + 4] if short else value_end(raw, pos, end)
            continue
        if raw[pos : pos + 4] == _SHORT_DATA_HEAD and bare < 0 and pos + 5 == end and raw[pos + 4] == len(body):
            return raw[:pos], -1, raw[pos:] + body
        _, _, begin, stop = _content_range(raw, pos)
        if begin < 0:
            raise ValueError("the raw header of an AMQP 1.0 message has a body section out of place")
        if bare < 0:
            bare = pos
        pieces.append(raw[pos:begin])
        pieces.append(body[consumed : consumed + stop - begin])
        consumed += stop - begin
        pos = begin
    if bare < 0:
        return raw, pos if pos < end else -1, body
    if consumed != len(body):
        raise ValueError(f"the raw header of an AMQP 1.0 message expects a body of {consumed} bytes, got {len(body)}")
    return raw[:bare] + raw[pos:], bare if pos < end else -1, b"".join(pieces)

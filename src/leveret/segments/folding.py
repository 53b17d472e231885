"""A message of AMQP 1.0 as `raw_header` and `body`: the body is what its sections hold, the header all around that.

`raw_header` is the encoded message as it came, without the octets that are in `body`: the contents of `data` sections, one
after the other, or the text or octets of an `amqp-value`. Any other body is in `body` as its encoded sections. Since a
section says how long its content is, both are put together again octet for octet.

A header that is no sequence of sections is kept as it is behind an octet that no section begins with.
"""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp1 import codes
from leveret.wire.amqp1.decode import constructor, value_end
from leveret.wire.amqp1.descriptors import AMQP_SEQUENCE, AMQP_VALUE, DATA, FOOTER, HEADER
from leveret.wire.amqp1.errors import DecodeError
from leveret.wire.amqp1.sections import Sections, section_at, split

# What a body is: the content of data sections, of an `amqp-value` that is a string or a binary, or encoded sections.
DATA_BODY: Final = "data"
STRING_BODY: Final = "string"
BINARY_BODY: Final = "binary"
SEQUENCE_BODY: Final = "sequence"
VALUE_BODY: Final = "value"

_AS_IT_IS: Final = b"\xff"
_DATA_HEAD: Final = b"\x00\x53\x75"
_SHORT_DATA_HEAD: Final = b"\x00\x53\x75\xa0"
# Values whose content is the body: what comes between code and content is its length.
_SHORT: Final = (codes.BINARY_8, codes.STRING_8)
_LONG: Final = (codes.BINARY_32, codes.STRING_32)
_STRINGS: Final = (codes.STRING_8, codes.STRING_32)


def footer_at(header: bytes) -> int:
    """Where the footer begins in the header of a message, or its end; -1 where it is no sequence of sections."""
    try:
        sections = split(header)
    except (DecodeError, IndexError, ValueError):
        return -1
    return footer_of(sections)


def footer_of(sections: Sections) -> int:
    """The same of a header whose sections are known."""
    if sections.body >= 0 or sections.end != len(sections.data):
        return -1
    return sections.footer if sections.footer >= 0 else len(sections.data)


def fold(header: bytes, footer: int, body: bytes) -> tuple[bytes, bytes, str | None]:
    """`raw_header`, `body` and what kind of body it is (DATA_BODY, ...), None where there is none.

    `footer` is what `footer_at` says of the header.
    """
    if footer < 0:
        return _AS_IT_IS + header, body, None
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
        heads, content, kind = _taken_apart(body)
    except (DecodeError, IndexError, ValueError):
        return _AS_IT_IS + header, body, None
    return header[:footer] + heads + header[footer:], content, kind


def _taken_apart(body: bytes) -> tuple[bytes, bytes, str]:
    heads = []
    contents = []
    pos = 0
    kind = code = 0
    while pos < len(body):
        kind, code, begin, stop = _content(body, pos)
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


def _content(data: bytes, pos: int) -> tuple[int, int, int, int]:
    """Descriptor of the section at `pos`, format code of its value, where its content begins (-1 where that is no octets or
    text) and ends."""
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
    """Header, where its footer begins (-1 without one) and body of the message, as they were before `fold`.

    ValueError where the two do not belong together.
    """
    if raw_header[:1] == _AS_IT_IS:
        return raw_header[1:], -1, body
    try:
        return _put_together(raw_header, body)
    except (DecodeError, IndexError) as error:
        raise ValueError(f"a raw header of AMQP 1.0 is damaged: {error}") from error


def _put_together(raw: bytes, body: bytes) -> tuple[bytes, int, bytes]:
    end = len(raw)
    pos = 0
    bare = -1
    pieces: list[bytes] = []
    taken = 0
    while pos < end:
        kind = raw[pos + 2] if raw[pos] == codes.DESCRIBED and raw[pos + 1] == codes.SMALL_ULONG else 0
        if not HEADER <= kind <= FOOTER:
            kind = section_at(raw, pos, end)[0]
        if kind == FOOTER:
            break
        if kind < DATA:
            # A list or map in eight bits is passed by without the decoder.
            short = raw[pos + 1] == codes.SMALL_ULONG and raw[pos + 3] in (codes.LIST_8, codes.MAP_8)
            pos = pos + 5 + raw[pos + 4] if short else value_end(raw, pos, end)
            continue
        if raw[pos : pos + 4] == _SHORT_DATA_HEAD and bare < 0 and pos + 5 == end and raw[pos + 4] == len(body):
            return raw[:pos], -1, raw[pos:] + body
        _, _, begin, stop = _content(raw, pos)
        if begin < 0:
            raise ValueError("a raw header of AMQP 1.0 has a section of the body that belongs elsewhere")
        if bare < 0:
            bare = pos
        pieces.append(raw[pos:begin])
        pieces.append(body[taken : taken + stop - begin])
        taken += stop - begin
        pos = begin
    if bare < 0:
        return raw, pos if pos < end else -1, body
    if taken != len(body):
        raise ValueError(f"a raw header of AMQP 1.0 tells of a body of {taken} octets, there are {len(body)}")
    return raw[:bare] + raw[pos:], bare if pos < end else -1, b"".join(pieces)

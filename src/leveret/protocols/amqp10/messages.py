"""Conversion between messages of AMQP 1.0 and of the broker.

`Message.header` has the sections before the body as received, followed by the footer, which begins at `headers_at`;
`Message.body` has the encoded sections of the body. A delivery has a new header section, no delivery annotations of the
previous hop, and message annotations merged with the overlay. The bare message never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body
from leveret.broker.message import AT_ONCE, FORMAT_AMQP1, ONLY_OFFSET, Entry, Message, Overlay, expires_at
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.message_times import expiry_of
from leveret.protocols.convert import origins, to_amqp10
from leveret.protocols.convert.annotations import merged
from leveret.protocols.convert.offsets import with_stream_offset
from leveret.wire.amqp10 import codes, constants
from leveret.wire.amqp10.annotations import reserved_key
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.decode import value_end
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.messaging import Header
from leveret.wire.amqp10.sections import split

if TYPE_CHECKING:
    from leveret.broker.timers import Timers
    from leveret.wire.amqp10.sections import Sections

MAX_UINT: Final = (1 << 32) - 1

# The usual descriptors of header and delivery annotations.
_HEADER: Final = b"\x00\x53\x70"
_DELIVERY_ANNOTATIONS: Final = b"\x00\x53\x71"


def check_annotations(sections: Sections, strict: bool) -> None:
    """Refuse reserved annotations that are not defined (messaging section 3.2.10).

    Names that begin with `x-` are accepted, because they represent 0-9-1 headers; strict mode requires `x-opt-`.

    Raises DecodeError for a key of another type, LinkRefused for any other annotation.
    """
    if sections.delivery_annotations >= 0:
        _check_keys(sections.data, sections.delivery_annotations, sections.delivery_annotations_end, strict)
    if sections.message_annotations >= 0:
        _check_keys(sections.data, sections.message_annotations, sections.message_annotations_end, strict)
    if sections.footer >= 0:
        _check_keys(sections.data, sections.footer, sections.footer_end, strict)


def _check_keys(data: bytes, begin: int, end: int, strict: bool) -> None:
    key = reserved_key(data, begin, end, b"x-opt-" if strict else b"x-")
    if key:
        expected = "x-opt- (compat.strict)" if strict else "x-"
        raise LinkRefused(
            constants.NOT_IMPLEMENTED, f"unknown annotation {key}: expected a name that begins with {expected}"
        )


def make_message(sections: Sections, address: bytes, timers: Timers, publisher: int) -> Message:
    """Create a message from the sections of a delivery."""
    data = sections.data
    at = sections.body
    headers_at = -1
    if at < 0:
        at = sections.footer if sections.footer >= 0 else len(data)
        body = b""
    elif at == 0 and sections.body_end == len(data):
        body = data
    else:
        body = data[at : sections.body_end]
    header = data[:at]
    if sections.footer >= 0:
        headers_at = len(header)
        header += data[sections.footer : sections.footer_end]
    expires_at = 0
    if sections.ttl >= 0 or sections.absolute_expiry_time > 0:
        expires_at = expiry_of(sections, timers.now(), timers.step)
    return Message(
        address,
        header,
        body,
        len(body),
        sections.durable,
        sections.priority,
        expires_at,
        headers_at,
        publisher,
        FORMAT_AMQP1,
    )


def head_of(entry: Entry, timers: Timers) -> bytes:
    """Return the part of a delivery before the body: header, annotations, properties and application properties."""
    message = entry.message
    overlay = entry.overlay
    priority = message.priority
    if (
        (overlay is None or overlay is ONLY_OFFSET)
        and not message.expires_at
        and not entry.delivery_count
        and priority < 10
    ):
        header = _SHORT[(priority + 1) << 2 | message.persistent << 1 | (entry.acquired_count <= 1)]
    else:
        header = header_section(entry, timers)
    if message.format != FORMAT_AMQP1:
        return header + to_amqp10.head_of(entry)
    encoded = message.header if message.headers_at < 0 else message.header[: message.headers_at]
    address = message.address
    if overlay is not None:
        if overlay.address is not None:
            address = overlay.address
        if overlay.headers:
            sections = origins.annotate(_rendered(encoded, overlay), address)
            return header + (with_stream_offset(sections, entry.seq - 1) if overlay.shows_offset else sections)
    if encoded:
        at = _rest(encoded)
        if at:
            encoded = encoded[at:]
    sections = origins.annotate(encoded, address)
    if overlay is not None and overlay.shows_offset:
        sections = with_stream_offset(sections, entry.seq - 1)
    return header + sections


def sections_of(message: Message, overlay: Overlay | None) -> bytes:
    """Return the sections between header and body as consumers of this entry receive them, for filters."""
    if message.format != FORMAT_AMQP1:
        return to_amqp10.sections_of(message, overlay)
    encoded = message.header if message.headers_at < 0 else message.header[: message.headers_at]
    return _rendered(encoded, overlay) if overlay is not None and overlay.headers else encoded


def _rendered(encoded: bytes, overlay: Overlay) -> bytes:
    """Return the sections after the delivery annotations, merged with the overlay; cached."""
    rendered = overlay.rendered
    if rendered is None:
        try:
            rendered = merged(encoded, overlay.headers)
        except (DecodeError, EncodeError):
            rendered = encoded[_rest(encoded) :]  # the annotations are malformed
        overlay.rendered = rendered
    return rendered


def _rest(encoded: bytes) -> int:
    """Return the end of header and delivery annotations."""
    if not encoded:
        return 0
    at = 0
    if encoded.startswith(_HEADER):
        at = 5 + encoded[4] if encoded[3] == codes.LIST_8 else value_end(encoded, 0, len(encoded))
        if at == len(encoded):
            return at
    if encoded.startswith(_DELIVERY_ANNOTATIONS, at):
        at = value_end(encoded, at, len(encoded))
    if at < len(encoded) and encoded[at] == codes.DESCRIBED and encoded[at + 1] != codes.SMALL_ULONG:
        return split(encoded).rest  # descriptors in another form
    return at


def body_of(message: Message) -> Body:
    """Return the encoded sections of the body."""
    if message.format == FORMAT_AMQP1:
        return message.body
    return to_amqp10.body_of(message)


def tail_of(message: Message) -> bytes:
    """Return the encoded footer; empty if there is none."""
    if message.format == FORMAT_AMQP1 and message.headers_at >= 0:
        return message.header[message.headers_at :]
    return b""


def header_section(entry: Entry, timers: Timers) -> bytes:
    """Encode the header of a delivery, with the remaining time to live.

    A ttl above 49.7 days, the maximum of the field, is omitted.
    """
    message = entry.message
    due = 0
    if message.expires_at or entry.overlay is not None:
        due = expires_at(entry)
    first = entry.acquired_count <= 1
    priority = message.priority
    if not due and not entry.delivery_count and priority < 10:
        return _SHORT[(priority + 1) << 2 | message.persistent << 1 | first]
    ttl: int | None = None
    if due:
        ttl = max(due - timers.now(), 0) if due > AT_ONCE else 0
        if ttl > MAX_UINT:
            ttl = None
    return encode_composite(
        Header(
            message.persistent or None, None if priority < 0 else priority, ttl, first or None, entry.delivery_count or None
        )
    )


def _short_header(durable: bool, priority: int, first: bool) -> bytes:
    return encode_composite(Header(durable or None, None if priority < 0 else priority, None, first or None, None))


# Cached headers of messages that do not expire and have not failed: by priority, starting with -1; durable; first acquirer.
_SHORT: Final[list[bytes]] = [
    _short_header(durable, priority, first)
    for priority in range(-1, 10)
    for durable in (False, True)
    for first in (False, True)
]

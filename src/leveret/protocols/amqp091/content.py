"""The content header of class basic: headers for routing, and rendering of overlays.

The publisher's bytes stay unchanged unless an overlay, BCC or direct reply-to changes them.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.bodies import Body
from leveret.broker.broker import HeaderReader
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import NOT_BASIC, Entry, Message, Overlay
from leveret.broker.values import FieldTable, FieldValue
from leveret.wire.amqp0.constants import FRAME_OVERHEAD
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.offsets import with_stream_offset
from leveret.wire.amqp0.properties import (
    HEADER_MIN_SIZE,
    decode_header,
    decode_headers_table,
    encode_header,
    find_header,
    overlay_header,
    shorten_array,
)
from leveret.wire.amqp0.values import ContentProperties, LongLong

BASIC: Final = 60
# About ten years in milliseconds, as for x-message-ttl.
MAX_EXPIRATION: Final = 3653 * 24 * 3600 * 1000


class BasicHeaderReader(HeaderReader):
    """Reader of the properties of messages published over 0-9 or 0-9-1."""

    def headers(self, message: Message) -> FieldTable:
        if message.headers_at < 0:
            return {}
        try:
            return decode_headers_table(message.header, message.headers_at)
        except WireError:
            return {}

    def header(self, message: Message, name: bytes) -> str:
        if message.headers_at < 0:
            return ""
        try:
            return find_header(message.header, message.headers_at, name)
        except (IndexError, WireError):
            return ""

    def property(self, message: Message, name: str) -> str:
        value = _properties(message.header).get(name.replace("-", "_"))
        return "" if value is None else str(value)

    def expiration(self, message: Message) -> str | None:
        value: str | None = _properties(message.header).get("expiration")
        return value

    def make_header(self, content_type: str, size: int) -> bytes:
        return encode_header(BASIC, size, {"content_type": content_type})

    def make_headers(self, headers: FieldTable, size: int) -> tuple[bytes, int]:
        try:
            return encode_header(BASIC, size, {"headers": headers}), HEADER_MIN_SIZE
        except EncodeError:
            return b"", -1

    def as_basic(self, message: Message) -> tuple[FieldTable, Body]:
        return _properties(message.header), message.body


def _properties(header: bytes) -> ContentProperties:
    try:
        return decode_header(header)[2]
    except WireError:
        return {}


def milliseconds_of(expiration: bytes) -> int:
    """Return the value of an expiration property. Raises `PreconditionFailed` if it is invalid."""
    try:
        milliseconds = int(expiration) if expiration.isdigit() else -1
    except ValueError:
        milliseconds = -1
    if milliseconds < 0 or milliseconds > MAX_EXPIRATION:
        raise PreconditionFailed(
            f"invalid expiration '{expiration.decode('utf-8', 'replace')}': expected milliseconds"
            f" in decimal digits, from 0 to {MAX_EXPIRATION}"
        )
    return milliseconds


def reply_to(header: bytes) -> str | None:
    """Return the reply-to property."""
    value: str | None = _properties(header).get("reply_to")
    return value


def with_reply_to(header: bytes, address: str) -> bytes:
    """Return the header with another reply-to."""
    _, size, properties = decode_header(header)
    properties["reply_to"] = address
    return encode_header(BASIC, size, properties)


def copy_keys(message: Message) -> list[str]:
    """Return the routing keys of the CC and BCC headers (RabbitMQ's sender-selected distribution).

    Also remove BCC from the message, which must not be in a queue yet.

    Raises:
        PreconditionFailed: a header is not a list of strings.
    """
    headers, keys = _copies(message)
    if "BCC" in headers:
        message.header = overlay_header(message.header, {"BCC": None}, False)
    return keys


def check_copies(message: Message) -> list[str]:
    """Return the routing keys of the CC and BCC headers.

    Raises:
        PreconditionFailed: a header is not a list of strings.
    """
    return _copies(message)[1]


def _copies(message: Message) -> tuple[FieldTable, list[str]]:
    headers = BasicHeaderReader().headers(message)
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name)
        if value is None:
            continue
        found = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        if not isinstance(value, list) or len(found) < len(value):
            raise PreconditionFailed(f"invalid type for '{name}' header: expected a list of strings")
        keys.extend(found)
    return headers, keys


def header_of(entry: Entry) -> bytes:
    """Return the header of an entry for its consumer: the stored bytes with the changes in the overlay."""
    message = entry.message
    overlay = entry.overlay
    if overlay is None:
        return message.header
    if overlay.shows_offset:
        return with_stream_offset(_changed(message, overlay), entry.seq - 1)
    return _changed(message, overlay)


def _changed(message: Message, overlay: Overlay) -> bytes:
    """Return the header with the changes that are the same for all consumers."""
    if not (overlay.headers or overlay.drop_expiration):
        return message.header
    if overlay.rendered is None:
        headers = dict(overlay.headers)
        deaths = headers.get("x-death")
        if isinstance(deaths, list):
            # Clients cast counts to 64-bit integers.
            headers["x-death"] = [_with_long_count(death) for death in deaths]
        count = headers.get("x-delivery-count")
        if isinstance(count, int):
            headers["x-delivery-count"] = LongLong(count)
        try:
            overlay.rendered = overlay_header(message.header, headers, overlay.drop_expiration)
        except (WireError, EncodeError):
            overlay.rendered = message.header
    return overlay.rendered


def fitting(entry: Entry, header: bytes, limit: int) -> bytes:
    """Return a header of class basic for an entry whose rendered header exceeds `limit` bytes.

    It has as many of the latest deaths as fit, otherwise no header that the broker added. b"" if it is still too long.
    """
    overlay = entry.overlay
    try:
        found = shorten_array(header, b"x-death", limit)
        if len(found) > limit:
            found = overlay_header(header, {"x-death": None}, False)
        if len(found) > limit and overlay is not None and not entry.message.format & NOT_BASIC:
            removed: FieldTable = {name: None for name, value in overlay.headers.items() if value is None}
            found = overlay_header(entry.message.header, removed, overlay.drop_expiration)
    except (WireError, EncodeError):
        return b""
    return found if len(found) <= limit else b""


def too_long(entry: Entry, header: bytes, limit: int) -> str:
    """Return why an entry with a rendered header that exceeds the `limit` of a connection is not sent."""
    message = entry.message
    size = len(header if message.format & NOT_BASIC else message.header) + FRAME_OVERHEAD
    return (
        f"its properties need a header frame of {size} bytes; the connection has agreed on frames of at most"
        f" {limit + FRAME_OVERHEAD} bytes (frame-max; the setting is amqp.frame_max)"
    )


def _with_long_count(death: FieldValue) -> FieldValue:
    """Return an entry of x-death with its count as a long-long. Publishers may send values of any type."""
    if not isinstance(death, dict):
        return death
    count = death.get("count")
    return {**death, "count": LongLong(count)} if isinstance(count, int) else death

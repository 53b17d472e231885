"""Conversion of contents of the classes file, stream and message."""

from __future__ import annotations

from leveret.broker.bodies import Body
from leveret.broker.broker import HeaderReader
from leveret.broker.errors import Undelivered
from leveret.broker.message import AT_ONCE, FORMAT_CLASS_AMQP09, Entry, Message, expires_at
from leveret.broker.values import FieldTable
from leveret.protocols.amqp091 import content
from leveret.protocols.convert import to_amqp0
from leveret.wire.amqp0 import offsets
from leveret.wire.amqp0.classes import class_of, from_basic, to_basic, with_headers
from leveret.wire.amqp0.properties import decode_header
from leveret.wire.amqp0.values import ContentProperties, LongLong


class ClassHeaderReader(HeaderReader):
    """Reader of the properties of class basic that correspond to those of other classes."""

    def headers(self, message: Message) -> FieldTable:
        headers: FieldTable = _properties(message).get("headers") or {}
        return headers

    def property(self, message: Message, name: str) -> str:
        value = _properties(message).get(name.replace("-", "_"))
        return "" if value is None else str(value)

    def expiration(self, message: Message) -> str | None:
        value: str | None = _properties(message).get("expiration")
        return value

    def as_basic(self, message: Message) -> tuple[FieldTable, Body]:
        return _properties(message), message.body


def as_class(entry: Entry, kind: int) -> Message:
    """Return the message of an entry as a content of a class, with the changes of its overlay."""
    message = entry.message
    overlay = entry.overlay
    if message.format == FORMAT_CLASS_AMQP09 and class_of(message.header) == kind:
        if overlay is None:
            return message
        changes = dict(overlay.headers)
        if overlay.shows_offset:
            changes[offsets.NAME] = LongLong(entry.seq - 1)
        return _with_header(message, with_headers(message.header, changes, overlay.drop_expiration))
    if message.format & 1:
        message = to_amqp0.convert(entry)
        header = message.header
    else:
        header = content.header_of(entry)
    due = expires_at(entry)
    return _with_header(message, from_basic(header, kind, message.size, -(-due // 1000) if due > AT_ONCE else 0))


def fitting(entry: Entry, kind: int, limit: int) -> Message:
    """Return the message as `as_class` does, without the headers of its overlay if its header exceeds `limit` bytes.

    Raises:
        Undelivered: the header is still too long.
    """
    message = as_class(entry, kind)
    if len(message.header) > limit:
        if entry.overlay is not None:
            added: FieldTable = dict.fromkeys([*entry.overlay.headers, offsets.NAME])
            message = _with_header(message, with_headers(message.header, added, False))
        if len(message.header) > limit:
            raise Undelivered(entry, content.too_long(entry, message.header, limit))
    return message


def _with_header(message: Message, header: bytes) -> Message:
    return Message(
        message.address,
        header,
        message.body,
        message.size,
        message.persistent,
        message.priority,
        message.expires_at,
        -1,
        message.publisher,
        FORMAT_CLASS_AMQP09,
    )


def address_of(entry: Entry) -> bytes:
    """Return the address of an entry for its consumers."""
    overlay = entry.overlay
    if overlay is not None and overlay.address is not None:
        return overlay.address
    return entry.message.address


def _properties(message: Message) -> ContentProperties:
    return decode_header(to_basic(message.header))[2]

"""Messages as management describes them: properties of class basic by name, and bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from leveret.broker.bodies import Body
from leveret.broker.broker import Broker
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import AT_ONCE, FORMAT_AMQP1, NOT_BASIC, Entry, Message
from leveret.broker.values import FieldTable
from leveret.management.descriptions import PROPERTIES, EncodedMessage
from leveret.protocols.amqp091 import content
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.messages import make_message, sections_of
from leveret.protocols.convert import to_amqp0
from leveret.protocols.convert.values import encoded_sized, is_json, sized_table
from leveret.protocols.message_filters import passes
from leveret.selectors import Filter
from leveret.wire.amqp0.commands import Publish
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.fieldtable import check_table, decode_table
from leveret.wire.amqp0.properties import HEADER_MIN_SIZE, decode_header, encode_header, scan
from leveret.wire.amqp0.values import ContentProperties, EncodedTable
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.message import properties
from leveret.wire.amqp10.sections import split

BASIC: Final = 60
_NAMES: Final = (*PROPERTIES, "headers", "cluster_id")
_NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
_PERSISTENT: Final = 2
# Flags of a content header, and the sizes of the properties before the timestamp: 0 for a short string.
_FLAGS_AT: Final = 12
_HEADERS: Final = 0x2000
_TIMESTAMP: Final = 0x0040
_MORE_FLAGS: Final = 0x0001
_BEFORE_TIMESTAMP: Final = (
    (0x8000, 0),  # content-type
    (0x4000, 0),  # content-encoding
    (_HEADERS, 4),  # and the table
    (0x1000, 1),  # delivery-mode
    (0x0800, 1),  # priority
    (0x0400, 0),  # correlation-id
    (0x0200, 0),  # reply-to
    (0x0100, 0),  # expiration
    (0x0080, 0),  # message-id
)


def _timestamp_in(header: bytes) -> int | None:
    """Return the timestamp in a content header of class basic that was checked."""
    flags = int.from_bytes(header[_FLAGS_AT:HEADER_MIN_SIZE], "big")
    if not flags & _TIMESTAMP or flags & _MORE_FLAGS:
        return None
    at = HEADER_MIN_SIZE
    for flag, size in _BEFORE_TIMESTAMP:
        if flags & flag:
            at += size or 1 + header[at]
            if flag == _HEADERS:
                at += int.from_bytes(header[at - size : at], "big")
    return int.from_bytes(header[at : at + 8], "big")


def _check(name: str, value: object) -> None:
    """Raise `PreconditionFailed` if a property has the wrong type."""
    if name == "headers":
        is_valid, expected = isinstance(value, dict), "an object"
    elif name in _NUMBERS:
        is_valid, expected = isinstance(value, int) and not isinstance(value, bool), "an integer"
    else:
        is_valid, expected = isinstance(value, str), "a string"
    if not is_valid:
        raise PreconditionFailed(f"invalid value of property '{name}'; expected {expected}")


class MessageCodec:
    """Encodes messages that management publishes, and decodes those of any protocol."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def encode(self, address: bytes, body: bytes, properties: ContentProperties, user: str) -> Message:
        """Return a message. Unknown properties are ignored.

        Raises:
            PreconditionFailed: A property does not fit its field, or `user_id` is not the user.
        """
        known = {name: properties[name] for name in _NAMES if properties.get(name) is not None}
        for name, value in known.items():
            _check(name, value)
        if known.get("user_id", user) != user:
            raise PreconditionFailed(f"user_id property set to '{known['user_id']}' but authenticated user was '{user}'")
        try:
            header = encode_header(BASIC, len(body), known)
        except (EncodeError, TypeError, ValueError, AttributeError) as error:
            raise PreconditionFailed(f"invalid properties: {error}") from None
        return self._make_basic(address, header, body)

    def _make_basic(self, address: bytes, header: bytes, body: bytes) -> Message:
        """Return a message with a content header. Raises `PreconditionFailed`."""
        found = Publish(0, address, 0, header, len(body), body, 0, -1, None, None, -1)
        if not scan(found, header, RABBITMQ):
            raise PreconditionFailed("invalid properties")
        expires_at = 0
        if found.expiration is not None:
            milliseconds = content.milliseconds_of(found.expiration)
            expires_at = self._broker.timers.now() + milliseconds if milliseconds else AT_ONCE
        return Message(
            address,
            header,
            body,
            len(body),
            found.delivery_mode == _PERSISTENT,
            found.priority,
            expires_at,
            found.headers_at,
        )

    def copy_keys(self, message: Message) -> list[str]:
        """Return the routing keys of the CC and BCC headers, and remove BCC."""
        if message.format & NOT_BASIC or message.headers_at < 0 or b"CC" not in message.header:
            return []
        return content.copy_keys(message)

    def decode(self, entry: Entry) -> tuple[FieldTable, Body]:
        """Return the properties and the body of an entry, as a consumer of 0-9-1 receives them."""
        message = entry.message
        if message.format & NOT_BASIC:
            message = to_amqp0.convert(entry)
            header = message.header
        else:
            header = content.header_of(entry)
        try:
            return decode_header(header)[2], message.body
        except WireError:
            return {}, message.body

    def typed(self, entry: Entry) -> Callable[[], ContentProperties]:
        """Return a function that describes all but the payload of an entry as JSON with AMQP types, in any thread."""
        from leveret.protocols import typed_messages  # the broker starts faster without it

        message = entry.message
        if message.format == FORMAT_AMQP1:
            return typed_messages.Amqp10Description(entry).describe
        header = to_amqp0.convert(entry).header if message.format & NOT_BASIC else content.header_of(entry)
        return lambda: typed_messages.describe_basic(header)

    def encode_typed(self, fields: Mapping[str, Any], body: bytes, user: str) -> EncodedMessage:
        """Encode what `typed` describes, in any thread. A user id of another user is left out.

        Raises:
            ValueError: A field is invalid.
        """
        from leveret.protocols import typed_messages

        sections = fields.get("amqp10")
        if sections is not None:
            return EncodedMessage(True, *typed_messages.encode_sections(sections, body, user))
        return EncodedMessage(False, typed_messages.encode_basic(fields.get("properties") or {}, len(body), user), body)

    def encode_arguments(self, arguments: FieldTable) -> bytes:
        """Return the fields of arguments in RabbitMQ's dialect; b"" if JSON represents them, or the dialect does not."""
        try:
            return b"" if is_json(arguments) else encoded_sized(arguments)
        except EncodeError:
            return b""

    def decode_arguments(self, encoded: bytes) -> FieldTable:
        """Return the arguments with these fields. Raises `ValueError` if they are invalid."""
        try:
            if check_table(encoded, 0, len(encoded), RABBITMQ):
                return sized_table(EncodedTable(decode_table(encoded, 0, len(encoded), RABBITMQ), encoded))
        except (WireError, IndexError):
            pass
        raise ValueError("the fields are invalid")

    def make(self, address: bytes, encoded: EncodedMessage) -> Message:
        """Return a message that is published now. Raises `PreconditionFailed` if a property is invalid."""
        if not encoded.is_amqp10:
            return self._make_basic(address, encoded.header, encoded.body)
        try:
            return make_message(split(encoded.header + encoded.body), address, self._broker.timers, 0)
        except (DecodeError, LinkRefused) as error:
            raise PreconditionFailed(f"invalid sections: {error}") from None

    def timestamp(self, message: Message) -> int | None:
        """Return the property `timestamp` in seconds, without a look at the headers; None if there is none."""
        if not message.format & NOT_BASIC:
            return _timestamp_in(message.header)
        if message.format != FORMAT_AMQP1:
            return None
        try:
            found = properties(split(sections_of(message, None)))
        except DecodeError:
            return None
        created = None if found is None else found.creation_time
        return None if created is None or created < 0 else int(created) // 1000

    def is_selected(self, message: Message, entry: Entry | None, selector: Filter) -> bool:
        """Return whether a message in its place, or without one, matches a selector."""
        return passes([selector], message, entry, self._broker)

"""Encoding of publishes over AMQP 0-9, including contents of classes other than basic."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from leveret.client.access import Access
from leveret.client.engine.amqp091.encoding import Amqp091Encoder, encode_address
from leveret.client.engine.amqp091.pending_confirms import Publish
from leveret.client.engine.common.encoding import Body
from leveret.client.errors import InvalidMessage
from leveret.client.properties import Properties, PropertyValue, decode_properties, from_keywords
from leveret.wire.amqp0.classes import FILENAME, to_basic
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.errors import EncodeError
from leveret.wire.amqp0.fieldtable import encode_timestamp
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp0.values import Arguments

# Fields of `Properties` that content classes other than basic lack.
_DELIVERY_PROPERTIES: Final = ("delivery_mode",)


class Amqp09Publish(Publish):
    """A publish of class basic.

    Attributes:
        access: Access of the publish, which a republish reuses.
        sent: Whether `access` is set.
    """

    __slots__ = ("access", "sent")

    def __init__(self, address: bytes, flags: int, header: bytes, body: bytes) -> None:
        super().__init__(address, flags, header, body)
        self.access: Access | None = None
        self.sent = False


class Amqp09Encoder(Amqp091Encoder):
    """Encoder of publishes of class basic."""

    __slots__ = ()

    def encode(self, body: Body, exchange: str, routing_key: str, flags: int, properties: bytes) -> Amqp09Publish:
        made = super().encode(body, exchange, routing_key, flags, properties)
        return Amqp09Publish(made.address, made.flags, made.header, made.body)


class ContentPublish(Amqp09Publish):
    """A publish of another content class.

    Attributes:
        method: Method that publishes it.
        arguments: Arguments of the method.
        header: Payload of the header frame, with properties of the content class.
        has_content: Whether header and body follow the method. Those of a file are staged before it.
        awaited: Whether the publish is confirmed, on a channel with confirms.
    """

    __slots__ = ("arguments", "awaited", "has_content", "method")

    def __init__(
        self,
        method: str,
        exchange: str,
        routing_key: str,
        flags: int,
        header: bytes,
        body: bytes,
        arguments: Arguments,
        has_content: bool = True,
    ) -> None:
        super().__init__(encode_address(exchange, routing_key), flags, header, body)
        self.method = method
        self.arguments = {
            "exchange": exchange,
            "routing_key": routing_key,
            "mandatory": bool(flags & 1),
            "immediate": bool(flags & 2),
            **arguments,
        }
        self.has_content = has_content
        self.awaited = True

    def describe(self) -> tuple[str, str, Properties | None, bytes]:
        return (
            self.arguments["exchange"],
            self.arguments["routing_key"],
            decode_properties(to_basic(self.header)),
            self.body,
        )


def content_header(
    class_id: int,
    size: int,
    properties: Properties | None,
    keywords: dict[str, PropertyValue],
    more: Iterable[tuple[str, PropertyValue]] = (),
) -> bytes:
    """Return the content header of a class.

    Args:
        class_id: Content class.
        size: Size of the body in bytes.
        properties: Properties of the message.
        keywords: Properties that replace those of `properties`.
        more: Properties that class basic lacks; None for absent.

    Raises:
        InvalidMessage: The class lacks a property, or its value cannot be encoded.
    """
    merged = from_keywords(properties, keywords)
    values = {
        name: value
        for name in merged.__slots__
        if (value := getattr(merged, name)) is not None and name not in _DELIVERY_PROPERTIES
    }
    values.update((name, value) for name, value in more if value is not None)
    owner = V0_9.classes[class_id]
    known = {field.name for field in owner.properties}
    for name in values:
        if name not in known:
            raise InvalidMessage(
                f"{name}: class {owner.name} has no such property; expected one of"
                f" {', '.join(sorted(known - {'cluster_id'}))}"
            )
    timestamp = values.get("timestamp")
    try:
        if isinstance(timestamp, datetime):
            values["timestamp"] = encode_timestamp(timestamp)
        elif timestamp is not None:
            values["timestamp"] = int(timestamp)
        return encode_header(class_id, size, values, QPID, V0_9)
    except (EncodeError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidMessage(f"properties of class {owner.name}: {error}") from error


def filename_of(properties: Properties) -> str:
    """Return the property `filename` of a file, which is a header in `Properties`, or ""."""
    name = (properties.headers or {}).get(FILENAME)
    return name if isinstance(name, str) else ""

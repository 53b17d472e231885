"""Encoding of publishes over AMQP 0-9-1."""

from __future__ import annotations

import struct
from typing import Final

from leveret.client.engine.amqp091.pending_confirms import Publish
from leveret.client.engine.common.encoding import Body, Encoder, encode_body
from leveret.client.errors import InvalidMessage
from leveret.client.properties import Properties, PropertyValue, encode_properties, from_keywords

_FIXED: Final = struct.Struct(">HHQ").pack
_BASIC_CLASS: Final = 60
# Most publishes have no properties, or only delivery-mode 2.
NO_PROPERTIES: Final = b"\0\0"
_PERSISTENT: Final = b"\x10\0\2"
_PERSISTENT_KEYWORD: Final = {"persistent": True}


def merge(properties: Properties | None, keywords: dict[str, PropertyValue]) -> bytes:
    """Return the encoded properties of a publish."""
    if properties is not None and not isinstance(properties, Properties):
        raise InvalidMessage(f"properties: expected leveret.Properties, not {type(properties).__name__}")
    if keywords:
        if properties is None and keywords == _PERSISTENT_KEYWORD:
            return _PERSISTENT
        return encode_properties(from_keywords(properties, keywords))
    return NO_PROPERTIES if properties is None else encode_properties(properties)


def encode_address(exchange: str, routing_key: str) -> bytes:
    """Return the two short strings of `basic.publish`. Raises `InvalidMessage`."""
    try:
        first = exchange.encode("utf-8", "surrogateescape")
        second = routing_key.encode("utf-8", "surrogateescape")
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidMessage(
            f"exchange {exchange!r:.100}, routing key {routing_key!r:.100}: {error}; expected text"
        ) from None
    if len(first) > 255 or len(second) > 255:
        what, size = ("exchange name", len(first)) if len(first) > 255 else ("routing key", len(second))
        raise InvalidMessage(f"{what} too long: {size} bytes in UTF-8; expected at most 255")
    return bytes((len(first),)) + first + bytes((len(second),)) + second


class Amqp091Encoder(Encoder):
    """Encoder of publishes. It caches the last address, which the next publish often reuses. Threads may share it."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = ("", "", b"\0\0")

    merge = staticmethod(merge)

    def address(self, exchange: str, routing_key: str) -> bytes:
        """Return the encoded address of a publish."""
        last_exchange, last_routing_key, address = self._last
        if routing_key != last_routing_key or exchange != last_exchange:
            address = encode_address(exchange, routing_key)
            self._last = (exchange, routing_key, address)
        return address

    def encode(self, body: Body, exchange: str, routing_key: str, flags: int, properties: bytes) -> Publish:
        data = encode_body(body)
        return Publish(self.address(exchange, routing_key), flags, _FIXED(_BASIC_CLASS, 0, len(data)) + properties, data)

    def encode_received(self, header: bytes, body: bytes, exchange: str, routing_key: str, flags: int) -> Publish:
        """Return a publish of a received message with its properties unchanged. Raises `InvalidMessage`."""
        return Publish(self.address(exchange, routing_key), flags, header, body)

"""Encoding of publishes for the wire engine."""

from __future__ import annotations

import struct
from typing import Any, Final, Protocol

from leveret.client.engine.common.pending_confirms import Outgoing
from leveret.client.errors import InvalidMessage
from leveret.client.properties import Properties, encode_properties, from_keywords
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY

Body = bytes | bytearray | memoryview | str

_FIXED: Final = struct.Struct(">HHQ").pack
_BASIC_CLASS: Final = 60
# Most publishes have no properties, or delivery-mode 2 alone.
NO_PROPERTIES: Final = b"\0\0"
_PERSISTENT: Final = b"\x10\0\2"
_PERSISTENT_KEYWORD: Final = {"persistent": True}


def encode_body(body: Body) -> bytes:
    """Return a body as bytes; text is encoded as UTF-8. Raises `InvalidMessage` for other types."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"body: {error}") from None
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    raise InvalidMessage(f"body: expected bytes or text, not {type(body).__name__}")


class Named(Protocol):
    """An object with a name: a queue or an exchange."""

    @property
    def name(self) -> str: ...


def name_of(named: str | Named) -> str:
    """Return the name of a queue or an exchange. Raises `InvalidMessage` for other types."""
    name = named if isinstance(named, str) else getattr(named, "name", None)
    if not isinstance(name, str):
        raise InvalidMessage(f"expected a name, a queue or an exchange, not {type(named).__name__}")
    return name


def encode_flags(mandatory: bool, immediate: bool) -> int:
    """Return the flags of a publish, as the wire engine takes them."""
    return (MANDATORY if mandatory else 0) | (IMMEDIATE if immediate else 0)


def merge(properties: Properties | None, keywords: dict[str, Any]) -> bytes:
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
            f"exchange {exchange!r:.100}, routing key {routing_key!r:.100}: {error}; expected text") from None
    if len(first) > 255 or len(second) > 255:
        what, size = ("exchange name", len(first)) if len(first) > 255 else ("routing key", len(second))
        raise InvalidMessage(f"{what} too long: {size} bytes in UTF-8; expected at most 255")
    return bytes((len(first),)) + first + bytes((len(second),)) + second


class Encoder:
    """Encodes publishes. It caches the last address, which is often the next one's. Threads may share it."""

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

    def encode(self, body: Body, exchange: str, routing_key: str, flags: int, properties: bytes) -> Outgoing:
        """Return an encoded publish. Raises `InvalidMessage`."""
        data = encode_body(body)
        return Outgoing(self.address(exchange, routing_key), flags, _FIXED(_BASIC_CLASS, 0, len(data)) + properties, data)

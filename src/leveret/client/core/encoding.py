"""From what an application publishes to what the wire's engine takes."""

from __future__ import annotations

import struct
from typing import Any, Final, Protocol

from leveret.client.core.pending_confirms import Outgoing
from leveret.client.errors import InvalidMessage
from leveret.client.properties import Properties, encode_properties, from_keywords
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY

Body = bytes | bytearray | memoryview | str

_FIXED: Final = struct.Struct(">HHQ").pack
_BASIC: Final = 60
# What most publishes have: nothing, or delivery-mode 2 alone.
NO_PROPERTIES: Final = b"\0\0"
_PERSISTENT: Final = b"\x10\0\2"
_PERSISTENT_KEYWORD: Final = {"persistent": True}


def encode_body(body: Body) -> bytes:
    """Octets as they are, text as UTF-8. Raises `InvalidMessage` for anything else."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"body: {error}") from None
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    raise InvalidMessage(f"body: bytes or text expected, not {type(body).__name__}")


class Named(Protocol):
    """A queue or an exchange."""

    @property
    def name(self) -> str: ...


def name_of(named: str | Named) -> str:
    """The name of a queue or an exchange, or the name itself. Raises `InvalidMessage` for anything else."""
    name = named if isinstance(named, str) else getattr(named, "name", None)
    if not isinstance(name, str):
        raise InvalidMessage(f"a name, a queue or an exchange expected, not {type(named).__name__}")
    return name


def encode_flags(mandatory: bool, immediate: bool) -> int:
    return (MANDATORY if mandatory else 0) | (IMMEDIATE if immediate else 0)


def merge(properties: Properties | None, keywords: dict[str, Any]) -> bytes:
    """The encoded properties of a publish."""
    if properties is not None and not isinstance(properties, Properties):
        raise InvalidMessage(f"properties: leveret.Properties expected, not {type(properties).__name__}")
    if keywords:
        if properties is None and keywords == _PERSISTENT_KEYWORD:
            return _PERSISTENT
        return encode_properties(from_keywords(properties, keywords))
    return NO_PROPERTIES if properties is None else encode_properties(properties)


def encode_address(exchange: str, routing_key: str) -> bytes:
    """The two short strings of `basic.publish`. Raises `InvalidMessage`."""
    try:
        first = exchange.encode("utf-8", "surrogateescape")
        second = routing_key.encode("utf-8", "surrogateescape")
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidMessage(
            f"exchange {exchange!r:.100}, routing key {routing_key!r:.100}: {error}; expected text") from None
    if len(first) > 255 or len(second) > 255:
        what, size = ("exchange name", len(first)) if len(first) > 255 else ("routing key", len(second))
        raise InvalidMessage(f"a {what} has at most 255 octets of UTF-8, not {size}")
    return bytes((len(first),)) + first + bytes((len(second),)) + second


class Encoder:
    """Encodes publishes; remembers the last address, which is the next one's as often as not. Threads may share it."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = ("", "", b"\0\0")

    merge = staticmethod(merge)

    def address(self, exchange: str, routing_key: str) -> bytes:
        last_exchange, last_routing_key, address = self._last
        if routing_key != last_routing_key or exchange != last_exchange:
            address = encode_address(exchange, routing_key)
            self._last = (exchange, routing_key, address)
        return address

    def encode(self, body: Body, exchange: str, routing_key: str, flags: int, properties: bytes) -> Outgoing:
        """Raises `InvalidMessage`."""
        data = encode_body(body)
        return Outgoing(self.address(exchange, routing_key), flags, _FIXED(_BASIC, 0, len(data)) + properties, data)

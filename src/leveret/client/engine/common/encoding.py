"""Encoding of publishes, common to all protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from leveret.client.engine.common.outgoing import Outgoing
from leveret.client.errors import InvalidMessage
from leveret.client.properties import Properties, PropertyValue
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY

Body = bytes | bytearray | memoryview | str


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
    """Return the flags of a publish for the wire engine."""
    return (MANDATORY if mandatory else 0) | (IMMEDIATE if immediate else 0)


class Encoder(ABC):
    """Encoder of publishes. Threads may share it.

    Attributes:
        varies: Whether `merge` may return different properties for the same arguments.
    """

    __slots__ = ()

    varies: ClassVar[bool] = False

    @abstractmethod
    def merge(self, properties: Properties | None, keywords: dict[str, PropertyValue]) -> bytes:
        """Return the encoded properties of a publish; keywords replace those of `properties`. Raises `InvalidMessage`."""

    @abstractmethod
    def encode(self, body: Body, exchange: str, routing_key: str, flags: int, properties: bytes) -> Outgoing:
        """Return an encoded publish. Raises `InvalidMessage`."""

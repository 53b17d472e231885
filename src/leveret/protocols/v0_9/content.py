"""Contents of the classes file, stream and message as the broker needs them."""

from __future__ import annotations

from typing import Any

from leveret.broker.broker import HeaderReader
from leveret.broker.message import Message
from leveret.wire.amqp0.classes import to_basic
from leveret.wire.amqp0.properties import decode_header


class ClassHeaderReader(HeaderReader):
    """Reads properties as those of class basic that say the same."""

    def headers(self, message: Message) -> dict[str, Any]:
        headers: dict[str, Any] = _properties(message).get("headers") or {}
        return headers

    def property(self, message: Message, name: str) -> str:
        value = _properties(message).get(name.replace("-", "_"))
        return "" if value is None else str(value)

    def expiration(self, message: Message) -> str | None:
        value: str | None = _properties(message).get("expiration")
        return value


def _properties(message: Message) -> dict[str, Any]:
    return decode_header(to_basic(message.header))[2]

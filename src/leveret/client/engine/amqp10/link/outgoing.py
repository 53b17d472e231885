"""Outgoing messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp10.properties import decode_sections, encode_sections
from leveret.client.engine.common.encoding import Body, Encoder, encode_body
from leveret.client.engine.common.outgoing import Outgoing
from leveret.client.errors import Error, InvalidMessage, NotSupported
from leveret.client.properties import Properties, PropertyValue, from_keywords
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.message import encode_data_head
from leveret.wire.amqp10.sections import split

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.addresses import Addresses
    from leveret.client.engine.amqp10.link.sender import SenderCore
    from leveret.client.engine.amqp10.transactions import TransactionCore

# Header section of messages that are persistent and have no other property.
_PERSISTENT: Final = b"\x00\x53\x70\xc0\x02\x01\x41"
_PERSISTENT_KEYWORD: Final = {"persistent": True}


class Transfer(Outgoing):
    """An encoded message.

    Attributes:
        exchange: Exchange, for error reports.
        routing_key: Routing key, for error reports; for a sender, its address.
        target: Address; "" if `link` is set.
        payload: Encoded sections, in pieces.
        size: Size of the sections in bytes.
        settled: Sent settled, so that it has no outcome.
        number: Number of the publish in its session, which keeps the order over a lost connection.
        tag: Delivery tag, once sent.
        link: Sender, once known.
        transaction: Transaction of the message, if any.
        state: The server's state of a delivery to resume.
    """

    __slots__ = (
        "exchange",
        "link",
        "number",
        "payload",
        "routing_key",
        "settled",
        "size",
        "state",
        "tag",
        "target",
        "transaction",
    )

    def __init__(
        self, exchange: str, routing_key: str, target: str, flags: int, payload: list[bytes], size: int, body: bytes
    ) -> None:
        super().__init__(flags, body)
        self.exchange = exchange
        self.routing_key = routing_key
        self.target = target
        self.payload = payload
        self.size = size
        self.settled = False
        self.number = 0
        self.tag = b""
        self.link: SenderCore | None = None
        self.transaction: TransactionCore | None = None
        self.state: Composite | None = None

    def send_by(self, sender: SenderCore) -> None:
        """Have a sender send the message, instead of that of an address."""
        self.link = sender

    @property
    def mandatory(self) -> bool:
        """Whether an unroutable message is returned."""
        return bool(self.flags & MANDATORY)

    def describe(self) -> tuple[str, str, Properties | None, bytes]:
        properties: Properties | None = None
        try:
            properties = decode_sections(split(b"".join(self.payload)))
        except (DecodeError, InvalidMessage):
            pass
        return self.exchange, self.routing_key, properties, self.body

    def outcome(self, state: Composite | None, error: Error | None) -> None:
        """Report the outcome; `error` is None for accepted."""
        self.settle(error)


class Amqp10Encoder(Encoder):
    """Encoder of publishes by exchange and routing key. It caches the last address."""

    __slots__ = ("_addresses", "_last")

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._last = ("", "", "")

    def merge(self, properties: Properties | None, keywords: dict[str, PropertyValue]) -> bytes:
        """Return the encoded sections before the body."""
        if properties is None:
            if not keywords:
                return b""
            if keywords == _PERSISTENT_KEYWORD:
                return _PERSISTENT
        elif not isinstance(properties, Properties):
            raise InvalidMessage(f"properties: expected leveret.Properties, not {type(properties).__name__}")
        return encode_sections(from_keywords(properties, keywords), self._addresses)

    def encode(self, body: Body, exchange: str, routing_key: str, flags: int, properties: bytes) -> Transfer:
        """Return an encoded publish.

        Raises:
            InvalidMessage: The message cannot be encoded.
            NotSupported: `immediate` is set.
        """
        if flags & IMMEDIATE:
            raise NotSupported("AMQP 1.0 has no immediate publishes; expected mandatory, or neither flag")
        data = encode_body(body)
        last_exchange, last_key, target = self._last
        if routing_key != last_key or exchange != last_exchange or not target or type(routing_key) is not type(last_key):
            target = self._addresses.of_exchange(exchange, routing_key)
            self._last = (exchange, routing_key, target)
        head = properties + encode_data_head(len(data))
        return Transfer(exchange, routing_key, target, flags, [head, data], len(head) + len(data), data)

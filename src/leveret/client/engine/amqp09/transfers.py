"""Sending of class message contents: inline if they fit a frame, otherwise by reference, resuming at checkpoints."""

from __future__ import annotations

import uuid
from typing import IO, Final

from leveret.client.engine.amqp09.channel import Amqp09ChannelCore
from leveret.client.engine.amqp09.sources import read_exactly
from leveret.client.engine.amqp091.calls import NULL_WAITER
from leveret.client.engine.common.frontend import Waiter
from leveret.client.errors import InvalidMessage, Nacked
from leveret.client.properties import Properties, PropertyValue, from_keywords, in_milliseconds
from leveret.wire.amqp0.classes import encode_transfer
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.errors import EncodeError
from leveret.wire.amqp0.values import Arguments

# Maximum number of pending appends, and bytes between checkpoints.
MAX_IN_FLIGHT: Final = 16
CHECKPOINT_INTERVAL: Final = 8 << 20
# Frame space reserved for the other fields of an append or a transfer.
_OVERHEAD: Final = 64
_OK: Final = ("message.ok",)
_OUTCOMES: Final = ("message.ok", "message.reject")
_STRING_FIELDS: Final = (
    "message_id",
    "correlation_id",
    "reply_to",
    "content_type",
    "content_encoding",
    "user_id",
    "app_id",
)
_UNSUPPORTED: Final = ("timestamp", "type", "cluster_id")


class Transfer:
    """One message being sent.

    Attributes:
        size: Size of the body in bytes.
        sent: Bytes sent so far.
        inline: The body fits the `message.transfer` itself.
        identifier: Identifier of its checkpoints; "" for none.
    """

    def __init__(
        self,
        channel: Amqp09ChannelCore,
        file: IO[bytes],
        exchange: str,
        routing_key: str,
        identifier: str,
        immediate: bool,
        properties: Properties | None,
        keywords: dict[str, PropertyValue],
    ) -> None:
        self._channel = channel
        self._file = file
        self._start = file.tell()
        self.size = file.seek(0, 2) - self._start
        self.sent = 0
        self.identifier = identifier
        self._reference = uuid.uuid4().hex
        self._in_flight = 0
        self._since_checkpoint = 0
        self._arguments = {
            "destination": exchange,
            "routing_key": routing_key,
            "immediate": immediate,
            **_fields(properties, keywords),
        }
        try:
            fields = len(
                encode_transfer(
                    self.size,
                    {name: value for name, value in self._arguments.items() if name not in ("destination", "immediate")},
                )
            )
        except EncodeError as error:
            raise InvalidMessage(f"properties of class message: {error}") from error
        room = channel.connection.engine.payload_max - _OVERHEAD
        fields += len(exchange.encode("utf-8", "surrogateescape")) + len(routing_key.encode("utf-8", "surrogateescape"))
        if fields > room:
            raise InvalidMessage(
                f"the properties have {fields} bytes; expected at most {room} on this connection (option frame_max)"
            )
        self.inline = self.size <= room - fields and not identifier
        self._chunk_size = room - len(self._reference)

    def set_channel(self, channel: Amqp09ChannelCore) -> None:
        """Set the channel to send on."""
        self._channel = channel

    def send(self) -> Waiter:
        """Send the whole message inline; the result is None or the server's rejection."""
        self._file.seek(self._start)
        channel = self._channel
        return channel.ask(
            "message.transfer", {**self._arguments, "body": (0, self._file.read(self.size))}, _OUTCOMES, self._outcome
        )

    def begin(self) -> Waiter:
        """Open the reference. The server's reply positions the file for resuming."""

        def opened(reply: Method, abandoned: bool) -> None:
            self.sent = self._since_checkpoint = self._in_flight = 0
            if reply.name == "message.offset":
                self.sent = min(reply.arguments["value"], self.size)
            self._file.seek(self._start + self.sent)

        self._reference = uuid.uuid4().hex
        if self.identifier:
            return self._channel.ask(
                "message.resume", {"reference": self._reference, "identifier": self.identifier}, ("message.offset",), opened
            )
        return self._channel.ask("message.open", {"reference": self._reference}, _OK, opened)

    @property
    def complete(self) -> bool:
        """Whether everything was sent."""
        return self.sent >= self.size

    def can_send(self) -> bool:
        """Whether the next chunk may be sent; `Amqp09ChannelCore.flow_waiter` waits for it."""
        return self._channel.flowing and self._in_flight < MAX_IN_FLIGHT

    def read(self) -> bytes:
        """Read the next chunk. Raises `InvalidMessage` if the file was truncated."""
        return read_exactly(self._file, min(self._chunk_size, self.size - self.sent), self.size)

    def append(self, data: bytes) -> None:
        """Send the next chunk."""
        self._cast("message.append", {"reference": self._reference, "bytes": data})
        self.sent += len(data)
        self._since_checkpoint += len(data)
        if self.identifier and self._since_checkpoint >= CHECKPOINT_INTERVAL:
            self._since_checkpoint = 0
            self._cast("message.checkpoint", {"reference": self._reference, "identifier": self.identifier})

    def _cast(self, name: str, arguments: Arguments) -> None:
        def answered(reply: Method, abandoned: bool) -> None:
            self._in_flight -= 1
            self._channel.update_flow()

        self._channel.ask(name, arguments, _OK, answered, NULL_WAITER)
        self._in_flight += 1

    def finish(self) -> Waiter:
        """Transfer the appended data; the result is as for `send`. The server answers the transfer after the close."""
        channel = self._channel
        body = (1, self._reference.encode())
        channel.send("message.transfer", {**self._arguments, "body": body})
        channel.ask("message.close", {"reference": self._reference}, _OK, None, NULL_WAITER)
        return channel.expect_answer("message.transfer", _OUTCOMES, self._outcome)

    def _outcome(self, reply: Method, abandoned: bool) -> Nacked | None:
        if reply.name == "message.ok":
            return None
        text = reply.arguments["text"]
        return Nacked(
            f"no queue accepted the message: {text} (message.reject)",
            messages=[(self._arguments["destination"], self._arguments["routing_key"], None, b"")],
            reply_code=reply.arguments["code"],
            reply_text=text,
        )


def _fields(properties: Properties | None, keywords: dict[str, PropertyValue]) -> Arguments:
    """Convert properties to fields of `message.transfer`."""
    keywords = dict(keywords)
    more: Arguments = {name: keywords.pop(name) for name in ("transaction_id", "security_token") if name in keywords}
    merged = from_keywords(properties, keywords)
    for name in _UNSUPPORTED:
        if getattr(merged, name) is not None:
            raise InvalidMessage(f"{name}: senders of class message have no such property")
    fields: Arguments = {name: value for name in _STRING_FIELDS if (value := getattr(merged, name)) is not None}
    fields["application_headers"] = merged.headers or {}
    fields["priority"] = 4 if merged.priority is None else merged.priority
    fields["delivery_mode"] = 1 if merged.delivery_mode is None else merged.delivery_mode
    if merged.expiration is not None:
        fields["ttl"] = in_milliseconds(merged.expiration)
    return {**fields, **more}

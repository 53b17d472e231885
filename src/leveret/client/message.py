"""A received message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from leveret.client.errors import Error
from leveret.client.properties import Headers, Properties, PropertyValue, decode_properties
from leveret.client.tracing import context_of
from leveret.wire.amqp0.commands import Deliver

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from leveret.client.engine.amqp091.channel import ChannelCore
    from leveret.client.engine.amqp10.transactions import TransactionCore


class AnyTransaction(Protocol):
    """A transaction of the async or the sync API."""

    @property
    def core(self) -> TransactionCore:
        """The engine of the transaction."""


class Message:
    """A delivery, or the result of a get. Properties and names are decoded on access.

    Attributes:
        settled: The message was acknowledged, or needs no acknowledgement.
        size: Size of the body in bytes.
        message_count: For a get, the number of messages left in the queue; otherwise None.
    """

    __slots__ = ("_channel", "_command", "_properties", "generation", "message_count", "settled")

    def __init__(self, channel: ChannelCore, command: Deliver, settled: bool = False) -> None:
        self._channel = channel
        self._command = command
        self.generation = channel.generation
        self._properties: Properties | None = None
        self.settled = settled
        self.message_count: int | None = None

    @property
    def body(self) -> bytes:
        """Body of the message."""
        body = self._command.body
        if not isinstance(body, bytes):
            self._command.body = body = b"".join(body)
        return body

    @property
    def size(self) -> int:
        """Size of the body in bytes."""
        return self._command.size

    @property
    def delivery_tag(self) -> int:
        """Number of the delivery on its channel, from 1."""
        return self._command.delivery_tag

    @property
    def redelivered(self) -> bool:
        """Whether the message may have been delivered before."""
        return self._command.redelivered

    @property
    def consumer_tag(self) -> str:
        """Tag of the consumer; "" for a get."""
        return self._command.consumer_tag.decode("utf-8", "surrogateescape")

    @property
    def exchange(self) -> str:
        """Exchange that the message was published to."""
        address = self._command.address
        return address[1 : 1 + address[0]].decode("utf-8", "surrogateescape")

    @property
    def routing_key(self) -> str:
        """Routing key of the publish."""
        address = self._command.address
        return address[2 + address[0] :].decode("utf-8", "surrogateescape")

    @property
    def header(self) -> bytes:
        """Payload of the header frame, as received."""
        return self._command.header

    @property
    def properties(self) -> Properties:
        """Properties of the message. Raises `InvalidMessage` if they cannot be decoded."""
        if self._properties is None:
            self._properties = decode_properties(self._command.header)
        return self._properties

    @property
    def headers(self) -> Headers:
        """Headers of the message; empty if there are none."""
        return self.properties.headers or {}

    def text(self) -> str:
        """Return the body decoded as UTF-8."""
        return self.body.decode("utf-8")

    def json(self) -> Any:
        """Return the body parsed as JSON."""
        return json.loads(self.body)

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge the message; with `multiple`, also all earlier ones of the channel (0-9-1 `basic.ack`)."""
        self._settle()
        self._channel.ack(self, multiple)

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        """Requeue the message, or drop or dead-letter it (RabbitMQ's `basic.nack`)."""
        self._settle()
        self._channel.nack(self, multiple, requeue)

    def reject(self, requeue: bool = False) -> None:
        """Reject the message with `basic.reject`, which every AMQP 0-9-1 server supports; otherwise as `nack`."""
        self._settle()
        self._channel.reject(self, requeue)

    def _settle(self) -> None:
        if self.settled:
            raise RuntimeError(f"the message with delivery tag {self.delivery_tag} is already settled")
        self.settled = True

    def respond(self, body: bytes | bytearray | memoryview | str, **properties: PropertyValue) -> Any:
        """Publish a response to the message's `reply_to`, with its `correlation_id`. Await the result in the async API.

        Raises:
            ValueError: The message has no `reply_to`.
        """
        reply_to = self.properties.reply_to
        if not reply_to:
            raise ValueError("cannot respond: the message has no reply_to")
        properties.setdefault("correlation_id", self.properties.correlation_id)
        return self._channel.api_channel.publish(body, reply_to, **properties)

    def trace_context(self) -> Context:
        """Return the OpenTelemetry context of the publisher, as in `tracer.start_span("name", message.trace_context())`.

        The context is empty if the message has none.

        Raises:
            ImportError: `opentelemetry-api` is not installed.
        """
        return context_of(self.headers)

    def process(self, requeue: bool = False) -> AbstractContextManager[Message]:
        """Acknowledge the message at the end of the block.

        If the block raises an `Exception`, the message is rejected, or requeued if `requeue` is true. If the block is
        interrupted (`asyncio.CancelledError`, KeyboardInterrupt), the message is requeued. If the block settles the
        message itself, nothing happens. With the connection's option `tracing="spans"`, the block runs in a span.
        """
        tracing = self._channel.connection.tracing
        block = self._process(requeue)
        return block if tracing is None or not tracing.spans else tracing.process(self, block)

    @contextmanager
    def _process(self, requeue: bool) -> Iterator[Message]:
        try:
            yield self
        except BaseException as error:
            if not self.settled:
                try:
                    self.reject(requeue or not isinstance(error, Exception))
                except Error:
                    pass  # the channel is closed, so the message is already requeued; raise the error of the block
            raise
        if not self.settled:
            self.ack()

    def __repr__(self) -> str:
        again = " redelivered" if self.redelivered else ""
        return (
            f"<{type(self).__name__} {self.delivery_tag}{again}: {self.size} bytes from exchange {self.exchange!r}"
            f" with routing key {self.routing_key!r}>"
        )

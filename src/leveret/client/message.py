"""A message that was received."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from leveret.client.errors import Error
from leveret.client.properties import Properties, decode_properties
from leveret.wire.amqp0.commands import Deliver

if TYPE_CHECKING:
    from leveret.client.core.amqp1.transactions import TransactionCore
    from leveret.client.core.channel import ChannelCore


class AnyTransaction(Protocol):
    """A transaction of either face."""

    @property
    def core(self) -> TransactionCore: ...


class Message:
    """A delivery, or the answer to a get. Properties and names are decoded when they are asked for.

    settled        it was acknowledged, or needs not be
    size           octets of the body
    message_count  of a get: how many messages were left in the queue; otherwise None
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
        body = self._command.body
        if not isinstance(body, bytes):
            self._command.body = body = b"".join(body)
        return body

    @property
    def size(self) -> int:
        return self._command.size

    @property
    def delivery_tag(self) -> int:
        """Counts the deliveries of the channel, from 1."""
        return self._command.delivery_tag

    @property
    def redelivered(self) -> bool:
        """It may have been delivered before."""
        return self._command.redelivered

    @property
    def consumer_tag(self) -> str:
        """"" of a get."""
        return self._command.consumer_tag.decode("utf-8", "surrogateescape")

    @property
    def exchange(self) -> str:
        """What it was published to."""
        address = self._command.address
        return address[1 : 1 + address[0]].decode("utf-8", "surrogateescape")

    @property
    def routing_key(self) -> str:
        address = self._command.address
        return address[2 + address[0] :].decode("utf-8", "surrogateescape")

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            self._properties = decode_properties(self._command.header)
        return self._properties

    @property
    def headers(self) -> dict[str, Any]:
        """Those of the properties, empty where there are none."""
        return self.properties.headers or {}

    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode("utf-8")

    def json(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge it; with `multiple`, everything before it on its channel too (0-9-1 `basic.ack`)."""
        self._settle()
        self._channel.ack(self, multiple)

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        """Give it back to the queue, or drop or dead-letter it (RabbitMQ's `basic.nack`)."""
        self._settle()
        self._channel.nack(self, multiple, requeue)

    def reject(self, requeue: bool = False) -> None:
        """As `nack`, with the method that every AMQP 0-9-1 server knows (`basic.reject`)."""
        self._settle()
        self._channel.reject(self, requeue)

    def _settle(self) -> None:
        if self.settled:
            raise RuntimeError(f"the message with delivery tag {self.delivery_tag} is settled already")
        self.settled = True

    def respond(self, body: bytes | bytearray | memoryview | str, **properties: Any) -> Any:
        """Publish an answer to its `reply_to`, with its `correlation_id`: to be awaited where the connection is of
        asyncio's kind. ValueError where it does not ask for one."""
        reply_to = self.properties.reply_to
        if not reply_to:
            raise ValueError("the message has no reply_to: nobody waits for an answer")
        properties.setdefault("correlation_id", self.properties.correlation_id)
        return self._channel.api_channel.publish(body, reply_to, **properties)

    @contextmanager
    def process(self, requeue: bool = False) -> Iterator[Message]:
        """Acknowledge it at the end of the block; reject it, or requeue it, when the block raises an `Exception`. A block
        that is interrupted (`asyncio.CancelledError`, KeyboardInterrupt) has not failed at it: it goes back to the queue.
        What the block settles itself stays as it is."""
        try:
            yield self
        except BaseException as error:
            if not self.settled:
                try:
                    self.reject(requeue or not isinstance(error, Exception))
                except Error:
                    pass  # the channel is closed: the message is back already, and what the block raised counts
            raise
        if not self.settled:
            self.ack()

    def __repr__(self) -> str:
        again = " redelivered" if self.redelivered else ""
        return (f"<{type(self).__name__} {self.delivery_tag}{again}: {self.size} octets from exchange {self.exchange!r}"
                f" with routing key {self.routing_key!r}>")

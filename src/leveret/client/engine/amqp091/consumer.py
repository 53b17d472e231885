"""A consumer: messages that the application has not taken, and waiters for the next message."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from leveret.client.engine.common.channel import BaseConsumerCore
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import Error
from leveret.client.message import Message
from leveret.wire.amqp0.commands import Deliver
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.client.engine.amqp091.channel import ChannelCore


class ConsumerCore(BaseConsumerCore):
    """One `basic.consume`.

    Attributes:
        kind: Content class whose methods are used.
        queue: Name of the queue, updated if a server-named queue is renamed by a reconnect.
        prefetch: Limit that `basic.qos` sets before the consumer starts; 0 is unlimited.
        arguments: Other arguments of `basic.consume`.
        active: The server has started the consumer and it has not ended, even if the connection is lost.
        cancelling: A cancel is pending; messages that still arrive are requeued.
        ended: No more messages will arrive. `error` is the cause; None if the client cancelled the consumer.
    """

    __slots__ = (
        "_counted",
        "_message_class",
        "_no_ack",
        "_waiters",
        "arguments",
        "cancelling",
        "channel",
        "messages",
        "prefetch",
    )

    channel: ChannelCore
    messages: deque[Message]

    kind: ClassVar[str] = "basic"

    def __init__(
        self, channel: ChannelCore, queue: str, prefetch: int, arguments: Arguments, message_class: type[Message]
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.prefetch = prefetch
        self.arguments = arguments
        self.tag = ""
        self.messages = deque()
        self.active = False
        self.cancelling = False
        self.ended = False
        self.error: Error | None = None
        self._waiters = Waiters(channel.connection.frontend)
        self._no_ack = bool(arguments.get("no_ack"))
        # Without a prefetch limit, buffered bytes count for the connection's backpressure.
        self._counted = prefetch == 0 or self._no_ack
        self._message_class = message_class

    def count_bytes(self) -> None:
        if not self._counted:
            self._counted = True
            for message in self.messages:
                self.channel.connection.add_buffered(self._buffered_size(message))

    @property
    def key(self) -> bytes:
        """The consumer tag, as encoded in deliveries."""
        return self.tag.encode("utf-8", "surrogateescape")

    def clone(self) -> ConsumerCore:
        """Return an equal consumer that has not started and has no tag."""
        return ConsumerCore(self.channel, self.queue, self.prefetch, self.arguments, self._message_class)

    def begin(self) -> Waiter:
        """Start the consumer; see `ChannelCore.consume`."""
        return self.channel.consume(self)

    def withdraw(self) -> Waiter:
        """Cancel the consumer; see `ChannelCore.cancel`."""
        return self.channel.cancel(self)

    def abandon(self) -> None:
        """Cancel the consumer without waiting; see `ChannelCore.cancel_nowait`."""
        self.channel.cancel_nowait(self)

    def delivered(self, command: Deliver) -> None:
        """Buffer a delivery for the application."""
        if (self.cancelling or self.channel.recovering) and self._unwanted(command):
            return
        self._buffer(self._message_class(self.channel, command, self._no_ack))

    def _buffer(self, message: Message) -> None:
        self.messages.append(message)
        if self._counted:
            self.channel.connection.add_buffered(self._buffered_size(message))
        elif len(self.messages) > self.prefetch:
            # The server applies another prefetch count, or exceeds it, as RabbitMQ before 3.13 does with streams.
            self.count_bytes()
        if self._waiters.waiting:
            self._waiters.wake()

    def _buffered_size(self, message: Message) -> int:
        """Return the bytes of memory that a buffered message takes."""
        return message.size

    def _unwanted(self, command: Deliver) -> bool:
        """Return whether to withhold a delivery from the application. Requeues it if it would be lost otherwise.

        The server redelivers deliveries that arrive during a pending `basic.recover`.
        """
        if not self.channel.recovering:
            if not self._no_ack:
                self._message_class(self.channel, command).nack(requeue=True)
            return True
        return self.cancelling or not self._no_ack

    def take(self) -> Message:
        """Return the next message. Raises IndexError if there is none."""
        message = self.messages.popleft()
        if self._counted:
            self.channel.connection.remove_buffered(self._buffered_size(message))
        return message

    def message_waiter(self) -> Waiter:
        """Return a waiter for a message or the end of the consumer."""
        return self._waiters.new()

    def drop_messages(self) -> list[Message]:
        """Drop and return the messages that the application has not taken."""
        forgotten = list(self.messages)
        self.messages.clear()
        if self._counted:
            for message in forgotten:
                self.channel.connection.remove_buffered(self._buffered_size(message))
        return forgotten

    def lost(self) -> None:
        """Handle the loss of the connection: the server delivers unacked messages again, so drop them."""
        if not self._no_ack:
            self.drop_messages()

    def end(self, error: Error | None) -> None:
        """End the consumer. Messages that have arrived can still be taken before `error` is raised."""
        if self.ended:
            return
        self.active = False
        self.ended = True
        self.error = error
        self._waiters.wake()

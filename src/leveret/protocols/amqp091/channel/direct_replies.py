"""Direct reply-to on a channel (RabbitMQ): the reply consumer and its address in requests."""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.queue import Queue
from leveret.broker.vhost import Vhost
from leveret.protocols import direct_reply
from leveret.protocols.amqp091 import content

REPLY_TO: Final = b"amq.rabbitmq.reply-to"
# Bytes of the shortest content header that has it.
MIN_REPLY_HEADER: Final = 36
REPLY_NAME: Final = REPLY_TO.decode()


class DirectReplies:
    """The reply consumer of a channel.

    Attributes:
        queue: the queue of the reply consumer; None if there is none.
    """

    def __init__(self) -> None:
        self.queue: Queue | None = None

    def open(self, vhost: Vhost) -> Queue:
        """Create the queue of the reply consumer.

        Raises:
            PreconditionFailed: the channel already has a reply consumer.
        """
        if self.queue is not None:
            raise PreconditionFailed("reply consumer already set on this channel")
        queue = direct_reply.make_queue(vhost)
        self.queue = queue
        return queue

    def close(self) -> None:
        """Forget the queue: its consumer has ended."""
        self.queue = None

    def address(self) -> str:
        """Return the address of the reply consumer.

        Raises:
            PreconditionFailed: the channel has no reply consumer.
        """
        if self.queue is None:
            raise PreconditionFailed(
                f"fast reply consumer does not exist: consume from '{REPLY_NAME}' on this channel first"
            )
        return self.queue.name

    def with_address(self, header: bytes) -> bytes:
        """Replace the pseudo-address of direct reply-to with the address of the reply consumer."""
        if content.reply_to(header) != REPLY_NAME:
            return header
        return content.with_reply_to(header, self.address())

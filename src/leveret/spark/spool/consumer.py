"""Consumes from any broker for a spool: messages are acknowledged in batches, once they are on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from leveret.broker.message import FORMAT_AMQP0, FORMAT_AMQP1
from leveret.client._sync.base_channel import BaseChannel
from leveret.client.delivery import Delivery
from leveret.client.engine.amqp091.encoding import encode_address
from leveret.client.errors import ConnectionClosed, Error, InvalidMessage, NotFound, PreconditionFailed, Timeout
from leveret.client.message import Message
from leveret.segments.columns import Rows, make_batch
from leveret.segments.typed_json import Document
from leveret.spark.connection import AnyConnection, Endpoint, open_connection
from leveret.spark.errors import BrokerUnreachable, OptionError, SparkError

logger = logging.getLogger("leveret.spark")

# Header of messages that come from a stream of RabbitMQ.
STREAM_OFFSET: Final = "x-stream-offset"
# Seconds without a message after which the queue counts as drained, and for the first message after a start.
IDLE_TIMEOUT: Final = 0.05
FIRST_MESSAGE_TIMEOUT: Final = 1.0
# Seconds to wait for a message that is known to be available.
EXPECTED_MESSAGE_TIMEOUT: Final = 10.0


class Unacked:
    """Unacked messages, in order.

    Attributes:
        size: The total size of their bodies in bytes.
        position: The position that the spool reaches with them; None for a queue.
    """

    def __init__(self, channel: BaseChannel, messages: list[Message], size: int, position: Document) -> None:
        self._channel = channel
        self._messages = messages
        self.size = size
        self.position = position

    def __len__(self) -> int:
        return len(self._messages)

    def batch(self, first: int, queue: str) -> pa.RecordBatch:
        """Convert the messages to rows, with offsets starting at `first`."""
        now = time.time_ns() // 1_000_000
        count = len(self._messages)
        formats, addresses, headers, bodies = [], [], [], []
        for message in self._messages:
            if isinstance(message, Delivery):
                header, body = _split_body(message)
                formats.append(FORMAT_AMQP1)
            else:
                header, body = message._command.header, message.body
                formats.append(FORMAT_AMQP0)
            addresses.append(encode_address(message.exchange, message.routing_key))
            headers.append(header)
            bodies.append(body)
        rows = Rows(
            list(range(first, first + count)),
            [now] * count,
            formats,
            addresses,
            headers,
            bodies,
            None,
            [message.redelivered for message in self._messages],
        )
        return make_batch(rows, queue=queue)

    def acknowledge(self) -> None:
        """Acknowledge the messages. If the acknowledgement is lost, the broker redelivers them."""
        try:
            self._messages[-1].ack(multiple=True)
        except (ConnectionClosed, Error) as error:
            logger.warning("messages that are on disk could not be acknowledged and may be redelivered: %s", error)


class SpoolConsumer:
    """A consumer of the queue, opened on first use and reopened after a failure.

    Args:
        endpoint: The broker.
        queue: Name of the queue.
        prefetch: Maximum number of unacked messages.

    Attributes:
        option: The option that names the queue, for errors.
    """

    option = "queue"

    def __init__(self, endpoint: Endpoint, queue: str, prefetch: int) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._prefetch = prefetch
        self._connection: AnyConnection | None = None
        self._channel: BaseChannel | None = None
        self._consumer: Any = None
        self._fresh = True
        # Messages that were read when the consumer was opened, and are still to be taken.
        self._read_before: list[Message] = []

    def _open(self) -> Any:
        if self._consumer is not None and self._connection is not None and self._connection.is_open:
            return self._consumer
        self.close()
        self._connection = open_connection(self._endpoint, "leveret-spark spool")
        self._channel = self._connection.open_channel(confirms=False)
        try:
            consumer = self._channel.consume(self._queue, prefetch=self._prefetch, **self._subscription())
            self._consumer = consumer.start()
            self._begin()
        except (NotFound, PreconditionFailed) as error:
            self.close()
            raise OptionError(f"option {self.option}: {error}") from None
        except SparkError:
            self.close()
            raise
        except Error as error:
            self.close()
            raise BrokerUnreachable(f"queue {self._queue!r} cannot be consumed: {error}") from None
        self._fresh = True
        return self._consumer

    def _subscription(self) -> dict[str, Any]:
        """Return more arguments of `consume`."""
        return {}

    def _begin(self) -> None:
        """Check the first messages of a consumer that was opened."""

    def _check(self, message: Message) -> None:
        """Check the first message that is taken. Raises OptionError if it comes from another kind of queue."""
        try:
            headers = message.headers or {}
        except InvalidMessage:  # of another client over AMQP 1.0, which has no such header
            return
        if STREAM_OFFSET in headers:
            raise OptionError(f"option queue: {self._queue!r} is a stream; use option stream, which reads it by offsets")

    def _is_complete(self, messages: Sequence[Message]) -> bool:
        """Return whether there are no other messages between these; otherwise the consumer is opened again."""
        return True

    def position_of(self, messages: Sequence[Message]) -> Document:
        """Return the position of messages that are taken; None for a queue, whose broker keeps it."""
        return None

    def reached(self, position: Document) -> None:
        """Set the position of the spool, where the consumer continues after a failure."""

    def available(self) -> int:
        """Return the number of messages to read in a run that reads all available ones."""
        return self.pending()

    def pending(self) -> int:
        """Return the number of available messages, including those in flight.

        Over AMQP 1.0 to a broker without a management node, only messages that have arrived are counted.
        """
        self._open()
        counted = self._count()
        deadline = time.monotonic() + FIRST_MESSAGE_TIMEOUT
        while self._fresh and time.monotonic() < deadline:
            time.sleep(IDLE_TIMEOUT)
            previous, counted = counted, self._count()
            if counted == previous and counted[0]:
                break
        self._fresh = False
        return sum(counted)

    def _count(self) -> tuple[int, int]:
        """Return the number of messages that have arrived, and the number of those that the broker has not sent.

        The round trip reads the messages that the broker has sent before. If one arrives meanwhile, both numbers may
        include it, so they are counted again; the prefetch bounds the number of attempts.
        """
        messages = self._consumer._core.messages
        arrived = -1
        unsent = 0
        while len(messages) != arrived:
            arrived = len(messages)
            unsent = self._count_ready()
        return arrived, unsent

    def _count_ready(self) -> int:
        """Return the number of messages in the queue that no consumer has; 0 if the broker cannot count them."""
        assert self._connection is not None
        try:
            with self._connection.open_channel(confirms=False) as channel:
                declared: Any = channel.declare_queue(self._queue, passive=True)
                return int(declared.message_count)
        except Error as error:
            logger.info("messages in queue %r cannot be counted: %s", self._queue, error)
            return 0

    def take(self, max_messages: int, max_bytes: int, wait: bool) -> Unacked | None:
        """Return up to `max_messages` messages of about `max_bytes` in total; None if there are none now.

        Args:
            max_messages: Maximum number of messages.
            max_bytes: Approximate maximum of the total body size.
            wait: Whether messages are known to be available, so that waiting for them is worthwhile.

        Raises:
            BrokerUnreachable: The queue cannot be consumed.
        """
        messages: list[Message] = []
        size = 0
        consumer = self._open()
        max_messages = min(max_messages, self._prefetch)
        limit = EXPECTED_MESSAGE_TIMEOUT if wait else FIRST_MESSAGE_TIMEOUT if self._fresh else IDLE_TIMEOUT
        self._fresh = False
        try:
            while len(messages) < max_messages and size < max_bytes:
                message: Message
                if self._read_before:
                    message = self._read_before.pop(0)
                else:
                    message = consumer.next(IDLE_TIMEOUT if messages else limit)
                if not messages:
                    self._check(message)
                messages.append(message)
                size += message.size
        except Timeout:
            pass
        except (Error, StopIteration) as error:
            # Unacknowledged messages are redelivered.
            self.close()
            if isinstance(error, ConnectionClosed):
                logger.warning("queue %r: consuming again after: %s", self._queue, error)
                return None
            raise BrokerUnreachable(f"queue {self._queue!r} can no longer be consumed: {error}") from None
        if messages and not self._is_complete(messages):
            self.close()
            return self.take(max_messages, max_bytes, wait)
        assert self._channel is not None
        return Unacked(self._channel, messages, size, self.position_of(messages)) if messages else None

    def close(self) -> None:
        """Close the connection; the broker requeues unacknowledged messages."""
        connection, self._connection, self._consumer, self._channel = self._connection, None, None, None
        self._read_before = []
        if connection is not None:
            connection.close()


def _split_body(message: Delivery) -> tuple[bytes, bytes]:
    """Split the encoded message into the sections around the body and the body; invalid messages are all body."""
    try:
        sections = message.sections
    except InvalidMessage:
        return b"", message.payload
    if sections.body < 0:
        return message.payload, b""
    return message.payload[: sections.body] + message.payload[sections.body_end :], message.payload[
        sections.body : sections.body_end
    ]

"""Consuming from any broker for a spool: some messages at a time, which are acknowledged when they are on disk."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import pyarrow as pa

from leveret.broker.message import FORMAT_AMQP0, FORMAT_AMQP1
from leveret.client.blocking.channel import Channel
from leveret.client.blocking.connection import Connection
from leveret.client.core.encoding import encode_address
from leveret.client.delivery import Delivery
from leveret.client.errors import ConnectionClosed, Error, InvalidMessage, NotFound, Timeout
from leveret.client.message import Message
from leveret.segments.columns import Rows, make_batch
from leveret.spark.connection import Endpoint, open_connection
from leveret.spark.errors import BrokerUnreachable, OptionError

log = logging.getLogger("leveret.spark")

# Seconds for which nothing comes before what is there is taken for all, and for the first message after a start.
QUIET: Final = 0.05
FIRST: Final = 1.0
# The same where messages are known to wait.
EXPECTED: Final = 10.0


class Taken:
    """Messages that were taken and are not acknowledged yet, in order."""

    def __init__(self, channel: Channel, messages: list[Message], octets: int) -> None:
        self._channel = channel
        self._messages = messages
        self.octets = octets

    def __len__(self) -> int:
        return len(self._messages)

    def batch(self, first: int, queue: str) -> pa.RecordBatch:
        """As rows, with offsets from `first` on."""
        now = time.time_ns() // 1_000_000
        count = len(self._messages)
        formats, addresses, headers, bodies = [], [], [], []
        for message in self._messages:
            if isinstance(message, Delivery):
                header, body = _around(message)
                formats.append(FORMAT_AMQP1)
            else:
                header, body = message._command.header, message.body
                formats.append(FORMAT_AMQP0)
            addresses.append(encode_address(message.exchange, message.routing_key))
            headers.append(header)
            bodies.append(body)
        rows = Rows(list(range(first, first + count)), [now] * count, formats, addresses, headers, bodies, None,
                    [message.redelivered for message in self._messages])
        return make_batch(rows, queue=queue)

    def acknowledge(self) -> None:
        """Tell the broker that we have them. It may not hear of it, and deliver them once more then."""
        try:
            self._messages[-1].ack(multiple=True)
        except (ConnectionClosed, Error) as error:
            log.warning("messages that are on disk were not acknowledged, and may come again: %s", error)


class SpoolConsumer:
    """A consumer of the queue, opened when it is needed and again when it was lost.

    prefetch  messages that may be on their way and not acknowledged
    """

    def __init__(self, endpoint: Endpoint, queue: str, prefetch: int) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._prefetch = prefetch
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._consumer: Any = None
        self._fresh = True

    def _open(self) -> Any:
        if self._consumer is not None and self._connection is not None and self._connection.is_open:
            return self._consumer
        self.close()
        self._connection = open_connection(self._endpoint, "leveret-spark spool")
        self._channel = self._connection.channel(confirms=False)
        try:
            self._consumer = self._channel.consume(self._queue, prefetch=self._prefetch).start()
        except NotFound as error:
            self.close()
            raise OptionError(f"option queue: {error}") from None
        self._fresh = True
        return self._consumer

    def waiting(self) -> int:
        """Messages that the broker has for us, those that are on their way included. Over AMQP 1.0 only as many as are
        here, where the broker has no management node."""
        consumer = self._open()
        assert self._connection is not None
        if self._fresh:
            # What is on its way is not counted by the broker: have it here.
            self._until_quiet(FIRST)
        here = len(consumer._core.messages)
        try:
            with self._connection.channel(confirms=False) as channel:
                declared: Any = channel.declare_queue(self._queue, passive=True)
                return here + int(declared.message_count)
        except Error as error:
            log.info("queue %r cannot be counted: %s", self._queue, error)
            return here

    def _until_quiet(self, first: float) -> None:
        """Until nothing more comes for a moment, or as much as may be on its way is here."""
        core = self._consumer._core
        deadline = time.monotonic() + first
        count = -1
        while time.monotonic() < deadline and len(core.messages) < self._prefetch:
            if core.messages and len(core.messages) == count:
                break
            count = len(core.messages)
            time.sleep(QUIET)
        self._fresh = False

    def take(self, most: int, octets: int, wait: bool) -> Taken | None:
        """At least one message and at most so many, of so many octets about; None where nothing is there now. `wait`: there
        is something, and it is waited for. `BrokerUnreachable`."""
        messages: list[Message] = []
        size = 0
        consumer = self._open()
        most = min(most, self._prefetch)
        limit = EXPECTED if wait else FIRST if self._fresh else QUIET
        self._fresh = False
        try:
            while len(messages) < most and size < octets:
                message: Message = consumer.next(QUIET if messages else limit)
                messages.append(message)
                size += message.size
        except Timeout:
            pass
        except (Error, StopIteration) as error:
            # What came over it will come again.
            self.close()
            if isinstance(error, ConnectionClosed):
                log.warning("queue %r: consuming again after: %s", self._queue, error)
                return None
            raise BrokerUnreachable(f"queue {self._queue!r} cannot be consumed any more: {error}") from None
        assert self._channel is not None
        return Taken(self._channel, messages, size) if messages else None

    def close(self) -> None:
        """What was not acknowledged goes back to the queue."""
        connection, self._connection, self._consumer, self._channel = self._connection, None, None, None
        if connection is not None:
            connection.close()


def _around(message: Delivery) -> tuple[bytes, bytes]:
    """The sections around the body, and those of the body; octets that are no message are a body of their own."""
    try:
        sections = message.sections
    except InvalidMessage:
        return b"", message.payload
    if sections.body < 0:
        return message.payload, b""
    return message.payload[: sections.body] + message.payload[sections.body_end :], \
        message.payload[sections.body : sections.body_end]

"""Helpers of the pika tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.support.polling import DEADLINE, wait_until


class Got(NamedTuple):
    """A message from get or consume."""

    method: Any
    properties: pika.BasicProperties
    body: bytes


def get(channel: BlockingChannel, queue: str, *, auto_ack: bool = True, within: float = DEADLINE) -> Got:
    """Return the next message of a queue, waiting for it if necessary."""

    def got() -> Got | None:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        return None if method is None else Got(method, properties, body)

    return wait_until(got, f"a message in {queue!r}", within)


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Return the bodies of all ready messages."""
    bodies: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


def empty(channel: BlockingChannel, queue: str) -> bool:
    return channel.basic_get(queue, auto_ack=True)[0] is None


def count(channel: BlockingChannel, queue: str) -> int:
    """Return the number of ready messages of a queue."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def pass_time(channel: BlockingChannel, milliseconds: int) -> None:
    """Wait until this much time has passed for the broker: until a message with this TTL has expired."""
    dead = channel.queue_declare("", exclusive=True).method.queue
    arguments = {"x-message-ttl": milliseconds, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    expiring = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
    channel.basic_publish("", expiring, b"")
    get(channel, dead)
    channel.queue_delete(expiring)
    channel.queue_delete(dead)


def drain_until(connection: Any, condition: Callable[[], object]) -> None:
    """Process the input of a py-amqp or kombu connection until the condition is true."""

    def reached() -> bool:
        if not condition():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.02)
        return bool(condition())

    wait_until(reached)


def pump(
    connection: BlockingConnection,
    condition: Callable[[], object],
    what: str = "the condition",
    within: float = DEADLINE,
) -> None:
    """Process a connection's input until the condition is true."""

    wait_until(lambda: condition() or connection.process_data_events(0.02) or condition(), what, within)


class Collector:
    """A consumer that keeps its messages."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.queue = queue
        self.messages: list[Got] = []
        self.tag = channel.basic_consume(queue, self._on_message, **options)

    def _on_message(self, channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.messages.append(Got(method, properties, body))

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def wait(self, number: int) -> list[Got]:
        pump(self.channel.connection, lambda: len(self.messages) >= number, f"{number} deliveries")
        return self.messages

    def arrived(self) -> list[Got]:
        """Return the messages when the broker has sent all that it sends without further events.

        Two round trips through the queue prove it: the effects of the turn of the first one may follow its reply.
        """
        for _ in range(2):
            self.channel.queue_declare(self.queue, passive=True)
        self.channel.connection.process_data_events(0)
        return self.messages


@contextmanager
def channel_error(channel: BlockingChannel, code: int) -> Iterator[None]:
    """The broker closes this channel with the code, and keeps the connection open."""
    connection = channel.connection
    with pytest.raises(ChannelClosedByBroker) as caught:
        yield
        # An asynchronous error is seen at the next reply.
        channel.queue_declare("", exclusive=True)
    assert caught.value.reply_code == code, caught.value
    assert caught.value.reply_text
    assert channel.is_closed
    again = connection.channel()
    again.close()


@contextmanager
def connection_error(connection: BlockingConnection, code: int) -> Iterator[None]:
    """The broker closes the connection with the code."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        yield
        connection.channel()
    assert caught.value.reply_code == code, caught.value
    assert connection.is_closed

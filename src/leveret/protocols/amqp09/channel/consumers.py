"""Consumers of 0-9. Each receives contents of its own class, and messages published over 0-9-1 and 1.0.

Consumers of class basic check the class only after contents of other classes have been published in the vhost
(`Vhost.has_other_classes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import AUDIENCE_SHIFT, CONNECTION, FORMAT_BASIC_AMQP09, FORMAT_CLASS_AMQP09, Entry, Message
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.broker.vhost import Vhost
from leveret.protocols.amqp091.channel.consumers import ChannelConsumer
from leveret.protocols.message_filters import passes
from leveret.selectors import Filter, SelectorError, jms_selector
from leveret.wire.amqp0.classes import BASIC, class_of

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel
    from leveret.protocols.amqp091.connection.base import BaseConnection

# Filters of Qpid clients: a JMS selector, browsing, and cancelling the browser at the end of the queue.
SELECTOR: Final = "x-filter-jms-selector"
NO_CONSUME: Final = "x-filter-no-consume"
AUTO_CLOSE: Final = "x-filter-auto-close"


def is_set(filter: FieldTable, name: str) -> bool:
    """Return whether a boolean filter of a Qpid client is set."""
    return filter.get(name) in (True, 1, "true")


def is_of_class(message: Message, kind: int) -> bool:
    """Return whether consumers of this class receive the message."""
    if message.format == FORMAT_CLASS_AMQP09:
        return class_of(message.header) == kind
    return message.format != FORMAT_BASIC_AMQP09 or kind == BASIC


def publisher_of(connection: BaseConnection, kind: int) -> int:
    """Return `Message.publisher` for a content of this class. Consumers derive its class and connection from it."""
    return kind << AUDIENCE_SHIFT | connection.number


class ClassConsumer(ChannelConsumer):
    """A consumer of one content class, `kind`, which subclasses set. `selectors` filter its messages."""

    kind: int = BASIC

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        no_local: bool,
        priority: int,
        arguments: FieldTable,
    ) -> None:
        super().__init__(channel, queue, tag, no_ack, exclusive, no_local, priority, arguments)
        self.selectors = _selectors(arguments)
        if self.kind != BASIC or self.selectors or channel.vhost.has_other_classes:
            self.select()

    def wants(self, message: Message, entry: Entry | None) -> bool:
        if not (is_of_class(message, self.kind) and self._wants_from(message.publisher)):
            return False
        return not self.selectors or passes(self.selectors, message, entry, self.queue.broker)

    def wants_of(self, publisher: int) -> bool:
        kind = publisher >> AUDIENCE_SHIFT
        return kind in (0, self.kind) and self._wants_from(publisher)

    def _wants_from(self, publisher: int) -> bool:
        return not (self.no_local and publisher & CONNECTION == self.on_channel.connection.number)


def _selectors(filter: FieldTable) -> list[Filter]:
    """Return the selector of a Qpid client in the filter of a consume method, if any.

    Raises:
        PreconditionFailed: it is malformed.
    """
    text = filter.get(SELECTOR)
    if not isinstance(text, str) or not text:
        return []
    try:
        return [jms_selector(text)]
    except SelectorError as error:
        raise PreconditionFailed(f"invalid arg '{SELECTOR}': {error}") from None


class BasicConsumer(ClassConsumer):
    """A consumer of class basic. If it browses and `closes`, it is cancelled at the end of the queue."""

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        no_local: bool,
        priority: int,
        arguments: FieldTable,
    ) -> None:
        super().__init__(channel, queue, tag, no_ack, exclusive, no_local, priority, arguments)
        self.closes = is_set(arguments, AUTO_CLOSE)

    def seen_all(self) -> None:
        if self.closes:
            self.on_channel.connection.peer.call_soon(self._end)

    def _end(self) -> None:
        """Cancel the consumer. Qpid clients are notified by a basic.cancel-ok that they did not request."""
        channel = self.on_channel
        connection = channel.connection
        if channel.consumers.by_tag.get(self.tag) is not self:
            return
        channel.cancel(self.tag)
        if not connection.engine.uses_requests:  # a response must name a request, and there is none
            connection.engine.send(channel.number, "basic.cancel-ok", {"consumer_tag": self.tag})
            connection.mark()
        connection.broker.end_turn()


def prepare_other_classes(vhost: Vhost) -> None:
    """Prepare a vhost for contents of classes other than basic."""
    if vhost.has_other_classes:
        return
    vhost.note_other_classes()
    for queue in vhost.queues.values():
        for consumer in queue.consumers:
            if isinstance(consumer, ClassConsumer) and not consumer.selective:
                queue.consumers.become_selective(consumer)

"""Consumers of 0-9: each class is given contents of its own class, and those that came over 0-9-1 and 1.0.

`ClassConsumer` is the base of those of all classes. Class basic looks only where contents of other classes have been
published in the vhost (`Vhost.mixed`): until then everything is for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import AUDIENCE_SHIFT, CONNECTION, FORMAT_BASIC_AMQP09, FORMAT_CLASS_AMQP09, Entry, Message
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.broker.vhost import Vhost
from leveret.protocols.amqp091.channel.consumers import ChannelConsumer
from leveret.protocols.amqp10.link.outgoing import FILTER_WORK
from leveret.protocols.amqp10.terminus.filters import VIEW
from leveret.selectors import Filter, SelectorError, jms_selector
from leveret.wire.amqp0.classes import BASIC, class_of

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel
    from leveret.protocols.amqp091.connection.base import BaseConnection

# Filters of Qpid's clients: a selector as JMS has it, browsing, and the end of that.
SELECTOR: Final = "x-filter-jms-selector"
NO_CONSUME: Final = "x-filter-no-consume"
AUTO_CLOSE: Final = "x-filter-auto-close"


def is_set(filter: FieldTable, name: str) -> bool:
    """Whether a filter of Qpid's clients asks for something that is asked for or not."""
    return filter.get(name) in (True, 1, "true")


def is_of_class(message: Message, kind: int) -> bool:
    """Whether a consumer of this class is given the message."""
    if message.format == FORMAT_CLASS_AMQP09:
        return class_of(message.header) == kind
    return message.format != FORMAT_BASIC_AMQP09 or kind == BASIC


def publisher_of(connection: BaseConnection, kind: int) -> int:
    """`Message.publisher` of a content of this class: by it consumers know what they need not read back."""
    return kind << AUDIENCE_SHIFT | connection.number


class ClassConsumer(ChannelConsumer):
    """A consumer of one class. Subclasses set `kind`. `selector` is what it wants of that, None for everything."""

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
        self.selector = _selector(arguments)
        self.selective = no_local or self.kind != BASIC or self.selector is not None or channel.vhost.mixed

    def wants(self, message: Message, entry: Entry | None) -> bool:
        if not (is_of_class(message, self.kind) and self._wants_from(message.publisher)):
            return False
        if self.selector is None:
            return True
        VIEW.set_entry(message, entry)
        VIEW.work = FILTER_WORK
        wanted = self.selector.matches(VIEW)
        self.queue.broker.work += VIEW.work
        return wanted

    def wants_of(self, publisher: int) -> bool:
        kind = publisher >> AUDIENCE_SHIFT
        return kind in (0, self.kind) and self._wants_from(publisher)

    def _wants_from(self, publisher: int) -> bool:
        return not (self.no_local and publisher & CONNECTION == self.on_channel.connection.number)


def _selector(filter: FieldTable) -> Filter | None:
    """That of Qpid's clients in the filter of a consume method. PreconditionFailed where it is malformed."""
    text = filter.get(SELECTOR)
    if not isinstance(text, str) or not text:
        return None
    try:
        return jms_selector(text)
    except SelectorError as error:
        raise PreconditionFailed(f"invalid arg '{SELECTOR}': {error}") from None


class BasicConsumer(ClassConsumer):
    """A consumer of class basic. One that browses and `closes` is cancelled once it has seen everything."""

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
        """Cancelled by the broker, which Qpid's clients learn from an answer that they have not asked for."""
        channel = self.on_channel
        connection = channel.connection
        if channel.consumers.get(self.tag) is not self:
            return
        channel.cancel(self.tag)
        if not connection.engine.uses_requests:  # there an answer names what it answers
            connection.engine.send(channel.number, "basic.cancel-ok", {"consumer_tag": self.tag})
            connection.mark()
        connection.broker.end_turn()


def mix(vhost: Vhost) -> None:
    """A content of another class than basic is about to be published in a vhost."""
    if vhost.mixed:
        return
    vhost.mix()
    for queue in vhost.queues.values():
        for consumer in queue.consumers:
            if isinstance(consumer, ClassConsumer) and not consumer.selective:
                queue.become_selective(consumer)

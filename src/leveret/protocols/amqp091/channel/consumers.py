"""Consumers of a channel and their deliveries (0-9-1 basic.deliver). On the hot path."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.broker import MAX_CONVERTED
from leveret.broker.consumer import Client, Consumer
from leveret.broker.errors import Undelivered
from leveret.broker.message import NOT_BASIC, Entry, Message
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.protocols.amqp091 import content
from leveret.protocols.convert import to_amqp0
from leveret.protocols.vhost_session import QUANTUM
from leveret.wire.amqp0.constants import FRAME_ERROR, FRAME_MIN_SIZE, FRAME_OVERHEAD

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel

# Maximum number of tags that a channel remembers of consumers cancelled by the broker.
MAX_CANCELLED_TAGS: Final = 1000
# Bytes that fit any frame. Comparing with a constant first costs less.
MIN_PAYLOAD: Final = FRAME_MIN_SIZE - FRAME_OVERHEAD


class ChannelConsumer(Consumer):
    """A consumer of a channel. `prefetch` counts messages and `prefetch_size` bytes; 0 means no limit."""

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
        super().__init__(queue, tag, channel.connection, channel, no_ack, exclusive, priority, arguments, channel.scope)
        self.on_channel = channel
        self.tag_bytes = tag.encode("utf-8", "surrogateescape")
        self.deliveries = channel.unacked
        self.prefetch = channel.window.default_prefetch
        self.prefetch_size = channel.window.default_prefetch_size
        self.unacked_size = 0
        self.no_local = no_local
        if no_local:
            self.select()

    def queue_reconfigured(self) -> None:
        self.on_channel.update_timeout()

    def has_credit_for(self, size: int) -> bool:
        channel = self.on_channel
        if not self.no_ack:
            if self.prefetch:
                if self.unacked >= self.prefetch:
                    return False
            elif channel.is_over_limit():
                return False
            if channel.counted and not channel.has_credit(size):
                return False
            if self.prefetch_size and self.unacked and self.unacked_size + size > self.prefetch_size:
                return False
        elif (
            channel.counted
            and channel.is_full()
            and self.queue is not channel.replies.queue
            and not channel.connection.qos_spec
        ):
            return False  # as in RabbitMQ: a full channel window also stops consumers without acknowledgements
        if not channel.active:
            return False
        connection = channel.connection
        engine = connection.engine
        if (
            connection.output.paused
            or (engine.pending > QUANTUM and connection.exceeds_quantum(engine))
            or connection.broker.converted > MAX_CONVERTED
        ):
            if not self.apart and self.is_writable():
                self.queue.consumers.wait_for_turn(self)
            connection.starve()
            return False
        return True

    def is_writable(self) -> bool:
        return self.on_channel.connection.output.is_writable()

    def count_size(self, size: int) -> None:
        """Add to the bytes in the window of the consumer."""
        self.unacked_size += size

    def stop(self) -> None:
        """Get no more deliveries, because the channel closes."""
        self.deactivate()
        self.queue.consumers.leave(self)

    def move(self, owner: object) -> None:
        """Move to the connection that resumes the channel (0-9)."""
        self.owner = owner

    def wants(self, message: Message, entry: Entry | None) -> bool:
        return not (self.no_local and message.publisher == self.on_channel.connection.number)

    def wants_of(self, publisher: int) -> bool:
        return not (self.no_local and publisher == self.on_channel.connection.number)

    def is_leaving(self) -> bool:
        channel = self.on_channel
        return self.left or channel.closing or channel.abandoned

    def protocol(self) -> str:
        return self.on_channel.connection.protocol.removeprefix("AMQP ")

    def client(self) -> Client:
        return self.on_channel.client

    def deliver(self, entry: Entry) -> None:
        channel = self.on_channel
        message = entry.message
        connection = channel.connection
        engine = connection.engine
        overlay = entry.overlay
        address = message.address
        header = message.header
        redelivered = entry.acquired_count > 1
        if redelivered:
            channel.redelivered += 1
        if message.format & NOT_BASIC:
            message = to_amqp0.convert(entry)
            header = message.header
        elif overlay is not None:
            header = content.header_of(entry)
        if overlay is not None and overlay.address is not None:
            address = overlay.address
        if len(header) > MIN_PAYLOAD and len(header) > engine.payload_max:
            shorter = content.fitting(entry, header, engine.payload_max)
            if not shorter:
                raise Undelivered(entry, content.too_long(entry, header, engine.payload_max))
            header = shorter
        tag = self.deliveries.new_tag() if self.no_ack else self.deliveries.add(entry)
        if message.size > connection.max_encoded:
            engine.send_deliver(channel.number, self.tag_bytes, tag, redelivered, address, header, [], message.size)
            connection.send_body(channel.number, message)
            return
        engine.send_deliver(
            channel.number,
            self.tag_bytes,
            tag,
            redelivered,
            address,
            header,
            message.body,  # type: ignore[arg-type]  # StoredBody is larger
            message.size,
        )
        if not connection.dirty:
            connection.mark()

    def missed(self, text: str) -> None:
        super().missed(text)
        text = f"a message of queue '{self.queue.name}' cannot be sent: {text}"
        self.on_channel.connection.peer.call_soon(partial(self._end_connection, text))

    def _end_connection(self, text: str) -> None:
        connection = self.on_channel.connection
        connection.close(FRAME_ERROR, text)
        connection.broker.end_turn()

    def queue_deleted(self) -> None:
        self.on_channel.consumer_cancelled(self)

    def failed(self, text: str) -> None:
        channel = self.on_channel
        connection = channel.connection
        if connection.handshake.client.cancel_notifications or channel.closing:
            channel.consumer_cancelled(self)
        else:
            connection.refuse(channel, 404, text, 0, 0)  # otherwise the client would wait forever


class ConsumersByTag:
    """The consumers of a channel.

    Attributes:
        by_tag: consumers by tag. Those of a shared window take turns in this order.
        cancelled: tags of consumers that the broker cancelled, oldest first; None if there are none. In strict mode,
            basic.cancel accepts these too (basic.cancel.01). Bounded, because most clients never cancel them.
    """

    def __init__(self) -> None:
        self.by_tag: dict[str, ChannelConsumer] = {}
        self.cancelled: dict[str, None] | None = None

    def __len__(self) -> int:
        return len(self.by_tag)

    def add(self, consumer: ChannelConsumer) -> None:
        self.by_tag[consumer.tag] = consumer

    def remove(self, tag: str) -> ChannelConsumer | None:
        """Remove and return a consumer, or forget its cancelled one."""
        if self.cancelled is not None:
            self.cancelled.pop(tag, None)
        return self.by_tag.pop(tag, None)

    def cancel(self, consumer: ChannelConsumer, remembered: bool) -> bool:
        """Remove a consumer that the broker cancels. Return whether the channel had it."""
        if self.by_tag.pop(consumer.tag, None) is None:
            return False
        if remembered:
            cancelled = self.cancelled
            if cancelled is None:
                cancelled = self.cancelled = {}
            cancelled[consumer.tag] = None
            if len(cancelled) > MAX_CANCELLED_TAGS:
                del cancelled[next(iter(cancelled))]
        return True

    def is_known(self, tag: str) -> bool:
        """Return whether a consumer has the tag, or had it when the broker cancelled it."""
        return tag in self.by_tag or (self.cancelled is not None and tag in self.cancelled)

    def take_all(self) -> list[ChannelConsumer]:
        """Remove and return all consumers."""
        consumers = list(self.by_tag.values())
        self.by_tag.clear()
        return consumers

    def wake(self, shared: bool) -> None:
        """Wake the parked consumers. If they share a window, they take turns."""
        consumers = self.by_tag
        if shared and len(consumers) > 1:
            # Move the first parked one to the end.
            for tag, consumer in consumers.items():
                if consumer.parked:
                    consumers[tag] = consumers.pop(tag)
                    break
        for consumer in consumers.values():
            if consumer.parked:
                consumer.wake()

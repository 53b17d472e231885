"""Consumers of a channel and their deliveries (0-9-1 basic.deliver). On the hot path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.broker import MAX_CONVERTED
from leveret.broker.consumer import Consumer
from leveret.broker.message import NOT_BASIC, Entry, Message
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.protocols.amqp091 import content
from leveret.protocols.convert import to_amqp0

if TYPE_CHECKING:
    from leveret.protocols.amqp091.channel.channel import Channel

# Bytes of deliveries to one connection per turn. Further deliveries wait until the socket has accepted them.
QUANTUM: Final = 256 << 10


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
        self.prefetch = channel.default_prefetch
        self.prefetch_size = channel.default_prefetch_size
        self.unacked_size = 0
        self.no_local = no_local
        if no_local:
            self.select()

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
            and self.queue is not channel.reply_queue
            and not channel.connection.qos_spec
        ):
            return False  # as in RabbitMQ: a full channel window also stops consumers without acknowledgements
        if not channel.active:
            return False
        connection = channel.connection
        if connection.paused or connection.engine.pending > QUANTUM or connection.broker.converted > MAX_CONVERTED:
            connection.starved = True
            connection.mark()
            return False
        return True

    def wants(self, message: Message, entry: Entry | None) -> bool:
        return not (self.no_local and message.publisher == self.on_channel.connection.number)

    def wants_of(self, publisher: int) -> bool:
        return not (self.no_local and publisher == self.on_channel.connection.number)

    def is_leaving(self) -> bool:
        channel = self.on_channel
        return self.left or channel.closing or channel.abandoned

    def protocol(self) -> str:
        return self.on_channel.connection.protocol.removeprefix("AMQP ")

    def deliver(self, entry: Entry) -> None:
        channel = self.on_channel
        tag = channel.next_tag
        channel.next_tag = tag + 1
        message = entry.message
        if not self.no_ack:
            channel.unacked[tag] = entry
            if channel.sized:
                channel.unacked_size += message.size
                self.unacked_size += message.size
            if channel.times is not None:
                channel.times[tag] = channel.connection.broker.timers.now()
        connection = channel.connection
        overlay = entry.overlay
        address = message.address
        header = message.header
        if message.format & NOT_BASIC:
            message = to_amqp0.convert(entry)
            header = message.header
        elif overlay is not None:
            header = content.header_of(entry)
        if overlay is not None and overlay.address is not None:
            address = overlay.address
        if message.size > connection.max_encoded:
            connection.engine.send_deliver(
                channel.number, self.tag_bytes, tag, entry.acquired_count > 1, address, header, [], message.size
            )
            connection.send_body(channel.number, message)
            return
        connection.engine.send_deliver(
            channel.number,
            self.tag_bytes,
            tag,
            entry.acquired_count > 1,
            address,
            header,
            message.body,  # type: ignore[arg-type]  # StoredBody is larger
            message.size,
        )
        if not connection.dirty:
            connection.dirty = True
            connection.broker.outputs.append(connection)

    def queue_deleted(self) -> None:
        self.on_channel.consumer_cancelled(self)

    def failed(self, text: str) -> None:
        channel = self.on_channel
        connection = channel.connection
        if connection.notify_cancel or channel.closing:
            channel.consumer_cancelled(self)
        else:
            connection.refuse(channel, 404, text, 0, 0)  # otherwise the client would wait forever

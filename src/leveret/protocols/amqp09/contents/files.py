"""Class file on a channel: contents being staged, in both directions.

The client stages a content with `file.open`, `file.open-ok` and `file.stage`, and publishes it by its identifier. The
broker delivers in the same way, and then sends `file.deliver`, which assigns the delivery tag. `file.open-ok` and
`file.stage` have no identifier: they refer to the oldest pending `file.open`.
"""

from __future__ import annotations

import struct
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import StoredBody
from leveret.broker.dead_letter import split_address
from leveret.broker.errors import CommandInvalid, ContentTooLarge, NotAllowed, PreconditionFailed
from leveret.broker.message import Entry, Message
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import Route
from leveret.broker.timers import Timed
from leveret.broker.uploads import Upload
from leveret.broker.values import FieldTable
from leveret.protocols.amqp09.channel.consumers import ClassConsumer
from leveret.protocols.amqp09.contents.bodies import Incoming, tail
from leveret.protocols.amqp09.contents.content import address_of, fitting
from leveret.wire.amqp0.classes import FILE
from leveret.wire.amqp0.commands import ContentMethod

if TYPE_CHECKING:
    from leveret.protocols.amqp09.channel.channel import Channel
    from leveret.protocols.amqp091.channel.channel import Channel as Channel091

KIND: Final = "file"
# Maximum number of deliveries of a channel whose `file.open` the client has not answered.
MAX_OPEN: Final = 64
# Interval in milliseconds for checking whether a full queue has room again.
OVERFLOW_CHECK_INTERVAL: Final = 50
_SIZE: Final = struct.Struct(">Q").pack
_SIZE_AT: Final = 4
_SIZE_END: Final = 12


def with_size(header: bytes, size: int) -> bytes:
    """Return a content header for a body of another size."""
    return header[:_SIZE_AT] + _SIZE(size) + header[_SIZE_END:]


class FileConsumer(ClassConsumer):
    """A consumer of class file.

    To the queue, it is a consumer that acknowledges. If the client does not (`automatic`), a message is settled when it has
    been staged, not when staging begins.
    """

    kind = FILE

    def __init__(
        self,
        channel: Channel091,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        no_local: bool,
        priority: int,
        arguments: FieldTable,
    ) -> None:
        super().__init__(channel, queue, tag, False, exclusive, no_local, priority, arguments)
        self.automatic = no_ack
        self.files: Files = channel.files  # type: ignore[attr-defined]  # a channel of 0-9

    def has_credit_for(self, size: int) -> bool:
        channel = self.on_channel
        if len(self.files.opens) >= MAX_OPEN:
            return False
        if not self.automatic:
            return super().has_credit_for(size)
        return channel.active and not channel.connection.output.paused

    def deliver(self, entry: Entry) -> None:
        self.files.open(self, entry)


class Open:
    """A delivery whose `file.open` the client has not answered."""

    __slots__ = ("consumer", "entry", "identifier", "message")

    def __init__(self, consumer: FileConsumer, entry: Entry, identifier: str) -> None:
        self.consumer = consumer
        self.entry = entry
        self.identifier = identifier
        self.message = fitting(entry, FILE, consumer.on_channel.connection.engine.payload_max)


class _Overflow(Timed):
    """Resumes a publisher when the full queues have room again."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self.files = files

    def fire(self, now: int) -> None:
        self.files.check_overflow(now)


class Files:
    """Staging on one channel.

    Attributes:
        opened: contents that the client may stage, in order.
        receiving: the content that the client is staging.
        opens: deliveries whose `file.open` the client has not answered.
        pending: uploads published in the open transaction, and one that the log writes before it is published.
        full: queues over their limits, for which the client was asked to pause.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.opened: deque[Incoming] = deque()
        self.receiving: Incoming | None = None
        self.opens: deque[Open] = deque()
        self.pending: list[Upload] = []
        self.full: list[Queue] = []
        self.overflow = _Overflow(self)
        # The upload opened last, its turn, and its size before this channel wrote to it.
        self._last_name = ""
        self._last_turn = 0
        self._found = 0
        # The body of an upload that the log has written, until its `file.publish` is performed again.
        self._written: StoredBody | None = None

    # From the client

    def add(self, staged: Upload) -> int:
        """Allow the client to stage an upload that it has just opened.

        Returns:
            The number of its bytes that this channel has not sent. They must be on disk before they are reported.
        """
        if staged.name != self._last_name or staged.turn != self._last_turn + 1:
            self._last_name = staged.name
            self._found = staged.size
        self._last_turn = staged.turn
        self.opened.append(Incoming(staged))
        return self._found

    def begin(self, method: ContentMethod) -> Incoming:
        """Start to receive the content of a `file.stage`."""
        if not self.opened:
            raise CommandInvalid("file.stage without a preceding file.open")
        incoming = self.opened[0]
        incoming.check()
        staged = incoming.staged
        if staged.announced is not None and staged.size + method.size > staged.announced:
            raise ContentTooLarge(
                f"staged content '{staged.key[3]}' was announced with {staged.announced} bytes and has"
                f" {staged.size}: {method.size} more exceed it"
            )
        self.receiving = self.opened.popleft()
        return incoming

    def stage(self, method: ContentMethod) -> None:
        """Process a complete `file.stage`."""
        if not method.spooled:
            self.begin(method)  # the content has no body
        incoming = self.receiving
        assert incoming is not None
        incoming.check()
        self.receiving = None
        self.channel.body.drop()  # otherwise the upload would live as long as the channel
        staged = incoming.staged
        staged.describe(with_size(method.header, staged.announced or 0))
        staged.release()

    def write_ahead(self, staged: Upload, route: Route, message: Message) -> bool:
        """Write a large upload to the log before it is published. Meanwhile no other channel can publish it.

        Returns:
            Whether `file.publish` must wait.
        """
        if not self.channel.write_ahead(route, message, partial(self._take_written, staged)):
            return False
        staged.claim()
        self.pending.append(staged)
        return True

    def _take_written(self, staged: Upload, written: StoredBody) -> None:
        self.pending.remove(staged)
        staged.unclaim()
        self._written = written

    def take_written(self) -> StoredBody | None:
        """Return the body that the log has written for the current `file.publish`, None if it has none."""
        written = self._written
        self._written = None
        return written

    def transaction_ended(self, committed: bool) -> None:
        for staged in self.pending:
            if committed:
                staged.published()
            else:
                staged.unclaim()
        self.pending = []

    # To the client

    def open(self, consumer: FileConsumer, entry: Entry) -> None:
        """Ask the client to accept the staging of a delivery."""
        channel = self.channel
        queue = entry.queue
        opened = Open(consumer, entry, f"{channel.broker.identity}.{queue.id}.{entry.seq}")
        channel.unacked.count(entry)
        self.opens.append(opened)
        channel.connection.engine.send(
            channel.number, "file.open", {"identifier": opened.identifier, "content_size": opened.message.size}
        )
        channel.connection.mark()

    def open_ok(self, staged_size: int) -> None:
        """Stage the part of a content that the client does not have, then deliver the content."""
        if not self.opens:
            raise CommandInvalid("file.open-ok without a preceding file.open")
        opened = self.opens[0]
        message = opened.message
        if staged_size > message.size:
            raise NotAllowed(
                f"file.open-ok: staged-size {staged_size} exceeds the size of '{opened.identifier}', {message.size} bytes"
            )
        self.opens.popleft()
        channel = self.channel
        entry = opened.entry
        rest = message.size - staged_size
        header = with_size(message.header, rest)
        channel.send_content(
            "file.stage", {}, header, Message(message.address, header, tail(message.body, staged_size), rest, True)
        )
        tag = channel.unacked.new_tag()
        exchange, routing_key = split_address(address_of(entry))
        channel.connection.engine.send(
            channel.number,
            "file.deliver",
            {
                "consumer_tag": opened.consumer.tag,
                "delivery_tag": tag,
                "redelivered": entry.acquired_count > 1,
                "exchange": exchange,
                "routing_key": routing_key,
                "identifier": opened.identifier,
            },
        )
        if opened.consumer.automatic:
            channel.unacked.uncount(tag, entry)
            entry.queue.settle(entry)
        else:
            channel.unacked.put(tag, entry)
        channel.wake()

    def requeue_pending(self) -> None:
        """Requeue incomplete deliveries."""
        opens = self.opens
        self.opens = deque()
        for opened in reversed(opens):
            self.channel.unacked.uncount(0, opened.entry)
            opened.entry.queue.requeue(opened.entry)

    # Overflow

    def check_pause(self) -> None:
        """Raise PreconditionFailed if the client publishes although it was asked to pause and had time to comply."""
        if self.full and self.channel.violates_pause():
            raise PreconditionFailed(
                f"queue '{self.full[0].name}' is full and the channel was asked to pause by"
                " channel.flow: the content stays staged"
            )

    def slow_down(self, queues: list[Queue]) -> None:
        """Ask the client to pause if a queue is over its limits, because files are never dropped."""
        full = [queue for queue in queues if queue.limits.is_exceeded()]
        if full:
            self.full.extend(queue for queue in full if queue not in self.full)
            self.channel.ask_to_pause()
            timers = self.channel.broker.timers
            timers.at(timers.now() + OVERFLOW_CHECK_INTERVAL, self.overflow)

    def check_overflow(self, now: int) -> None:
        self.full = [queue for queue in self.full if not queue.deleted and queue.limits.is_exceeded()]
        channel = self.channel
        if channel.closing:
            return
        if self.full:
            channel.broker.timers.at(now + OVERFLOW_CHECK_INTERVAL, self.overflow)
        elif not channel.connection.services.alarm:
            channel.ask_to_resume()
            channel.connection.mark()

    def interrupt(self) -> None:
        """Handle the loss of the connection: detach uploads, requeue incomplete deliveries."""
        self._detach()
        self.requeue_pending()

    def close(self) -> None:
        """Handle the end of the channel: detach uploads."""
        self._detach()
        self.transaction_ended(False)
        self.channel.broker.timers.cancel(self.overflow)

    def _detach(self) -> None:
        if self.receiving is not None:
            self.opened.append(self.receiving)
        for incoming in self.opened:
            if incoming.turn == incoming.staged.turn:
                incoming.staged.detach()
        self.opened.clear()
        self.receiving = None

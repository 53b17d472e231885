"""Sending from a source with durable unsettled state: a transfer is sent when its link state is on disk.

After a crash, the log contains the tags of all deliveries that a client may have received. Transient messages have no
stored state, but are sent in the same order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker.log import CommitWaiter
from leveret.broker.message import Entry
from leveret.protocols.amqp10.link.outgoing import AROUND, PIECE, LinkConsumer, Sending
from leveret.protocols.amqp10.messages import body_of, head_of, tail_of
from leveret.protocols.amqp10.terminus import terminus_store
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink

# Maximum number of deliveries of a link that wait for the disk.
MAX_PENDING: Final = 1000


class PendingTransfer:
    """A delivery that waits for the commit of `batch`."""

    __slots__ = ("batch", "entry", "head", "number", "tag")

    def __init__(self, number: int, tag: bytes, entry: Entry, head: bytes, batch: int) -> None:
        self.number = number
        self.tag = tag
        self.entry = entry
        self.head = head
        self.batch = batch


class DurableSourceConsumer(LinkConsumer):
    """The consumer of a durable source. `id` identifies its terminus in the log."""

    def __init__(self, link: OutgoingLink, queue: Queue, id: str, priority: int, default_outcome: Checked) -> None:
        super().__init__(link, queue, False, False, priority, default_outcome)
        self.id = id
        self.waiting: deque[PendingTransfer] = deque()
        self.awaited = 0
        self.waiter = _Waiter(self)

    def stores_unsettled(self) -> bool:
        return True

    def pending_numbers(self) -> list[int]:
        return [item.number for item in self.waiting]

    def has_credit_for(self, size: int) -> bool:
        return len(self.waiting) < MAX_PENDING and super().has_credit_for(size)

    def deliver(self, entry: Entry) -> None:
        link = self.link
        session = link.session
        head = head_of(entry, session.broker.timers)
        if link.max_size:
            link.check_size(entry, head)
        number = link.use_credit()
        session.unacked[number] = entry
        tag = link.tag_of(number)
        log = session.log
        batch = 0
        if terminus_store.is_stored(entry):
            terminus_store.put_sent(log, self.id, tag, entry.queue.id, entry.seq, head)
            batch = log.filling
            if self.awaited != batch:
                self.awaited = batch
                log.wait(self.waiter)
        self.waiting.append(PendingTransfer(number, tag, entry, head, batch))
        if not batch:
            self.send()

    def send(self) -> None:
        """Send the deliveries that are on disk, in the order of acquisition."""
        link = self.link
        session = link.session
        waiting = self.waiting
        if link.closed or session.closing:
            waiting.clear()  # the terminus keeps the unsent deliveries
            return
        committed = session.log.committed
        connection = session.connection
        while waiting and waiting[0].batch <= committed:
            item = waiting.popleft()
            if session.unacked.get(item.number) is not item.entry:
                continue
            message = item.entry.message
            body = body_of(message)
            tail = tail_of(message) if message.headers_at >= 0 else b""
            size = len(item.head) + len(tail)
            if isinstance(body, bytes) and session.remote_window > 0 and not session.sending:
                size += len(body)
                if size + AROUND <= connection.output.max_frame_size and size <= PIECE:
                    connection.output.send_transfer(
                        session.channel, link.handle, item.number, item.tag, False, item.head + body + tail, size
                    )
                    session.count_transfer()
                    connection.mark()
                    continue
            link.freeze(item.number, item.head)
            session.send(Sending(link, item.number, item.tag, False, item.head, body, tail))
        if len(waiting) < MAX_PENDING:
            self.wake()

    def forget(self, number: int, entry: Entry) -> bool:
        if not terminus_store.is_stored(entry):
            return False
        terminus_store.remove_delivery(self.link.session.log, self.id, self.link.tag_of(number))
        return True


class _Waiter(CommitWaiter):
    """Waiter that resumes sending after a commit."""

    def __init__(self, consumer: DurableSourceConsumer) -> None:
        self.consumer = consumer

    def committed(self, batch: int) -> None:
        self.consumer.send()

"""Links on which the client receives: a consumer of a queue, credit and transfers (transport section 2.6)."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body, whole
from leveret.broker.broker import MAX_CONVERTED
from leveret.broker.consumer import Client, Consumer, Scope
from leveret.broker.errors import Undelivered
from leveret.broker.message import FORMAT_AMQP1, Entry, Message
from leveret.broker.queues import entry_return
from leveret.broker.queues.loading import Waiting
from leveret.broker.queues.queue import Queue
from leveret.protocols.amqp10.errors import make_error
from leveret.protocols.amqp10.link.link import Link
from leveret.protocols.amqp10.messages import body_of, head_of, tail_of
from leveret.protocols.amqp10.session import outcomes
from leveret.protocols.amqp10.session.serial_numbers import MASK, WINDOW, credit_left
from leveret.protocols.amqp10.terminus.filters import Wanted
from leveret.protocols.amqp10.transaction import acquisition
from leveret.protocols.message_filters import passes
from leveret.protocols.vhost_session import QUANTUM
from leveret.selectors import Filter
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.output import Payload
from leveret.wire.amqp10.transport import Flow, Transfer
from leveret.wire.amqp10.values import Checked, Symbol
from leveret.wire.output_buffer import LARGE_PAYLOAD

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.resume_outgoing import Resumption
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.terminus.source import SourceTerminus
    from leveret.protocols.amqp10.transaction.transaction import LocalTransaction
    from leveret.wire.amqp10.transport import Attach

# Maximum bytes of a content header whose conversion counts as no work.
SIMPLE: Final = 128
_PACK_TAG: Final = struct.Struct(">I").pack
TXN_ID: Final = "txn-id"
# RabbitMQ's property of flows: whether the receiver is the active consumer of its queue.
ACTIVE: Final = Symbol("rabbitmq:active")
# Upper bound on the bytes of a frame around its payload.
AROUND: Final = 64
# Maximum bytes of one frame of a large message.
PIECE: Final = 64 << 10


class LinkConsumer(Consumer):
    """The consumer of an outgoing link.

    Attributes:
        default_outcome: applies to deliveries for which the client sends no outcome.
        sole: whether its queue never has another consumer.
    """

    def __init__(
        self,
        link: OutgoingLink,
        queue: Queue,
        no_ack: bool,
        exclusive: bool,
        priority: int = 0,
        default_outcome: Checked = None,
    ) -> None:
        scope = Scope()
        super().__init__(queue, link.name, link.session.connection, link.session, no_ack, exclusive, priority, {}, scope)
        self.depart = scope.depart
        self.link = link
        self.default_outcome = default_outcome
        self.no_local = False
        self.filters: list[Filter] = []
        self.sole = False

    def set_sole(self) -> None:
        """Be the only consumer that its queue ever has."""
        self.sole = True

    def filter(self, wanted: Wanted) -> None:
        """Consume only messages that pass the filters of the source."""
        self.no_local = wanted.no_local
        self.filters = wanted.filters
        if wanted.no_local or wanted.filters:
            self.select()
        self.arguments = wanted.lease or wanted.stream

    def wants(self, message: Message, entry: Entry | None) -> bool:
        if self.no_local and message.publisher == self.link.session.connection.number:
            return False
        if self.filters:
            return passes(self.filters, message, entry, self.queue.broker)
        return True

    def wants_of(self, publisher: int) -> bool:
        return not (self.no_local and publisher == self.link.session.connection.number)

    def has_credit_for(self, size: int) -> bool:
        link = self.link
        if link.credit <= 0:
            return False
        session = link.session
        if session.remote_window <= 0:
            return False
        connection = session.connection
        if session.sending or (
            (connection.paused or connection.output.pending > QUANTUM or connection.broker.converted > MAX_CONVERTED)
            and connection.is_full()
        ):
            if connection.starved and not self.apart and self.is_writable() and (self.no_ack or session.has_window()):
                self.queue.consumers.wait_for_turn(self)
            return False
        return self.no_ack or session.has_window()

    def is_writable(self) -> bool:
        return self.link.session.connection.is_writable()

    def protocol(self) -> str:
        return "1.0"

    def client(self) -> Client:
        return self.link.session.client

    def deliver(self, entry: Entry) -> None:
        link = self.link
        session = link.session
        connection = session.connection
        message = entry.message
        head = head_of(entry, connection.broker.timers)
        if link.max_size:
            link.check_size(entry, head)
        number = link.use_credit()
        if link.transaction is not None:
            acquisition.acquire(link, link.transaction, number, entry, head)
            return
        if self.no_ack:
            session.delivered_no_ack += 1
        else:
            session.unacked[number] = entry
        if message.format != FORMAT_AMQP1 and len(message.header) > SIMPLE:
            connection.broker.converted += len(message.header)
        body = message.body if message.format == FORMAT_AMQP1 else body_of(message)
        tag = link.prefix + _PACK_TAG(number)
        output = connection.output
        if message.size <= PIECE and isinstance(body, bytes):
            payload: Payload
            if message.size < LARGE_PAYLOAD:
                joined = head + body if message.headers_at < 0 else head + body + tail_of(message)
                payload = joined
                size = len(joined)
            else:
                tail = tail_of(message) if message.headers_at >= 0 else b""
                payload = (head, body, tail)
                size = len(head) + len(body) + len(tail)
            if size + AROUND <= output.max_frame_size and size <= PIECE:
                output.send_transfer(session.channel, link.handle, number, tag, self.no_ack, payload, size)
                session.count_transfer()
                if not connection.dirty:
                    connection.mark()
                return
        if not self.no_ack:
            link.freeze(number, head)
        tail = tail_of(message) if message.headers_at >= 0 else b""
        session.send(Sending(link, number, tag, self.no_ack, head, body, tail))

    def stores_unsettled(self) -> bool:
        """Return whether its unsettled deliveries are in the log."""
        return False

    def acquire_settled(self, settled: bool) -> None:
        """Set whether deliveries are settled when they are sent: under a transaction, none of them is."""
        self.no_ack = settled

    def pending_numbers(self) -> list[int]:
        """Return the delivery-ids of unsent deliveries that are not in `SessionEndpoint.sending`."""
        return []

    def forget(self, number: int, entry: Entry) -> bool:
        """Remove the link state of a settled delivery in the commit of the settlement. Return whether it had one."""
        return False

    def activated(self) -> None:
        if self.link.announced:
            self.link.announce()

    def queue_deleted(self) -> None:
        self.link.queue_deleted()

    def failed(self, text: str) -> None:
        self._refuse(constants.INTERNAL_ERROR, text)

    def cancelled(self, text: str) -> None:
        self._refuse(constants.LINK_DETACH_FORCED, text)

    def passed_over(self, text: str) -> None:
        if self.sole:
            self.queue.consumers.leave(self)
            self.missed(text)

    def missed(self, text: str) -> None:
        super().missed(text)
        self.deactivate()
        self.link.session.connection.peer.call_soon(partial(self._detach, text))

    def _detach(self, text: str) -> None:
        self._refuse(constants.LINK_MESSAGE_SIZE_EXCEEDED, text)
        self.queue.broker.end_turn()

    def _refuse(self, condition: str, text: str) -> None:
        link = self.link
        if not link.closed and not link.session.closing:
            link.session.refuse(link, make_error(condition, text))


class BrowsingConsumer(LinkConsumer):
    """The consumer of a link of distribution mode copy (messaging section 3.5.2).

    Deliveries stay in the queue; their outcomes are ignored.

    Attributes:
        seen: entries that were sent to earlier links of the terminus, and are not sent again.
    """

    def __init__(
        self, link: OutgoingLink, queue: Queue, no_ack: bool, seen: dict[int, int], default_outcome: Checked
    ) -> None:
        super().__init__(link, queue, no_ack, False, 0, default_outcome)
        self.browse(seen)

    def deliver(self, entry: Entry) -> None:
        session = self.link.session
        number = session.next_delivery_id  # `super` takes it, unless it raises
        super().deliver(entry)
        if not self.no_ack:
            del session.unacked[number]
            session.copies[number] = self.link


class Sending:
    """A delivery in several frames, or one that is resumed from `at`, with `state` on its first frame."""

    __slots__ = (
        "aborted",
        "at",
        "body",
        "delivery_id",
        "first",
        "head",
        "link",
        "resume",
        "settled",
        "size",
        "state",
        "tag",
        "tail",
    )

    def __init__(
        self,
        link: Link,
        delivery_id: int,
        tag: bytes,
        settled: bool,
        head: bytes,
        body: Body,
        tail: bytes,
        *,
        state: Composite | None = None,
        resume: bool = False,
        at: int = 0,
        aborted: bool = False,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.settled = settled
        self.head = head
        self.body: Body = whole(body) if isinstance(body, list) else body
        self.size = len(self.body) if isinstance(self.body, bytes) else body.size  # type: ignore[union-attr]
        self.tail = tail
        self.at = at
        self.first = True
        self.resume = resume
        self.aborted = aborted
        self.state = state

    def clear_state(self) -> None:
        """Send the first frame without a state."""
        self.state = None

    def aborting(self) -> Sending:
        """Return the transfer that aborts this delivery."""
        return Sending(self.link, self.delivery_id, self.tag, self.settled, b"", b"", b"", aborted=True)

    def send(self, session: SessionEndpoint) -> bool:
        """Send frames while the window and the socket allow. Return whether the delivery is complete."""
        connection = session.connection
        output = connection.output
        room = min(output.max_frame_size, PIECE) - AROUND
        total = len(self.head) + self.size + len(self.tail)
        while session.remote_window > 0 and not connection.is_full():
            payload = self._next_pieces(room)
            more = self.at < total
            if self.first:
                frame = Transfer(
                    self.link.handle,
                    self.delivery_id,
                    self.tag,
                    0,
                    self.settled,
                    more,
                    None,
                    self.state,
                    self.resume,
                    self.aborted,
                    channel=session.channel,
                )
                self.first = False
            else:
                frame = Transfer(self.link.handle, more=more, channel=session.channel)
            output.send_message(frame, payload)
            session.count_transfer()
            if not more:
                return True
        return False

    def _next_pieces(self, limit: int) -> list[bytes | memoryview]:
        """Return the next bytes of head, body and tail. Those of a body in memory are not copied.

        Raises:
            OSError: the body cannot be read.
        """
        at = self.at
        head = len(self.head)
        pieces: list[bytes | memoryview] = []
        left = limit
        if at < head:
            piece = self.head[at : at + left]
            pieces.append(piece)
            at += len(piece)
            left -= len(piece)
        if left and at < head + self.size:
            body = self.body
            start = at - head
            count = min(left, self.size - start)
            if isinstance(body, bytes):
                pieces.append(memoryview(body)[start : start + count])
            else:
                pieces.append(body.read(start, count))  # type: ignore[union-attr]
            at += count
            left -= count
        if left and self.tail and at >= head + self.size:
            start = at - head - self.size
            piece = self.tail[start : start + left]
            pieces.append(piece)
            at += len(piece)
        self.at = at
        return pieces


class _Drained(Waiting):
    """Waiter that drains a link after its queue has loaded messages from disk, or has continued its deliveries."""

    def __init__(self, link: OutgoingLink) -> None:
        self.link = link

    def loaded(self) -> None:
        link = self.link
        if not link.closed and link.draining:
            link.session.draining.append(link)
            link.session.connection.mark()


class OutgoingLink(Link):
    """A link whose sender is the broker.

    Attributes:
        prefix: prefix of delivery-tags, which end with the delivery-id.
        tags: delivery-tags from an earlier link of the same terminus, by delivery-id.
        heads: sections before the body of deliveries sent in several frames, by delivery-id.
        resumption: deliveries to resume before anything new is sent; None if there are none.
        announced: whether the client has been notified that it is, or is not, the active consumer.
        unsent: deliveries that were incomplete when the link was detached.
        max_size: maximum size of a message that the client receives; 0 for no limit.
    """

    consumes = True
    consumer: LinkConsumer

    def __init__(self, session: SessionEndpoint, frame: Attach, handle: int) -> None:
        super().__init__(session, frame, handle)
        self.draining = False
        self.announced = False
        self.prefix = b""
        self.tags: dict[int, bytes] = {}
        self.heads: dict[int, bytes] = {}
        self.resumption: Resumption | None = None
        self.unsent: list[int] = []
        self.max_size: int = frame.max_message_size or 0

    def size_limit(self) -> int:
        return self.max_size

    def exceeds_size(self, message: Message, head: bytes) -> int:
        """Return the size of a message after this head if it exceeds the client's limit, else 0."""
        size = len(head) + message.size
        if message.format == FORMAT_AMQP1 and message.headers_at >= 0:
            size += len(message.header) - message.headers_at
        return size if 0 < self.max_size < size else 0

    def check_size(self, entry: Entry, head: bytes) -> None:
        """Check the size of a delivery, which must not exceed the client's max-message-size (transport section 2.7.3).

        Raises:
            Undelivered: It does.
        """
        size = self.exceeds_size(entry.message, head)
        if size:
            text = f"a message of {size} bytes of queue '{self.queue_name()}' exceeds the max-message-size of its link"
            raise Undelivered(entry, f"{text} '{self.name}', {self.max_size}")

    def consume(self, consumer: LinkConsumer) -> None:
        """Set the consumer that `attached` adds to its queue."""
        self.consumer = consumer
        self.stores_unsettled = consumer.stores_unsettled()

    def queue_name(self) -> str:
        return self.consumer.queue.name

    def bind(self, source: SourceTerminus) -> None:
        """Keep the unsettled deliveries in a terminus, which has attached the link."""
        self.terminus = source
        self.prefix = source.prefix()

    def resume(self, resumption: Resumption) -> None:
        """Set the deliveries to resume before anything new is sent."""
        self.resumption = resumption

    def end_resumption(self) -> None:
        """Start consuming the queue after all deliveries were resumed."""
        self.resumption = None
        self.start()

    def continue_from(self, before: OutgoingLink, tags: dict[int, bytes]) -> None:
        """Continue the deliveries of an earlier link in the same session."""
        self.tags = tags
        self.heads = before.heads

    def attached(self) -> None:
        if self.resumption is not None:
            self.resumption.advance()
        else:
            self.start()

    def start(self) -> None:
        """Start consuming the queue, unless there are deliveries to resume."""
        if self.resumption is None:
            if self.consumer.queue.deleted:
                self.queue_deleted()  # while deliveries were resumed
                return
            self.consumer.queue.add_consumer(self.consumer)
            self._announce_first()

    def tag_of(self, number: int) -> bytes:
        """Return the tag of a delivery of this link."""
        tag = self.tags.get(number)
        return self.prefix + number.to_bytes(4, "big") if tag is None else tag

    def freeze(self, number: int, head: bytes) -> None:
        """Keep the sections before the body: the client's `received` states refer to these bytes."""
        heads = self.heads
        if len(heads) > 2 * self.consumer.unacked + 16:
            unacked = self.session.unacked
            for other in [other for other in heads if other not in unacked]:
                del heads[other]
        heads[number] = head

    def flow(self, frame: Flow) -> None:
        """Handle credit granted by the client (transport section 2.6.7)."""
        if isinstance(frame.properties, dict) and TXN_ID in frame.properties:
            acquisition.join(self, frame.properties[TXN_ID])
        if frame.link_credit is not None:
            self.credit = credit_left(frame.link_credit, frame.delivery_count, self.delivery_count)
        self.draining = frame.drain
        if self.resumption is not None:
            self.resumption.advance()
        if self.credit > 0:
            self._announce_first()
            self.consumer.wake()
        if frame.drain:
            # By the end of the turn, the queue has delivered all that it can.
            self.consumer.queue.activate()
            self.session.draining.append(self)
            self.session.connection.mark()
        elif frame.echo:
            self.send_flow()

    def _announce_first(self) -> None:
        if not self.announced and self.credit > 0 and self.resumption is None:
            self.announced = True
            self.announce()

    def announce(self) -> None:
        """Notify the client whether it is the active consumer, after its first credit and at each change.

        RabbitMQ notifies the receivers of quorum queues; the broker also notifies those of any queue with a single active
        consumer.
        """
        queue = self.consumer.queue
        if queue.announces_activity or queue.consumers.single_active:
            self.send_flow({ACTIVE: self.consumer.active})

    def send_flow(self, properties: Checked = None) -> None:
        session = self.session
        queue = self.consumer.queue
        if self.transaction is not None:
            properties = {**(properties or {}), Symbol(TXN_ID): self.transaction.id}
        session.connection.send(
            Flow(
                session.incoming_window,
                session.next_outgoing_id,
                WINDOW,
                session.next_incoming_id,
                self.handle,
                self.delivery_count,
                self.credit,
                None if queue.is_unindexed() else min(queue.ready_count, 0xFFFFFFFF),
                self.draining,
                properties=properties,
                channel=session.channel,
            )
        )

    def drain(self) -> None:
        """Use up the credit for which the queue has no messages, and send a flow."""
        if self.closed or not self.draining:
            return
        session = self.session
        if self.resumption is not None and self.resumption.is_busy():
            session.draining.append(self)  # more deliveries will follow
            return
        if self.credit > 0:
            if session.remote_window <= 0 or session.sending or session.connection.paused or session.connection.starved:
                session.draining.append(self)  # more deliveries will follow
                return
            queue = self.consumer.queue
            deferred = session.connection.broker.jobs.deferred
            if deferred.has(queue):
                deferred.wait(queue, _Drained(self))
                return
            if self._is_reading():
                queue.paging.wait_loaded(_Drained(self))
                return
            self.delivery_count = (self.delivery_count + self.credit) & MASK
            self.credit = 0
        self.send_flow()
        self.draining = False

    def _is_reading(self) -> bool:
        """Return whether the queue is reading messages from disk for this link."""
        return self.consumer.queue.paging.is_loading_for(self.consumer)

    def drop_unsent(self, numbers: list[int]) -> None:
        self.unsent.extend(numbers)

    def queue_deleted(self) -> None:
        """Detach the link because its queue was deleted."""
        queue = self.consumer.queue
        text = f"queue '{queue.name}' was deleted"
        if self.consumer.apart and self.consumer.seen is None and not queue.deleted:
            text = f"the lease of queue '{queue.name}' that the link reads was released or taken over"
        self.consumer.deactivate()
        self.node_deleted(text)

    def wake(self) -> None:
        if self.resumption is not None:
            self.resumption.advance()
        self.consumer.wake()

    def join(self, transaction: LocalTransaction) -> None:
        """Acquire under a transaction. Entries stay acquired in the queue even if they are sent settled."""
        self.transaction = transaction
        self.consumer.acquire_settled(False)

    def leave_transaction(self) -> None:
        """Acquire outside transactions again."""
        self.transaction = None
        self.consumer.acquire_settled(self.sends_settled())

    def sends_settled(self) -> bool:
        """Return whether deliveries are sent settled."""
        return self.snd_settle_mode == constants.SENDER_SETTLE_MODE_SETTLED

    def leave(self) -> None:
        self.consumer.depart()
        self.consumer.deactivate()
        self.consumer.queue.consumers.leave(self.consumer)
        if self.transaction is not None:
            acquisition.leave(self)
        if self.session.copies:
            self.session.forget_copies(self)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        consumer = self.consumer
        session = self.session
        self.leave()
        if session.acquired:
            acquisition.undo_for(session, self)
        # The end of the terminus returns those that it has stored.
        if consumer.unacked and not (self.stores_unsettled and self.terminus is not None):
            numbers = session.numbers_of(consumer)
            entry_return.return_entries(
                session.broker, [session.unacked.pop(number) for number in numbers], outcomes.requeue
            )
        consumer.queue.remove_consumer(consumer)
        self.forget()
        if self.terminus is not None:
            self.terminus.destroy()

    def suspend(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.unsent.extend(self.consumer.pending_numbers())
        self.leave()
        self.consumer.queue.remove_consumer(self.consumer)
        self.forget()
        if self.terminus is not None:
            self.terminus.detached()

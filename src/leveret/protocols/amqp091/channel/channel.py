"""Channels: publishes, confirms, deliveries and acknowledgements (0-9-1 classes channel, basic, confirm, tx).

This is the hot path of the protocol. Other methods are in the modules named after their class.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body, StoredBody, whole
from leveret.broker.consumer import Consumer, Scope, UnackedOwner
from leveret.broker.errors import ContentTooLarge, NotImplementedByBroker, PreconditionFailed
from leveret.broker.jobs import logged
from leveret.broker.message import AT_ONCE, FORMAT_AMQP0, Entry, Message
from leveret.broker.queues.frozen import FrozenQueues
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import Route, check_keys
from leveret.broker.transactions.transaction import ACCEPT, REJECT, REQUEUE
from leveret.broker.vhost import Vhost
from leveret.protocols.amqp091 import content
from leveret.protocols.amqp091.channel.consumer_timeout import ConsumerTimeout
from leveret.protocols.amqp091.channel.consumers import ChannelConsumer
from leveret.protocols.amqp091.reply_codes import FAILURE
from leveret.protocols.ingress_throttle import ALARM, BACKLOG
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY, Command, ContentMethod, Publish
from leveret.wire.amqp0.constants import INTERNAL_ERROR
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection

logger = logging.getLogger("leveret.connection")

REPLY_TO: Final = b"amq.rabbitmq.reply-to"
# Maximum number of unacknowledged deliveries on a channel without prefetch while memory is tight.
LOW_MEMORY_WINDOW: Final = 1000
# Milliseconds after channel.flow in which publishes are accepted: they may have been sent before it arrived.
FLOW_GRACE: Final = 5000
# Number of queues above which routing a message counts as work.
WIDE_FANOUT: Final = 16
# Maximum number of tags that a channel remembers of consumers cancelled by the broker.
MAX_CANCELLED_TAGS: Final = 1000
# Maximum number of deliveries that one acknowledgement settles without yielding to other clients.
MAX_SETTLED_AT_ONCE: Final = 2000
# A closing channel with fewer consumers removes them in the order of their creation.
MAX_LEAVING_IN_ORDER: Final = 100
NO_CONSUMERS: Final = 313
NO_ROUTE: Final = 312


class PendingPublish:
    """A publish in an open transaction.

    Its route is resolved on arrival. Only routes that depend on the message are resolved again at commit.
    """

    __slots__ = ("flags", "message", "route", "sent_at")

    def __init__(self, message: Message, route: Route, flags: int, sent_at: int) -> None:
        self.message = message
        self.route = route
        self.flags = flags
        self.sent_at = sent_at


class Channel(UnackedOwner):
    """One channel of a connection.

    Attributes:
        format: format of the messages published on it.
        publisher: number that identifies the publisher in messages.
        unacked: entries by delivery tag.
        low_tag: lower bound of the tags in `unacked`.
        active: whether the client accepts deliveries (channel.flow).
        paused: whether the broker has asked the client to stop publishing.
        stalled: whether a reply waits for a commit or a page-in. Further commands wait in `backlog`.
        published: number of publishes since confirm.select.
        confirmed: number of these that have been acked or nacked, in order.
        marks: pairs of a log batch and the first publish in it, in order.
        nacks: sequence numbers of publishes to nack.
    """

    def __init__(self, connection: BaseConnection, number: int) -> None:
        self.connection = connection
        self.vhost: Vhost = connection.vhost
        self.broker = connection.broker
        self.log = connection.broker.log
        self.number = number
        self.scope = Scope()
        self.format = FORMAT_AMQP0
        self.publisher: int = connection.number
        self.active = True
        self.paused = False
        self.pause_known = False
        self.pause_until = 0
        self.closing = False
        # The connection has ended. The channel is about to close and performs no more commands.
        self.abandoned = False
        # Deliveries
        self.next_tag = 1
        self.low_tag = 1
        self.unacked: dict[int, Entry] = {}
        self.consumers: dict[str, ChannelConsumer] = {}
        # Tags of consumers that the broker cancelled, oldest first. In strict mode, basic.cancel accepts these too
        # (basic.cancel.01). Bounded, because most clients never cancel them.
        self.cancelled_tags: dict[str, None] = {}
        self.default_prefetch = 0
        self.default_prefetch_size = 0
        self.prefetch = 0
        self.prefetch_size = 0
        self.unacked_size = 0
        # This channel's share of the connection's window: deliveries and bytes.
        self.counted_deliveries = 0
        self.counted_bytes = 0
        # Unacknowledged deliveries of basic.get, which do not count in any window.
        self.gets = 0
        self.counted = False
        self.sized = False
        self.max_unacked = connection.settings.unacked_per_channel
        self.times: dict[int, int] | None = None
        self.timeout: ConsumerTimeout | None = None
        self.last_queue = ""
        self.reply_queue: Queue | None = None
        # Publishes
        self.confirming = False
        self.published = 0
        self.confirmed = 0
        self.listed = False
        self.marked_batch = 0
        self.marks: deque[tuple[int, int]] = deque()
        self.nacks: deque[int] = deque()
        # Parts of the body being received.
        self.incoming: list[bytes] | StoredBody = []
        # Transactions
        self.transacted = False
        self.tx_publishes: list[PendingPublish] = []
        self.tx_settlements: list[tuple[int, Entry, int]] = []
        self.tx_size = 0
        # A large transaction is being committed. Its settlements take effect even if the channel closes.
        self.committing = False
        # Unfinished work in steps. Further commands wait for it.
        self.unfinished: Iterator[int] | None = None
        # Order of replies
        self.stalled = False
        self.backlog: deque[Command] = deque()
        self.backlog_size = 0
        # Statistics
        self.publish_count = 0
        # Whether the last publish was a request to the broker.
        self.requested = False

    # Publishing

    def publish(self, command: Publish) -> None:
        connection = self.connection
        address = command.address
        route = connection.routes.get(address)
        if route is None or connection.topology != self.vhost.topology:
            route = connection.find_route(address)
        header = command.header
        expires_at = 0
        if command.expiration is not None:
            expires_at = self.expiry(command.expiration)
        if command.user_id is not None:
            self.check_user(command.user_id)
        if REPLY_TO in header:
            header = self._with_reply_address(header)
        body: Body = command.body
        if command.spooled:
            body = self.incoming
            self.incoming = []
        message = Message(
            address,
            header,
            body,
            command.size,
            command.delivery_mode == 2,
            command.priority,
            expires_at,
            command.headers_at,
            self.publisher,
            self.format,
        )
        if route.request:
            self.requested = True
        else:
            self.publish_count += 1
        if self.paused and (self.pause_known or self.broker.timers.now() > self.pause_until):
            connection.ingress.pause(ALARM)
        if self.transacted:
            self._publish_later(message, route, command.flags)
            return
        queues = route.queues
        if route.dynamic or (command.headers_at >= 0 and b"CC" in header):
            queues = self.route_message(route, message)
        flags = command.flags
        if flags or not queues:
            queues = self.return_undeliverable(message, queues, flags)
        accepted = True
        for queue in queues:
            if not queue.push(message):
                accepted = False
        if len(queues) > WIDE_FANOUT:
            connection.broker.work += len(queues)
        if self.confirming:
            sequence = self.published + 1
            self.published = sequence
            if message.row is not None:
                filling = self.log.filling
                if self.marked_batch != filling:
                    self.marked_batch = filling
                    self.marks.append((filling, sequence))
                    self.log.wait(self)
            if not accepted:
                self.nacks.append(sequence)
            if not self.listed:
                self.listed = True
                connection.confirming.append(self)

    def begin_content(self, publish: Publish) -> None:
        """Prepare to receive a large body in parts, into the spool if there is one.

        Raises:
            ContentTooLarge: the spool is full.
        """
        spool = self.log.spool
        if spool is None:
            self.incoming = []
            return
        self.incoming = spool.begin(publish.size, publish.delivery_mode == 2)
        self.connection.spools = True

    def begin_stage(self, method: ContentMethod) -> None:
        """Prepare to receive the content of an upload in parts, which are appended to `incoming` (0-9)."""
        raise NotImplementedByBroker(f"{method.name} is not implemented")

    def route_message(self, route: Route, message: Message) -> list[Queue]:
        """Return the queues of a message whose headers affect routing (CC, BCC, headers exchanges)."""
        if route.owner:
            content.check_copies(message)  # the sink transaction uses them when it is committed
            return route.queues
        more: list[str] = []
        if message.headers_at >= 0 and b"CC" in message.header:
            more = content.copy_keys(message)
        if not more and not route.dynamic:
            return route.queues
        return self.vhost.route_message(route, message, more)

    def return_undeliverable(self, message: Message, queues: list[Queue], flags: int) -> list[Queue]:
        """Return an undeliverable mandatory or immediate message to the client (0-9-1 basic.publish.mandatory, .immediate).

        Returns:
            The queues that get the message.
        """
        if not queues:
            if flags & (MANDATORY | IMMEDIATE):
                self.send_return(
                    message,
                    NO_ROUTE if flags & MANDATORY else NO_CONSUMERS,
                    "NO_ROUTE" if flags & MANDATORY else "NO_CONSUMERS",
                )
            return queues
        if flags & IMMEDIATE:
            ready = [queue for queue in queues if queue.can_deliver_now(message)]
            if not ready:
                self.send_return(message, NO_CONSUMERS, "NO_CONSUMERS")
            return ready
        return queues

    def ask_to_pause(self) -> None:
        """Send channel.flow to a publisher to stop it (0-9-1 channel.flow.throttling)."""
        if not self.paused and self.publish_count:
            self.paused = True
            self.pause_known = False
            self.pause_until = self.broker.timers.now() + FLOW_GRACE
            self.connection.engine.send(self.number, "channel.flow", {"active": False})

    def ask_to_resume(self) -> None:
        """Send channel.flow to resume a publisher that was asked to pause."""
        if self.paused:
            self.paused = False
            self.connection.engine.send(self.number, "channel.flow", {"active": True})

    def send_return(self, message: Message, code: int, text: str) -> None:
        self.send_content(
            "basic.return",
            {"reply_code": code, "reply_text": text, "exchange": message.exchange, "routing_key": message.routing_key},
            message.header,
            message,
        )

    def send_content(self, name: str, arguments: Arguments, header: bytes, message: Message) -> None:
        """Send a method that carries a message, other than `basic.deliver`."""
        connection = self.connection
        engine = connection.engine
        if message.size <= connection.max_encoded:
            engine.send_content(self.number, name, arguments, header, whole(message.body))
            connection.mark()
        elif engine.is_open(self.number):
            engine.send_content(self.number, name, arguments, header, [])
            connection.send_body(self.number, message)

    def expiry(self, expiration: bytes) -> int:
        """Return `Message.expires_at` for an expiration property."""
        try:
            milliseconds = int(expiration) if expiration.isdigit() else -1
        except ValueError:
            milliseconds = -1
        if milliseconds < 0 or milliseconds > content.MAX_EXPIRATION:
            raise PreconditionFailed(
                f"invalid expiration '{expiration.decode('utf-8', 'replace')}': expected milliseconds"
                f" in decimal digits, from 0 to {content.MAX_EXPIRATION}"
            )
        return self.broker.timers.now() + milliseconds if milliseconds else AT_ONCE

    def check_user(self, user_id: bytes) -> None:
        """Raise PreconditionFailed if the user-id of a message is not the user of the connection."""
        if user_id != self.connection.user_bytes and not self.connection.may_impersonate:
            raise PreconditionFailed(
                f"user_id property set to '{user_id.decode('utf-8', 'replace')}' but authenticated"
                f" user was '{self.connection.user}'"
            )

    def _with_reply_address(self, header: bytes) -> bytes:
        """Replace the pseudo-address of direct reply-to with the address of this channel's reply consumer."""
        if content.reply_to(header) != REPLY_TO.decode():
            return header
        return content.with_reply_to(header, self.reply_address())

    def reply_address(self) -> str:
        """Return the address of this channel's reply consumer."""
        if self.reply_queue is None:
            raise PreconditionFailed(
                "fast reply consumer does not exist: consume from 'amq.rabbitmq.reply-to' on this channel first"
            )
        return self.reply_queue.name

    def _publish_later(self, message: Message, route: Route, flags: int) -> None:
        if message.headers_at >= 0 and b"CC" in message.header:
            check_keys(self.broker, [route.routing_key, *content.check_copies(message)])
        self.grow_transaction(message.size + 1000)
        self.tx_publishes.append(PendingPublish(message, route, flags, self.broker.timers.now()))

    def grow_transaction(self, size: int) -> None:
        """Add `size` bytes to the size of the transaction.

        Raises:
            ContentTooLarge: the transaction exceeds `limits.transaction_size`.
        """
        self.tx_size += size
        if self.tx_size > self.connection.settings.max_transaction:
            raise ContentTooLarge(
                f"the transaction exceeds {self.connection.settings.max_transaction} bytes;"
                " the limit is set by limits.transaction_size"
            )

    def transaction_ended(self, committed: bool) -> None:
        """Handle the end of a transaction, before a commit or after a rollback. Overridden for the other classes of 0-9."""

    # Confirms

    def committed(self, batch: int) -> None:
        marks = self.marks
        while marks and marks[0][0] <= batch:
            marks.popleft()
        if not self.closing:
            self.resolve()
            self.connection.mark()

    def resolve(self) -> None:
        """Ack or nack publishes in order, up to the first one whose batch is not committed."""
        marks = self.marks
        upto = marks[0][1] - 1 if marks else self.published
        confirmed = self.confirmed
        if upto <= confirmed:
            return
        engine = self.connection.engine
        nacks = self.nacks
        while nacks and nacks[0] <= upto:
            nacked = nacks.popleft()
            if nacked - 1 > confirmed:
                engine.send_ack(self.number, nacked - 1, nacked - 2 > confirmed)
            engine.send_nack(self.number, nacked, False, False)
            confirmed = nacked
        if upto > confirmed:
            engine.send_ack(self.number, upto, upto - 1 > confirmed)
        self.confirmed = upto

    # Deliveries

    def is_full(self) -> bool:
        """Return whether the channel's own window is full."""
        return 0 < self.prefetch <= self.outstanding()

    def outstanding(self) -> int:
        """Return the number of deliveries that count in the windows of the channel and the connection."""
        return len(self.unacked) + len(self.tx_settlements) - self.gets

    def has_credit(self, size: int) -> bool:
        """Return whether the windows of the channel and the connection allow a delivery of `size` bytes."""
        if self.is_full():
            return False
        if self.prefetch_size and (self.unacked or self.outstanding()) and self.unacked_size + size > self.prefetch_size:
            return False
        connection = self.connection
        if not connection.prefetch and not connection.prefetch_size:
            return True
        return connection.has_credit(self, size)

    def update_window(self) -> None:
        """Update the connection's window with this channel's unacknowledged deliveries."""
        count = 0
        size = 0
        if not self.closing:
            count = self.outstanding()
            size = self.unacked_size
        self.connection.count_unacked(count - self.counted_deliveries, size - self.counted_bytes)
        self.counted_deliveries = count
        self.counted_bytes = size

    def is_over_limit(self) -> bool:
        """Return whether the client must acknowledge deliveries first: by setting, or because memory is tight."""
        count = len(self.unacked)
        if (self.broker.tight and count >= LOW_MEMORY_WINDOW) or 0 < self.max_unacked <= count:
            self.counted = True  # makes acknowledgements wake all consumers of the channel
            return True
        return False

    def take_tags(self, tag: int, multiple: bool) -> list[tuple[int, Entry]]:
        """Remove and return the entries that an acknowledgement covers (0-9-1 basic.ack.multiple.exists).

        Raises:
            PreconditionFailed: the delivery tag is unknown or already acknowledged.
        """
        unacked = self.unacked
        if not multiple:
            entry = unacked.pop(tag, None)
            if entry is None:
                raise PreconditionFailed(f"unknown delivery tag {tag}")
            return [(tag, entry)]
        if tag == 0:
            taken = sorted(unacked.items())
            unacked.clear()
            self.low_tag = self.next_tag
            return taken
        if tag not in unacked:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        taken = []
        if tag - self.low_tag > 4 * len(unacked) + 64:
            for number in sorted(unacked):
                if number > tag:
                    break
                taken.append((number, unacked.pop(number)))
        else:
            for number in range(self.low_tag, tag + 1):
                found = unacked.pop(number, None)
                if found is not None:
                    taken.append((number, found))
        self.low_tag = tag + 1
        return taken

    def settle_multiple(self, tag: int, outcome: int) -> None:
        """Settle all deliveries up to a tag, in steps if there are many."""
        if tag and tag not in self.unacked:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        self.run_steps(self._settling(tag or self.next_tag - 1, outcome))

    def _settling(self, last: int, outcome: int) -> Iterator[int]:
        """Settle all deliveries up to a tag. Entries are requeued newest first, so that they keep their order."""
        unacked = self.unacked
        tags = sorted(unacked)
        del tags[bisect_right(tags, last) :]
        yield len(tags) >> 5
        if outcome != REQUEUE or self.transacted:
            tags.reverse()
        self.low_tag = max(self.low_tag, last + 1)
        frozen = FrozenQueues()
        counting = self.gets > 0 or self.sized or self.times is not None
        try:
            while tags:
                tag = tags.pop()
                entry = unacked.pop(tag, None)
                if entry is None:
                    continue
                if self.transacted:
                    self.tx_settlements.append((tag, entry, outcome))
                    yield 1
                    continue
                holder = entry.holder
                if counting or outcome != ACCEPT:
                    self.uncount(tag, entry)
                if outcome == ACCEPT:
                    entry.queue.settle(entry)
                elif outcome == REJECT:
                    entry.queue.reject(entry)
                else:
                    frozen.freeze(entry.queue)
                    self.requeue_nacked(entry)
                if holder is not None and holder.parked and not self.counted:
                    holder.wake()
                yield 2
        finally:
            frozen.thaw()
        if self.counted:
            self.wake()

    def run_steps(self, pieces: Iterator[int], done: Callable[[], None] | None = None) -> None:
        """Run work in steps, then call `done`. Further commands on this channel wait."""
        self.unfinished = pieces
        if self.broker.jobs.run_steps(pieces, partial(self._steps_done, done), self.fail):
            self.unfinished = None
            if done is not None:
                done()
        else:
            self.stall()

    def _steps_done(self, done: Callable[[], None] | None) -> None:
        self.unfinished = None
        if self.closing or self.abandoned:
            return
        if done is not None:
            done()
        self.connection.mark()
        self.resume()

    def fail(self) -> None:
        """Close the connection, because work for a command failed in a later turn. The error has been logged."""
        self.unfinished = None
        if self.closing or self.abandoned:
            return
        if self.connection.lost:
            self.close()  # the channel was interrupted (0-9), and can no longer be resumed
        else:
            self.connection.close(INTERNAL_ERROR, FAILURE)

    def ack(self, tag: int, multiple: bool) -> None:
        if multiple and len(self.unacked) > MAX_SETTLED_AT_ONCE:
            self.settle_multiple(tag, ACCEPT)
            return
        if not multiple and not self.transacted:
            entry = self.unacked.pop(tag, None)
            if entry is None:
                raise PreconditionFailed(f"unknown delivery tag {tag}")
            holder = entry.holder
            if self.gets or self.sized or self.times is not None:
                self.uncount(tag, entry)
            entry.queue.settle(entry)
            if self.counted:
                self.wake()
            elif holder is not None and holder.parked:
                holder.wake()
            return
        taken = self.take_tags(tag, multiple)
        if self.transacted:
            for number, entry in taken:
                self.tx_settlements.append((number, entry, ACCEPT))
            return
        counting = self.gets > 0 or self.sized or self.times is not None
        last: Consumer | None = None
        for number, entry in taken:
            holder = entry.holder
            if counting:
                self.uncount(number, entry)
            entry.queue.settle(entry)
            if holder is not last:
                last = holder
                if holder is not None and holder.parked and not self.counted:
                    holder.wake()
        if self.counted:
            self.wake()

    def nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        if multiple and len(self.unacked) > MAX_SETTLED_AT_ONCE:
            self.settle_multiple(tag, REQUEUE if requeue else REJECT)
            return
        taken = self.take_tags(tag, multiple)
        if self.transacted:
            outcome = REQUEUE if requeue else REJECT
            for number, entry in taken:
                self.tx_settlements.append((number, entry, outcome))
            return
        for number, entry in reversed(taken) if requeue else taken:
            self.uncount(number, entry)
            holder = entry.holder
            if requeue:
                self.requeue_nacked(entry)
            else:
                entry.queue.reject(entry)
            if holder is not None and holder.parked and not self.counted:
                holder.wake()
        if self.counted:
            self.wake()

    def excludes_rejecting_channel(self) -> bool:
        """Return whether entries that this channel rejects are never redelivered to it, as in strict mode."""
        return self.vhost.strict

    def requeue_nacked(self, entry: Entry) -> None:
        """Requeue an entry that the client rejected with requeue."""
        if self.excludes_rejecting_channel():
            entry.queue.refuse(entry, self.scope)
        entry.queue.requeue(entry)

    def uncount(self, tag: int, entry: Entry) -> None:
        """Remove an entry from the count of gets, the windows by size and the consumer timeout."""
        if entry.holder is None:
            self.gets -= 1
        if self.sized:
            size = entry.message.size
            self.unacked_size -= size
            holder = entry.holder
            if isinstance(holder, ChannelConsumer):
                holder.unacked_size -= size
        if self.times is not None:
            self.times.pop(tag, None)

    def all_unacked(self) -> list[Entry]:
        entries = list(self.unacked.values())
        entries.extend([entry for _, entry, _ in self.tx_settlements])
        return entries

    def wake(self) -> None:
        """Wake consumers when the window that they share has room again."""
        connection = self.connection
        if connection.prefetch or connection.prefetch_size:
            self.update_window()
            connection.window_freed()
        else:
            self.wake_own()

    def wake_own(self) -> None:
        consumers = self.consumers
        self.broker.work += len(consumers) >> 1
        if self.counted and len(consumers) > 1:
            # The consumers share a window. Move the first parked one to the end, so that they take turns.
            for tag, consumer in consumers.items():
                if consumer.parked:
                    consumers[tag] = consumers.pop(tag)
                    break
        for consumer in consumers.values():
            if consumer.parked:
                consumer.wake()

    def set_counted(self) -> None:
        """Update `counted` (consumers share a window) and `sized` (a window counts bytes)."""
        connection = self.connection
        self.counted = bool(self.prefetch or self.prefetch_size or connection.prefetch or connection.prefetch_size)
        sized = bool(self.prefetch_size or connection.prefetch_size or self.default_prefetch_size)
        if sized and not self.sized:
            self.sized = True
            entries = self.all_unacked()
            self.unacked_size = sum(entry.message.size for entry in entries)
            for consumer in self.consumers.values():
                consumer.unacked_size = 0
            for entry in entries:
                holder = entry.holder
                if isinstance(holder, ChannelConsumer):
                    holder.unacked_size += entry.message.size

    def requeuing_all(self) -> Iterator[int]:
        """Requeue all unacknowledged entries, and those acknowledged in the open transaction."""
        frozen = FrozenQueues()
        settlements = self.tx_settlements
        try:
            while settlements and not self.committing:
                entry = settlements.pop()[1]
                frozen.freeze(entry.queue)
                entry.queue.requeue(entry)
                yield 2
            yield from self.requeuing()
        finally:
            frozen.thaw()

    def requeuing(self) -> Iterator[int]:
        """Requeue unacknowledged entries, newest first, so that they keep their order.

        Entries delivered meanwhile are not requeued. An entry counts in the window until it is requeued.
        """
        tags = sorted(self.unacked)
        yield len(tags) >> 5
        self.low_tag = self.next_tag
        yield from self.requeuing_tags(tags)

    def requeuing_tags(self, tags: list[int]) -> Iterator[int]:
        """Requeue the deliveries with these tags, last tag first."""
        unacked = self.unacked
        frozen = FrozenQueues()
        try:
            while tags:
                tag = tags.pop()
                entry = unacked.pop(tag, None)
                if entry is None:
                    continue
                frozen.freeze(entry.queue)
                self.uncount(tag, entry)
                entry.queue.requeue(entry)
                yield 2
        finally:
            frozen.thaw()

    # Consumers

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """Cancel a consumer of a deleted queue, and notify the client (RabbitMQ's consumer cancel notification)."""
        if self.consumers.pop(consumer.tag, None) is None:
            return
        if self.vhost.strict:
            cancelled_tags = self.cancelled_tags
            cancelled_tags[consumer.tag] = None
            if len(cancelled_tags) > MAX_CANCELLED_TAGS:
                del cancelled_tags[next(iter(cancelled_tags))]
        pending_cancels = self.connection.pending_cancels.get(consumer.queue)
        if pending_cancels is None:
            self.notify_cancel(consumer.tag)
        else:
            pending_cancels.append((self, consumer.tag))

    def notify_cancel(self, tag: str) -> None:
        """Send basic.cancel to a client with the capability `consumer_cancel_notify`."""
        connection = self.connection
        if connection.notify_cancel and not self.closing:
            connection.engine.send(self.number, "basic.cancel", {"consumer_tag": tag, "no_wait": True})
            connection.mark()

    def cancel(self, tag: str) -> None:
        """Cancel a consumer. An unknown tag is ignored (0-9-1 basic.cancel.01)."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            if self.reply_queue is consumer.queue:
                self.reply_queue = None
            consumer.queue.catch_up()
            consumer.queue.remove_consumer(consumer)

    # The end

    def close(self, done: Callable[[], None] | None = None) -> None:
        """Close the channel: remove its consumers, requeue its unacknowledged entries, then call `done`."""
        if self.closing:
            if done is not None:
                done()
            return
        self.closing = True
        if self.stalled:
            self.connection.ingress.release(BACKLOG)  # `resume` will not be called
        if self.broker.jobs.run_steps(self.closing_down(), done, done) and done is not None:
            done()

    def closing_down(self) -> Iterator[int]:
        """Finish unfinished work, remove consumers and requeue entries, in steps."""
        self.scope.departed = True
        self.broker.holders.pop(self, None)
        if self.timeout is not None:
            self.broker.timers.cancel(self.timeout)
            self.timeout.channel = None  # the timers may keep a reference for a while
            self.timeout = None
        self.incoming = []
        self.backlog.clear()
        self.reply_queue = None
        consumers = list(self.consumers.values())
        self.consumers.clear()
        # Stop the consumers before entries are requeued: otherwise these would be delivered to them again.
        for consumer in consumers:
            consumer.deactivate()
            consumer.queue.consumers.leave(consumer)
        yield len(consumers) >> 2
        if self.unfinished is not None:
            yield from logged(self.unfinished)
        remaining = 0
        while True:
            before = remaining
            yield from logged(self.requeuing_all())
            remaining = len(self.unacked) + len(self.tx_settlements)
            if not remaining or remaining == before:
                break  # the remaining entries cannot be requeued
        while consumers:
            consumer = consumers.pop(0) if len(consumers) < MAX_LEAVING_IN_ORDER else consumers.pop()
            try:
                consumer.queue.remove_consumer(consumer)
            except Exception:
                logger.exception("cannot remove a consumer from queue '%s'", consumer.queue.name)
            yield 2
        while self.tx_publishes:
            self.tx_publishes.pop()
            yield 1

    # Stalling

    def stall(self) -> None:
        """Queue further commands of this channel until `resume`."""
        self.stalled = True

    def resume(self) -> None:
        """Perform the commands queued since `stall`."""
        self.stalled = False
        self.backlog_size = 0
        backlog = self.backlog
        while backlog and not self.stalled and not self.closing and not self.abandoned:
            self.connection.perform(self, backlog.popleft())
        self.connection.after_backlog()

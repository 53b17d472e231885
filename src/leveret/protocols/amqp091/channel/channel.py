"""Channels: publishes, confirms, deliveries and acknowledgements (0-9-1 classes channel, basic, confirm, tx).

This is the hot path of the protocol. Other methods are in the modules named after their class.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body, StoredBody, whole
from leveret.broker.consumer import Client, Consumer, Deliveries, Scope, UnackedOwner
from leveret.broker.delay import Delay, unpublish
from leveret.broker.errors import NotImplementedByBroker, PreconditionFailed
from leveret.broker.jobs import logged
from leveret.broker.message import AT_ONCE, FORMAT_AMQP0, Entry, Message
from leveret.broker.queues.frozen import FrozenQueues
from leveret.broker.queues.loading import Waiting
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import Route, check_keys, destinations_of, is_unroutable
from leveret.broker.transactions.transaction import ACCEPT, REJECT, REQUEUE
from leveret.broker.vhost import Vhost
from leveret.protocols.amqp091 import content
from leveret.protocols.amqp091.channel.backlog import CommandBacklog
from leveret.protocols.amqp091.channel.batches import BatchPublish
from leveret.protocols.amqp091.channel.confirms import PublisherConfirms
from leveret.protocols.amqp091.channel.consumer_timeout import ConsumerTimeout
from leveret.protocols.amqp091.channel.consumers import ChannelConsumer, ConsumersByTag
from leveret.protocols.amqp091.channel.direct_replies import MIN_REPLY_HEADER, REPLY_TO, DirectReplies
from leveret.protocols.amqp091.channel.transaction import NO_TRANSACTION, ChannelTransaction
from leveret.protocols.amqp091.channel.unacked import PIECE_WORK, UnackedDeliveries
from leveret.protocols.amqp091.channel.window import ChannelWindow
from leveret.protocols.amqp091.reply_codes import FAILURE
from leveret.protocols.ingress_throttle import ALARM, BACKLOG
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY, Command, ContentMethod, Publish
from leveret.wire.amqp0.constants import INTERNAL_ERROR
from leveret.wire.amqp0.values import Arguments
from leveret.wire.record_batches import ADDRESS_PREFIX

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection

logger = logging.getLogger("leveret.connection")

# Maximum number of unacknowledged deliveries on a channel without prefetch while memory is tight.
LOW_MEMORY_WINDOW: Final = 1000
# Bytes of memory counted for a publish in a transaction, in addition to its body.
PENDING_PUBLISH_BYTES: Final = 1000
# Number of queues above which routing a message counts as work.
WIDE_FANOUT: Final = 16
# Maximum number of deliveries that one acknowledgement settles without yielding to other clients.
MAX_SETTLED_AT_ONCE: Final = 2000
# A closing channel with fewer consumers removes them in the order of their creation.
MAX_LEAVING_IN_ORDER: Final = 100
# Milliseconds after channel.flow in which publishes are accepted: they may have been sent before it arrived.
FLOW_GRACE: Final = 5000
NO_CONSUMERS: Final = 313
NO_ROUTE: Final = 312


class BodyReceiver:
    """The body being received, in memory, in the spool or in an upload."""

    def __init__(self) -> None:
        # None if no body is expected.
        self._parts: list[bytes] | StoredBody | None = None

    def begin(self, body: list[bytes] | StoredBody) -> None:
        """Begin a body, to which the parts are appended."""
        self._parts = body

    def add(self, data: bytes) -> None:
        if self._parts is None:
            self._parts = []
        self._parts.append(data)

    def take(self) -> Body:
        """Return the complete body."""
        body = self._parts
        self._parts = None
        return [] if body is None else body

    def drop(self) -> None:
        """Drop an incomplete body, or one that was stored elsewhere."""
        self._parts = None


class PublisherPause:
    """A pause that a publisher was asked for by channel.flow. `now` is in milliseconds."""

    def __init__(self, now: int) -> None:
        self._until = now + FLOW_GRACE
        self._confirmed = False

    def replied(self, active: bool) -> None:
        """Note the client's channel.flow-ok. After one that is not active, publishing violates the pause."""
        self._confirmed = not active

    def is_violated(self, now: int) -> bool:
        """Return whether a publish violates the pause."""
        return self._confirmed or now > self._until


class _Unindexed(Waiting):
    """A command that waits until the recovered entries of a queue are indexed."""

    def __init__(self, channel: Channel, queue: Queue, command: Command) -> None:
        self.channel = channel
        self.queue = queue
        self.command = command

    def loaded(self) -> None:
        channel = self.channel
        if channel.closing or channel.abandoned:
            return
        if self.queue.is_unindexed():
            self.queue.paging.wait_loaded(self)
            return
        channel.backlog.put_first([self.command])
        channel.resume()


class Channel(UnackedOwner):
    """One channel of a connection.

    Attributes:
        format: format of the messages published on it.
        publisher: number that identifies the publisher in messages.
        client: names the channel in trace messages.
        unacked: delivery tags, and the deliveries that are not acknowledged.
        window: prefetch windows.
        counted: whether the consumers share a window, so that an acknowledgement may wake any of them.
        active: whether the client accepts deliveries (channel.flow).
        pause: the pause that the client was asked for; None if it may publish.
        confirms: pending confirms; None before confirm.select.
        transacted: whether publishes and acknowledgements belong to the transaction.
        transaction: the open transaction; empty and shared with other channels before the first one.
        stalled: whether a reply waits for a commit or a page-in. Further commands wait in `backlog`.
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
        self.client = Client(connection.peer.name, number, connection.user)
        self.active = True
        self.pause: PublisherPause | None = None
        self.closing = False
        # The connection has ended. The channel is about to close and performs no more commands.
        self.abandoned = False
        # Deliveries
        self.unacked = UnackedDeliveries(connection.broker.timers)
        self.consumers = ConsumersByTag()
        self.window = ChannelWindow()
        self.counted = False
        self.max_unacked = connection.settings.unacked_per_channel
        self.timeout: ConsumerTimeout | None = None
        self.last_queue = ""
        self.replies = DirectReplies()
        # Publishes
        self.confirms: PublisherConfirms | None = None
        self.body = BodyReceiver()
        # Transactions
        self.transacted = False
        self.transaction = NO_TRANSACTION
        # Unfinished work in steps. Further commands wait for it.
        self.unfinished: Iterator[int] | None = None
        # Order of replies
        self.stalled = False
        self.backlog = CommandBacklog()
        # Statistics
        self.publish_count = 0
        self.ack_count = 0
        self.get_count = 0
        self.get_no_ack_count = 0
        self.get_empty_count = 0
        self.redelivered = 0
        # Messages without a queue that were returned and dropped.
        self.returned = 0
        self.dropped = 0
        # Whether the last publish was a request to the broker.
        self.requested = False

    # Publishing

    def publish(self, command: Publish) -> None:
        connection = self.connection
        address = command.address
        route = connection.routes.get(address)
        if route is None or connection.topology != self.vhost.topology:
            if address.startswith(ADDRESS_PREFIX):
                self.publish_batch(command)
                return
            route = connection.find_route(address)
        header = command.header
        expires_at = 0
        if command.expiration is not None:
            expires_at = self.expiry(command.expiration)
        if command.user_id is not None:
            self.check_user(command.user_id)
        # The operator `in` handles an exception if both sides are bytes.
        if len(header) >= MIN_REPLY_HEADER and header.find(REPLY_TO) >= 0:
            header = self.replies.with_address(header)
        body: Body = command.body
        if command.spooled:
            body = self.body.take()
            if command.delivery_mode == 2 and self.perform_again_with(command, route, header, body, self.body.begin):
                return
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
        if self.pause is not None:
            self.check_pause()
        if self.transacted:
            if command.headers_at >= 0 and b"CC" in header:
                copies = content.check_copies(message)
                connection.check_topics(route, copies)
                check_keys(self.broker, [route.routing_key, *copies])
            self.publish_in_transaction(message, route, command.flags, command.size)
            return
        queues = route.queues
        if route.dynamic or (command.headers_at >= 0 and b"CC" in header):
            queues = self.route_message(route, message)
            if route.delay is not None:
                self.publish_delayed(message, route.delay, queues, command.flags)
                return
        else:
            route.published += 1
        flags = command.flags
        if flags or not queues:
            queues = self.return_undeliverable(message, queues, flags)
        accepted = True
        for queue in queues:
            if not queue.push(message):
                accepted = False
        if not accepted:
            unpublish(message, queues)
        if len(queues) > WIDE_FANOUT:
            connection.broker.work += len(queues)
        confirms = self.confirms
        if confirms is not None:
            confirms.add(message, accepted)

    def publish_delayed(self, message: Message, delay: Delay, queues: list[Queue], flags: int) -> None:
        """Publish a message whose queues get it after a delay."""
        if flags or not queues:
            queues = self.return_undeliverable(message, queues, flags)
        full = delay.push(message, queues)
        if len(queues) > WIDE_FANOUT:
            self.broker.work += len(queues)
        if self.confirms is not None:
            self.confirms.add(message, full is None)

    def publish_batch(self, command: Publish) -> None:
        """Publish the rows of a record batch, in steps if there are many. Further commands wait."""
        if self.pause is not None:
            self.check_pause()
        body = self.body.take() if command.spooled else command.body
        batch = BatchPublish(self, command, body)
        self.run_steps(batch.pieces(), batch.done)

    def check_row(self, ticket: int, address: bytes) -> None:
        """Check the access ticket of a record batch (0-9) for the address of a row.

        Raises:
            BrokerError: it does not permit publishing to the exchange.
        """

    def queues_of_row(self, message: Message, route: Route, copies: bool) -> list[Queue]:
        """Return the queues of a row of a record batch; `copies` if it may have headers CC or BCC.

        Raises:
            BrokerError: its routing is refused.
        """
        if route.dynamic or copies:
            return self.route_message(route, message)
        route.published += 1
        return route.queues

    def note_unroutable(self, flags: int) -> bool:
        """Note a row of a record batch that has no queue. Returns whether it is reported to the client."""
        if not flags & MANDATORY:
            self.dropped += 1
            return False
        self.returned += 1
        self.vhost.statistics.count_returned()
        return True

    def count_rows(self, count: int) -> None:
        """Count published rows of a record batch."""
        self.publish_count += count

    def perform_again_with(
        self, command: Command, route: Route, header: bytes, body: Body, use: Callable[[StoredBody], None]
    ) -> bool:
        """Write a large message to the log before it is published, so that its commit does not delay other channels.

        Further commands of the channel wait. Then the new body is passed to `use`, and the command is performed again.

        Returns:
            Whether the command must wait; False if the message can be published now.
        """
        if not isinstance(body, StoredBody):
            return False
        if not route.dynamic and not any(queue.durable for queue in route.queues):
            return False

        def repeat(written: StoredBody) -> None:
            use(written)
            self.backlog.put_first([command])
            self.resume()

        if not self.log.write_ahead(header, body, repeat, self.is_performing):
            return False
        self.stall()
        return True

    def is_performing(self) -> bool:
        """Return whether the channel still performs commands."""
        return not self.closing and not self.abandoned

    def begin_content(self, publish: Publish) -> None:
        """Prepare to receive a large body in parts, into the spool if there is one.

        Raises:
            ContentTooLarge: the spool is full.
        """
        spool = self.log.spool
        if spool is None:
            self.body.begin([])
            return
        self.body.begin(spool.begin(publish.size, publish.delivery_mode == 2))
        self.connection.note_spooled()

    def begin_stage(self, method: ContentMethod) -> None:
        """Prepare to receive the content of an upload in parts (0-9)."""
        raise NotImplementedByBroker(f"{method.name} is not implemented")

    def route_message(self, route: Route, message: Message) -> list[Queue]:
        """Return the queues of a message whose headers affect routing (CC, BCC, headers exchanges)."""
        if route.owner:
            # The sink transaction uses them when it is committed.
            self.connection.check_topics(route, content.check_copies(message))
            return route.queues
        more: list[str] = []
        if message.headers_at >= 0 and b"CC" in message.header:
            more = content.copy_keys(message)
            self.connection.check_topics(route, more)
        if not more and not route.dynamic:
            self.vhost.statistics.count(route.exchange, len(destinations_of(route.queues)))
            return route.queues
        return self.vhost.route_message(route, message, more, self.client)

    def return_undeliverable(self, message: Message, queues: list[Queue], flags: int) -> list[Queue]:
        """Return an undeliverable mandatory or immediate message to the client (0-9-1 basic.publish.mandatory, .immediate).

        Returns:
            The queues that get the message.
        """
        if is_unroutable(queues):
            if not flags & (MANDATORY | IMMEDIATE):
                self.dropped += 1
            else:
                self.returned += 1
                self.vhost.statistics.count_returned()
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

    def count_get(self, entry: Entry | None, no_ack: bool) -> None:
        """Count the reply to basic.get."""
        if entry is None:
            self.get_empty_count += 1
            return
        if no_ack:
            self.get_no_ack_count += 1
        else:
            self.get_count += 1
        if entry.acquired_count > 1:
            self.redelivered += 1

    def count_acks(self, count: int) -> None:
        """Count acknowledgements of a committed transaction."""
        self.ack_count += count

    def count_publish(self, route: Route) -> None:
        """Count a publish of a class other than basic (0-9)."""
        if route.request:
            self.requested = True
        else:
            self.publish_count += 1

    def take_requested(self) -> bool:
        """Return whether there was a request to the broker since the last call."""
        requested = self.requested
        self.requested = False
        return requested

    def ask_to_pause(self) -> None:
        """Send channel.flow to a publisher to stop it (0-9-1 channel.flow.throttling)."""
        if self.pause is None and self.publish_count:
            self.pause = PublisherPause(self.broker.timers.now())
            self.connection.engine.send(self.number, "channel.flow", {"active": False})

    def ask_to_resume(self) -> None:
        """Send channel.flow to resume a publisher that was asked to pause."""
        if self.pause is not None:
            self.pause = None
            self.connection.engine.send(self.number, "channel.flow", {"active": True})

    def pause_replied(self, active: bool) -> None:
        """Note the client's reply to channel.flow."""
        if self.pause is not None:
            self.pause.replied(active)

    def violates_pause(self) -> bool:
        """Return whether the client publishes although it was asked to pause and had time to comply."""
        return self.pause is not None and self.pause.is_violated(self.broker.timers.now())

    def check_pause(self) -> None:
        """Stop reading a client that violates a pause."""
        if self.violates_pause():
            self.connection.ingress.pause(ALARM)

    def set_active(self, active: bool) -> None:
        """Pause or resume deliveries at the client's request (channel.flow)."""
        self.active = active

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
        milliseconds = content.milliseconds_of(expiration)
        return self.broker.timers.now() + milliseconds if milliseconds else AT_ONCE

    def check_user(self, user_id: bytes) -> None:
        """Raise PreconditionFailed if the user-id of a message is not the user of the connection."""
        if not self.connection.may_publish_as(user_id):
            raise PreconditionFailed(
                f"user_id property set to '{user_id.decode('utf-8', 'replace')}' but authenticated"
                f" user was '{self.connection.user}'"
            )

    # Transactions

    def select_transactions(self) -> None:
        """Make the channel transacted."""
        if self.confirms is not None:
            raise PreconditionFailed("cannot switch from confirm to tx mode")
        self.set_transacted(True)

    def set_transacted(self, transacted: bool) -> None:
        """Set whether publishes and acknowledgements belong to the transaction."""
        if self.transaction is NO_TRANSACTION:
            self.transaction = ChannelTransaction(self.connection.settings.max_transaction)
        self.transacted = transacted

    def publish_in_transaction(self, message: Message, route: Route, flags: int, size: int) -> None:
        """Add a publish to the transaction, which grows by `size` bytes and the size of the publish itself.

        Raises:
            ContentTooLarge: the transaction exceeds `limits.transaction_size`.
        """
        self.grow_transaction(size + PENDING_PUBLISH_BYTES)
        self.transaction.publish(message, route, flags, self.broker.timers.now())

    def grow_transaction(self, size: int) -> None:
        """Add `size` bytes to the size of the transaction.

        Raises:
            ContentTooLarge: the transaction exceeds `limits.transaction_size`.
        """
        self.transaction.grow(size)

    def transaction_kind(self) -> str:
        """Return the class that began the transaction."""
        return "tx"

    def transaction_ended(self, committed: bool) -> None:
        """Handle the end of a transaction, before a commit or after a rollback. Overridden for the other classes of 0-9."""

    # Confirms

    def select_confirms(self) -> None:
        """Make the channel confirm publishes."""
        if self.transacted:
            raise PreconditionFailed("cannot switch from tx to confirm mode")
        if self.confirms is None:
            self.confirms = PublisherConfirms(self.connection, self.number)

    def resolve(self) -> None:
        """Send the confirms that are due."""
        if self.confirms is not None:
            self.confirms.resolve()

    # Deliveries

    def is_full(self) -> bool:
        """Return whether the channel's own window is full."""
        return 0 < self.window.prefetch <= self.outstanding()

    def outstanding(self) -> int:
        """Return the number of deliveries that count in the windows of the channel and the connection."""
        unacked = self.unacked
        return len(unacked.entries) + len(self.transaction.settlements) - unacked.gets

    def has_credit(self, size: int) -> bool:
        """Return whether the windows of the channel and the connection allow a delivery of `size` bytes."""
        if self.is_full():
            return False
        limit = self.window.prefetch_size
        unacked = self.unacked
        if limit and (unacked.entries or self.outstanding()) and unacked.size + size > limit:
            return False
        window = self.connection.window
        return not window.is_limited() or window.has_credit(self, size)

    def update_window(self) -> None:
        """Update the connection's window with this channel's unacknowledged deliveries."""
        window = self.connection.window
        if self.closing:
            self.window.report(window, 0, 0)
        else:
            self.window.report(window, self.outstanding(), self.unacked.size)

    def is_over_limit(self) -> bool:
        """Return whether the client must acknowledge deliveries first: by setting, or because memory is tight."""
        count = len(self.unacked.entries)
        if (self.broker.tight and count >= LOW_MEMORY_WINDOW) or 0 < self.max_unacked <= count:
            self.counted = True  # makes acknowledgements wake all consumers of the channel
            return True
        return False

    def settle_multiple(self, tag: int, outcome: int) -> None:
        """Settle all deliveries up to a tag, in steps if there are many."""
        # Entries are requeued newest first, so that they keep their order.
        newest_first = outcome == REQUEUE and not self.transacted
        self.run_steps(self._settling(self.unacked.taking_up_to(tag, newest_first), outcome))

    def _settling(self, pieces: Iterator[list[int]], outcome: int) -> Iterator[int]:
        """Settle the deliveries with these tags."""
        if self.transacted:
            self.transaction.begin(self.broker.timers.now())
        unacked = self.unacked
        frozen = FrozenQueues()
        try:
            for tags in pieces:
                yield PIECE_WORK
                for tag in tags:
                    entry = unacked.entries.pop(tag, None)
                    if entry is None:
                        continue
                    if self.transacted:
                        self.transaction.settlements.append((tag, entry, outcome))
                        yield 1
                        continue
                    self._settle(tag, entry, outcome, frozen)
                    yield 2
        finally:
            frozen.thaw()
        if self.counted:
            self.wake()

    def _settle(self, tag: int, entry: Entry, outcome: int, frozen: FrozenQueues) -> None:
        """Settle one of many deliveries; its queue is frozen if the entry is requeued."""
        unacked = self.unacked
        holder = entry.holder
        if unacked.tracked or outcome != ACCEPT:
            unacked.uncount(tag, entry)
        if outcome == ACCEPT:
            self.ack_count += 1
            entry.queue.settle(entry)
        elif outcome == REJECT:
            entry.queue.reject(entry)
        else:
            frozen.freeze(entry.queue)
            self.requeue_nacked(entry)
        if holder is not None and holder.parked and not self.counted:
            holder.wake()

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
        unacked = self.unacked
        if multiple and len(unacked.entries) > MAX_SETTLED_AT_ONCE:
            self.settle_multiple(tag, ACCEPT)
            return
        if not multiple and not self.transacted:
            entries = unacked.entries
            entry = entries.get(tag)
            if entry is None:
                raise PreconditionFailed(f"unknown delivery tag {tag}")
            del entries[tag]
            holder = entry.holder
            if unacked.tracked:
                unacked.uncount(tag, entry)
            self.ack_count += 1
            entry.queue.settle(entry)
            if self.counted:
                self.wake()
            elif holder is not None and holder.parked:
                holder.wake()
            return
        if self.transacted:
            self.transaction.begin(self.broker.timers.now())
            self.transaction.settle(unacked.take(tag, multiple), ACCEPT)
            return
        last: Consumer | None = None
        taken = unacked.take_up_to(tag)
        self.ack_count += len(taken)
        for entry in taken:
            holder = entry.holder
            entry.queue.settle(entry)
            if holder is not last:
                last = holder
                if holder is not None and holder.parked and not self.counted:
                    holder.wake()
        if self.counted:
            self.wake()

    def nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        outcome = REQUEUE if requeue else REJECT
        unacked = self.unacked
        if multiple and len(unacked.entries) > MAX_SETTLED_AT_ONCE:
            self.settle_multiple(tag, outcome)
            return
        taken = unacked.take(tag, multiple)
        if self.transacted:
            self.transaction.begin(self.broker.timers.now())
            self.transaction.settle(taken, outcome)
            return
        for number, entry in reversed(taken) if requeue else taken:
            unacked.uncount(number, entry)
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

    def all_unacked(self) -> list[Entry]:
        return [*self.unacked.entries.values(), *self.transaction.entries()]

    def unacked_pieces(self) -> Iterator[list[Entry]]:
        yield from self.deliveries().pieces()
        yield from self.transaction.pieces()

    def deliveries(self) -> Deliveries:
        return self.unacked.deliveries(self.connection.number, self.number)

    def watch_timeout(self, limit: int | None, queue: Queue) -> None:
        """Start the consumer timeout if a consumer (`limit`), its queue or the vhost sets one, in milliseconds.

        The shortest limit of the channel applies.
        """
        limit = self._timeout_of(limit, queue)
        if limit and (self.timeout is None or self.timeout.limit > limit):
            self._start_timeout(limit)

    def update_timeout(self) -> None:
        """Apply the shortest limit of the channel after that of a queue has changed."""
        shortest = 0
        consumers = self.consumers.by_tag.values()
        self.broker.work += len(consumers)
        for consumer in consumers:
            own = consumer.arguments.get("x-consumer-timeout")
            limit = self._timeout_of(own if isinstance(own, int) else None, consumer.queue)
            if limit and (not shortest or limit < shortest):
                shortest = limit
        if self.timeout is not None and self.timeout.limit == shortest:
            return
        if shortest:
            self._start_timeout(shortest)
        else:
            self._stop_timeout()

    def _timeout_of(self, limit: int | None, queue: Queue) -> int:
        """Return the limit of a consumer, its queue or the vhost in milliseconds, 0 for none."""
        if limit is None:
            limit = queue.settings.consumer_timeout
        if limit is None:
            limit = self.connection.consumer_timeout
        return limit

    def _start_timeout(self, limit: int) -> None:
        self._stop_timeout()
        self.unacked.begin_times()
        self.timeout = ConsumerTimeout(self, limit)
        timers = self.broker.timers
        now = timers.now()
        timers.at(max(self.unacked.oldest_time(now) + limit, now + 1), self.timeout)

    def _stop_timeout(self) -> None:
        if self.timeout is not None:
            self.broker.timers.cancel(self.timeout)
            self.timeout.detach()
            self.timeout = None

    def wake(self) -> None:
        """Wake consumers when the window that they share has room again."""
        connection = self.connection
        if connection.window.is_limited():
            self.update_window()
            connection.window_freed()
        else:
            self.wake_own()

    def wake_own(self) -> None:
        self.broker.work += len(self.consumers.by_tag) >> 1
        self.consumers.wake(self.counted)

    def set_counted(self) -> None:
        """Note whether consumers share a window (`counted`), and whether a window counts bytes."""
        window = self.window
        whole = self.connection.window
        self.counted = bool(window.prefetch or window.prefetch_size) or whole.is_limited()
        if (window.prefetch_size or whole.prefetch_size or window.default_prefetch_size) and not self.unacked.sized:
            self.unacked.begin_sizes(self.all_unacked())

    def requeuing_all(self) -> Iterator[int]:
        """Requeue all unacknowledged entries, and those acknowledged in the open transaction."""
        frozen = FrozenQueues()
        try:
            while (entry := self.transaction.take_newest()) is not None:
                frozen.freeze(entry.queue)
                entry.queue.requeue(entry)
                yield 2
            yield from self.unacked.requeuing()
        finally:
            frozen.thaw()

    # Queues and consumers

    def set_last_queue(self, name: str) -> None:
        """Set the queue that an empty name in a later method means."""
        self.last_queue = name

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """Cancel a consumer of a deleted queue, and notify the client (RabbitMQ's consumer cancel notification)."""
        if not self.consumers.cancel(consumer, self.vhost.strict):
            return
        pending = self.connection.pending_cancels
        cancels = None if pending is None else pending.get(consumer.queue)
        if cancels is None:
            self.notify_cancel(consumer.tag)
        else:
            cancels.append((self, consumer.tag))

    def notify_cancel(self, tag: str) -> None:
        """Send basic.cancel to a client with the capability `consumer_cancel_notify`."""
        connection = self.connection
        if connection.handshake.client.cancel_notifications and not self.closing:
            connection.engine.send(self.number, "basic.cancel", {"consumer_tag": tag, "no_wait": True})
            connection.mark()

    def cancel(self, tag: str) -> None:
        """Cancel a consumer. An unknown tag is ignored (0-9-1 basic.cancel.01)."""
        consumer = self.consumers.remove(tag)
        if consumer is not None:
            if self.replies.queue is consumer.queue:
                self.replies.close()
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
        self.broker.churn.channel_closed()
        if self.confirms is not None:
            self.confirms.close()
        if self.stalled:
            self.connection.ingress.release(BACKLOG)  # `resume` will not be called
        if self.broker.jobs.run_steps(self.closing_down(), done, done) and done is not None:
            done()

    def abandon(self) -> None:
        """Perform no more commands: the connection has ended, and will close the channel."""
        self.abandoned = True

    def closing_down(self) -> Iterator[int]:
        """Finish unfinished work, remove consumers and requeue entries, in steps."""
        self.scope.depart()
        self.broker.holders.pop(self, None)
        self._stop_timeout()
        self.body.drop()
        self.backlog.clear()
        self.replies.close()
        consumers = self.consumers.take_all()
        # Stop the consumers before entries are requeued: otherwise these would be delivered to them again.
        for consumer in consumers:
            consumer.stop()
        yield len(consumers) >> 2
        if self.unfinished is not None:
            yield from logged(self.unfinished)
        remaining = 0
        while True:
            before = remaining
            yield from logged(self.requeuing_all())
            remaining = len(self.unacked.entries) + len(self.transaction.settlements)
            if not remaining or remaining == before:
                break  # the remaining entries cannot be requeued
        while consumers:
            consumer = consumers.pop(0) if len(consumers) < MAX_LEAVING_IN_ORDER else consumers.pop()
            try:
                consumer.queue.remove_consumer(consumer)
            except Exception:
                logger.exception("cannot remove a consumer from queue '%s'", consumer.queue.name)
            yield 2
        yield from self.transaction.dropping_publishes()

    # Stalling

    def stall(self) -> None:
        """Queue further commands of this channel until `resume`."""
        self.stalled = True

    def cancel_stall(self) -> None:
        """Undo `stall`, because the command that stalled the channel failed."""
        self.stalled = False

    def wait_indexed(self, queue: Queue, command: Command) -> None:
        """Perform a command again when a queue is indexed. Further commands of this channel wait meanwhile."""
        self.stall()
        queue.paging.wait_loaded(_Unindexed(self, queue, command))

    def resume(self) -> None:
        """Perform the commands queued since `stall`."""
        self.stalled = False
        backlog = self.backlog
        backlog.begin()
        while len(backlog) and not self.stalled and not self.closing and not self.abandoned:
            self.connection.perform(self, backlog.take())
        self.connection.after_backlog()

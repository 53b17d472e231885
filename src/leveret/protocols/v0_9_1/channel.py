"""A channel: publishes in, confirms and acknowledgements (0-9-1 classes channel, basic, confirm, tx).

This is the hot path of the protocol; methods that are not hot stand in the modules named after their class.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.bodies import Body, StoredBody, whole
from leveret.broker.consumer import Consumer, Holder, Scope
from leveret.broker.errors import ContentTooLarge, NotImplementedByBroker, PreconditionFailed
from leveret.broker.jobs import logged
from leveret.broker.message import AT_ONCE, FORMAT_AMQP0, Entry, Message
from leveret.broker.queues.base import Queue, freeze, thaw
from leveret.broker.routing import Route, check_keys
from leveret.broker.transactions import ACCEPT, REJECT, REQUEUE
from leveret.broker.vhost import Vhost
from leveret.protocols.v0_9_1 import content
from leveret.protocols.v0_9_1.consumers import ChannelConsumer
from leveret.protocols.v0_9_1.reply_codes import FAILURE
from leveret.protocols.v0_9_1.timeouts import ConsumerTimeout
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY, Command, ContentMethod, Publish
from leveret.wire.amqp0.constants import INTERNAL_ERROR

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.connection import Connection

log = logging.getLogger("leveret.connection")

REPLY_TO: Final = b"amq.rabbitmq.reply-to"
# What a channel without prefetch may hold unacknowledged while memory is short.
LOW_MEMORY_WINDOW: Final = 1000
# Milliseconds that a publisher may go on after it was asked to pause: what it sent before it knew is on its way.
FLOW_GRACE: Final = 5000
# Messages to more queues than this count as work, of which only so much is done in a turn.
WIDE_FANOUT: Final = 16
# Tags of consumers whose queue went away that a channel remembers.
MAX_CANCELLED_TAGS: Final = 1000
# Deliveries of which so many are settled at once without steps.
MAX_SETTLED_AT_ONCE: Final = 2000
# So many consumers leave in the order in which they came.
MAX_LEAVING_IN_ORDER: Final = 100
NO_CONSUMERS: Final = 313
NO_ROUTE: Final = 312


class PendingPublish:
    """A publish of a transaction. Its exchange was looked up when it came; what is bound there counts at the commit
    only where routes depend on the message."""

    __slots__ = ("flags", "message", "route", "sent_at")

    def __init__(self, message: Message, route: Route, flags: int, sent_at: int) -> None:
        self.message = message
        self.route = route
        self.flags = flags
        self.sent_at = sent_at


class Channel(Holder):
    """One channel of a connection.

    format      of what is published on it; publisher: as messages name it
    unacked     entries by delivery tag; `low_tag`: no lower tag is in it
    active      the client lets deliveries flow (channel.flow); paused: we have asked it to stop publishing
    stalled     a reply is waiting for a commit or a page; commands of this channel queue up in `backlog`
    published   publishes since confirm.select; `confirmed`: the prefix of them that is resolved
    marks       (batch, first publish that waits for it), in order; `nacks`: publishes that were refused
    """

    def __init__(self, connection: Connection, number: int) -> None:
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
        # The connection has ended: the channel is about to be closed, and performs nothing more.
        self.abandoned = False
        # Deliveries
        self.next_tag = 1
        self.low_tag = 1
        self.unacked: dict[int, Entry] = {}
        self.consumers: dict[str, ChannelConsumer] = {}
        # Consumers whose queue went away: their cancel is answered in strict mode, too (basic.cancel.01). The last ones, in
        # this order, for not every client cancels what it was told is gone.
        self.cancelled_tags: dict[str, None] = {}
        self.default_prefetch = 0
        self.default_prefetch_size = 0
        self.prefetch = 0
        self.prefetch_size = 0
        self.unacked_size = 0
        # What the connection's window counts of the deliveries, and of their bytes.
        self.counted_deliveries = 0
        self.counted_bytes = 0
        # How many of the unacknowledged came by basic.get, which no window counts.
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
        # The body that is coming in pieces.
        self.incoming: list[bytes] | StoredBody = []
        # Transactions
        self.transacted = False
        self.tx_publishes: list[PendingPublish] = []
        self.tx_settlements: list[tuple[int, Entry, int]] = []
        self.tx_size = 0
        # A large transaction is being committed: what it settles is settled by that, whatever becomes of the channel.
        self.committing = False
        # Work in steps that is not done yet; further commands wait for it.
        self.unfinished: Iterator[int] | None = None
        # Order of replies
        self.stalled = False
        self.backlog: deque[Command] = deque()
        self.backlog_size = 0
        # Statistics
        self.publish_count = 0
        # What was published last was a request to the broker.
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
        message = Message(address, header, body, command.size, command.delivery_mode == 2, command.priority, expires_at,
                          command.headers_at, self.publisher, self.format)
        if route.request:
            self.requested = True
        else:
            self.publish_count += 1
        if self.paused and (self.pause_known or self.broker.timers.now() > self.pause_until):
            connection.pause_input("alarm")
        if self.transacted:
            self._publish_later(message, route, command.flags)
            return
        queues = route.queues
        if route.dynamic or (command.headers_at >= 0 and b"CC" in header):
            queues = self.route_message(route, message)
        flags = command.flags
        if flags or not queues:
            queues = self.flagged(message, queues, flags)
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
        """A large body will come in pieces: out of memory with them, where there is a place. ContentTooLarge where that
        has no room."""
        spool = self.log.spool
        if spool is None:
            self.incoming = []
            return
        self.incoming = spool.begin(publish.size, publish.delivery_mode == 2)
        self.connection.spools = True

    def begin_stage(self, method: ContentMethod) -> None:
        """A content to be staged will come in pieces, which go to `incoming` (0-9)."""
        raise NotImplementedByBroker(f"{method.name} is not implemented")

    def route_message(self, route: Route, message: Message) -> list[Queue]:
        """The queues where headers matter: CC and BCC, headers exchanges."""
        if route.owner:
            content.check_copies(message)  # a stage keeps them for later
            return route.queues
        more: list[str] = []
        if message.headers_at >= 0 and b"CC" in message.header:
            more = content.copy_keys(message)
        if not more and not route.dynamic:
            return route.queues
        return self.vhost.route_message(route, message, more)

    def flagged(self, message: Message, queues: list[Queue], flags: int) -> list[Queue]:
        """Mandatory, immediate and unroutable messages (0-9-1 basic.publish.mandatory, .immediate)."""
        if not queues:
            if flags & (MANDATORY | IMMEDIATE):
                self.send_return(message, NO_ROUTE if flags & MANDATORY else NO_CONSUMERS,
                                 "NO_ROUTE" if flags & MANDATORY else "NO_CONSUMERS")
            return queues
        if flags & IMMEDIATE:
            ready = [queue for queue in queues if queue.can_deliver_now(message)]
            if not ready:
                self.send_return(message, NO_CONSUMERS, "NO_CONSUMERS")
            return ready
        return queues

    def ask_to_pause(self) -> None:
        """Ask a publisher to stop by channel.flow (0-9-1 channel.flow.throttling)."""
        if not self.paused and self.publish_count:
            self.paused = True
            self.pause_known = False
            self.pause_until = self.broker.timers.now() + FLOW_GRACE
            self.connection.engine.send(self.number, "channel.flow", {"active": False})

    def ask_to_resume(self) -> None:
        if self.paused:
            self.paused = False
            self.connection.engine.send(self.number, "channel.flow", {"active": True})

    def send_return(self, message: Message, code: int, text: str) -> None:
        self.send_content("basic.return", {
            "reply_code": code, "reply_text": text, "exchange": message.exchange, "routing_key": message.routing_key},
            message.header, message)

    def send_content(self, name: str, arguments: dict[str, Any], header: bytes, message: Message) -> None:
        """Send a method with a message, other than `basic.deliver`."""
        connection = self.connection
        engine = connection.engine
        if message.size <= connection.max_encoded:
            engine.send_content(self.number, name, arguments, header, whole(message.body))
            connection.mark()
        elif engine.is_open(self.number):
            engine.send_content(self.number, name, arguments, header, [])
            connection.send_body(self.number, message)

    def expiry(self, expiration: bytes) -> int:
        """`Message.expires_at` from the property expiration."""
        try:
            milliseconds = int(expiration) if expiration.isdigit() else -1
        except ValueError:
            milliseconds = -1
        if milliseconds < 0 or milliseconds > content.MAX_EXPIRATION:
            raise PreconditionFailed(f"invalid expiration '{expiration.decode('utf-8', 'replace')}': milliseconds in"
                                     f" decimal digits are expected, from 0 to {content.MAX_EXPIRATION}")
        return self.broker.timers.now() + milliseconds if milliseconds else AT_ONCE

    def check_user(self, user_id: bytes) -> None:
        """Raise PreconditionFailed where a message says that somebody else has sent it."""
        if user_id != self.connection.user_bytes and not self.connection.may_impersonate:
            raise PreconditionFailed(f"user_id property set to '{user_id.decode('utf-8', 'replace')}' but authenticated"
                                     f" user was '{self.connection.user}'")

    def _with_reply_address(self, header: bytes) -> bytes:
        """Replace direct reply-to's pseudo-address with that of this channel's reply consumer."""
        if content.reply_to(header) != REPLY_TO.decode():
            return header
        return content.with_reply_to(header, self.reply_address())

    def reply_address(self) -> str:
        """That of this channel's reply consumer."""
        if self.reply_queue is None:
            raise PreconditionFailed("fast reply consumer does not exist: consume from 'amq.rabbitmq.reply-to' on this"
                                     " channel first")
        return self.reply_queue.name

    def _publish_later(self, message: Message, route: Route, flags: int) -> None:
        if message.headers_at >= 0 and b"CC" in message.header:
            check_keys(self.broker, [route.routing_key, *content.check_copies(message)])
        self.grow_transaction(message.size + 1000)
        self.tx_publishes.append(PendingPublish(message, route, flags, self.broker.timers.now()))

    def grow_transaction(self, size: int) -> None:
        """The transaction takes so much more memory. ContentTooLarge where that is too much."""
        self.tx_size += size
        if self.tx_size > self.connection.settings.max_transaction:
            raise ContentTooLarge(f"the transaction holds more than {self.connection.settings.max_transaction} bytes;"
                                  " the setting is limits.transaction_size")

    def transaction_ended(self, committed: bool) -> None:
        """The transaction is about to be committed, or was rolled back: for what else belongs to it (0-9)."""

    # Confirms

    def committed(self, batch: int) -> None:
        marks = self.marks
        while marks and marks[0][0] <= batch:
            marks.popleft()
        if not self.closing:
            self.resolve()
            self.connection.mark()

    def resolve(self) -> None:
        """Confirm the prefix of the publishes that is resolved."""
        marks = self.marks
        upto = marks[0][1] - 1 if marks else self.published
        confirmed = self.confirmed
        if upto <= confirmed:
            return
        engine = self.connection.engine
        nacks = self.nacks
        while nacks and nacks[0] <= upto:
            refused = nacks.popleft()
            if refused - 1 > confirmed:
                engine.send_ack(self.number, refused - 1, refused - 2 > confirmed)
            engine.send_nack(self.number, refused, False, False)
            confirmed = refused
        if upto > confirmed:
            engine.send_ack(self.number, upto, upto - 1 > confirmed)
        self.confirmed = upto

    # Deliveries

    def is_full(self) -> bool:
        """Whether the channel holds as many deliveries as its own window takes."""
        return 0 < self.prefetch <= self.outstanding()

    def outstanding(self) -> int:
        """How many deliveries the windows of channel and connection count."""
        return len(self.unacked) + len(self.tx_settlements) - self.gets

    def has_credit(self, size: int) -> bool:
        """The channel's own window, shared by its consumers, and the connection's."""
        if self.is_full():
            return False
        if self.prefetch_size and (self.unacked or self.outstanding()) \
                and self.unacked_size + size > self.prefetch_size:
            return False
        connection = self.connection
        if not connection.prefetch and not connection.prefetch_size:
            return True
        return connection.has_credit(self, size)

    def update_window(self) -> None:
        """Have the connection's window count what the channel holds now."""
        held = 0
        size = 0
        if not self.closing:
            held = self.outstanding()
            size = self.unacked_size
        self.connection.count_unacked(held - self.counted_deliveries, size - self.counted_bytes)
        self.counted_deliveries = held
        self.counted_bytes = size

    def is_over_limit(self) -> bool:
        """Whether a channel without prefetch must acknowledge before it gets more: by setting, or for lack of memory."""
        held = len(self.unacked)
        if (self.broker.tight and held >= LOW_MEMORY_WINDOW) or 0 < self.max_unacked <= held:
            self.counted = True  # from now on acknowledgements wake all consumers of the channel
            return True
        return False

    def take_tags(self, tag: int, multiple: bool) -> list[tuple[int, Entry]]:
        """Remove the entries that an acknowledgement names; PreconditionFailed for a tag that was never given, or twice
        (0-9-1 basic.ack.multiple.exists)."""
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
        """Settle what an acknowledgement of several deliveries names, in steps if that is much."""
        if tag and tag not in self.unacked:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        self.carry_out(self._settling(tag or self.next_tag - 1, outcome))

    def _settling(self, last: int, outcome: int) -> Iterator[int]:
        """Settle all deliveries up to a tag; what is given back goes youngest first, in front of what came later."""
        unacked = self.unacked
        tags = sorted(unacked)
        del tags[bisect_right(tags, last) :]
        yield len(tags) >> 5
        if outcome != REQUEUE or self.transacted:
            tags.reverse()
        self.low_tag = max(self.low_tag, last + 1)
        frozen: dict[Queue, None] = {}
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
                    freeze(entry.queue, frozen)
                    self.requeue_nacked(entry)
                if holder is not None and holder.parked and not self.counted:
                    holder.wake()
                yield 2
        finally:
            thaw(frozen)
        if self.counted:
            self.wake()

    def carry_out(self, pieces: Iterator[int], done: Callable[[], None] | None = None) -> None:
        """Do work that may be much, then call `done`. Commands that follow on this channel wait."""
        self.unfinished = pieces
        if self.broker.jobs.carry_out(pieces, partial(self._carried_out, done), self.fail):
            self.unfinished = None
            if done is not None:
                done()
        else:
            self.stall()

    def _carried_out(self, done: Callable[[], None] | None) -> None:
        self.unfinished = None
        if self.closing or self.abandoned:
            return
        if done is not None:
            done()
        self.connection.mark()
        self.resume()

    def fail(self) -> None:
        """Work for a command has failed in a later turn, as the log says: there will be no answer."""
        self.unfinished = None
        if self.closing or self.abandoned:
            return
        if self.connection.lost:
            self.close()  # interrupted (0-9): it cannot be resumed
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
        """Whether this channel never sees an entry again that it rejected: in strict mode."""
        return self.vhost.strict

    def requeue_nacked(self, entry: Entry) -> None:
        """Requeue after a reject."""
        if self.excludes_rejecting_channel():
            entry.queue.requeue_elsewhere(entry, self.scope)
        else:
            entry.queue.requeue(entry)

    def uncount(self, tag: int, entry: Entry) -> None:
        """Take an entry out of the count of gets, the windows by size and the clock of the consumer timeout."""
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

    def all_held(self) -> list[Entry]:
        entries = list(self.unacked.values())
        entries.extend([entry for _, entry, _ in self.tx_settlements])
        return entries

    def wake(self) -> None:
        """Credit came back that consumers of this channel share, or all those of the connection."""
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
            # They share a window, which the one that came first the last time has had: now it is the others' turn.
            for tag, consumer in consumers.items():
                if consumer.parked:
                    consumers[tag] = consumers.pop(tag)
                    break
        for consumer in consumers.values():
            if consumer.parked:
                consumer.wake()

    def set_counted(self) -> None:
        """Find out whether windows that consumers share have to be looked at, and whether bytes are counted."""
        connection = self.connection
        self.counted = bool(self.prefetch or self.prefetch_size or connection.prefetch or connection.prefetch_size)
        sized = bool(self.prefetch_size or connection.prefetch_size or self.default_prefetch_size)
        if sized and not self.sized:
            self.sized = True
            entries = self.all_held()
            self.unacked_size = sum(entry.message.size for entry in entries)
            for consumer in self.consumers.values():
                consumer.unacked_size = 0
            for entry in entries:
                holder = entry.holder
                if isinstance(holder, ChannelConsumer):
                    holder.unacked_size += entry.message.size

    def requeuing_all(self) -> Iterator[int]:
        """Give back everything unacknowledged, also what an open transaction has acknowledged."""
        frozen: dict[Queue, None] = {}
        settlements = self.tx_settlements
        try:
            while settlements and not self.committing:
                entry = settlements.pop()[1]
                freeze(entry.queue, frozen)
                entry.queue.requeue(entry)
                yield 2
            yield from self.requeuing()
        finally:
            thaw(frozen)

    def requeuing(self) -> Iterator[int]:
        """Give back what is unacknowledged, youngest first, so that each goes in front of the one before. What is delivered
        meanwhile stays; what is still to be given back is in the window until then."""
        tags = sorted(self.unacked)
        yield len(tags) >> 5
        self.low_tag = self.next_tag
        yield from self.requeuing_tags(tags)

    def requeuing_tags(self, tags: list[int]) -> Iterator[int]:
        """Give back the deliveries of these tags, the last one first."""
        unacked = self.unacked
        frozen: dict[Queue, None] = {}
        try:
            while tags:
                tag = tags.pop()
                entry = unacked.pop(tag, None)
                if entry is None:
                    continue
                freeze(entry.queue, frozen)
                self.uncount(tag, entry)
                entry.queue.requeue(entry)
                yield 2
        finally:
            thaw(frozen)

    # Consumers

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """The queue of a consumer was deleted: RabbitMQ's consumer cancel notification."""
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
        """Tell a client that wants to know that its consumer has gone."""
        connection = self.connection
        if connection.notify_cancel and not self.closing:
            connection.engine.send(self.number, "basic.cancel", {"consumer_tag": tag, "no_wait": True})
            connection.mark()

    def cancel(self, tag: str) -> None:
        """Cancel a consumer; an unknown tag is none of our business (0-9-1 basic.cancel.01)."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            if self.reply_queue is consumer.queue:
                self.reply_queue = None
            consumer.queue.catch_up()
            consumer.queue.remove_consumer(consumer)

    # The end

    def close(self, done: Callable[[], None] | None = None) -> None:
        """Close the channel: its consumers leave, what it held goes back to the queues, then `done` is called."""
        if self.closing:
            if done is not None:
                done()
            return
        self.closing = True
        if self.stalled:
            self.connection.release_input("backlog")  # nobody will `resume`
        if self.broker.jobs.carry_out(self.closing_down(), done, done) and done is not None:
            done()

    def closing_down(self) -> Iterator[int]:
        """What was begun is finished, consumers leave, and what is held goes back."""
        self.scope.gone = True
        self.broker.holders.pop(self, None)
        if self.timeout is not None:
            self.broker.timers.cancel(self.timeout)
            self.timeout.channel = None  # the timers may remember it for a while
            self.timeout = None
        self.incoming = []
        self.backlog.clear()
        self.reply_queue = None
        consumers = list(self.consumers.values())
        self.consumers.clear()
        # First out of the rings, then back into the queues: else the entries would come right back here.
        for consumer in consumers:
            consumer.active = False
            consumer.queue.leave_ring(consumer)
        yield len(consumers) >> 2
        if self.unfinished is not None:
            yield from logged(self.unfinished)
        held = 0
        while True:
            before = held
            yield from logged(self.requeuing_all())
            held = len(self.unacked) + len(self.tx_settlements)
            if not held or held == before:
                break  # otherwise one of them could not go back, and the rest still have to
        while consumers:
            consumer = consumers.pop(0) if len(consumers) < MAX_LEAVING_IN_ORDER else consumers.pop()
            try:
                consumer.queue.remove_consumer(consumer)
            except Exception:
                log.exception("a consumer of queue '%s' failed to leave", consumer.queue.name)
            yield 2
        while self.tx_publishes:
            self.tx_publishes.pop()
            yield 1

    # Stalling

    def stall(self) -> None:
        """Hold back this channel's further commands until `resume`."""
        self.stalled = True

    def resume(self) -> None:
        """The reply that everything waited for was sent: go on with what came in the meantime."""
        self.stalled = False
        self.backlog_size = 0
        backlog = self.backlog
        while backlog and not self.stalled and not self.closing and not self.abandoned:
            self.connection.perform(self, backlog.popleft())
        self.connection.after_backlog()

"""The interface of all queue types to the broker and the protocols: messages in, entries out to consumers.

A queue type is a subclass of `Queue` and one line in the registry. It implements the abstract methods, and declares its
capabilities, which callers check instead of its type. The other operations default to a queue without the feature, such
as delayed messages.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from leveret.broker import settlement
from leveret.broker.destination import Destination
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import ACQUIRED, Entry
from leveret.broker.outcomes import REJECTED
from leveret.broker.queues.capabilities import GET, LEASE, PURGE, check_supported
from leveret.broker.queues.counters import QueueCounters
from leveret.broker.queues.inspection import Inspection
from leveret.broker.queues.lifetime import Lifetime
from leveret.broker.queues.limits import NO_LIMITS
from leveret.broker.queues.paging import NO_PAGING
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.arguments import QueueSettings
    from leveret.broker.consumer import Consumer
    from leveret.broker.errors import Undelivered
    from leveret.broker.exchanges.base import Exchange
    from leveret.broker.leases.leases import Leases
    from leveret.broker.leases.recovery import Restoring
    from leveret.broker.log import Log, Recovery
    from leveret.broker.message import Message, Overlay
    from leveret.broker.metadata import Record
    from leveret.broker.policies import Policy
    from leveret.broker.queues.deduplication import Deduplication
    from leveret.broker.queues.definition import QueueDefinition
    from leveret.broker.queues.rings import Rings
    from leveret.broker.queues.sink_transaction import TransactionChunk
    from leveret.broker.streams.recovery import StreamRecords
    from leveret.broker.watches import QueueWatch

logger = logging.getLogger("leveret.broker")


class Hidden:
    """Entries that are not visible yet: their sequence numbers and sizes, and the total size."""

    __slots__ = ("bytes", "sizes")

    def __init__(self) -> None:
        # None until there is an entry, which most queues never have.
        self.sizes: dict[int, int] | None = None
        self.bytes = 0

    def __len__(self) -> int:
        return 0 if self.sizes is None else len(self.sizes)

    def add(self, seq: int, size: int) -> None:
        if self.sizes is None:
            self.sizes = {}
        self.sizes[seq] = size
        self.bytes += size

    def discard(self, seq: int) -> None:
        if self.sizes is not None:
            self.bytes -= self.sizes.pop(seq, 0)


class Queue(Destination):
    """One queue of one vhost. `id` is its identity in the log; names may be used again, ids are not.

    It owns its sequence numbers. Other state is in its parts, whose default is a queue without the feature:

    counters   its published, delivered and settled entries
    lifetime   what deletes it
    hidden     entries that are not visible yet
    limits     limits of its length and of failed deliveries
    paging     entries between memory and the log
    leases     None until the first one is acquired
    deduplication  None unless it drops duplicates
    consumers  consumers that acquire entries

    Capabilities of the type:

    unsupported  the operations of `capabilities` that it does not support, each with a description of the queue for the
                 error
    replayable   consumers remove nothing; each reads from its own offset
    replacing    a message may replace another one, so a full queue accepts it
    announces_activity  consumers are notified when they become active, as with a single active consumer
    """

    kind: ClassVar[Literal["queue", "exchange"]] = "queue"
    unsupported: ClassVar[dict[str, str]] = {}
    replayable: ClassVar[bool] = False
    replacing: ClassVar[bool] = False
    announces_activity: ClassVar[bool] = False

    def __init__(self, definition: QueueDefinition) -> None:
        # The log has no definition of an exclusive queue.
        durable = definition.durable
        super().__init__(definition.name, definition.id, durable and definition.exclusive_owner is None)
        vhost = definition.vhost
        settings = definition.settings
        self.vhost = vhost
        self.broker = vhost.broker
        self.log: Log = vhost.broker.log
        self.durable = durable
        self.lifetime = Lifetime(definition.exclusive_owner, definition.auto_delete)
        self.arguments = definition.arguments
        # The settings from the arguments, and the settings in effect, which policies change.
        self.declared = settings
        self.settings = settings
        self.policy: Policy | None = None
        self.operator_policy: Policy | None = None
        self.next_seq = 1
        self.counters = QueueCounters()
        # Whether `drain` is called at the end of this turn.
        self.active = False
        # Number of consumers whose deliveries settle the entries.
        self.no_ack_consumers = 0
        # Whether an operator has stopped deliveries.
        self.paused = False
        self.hidden = Hidden()
        self.limits = NO_LIMITS
        self.paging = NO_PAGING
        self.leases: Leases | None = None
        self.deduplication: Deduplication | None = None
        # Watch on the messages of the queue; usually None.
        self.watch: QueueWatch | None = None

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    # As a destination of bindings

    def reach(self, queues: dict[Queue, None], exchanges: list[Exchange]) -> None:
        queues[self] = None

    def bound_to(self, source: Exchange) -> None:
        """Ignore the binding: a queue routes no further."""

    def unbound_from(self, source: Exchange) -> None:
        """Ignore the binding: a queue routes no further."""

    # Definition

    def record(self) -> Record:
        """Return the definition that the log keeps, without the name."""
        record: Record = {"id": self.id, "auto_delete": self.lifetime.auto_delete, "arguments": self.arguments}
        if self.paused:
            record["paused"] = True
        return record

    def recover(self, record: Record, recovery: Recovery, leases: Restoring, streams: StreamRecords) -> None:
        """Recover the queue: its definition, as in `record`, and its entries in the log."""
        self.next_seq = recovery.last_seq.get(self.id, 0) + 1
        self.paused = record.get("paused", False)

    def start(self) -> None:
        """Start timers and first reads, once all queues are recovered and the log commits."""

    def restore(self, entry: Entry) -> None:
        """Restore an entry that was acquired before the broker stopped. Its consumer is unknown."""
        settlement.restore(entry)
        self.counters.count_restored(entry.message.size)
        self.note_reacquired(entry)

    def is_unindexed(self) -> bool:
        """Return whether its recovered entries are still being indexed, so that it delivers nothing (see `indexing`)."""
        return False

    def configure(self, settings: QueueSettings) -> None:
        """Replace the settings in effect; those that have no policy key stay the same."""
        self.settings = settings

    def reconfigured(self) -> None:
        """Act on settings that `configure` has changed while the queue is in use."""

    def set_watch(self, watch: QueueWatch | None) -> None:
        """Set or remove the watch on the messages of the queue."""
        self.watch = watch

    def set_paused(self, paused: bool) -> None:
        """Deliver nothing while paused. Publishes continue, and so do limits and expiry."""
        self.paused = paused
        self.redefined()
        if self.stored:
            self.vhost.keep_queue(self)
        if not paused:
            self.activate()

    # Statistics

    def sample(self) -> tuple[int, ...]:
        """Return the counters, the gauges of `QUEUE_GAUGES`, the times of `Rings.blocked`, and the revision."""
        return self.counters.totals() + self.gauges() + self.consumers.blocked() + (self.revision,)

    def gauges(self) -> tuple[int, ...]:
        """Return the values of `QUEUE_GAUGES`."""
        deduplication, leases, counters = self.deduplication, self.leases, self.counters
        keys, dropped = (0, 0) if deduplication is None else deduplication.figures()
        ready, delayed, unacked, unacked_bytes = self.ready_count, self.delayed_count, self.unacked, counters.unacked_bytes
        leased, leased_bytes = (0, 0) if leases is None else (leases.count, leases.bytes)
        ready_bytes, delayed_bytes = self.ready_bytes, self.delayed_bytes
        persistent = persistent_bytes = 0
        if self.stored:
            # Unacked messages stay in a stream, which counts them as ready.
            persistent = ready + delayed + leased + (0 if self.replayable else unacked)
            persistent_bytes = ready_bytes + delayed_bytes + unacked_bytes + leased_bytes
            transient = counters.transient
            if transient is not None:
                persistent -= transient.count
                persistent_bytes -= transient.bytes
        paged, paged_bytes = self.paging.paged()
        return (
            ready,
            delayed,
            unacked,
            leased,
            ready_bytes,
            delayed_bytes,
            leased_bytes,
            unacked_bytes,
            persistent,
            persistent_bytes,
            paged,
            paged_bytes,
            self.paging.memory(),
            len(self.consumers),
            keys,
            dropped,
        )

    @property
    @abstractmethod
    def ready_count(self) -> int:
        """Entries that wait for a consumer, in memory or not."""

    @property
    @abstractmethod
    def ready_bytes(self) -> int:
        """Bytes of the bodies of the ready entries."""

    @property
    def delayed_count(self) -> int:
        """Entries that become visible later."""
        return 0

    @property
    def delayed_bytes(self) -> int:
        """Bytes of the bodies of the delayed entries."""
        return 0

    @property
    def unacked(self) -> int:
        """Acquired entries that wait for their settlement."""
        return self.counters.unacked

    @property
    def leased_count(self) -> int:
        """Entries of planned batches."""
        return 0 if self.leases is None else self.leases.count

    @property
    def retrying_count(self) -> int:
        """Those of the delayed entries that were rejected and wait for their next delivery."""
        return 0

    def is_occupied(self) -> bool:
        """Return whether the queue has or may have entries."""
        counted = self.ready_count or self.delayed_count or self.unacked or self.leased_count or len(self.hidden)
        return bool(counted) or self.is_unindexed()

    # Publishing

    @abstractmethod
    def push(self, message: Message) -> bool:
        """Append a message; return False if the queue rejects it (`x-overflow: reject-publish`)."""

    def push_run(self, messages: list[Message], first: int, stop: int) -> int:
        """Append the messages from `first` up to `stop` (exclusive), or those before one that needs a check of its own.

        Returns:
            The index of the first message that was not appended, which must be pushed singly.
        """
        return first

    def take_over(self, source: int, chunk: TransactionChunk) -> bool:
        """Append the messages of a sink transaction's chunk, which stay in the log where they are, under its id `source`.

        They become visible with the current log commit. Returns False, and does nothing, if the queue takes messages only
        one by one.
        """
        return False

    def delay(self, message: Message, due: int, overlay: Overlay | None = None) -> bool:
        """Append a message that becomes visible at `due`; return False if the queue rejects it.

        `overlay`, which has the same time, may change it further.
        """
        return self.push(message)

    @abstractmethod
    def prepare(self, message: Message, overlay: Overlay | None = None) -> Entry:
        """Return a new entry that is in the log but not visible yet (transactions, dead letters)."""

    def prepare_publish(self, message: Message, overlay: Overlay | None = None) -> Entry | None:
        """Return a new entry of a publish, as `prepare` does; None if the queue drops it as a duplicate."""
        return self.prepare(message, overlay)

    def drops_all(self, message: Message) -> bool:
        """Return whether a message that was routed here is a duplicate by now, which none of its queues gets. Drops it."""
        return False

    def unpublish(self, message: Message) -> None:
        """Forget the message of the latest publish, which another queue has rejected: it may be sent again."""

    def retract(self, entry: Entry) -> None:
        """Remove a prepared entry, which is not visible yet."""
        settlement.settle(entry)

    @abstractmethod
    def insert_new(self, entry: Entry) -> None:
        """Make a prepared entry visible."""

    def insert_many(self, entries: list[Entry]) -> None:
        """Make prepared entries visible, given in the order of their sequence numbers."""
        for entry in entries:
            self.insert_new(entry)

    # Delivery

    def activate(self) -> None:
        """Schedule a call of `drain` at the end of this turn."""
        if not self.active:
            self.active = True
            self.broker.active.append(self)

    def end_turn(self) -> None:
        """Call `drain` at the end of a turn."""
        self.active = False
        self.drain()

    @abstractmethod
    def drain(self) -> None:
        """Deliver ready entries until they or the credit of the consumers run out."""

    def catch_up(self) -> None:
        """Deliver now instead of at the end of the turn.

        A method that follows a publish must not see a message for which a consumer is waiting.
        """

    def get(self, no_ack: bool, audience: int = 0, scope: object | None = None) -> Entry | None:
        """Acquire the next entry for `basic.get`. Return None if it is not in memory.

        With an `audience`, it is the next entry for this audience; with a `scope`, the next one that the scope has not
        refused. All gets of a client have the same scope.
        """
        check_supported(self, GET)
        return None

    @abstractmethod
    def can_deliver_now(self, message: Message) -> bool:
        """Return whether a message published now would reach a consumer at once (0-9-1 basic.publish.immediate)."""

    def is_behind(self) -> bool:
        """Return whether messages wait for the broker: a consumer with credit and a writable socket gets them later."""
        return False

    def is_starving(self) -> bool:
        """Return whether a consumer with credit and a writable socket waits until messages are read from disk."""
        return False

    # Settlement

    @abstractmethod
    def settle(self, entry: Entry) -> None:
        """Settle an acquired entry that was accepted or needs no acknowledgement."""

    @abstractmethod
    def requeue(self, entry: Entry, failed: bool = True) -> None:
        """Requeue an acquired entry in its old place, or dead-letter it beyond the delivery limit."""

    def refuse(self, entry: Entry, scope: object) -> None:
        """Exclude consumers of this scope from an entry (0-9-1 basic.reject.requeue.01)."""

    def take_back(self, undelivered: Undelivered, scope: object = None) -> None:
        """Return an entry that a client cannot receive: to consumers of other scopes, or to the dead-letter exchange.

        A message that returns after it was dead-lettered stays for the other consumers: it could return for ever.

        If its delivery needed no acknowledgement, it has left its place, and a copy at the end of the queue replaces it.

        Args:
            undelivered: The entry, and why.
            scope: The scope of a `get`; that of a delivery is its consumer's.
        """
        entry = undelivered.entry
        holder = entry.holder
        if holder is not None:
            scope = holder.scope
        dead_letters = self.settings.dead_letter_exchange is not None and not _has_died(entry)
        self.vhost.dead_letters.note_undelivered(self, str(undelivered), dead_letters)
        if entry.state == ACQUIRED and (holder is None or not holder.no_ack):
            if dead_letters:
                settlement.count_failure(entry)
                self.reject(entry)
            else:
                self.refuse(entry, scope)
                self.requeue(entry)
                if holder is not None:
                    holder.passed_over(str(undelivered))
            return
        if dead_letters:
            self.vhost.dead_letters.publish(entry, REJECTED)
        elif not self.deleted:
            copy = self.prepare(entry.message, entry.overlay)
            self.refuse(copy, scope)
            self.insert_new(copy)
            if holder is not None:
                holder.passed_over(str(undelivered))
        if entry.state == ACQUIRED:
            settlement.forget_holder(entry)
            self.forget_transient(entry)
            settlement.settle(entry)
            self.counters.count_removed()

    def retries(self, entry: Entry) -> bool:
        """Return whether `reject` keeps an acquired entry, to deliver it again after a delay."""
        return False

    @abstractmethod
    def reject(self, entry: Entry, reason: str = "") -> None:
        """Settle an acquired entry that was rejected without requeue, and dead-letter it if the queue does that.

        An entry that `retries` stays in the queue.
        """

    def forget_transient(self, entry: Entry) -> None:
        """Count an entry that leaves the queue, if the queue counts those that are not kept on disk."""

    def count_undone(self, entry: Entry, accepted: bool) -> None:
        """Count an entry that is acquired again because its settlement was undone."""
        self.counters.count_undone(entry.message.size, accepted)

    def note_reacquired(self, entry: Entry) -> None:
        """Note that an unknown consumer has an entry again, after a start or because its settlement was undone."""

    # Operators

    def inspect(self) -> Inspection:
        """Return the means to look at the ready entries, and to remove some."""
        return Inspection(self)

    # Consumers

    @property
    @abstractmethod
    def consumers(self) -> Rings:
        """The consumers that acquire entries; neither browsers nor readers of leases."""

    def check_consumer(self, arguments: FieldTable, no_ack: bool) -> None:
        """Raise an error for invalid arguments of a consumer, before it joins."""

    @abstractmethod
    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer; with a single active consumer it may have to wait."""

    @abstractmethod
    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer; its unsettled entries stay with its channel."""

    @abstractmethod
    def unpark(self, consumer: Consumer) -> None:
        """Serve a parked consumer that has credit again."""

    def make_leases(self) -> Leases:
        """Return the leases of the queue, to acquire one.

        Raises:
            PreconditionFailed: The queue does not support leases.
            AccessRefused: It has an exclusive consumer.
        """
        raise PreconditionFailed(f"{self} does not support leases: it is {self.unsupported[LEASE]}")

    # Deletion

    def purge(self) -> int:
        """Drop all ready entries; unacked ones stay (0-9-1 queue.purge.02). Return their number."""
        check_supported(self, PURGE)
        return 0

    @abstractmethod
    def delete(self, keep_pending: bool = False) -> int:
        """Delete the queue and its entries, which are dead-lettered with `keep_pending`.

        Returns:
            The number of ready entries.
        """

    def detach(self, consumers: list[Consumer]) -> None:
        """Detach the consumers from the deleted queue, and settle its acquired entries."""
        self.deleted = True
        self.lifetime.end()
        if self.unacked:
            self.broker.settle_acquired(self)
        for consumer in consumers:
            consumer.leave()
        consumers.reverse()
        self.broker.jobs.removals.add(_notifying(consumers))


def _notifying(consumers: list[Consumer]) -> Iterator[int]:
    """Notify the consumers of a deleted queue."""
    while consumers:
        consumer = consumers.pop()
        try:
            consumer.queue_deleted()
        except Exception:  # the others must be notified
            logger.exception("cannot notify a consumer of the deleted queue '%s'", consumer.queue.name)
        yield 3


def _has_died(entry: Entry) -> bool:
    """Return whether its queue has dead-lettered the message of an entry before."""
    deaths = None if entry.overlay is None else entry.overlay.headers.get("x-death")
    name = entry.queue.name
    return isinstance(deaths, list) and any(isinstance(death, dict) and death.get("queue") == name for death in deaths)

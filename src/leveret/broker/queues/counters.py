"""Counters of one queue, from which the statistics of management are made."""

from __future__ import annotations


class TransientEntries:
    """The entries of a durable queue that are not kept on disk: how many are in the queue, and their bytes.

    Attributes:
        count: Entries, ready, delayed or unacked.
        bytes: Bytes of their bodies.
        unacked: The unacked ones.
        unacked_bytes: Bytes of the bodies of these.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.unacked = 0
        self.unacked_bytes = 0

    def add(self, size: int) -> None:
        """Count an entry that entered the queue."""
        self.count += 1
        self.bytes += size

    def remove(self, size: int) -> None:
        """Count an entry that has left the queue, or is kept on disk from now on."""
        self.count -= 1
        self.bytes -= size

    def acquire(self, size: int) -> None:
        """Count an entry that is unacked now."""
        self.unacked += 1
        self.unacked_bytes += size

    def release(self, size: int) -> None:
        """Count an entry that is not unacked any more."""
        self.unacked -= 1
        self.unacked_bytes -= size

    def counts(self) -> tuple[int, ...]:
        """Return all counts, for `restore`."""
        return self.count, self.bytes, self.unacked, self.unacked_bytes

    def restore(self, counts: tuple[int, ...]) -> None:
        """Set all counts, to none if there are none."""
        self.count, self.bytes, self.unacked, self.unacked_bytes = counts or (0, 0, 0, 0)

    def keep_unacked(self) -> None:
        """Count only the unacked entries: all others have left the queue."""
        self.count = self.unacked
        self.bytes = self.unacked_bytes


class QueueCounters:
    """The counters of one queue.

    Attributes:
        published: Messages that entered the queue.
        delivered: Deliveries, including those that need no acknowledgement, and gets.
        redelivered: Deliveries of entries that were delivered before.
        gets: Entries that `basic.get` acquired.
        gets_no_ack: Those of them that need no acknowledgement.
        gets_empty: Calls of `basic.get` that found no entry.
        acked: Entries that were accepted.
        settled_no_ack: Entries whose deliveries or gets needed no acknowledgement.
        removed: Entries that were settled otherwise.
        unacked: Acquired entries that wait for their settlement.
        unacked_bytes: Bytes of their bodies; 0 for a stream, whose messages stay in it.
        transient: The entries that are not kept on disk, if the queue keeps others; None before the first one.
        incoming: Messages by the name of the exchange that they were published to; None before the first one. Routes to
            very many queues are not counted.
    """

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.redelivered = 0
        self.gets = 0
        self.gets_no_ack = 0
        self.gets_empty = 0
        self.acked = 0
        self.settled_no_ack = 0
        self.removed = 0
        self.unacked = 0
        self.unacked_bytes = 0
        self.transient: TransientEntries | None = None
        self.incoming: dict[str, int] | None = None

    @property
    def settled(self) -> int:
        """Entries that were settled."""
        return self.acked + self.settled_no_ack + self.removed

    @property
    def delivered_no_ack(self) -> int:
        """Deliveries to consumers that do not acknowledge: their entries are settled at once, as those of gets are."""
        return self.settled_no_ack - self.gets_no_ack

    def totals(self) -> tuple[int, ...]:
        """Return the counters of `QUEUE_COUNTERS`."""
        return (
            self.published,
            self.delivered,
            self.delivered_no_ack,
            self.gets - self.gets_no_ack,
            self.gets_no_ack,
            self.gets_empty,
            self.redelivered,
            self.acked,
        )

    # Publishing

    def count_published(self, messages: int) -> None:
        """Count messages that entered the queue."""
        self.published += messages

    def count_retracted(self) -> None:
        """Take back the count of a message that left the queue before it was visible."""
        self.published -= 1

    def count_transient(self, size: int) -> None:
        """Count an entry of a queue on disk that is not kept there."""
        transient = self.transient
        if transient is None:
            transient = self.transient = TransientEntries()
        transient.add(size)

    def count_incoming(self, exchange: str, messages: int) -> None:
        """Count messages that were published to an exchange and routed to the queue."""
        incoming = self.incoming
        if incoming is None:
            incoming = self.incoming = {}
        incoming[exchange] = incoming.get(exchange, 0) + messages

    # Delivery

    def count_deliveries(self, delivered: int, unacked: int, unacked_bytes: int, settled: int, redelivered: int) -> None:
        """Count deliveries, and entries that are now acquired, or settled without acknowledgement."""
        self.delivered += delivered
        self.unacked += unacked
        self.unacked_bytes += unacked_bytes
        self.settled_no_ack += settled
        self.redelivered += redelivered

    def count_get(self, size: int, no_ack: bool, redelivered: bool) -> None:
        """Count an entry that `get` acquired; `count_settled_no_ack` follows if it needs no acknowledgement."""
        self.delivered += 1
        self.gets += 1
        if no_ack:
            self.gets_no_ack += 1
        else:
            self.unacked += 1
            self.unacked_bytes += size
        if redelivered:
            self.redelivered += 1

    def count_empty_get(self) -> None:
        """Count a `get` that found no entry."""
        self.gets_empty += 1

    # Settlement

    def count_accepted(self, entries: int) -> None:
        """Count entries that were accepted, after `count_returned` if they were acquired."""
        self.acked += entries

    def count_settled_no_ack(self) -> None:
        """Count an entry that needed no acknowledgement."""
        self.settled_no_ack += 1

    def count_returned(self, size: int) -> None:
        """Count an entry of `size` bytes that is not acquired any more."""
        self.unacked -= 1
        self.unacked_bytes -= size

    def count_removed(self) -> None:
        """Count an entry that was settled without being accepted."""
        self.removed += 1

    # Undoing

    def count_restored(self, size: int) -> None:
        """Count an entry of `size` bytes that was acquired before the broker stopped."""
        self.unacked += 1
        self.unacked_bytes += size

    def acquired(self) -> tuple[int, ...]:
        """Return the numbers that a settlement changes, for `restore_acquired`."""
        transient = self.transient
        if transient is None:
            return self.unacked, self.unacked_bytes
        return (self.unacked, self.unacked_bytes, *transient.counts())

    def restore_acquired(self, acquired: tuple[int, ...]) -> None:
        """Undo the changes of a settlement that has failed."""
        self.unacked, self.unacked_bytes = acquired[0], acquired[1]
        transient = self.transient
        if transient is not None:
            transient.restore(acquired[2:])

    def count_undone(self, size: int, accepted: bool) -> None:
        """Count an entry of `size` bytes that is acquired again because its settlement was undone."""
        self.unacked += 1
        self.unacked_bytes += size
        if accepted:
            self.acked -= 1
        else:
            self.removed -= 1

"""Changes of objects and their counters, for readers that keep a copy: the HTTP process.

A reader asks for the changes about once a second. What it was sent before is kept here, so that an idle object costs a
comparison of its counters, less than 1 µs for a queue, and nothing on the hot path notes changes.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from leveret.broker.exchanges.base import Exchange
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.samples import QueueSamples
from leveret.management.operations import exchanges, queues
from leveret.management.ready_ages import EMPTY, Head, ReadyAges
from leveret.management.structs import Reply

if TYPE_CHECKING:
    from leveret.broker.timers import Timers
    from leveret.broker.vhost import Vhost
    from leveret.management.audit.records import AuditRecord
    from leveret.management.managed import ManagedBroker

K = TypeVar("K", bound=Hashable)

# Maximum number of readers, and seconds after which one that has asked for nothing is forgotten.
MAX_FEEDS: Final = 8
FEED_TIMEOUT: Final = 60.0
# Number of queues to compare at a time, and of known queues to look for in those that were found.
QUEUE_BATCH: Final = 32
GONE_BATCH: Final = 256
# Minimum age of the oldest unacked delivery, in milliseconds, from which on it is sent: it changes all the time before.
MIN_UNACKED_AGE: Final = 1000
_NO_TAGS: Final = ("", "")


class Change(Reply, array_like=True, kw_only=True, gc=False):
    """One change: `[kind, key, value]`.

    Attributes:
        kind: `begin` (the value is whether the reader gets everything), `node`, `audit` (a change in the audit log), `end`;
            for objects their kind (the value describes the object), with `.sample` (its counters), `.incoming` (messages of
            a queue by exchange), `.head` (the first ready messages of a queue: `ready_ages.Head`), `.unacked` (for queues
            and channels: the time of the oldest unacked delivery in milliseconds of Unix time, 0 for none) or `.gone`.
        key: The id of a queue, the vhost and name of an exchange, the name of a vhost, the number of a connection, or
            that and the number of a channel.
    """

    kind: str
    key: Any = None
    value: Any = None


class _Item(msgspec.Struct, gc=False):
    """An object that a reader knows. Not tracked by the garbage collector, which would examine all of them.

    Attributes:
        number: The pass that found the object last.
        definition: The definition that was sent.
        sample: The sample that was sent.
    """

    number: int
    definition: object
    sample: object


class _Sent(Generic[K]):
    """The objects of one kind that a reader knows."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[K, _Item] = {}
        # Number of objects that the pass in progress has found.
        self._found = 0

    def begin(self) -> None:
        """Begin a pass over all objects."""
        self._found = 0

    def is_known(self, key: K, number: int, sample: object) -> bool:
        """Note an object; return whether neither its definition, which the sample covers, nor its sample has changed."""
        item = self._items.get(key)
        if item is not None:
            if item.number != number:
                item.number = number
                self._found += 1
            return bool(item.sample == sample)
        return False

    def definition(self, key: K) -> Any:
        """Return the definition of an object that was sent last; None if the object is new."""
        item = self._items.get(key)
        return None if item is None else item.definition

    def is_defined(self, key: K, number: int, definition: object, sample: object) -> bool:
        """Note the sample of an object that has changed; return whether its definition is the one that was sent."""
        item = self._items.get(key)
        if item is None:
            self._items[key] = _Item(number, definition, sample)
            self._found += 1
            return False
        item.sample = sample
        if item.definition == definition:
            return True
        item.definition = definition
        return False

    def gone(self, number: int) -> Iterator[Change | None]:
        """Forget the objects that a pass has not found."""
        if self._found == len(self._items):
            return
        for key, item in list(self._items.items()):
            if item.number != number:
                del self._items[key]
                yield Change(kind=f"{self.kind}.gone", key=key)
            yield None


class Feed:
    """The state of one reader: the objects that it knows, with their counters."""

    def __init__(self) -> None:
        self.read_at = 0.0
        self._pass = 0
        self._vhosts: _Sent[str] = _Sent("vhost")
        self._exchanges: _Sent[tuple[str, str]] = _Sent("exchange")
        self._queues = QueueSamples()
        # The tags of single active and exclusive consumers, by queue, that were sent.
        self._tags: dict[int, tuple[str, str]] = {}
        # The first ready messages of queues, by their ids, that were sent.
        self._heads: dict[int, Head] = {}
        self._connections: _Sent[int] = _Sent("connection")
        self._channels: _Sent[tuple[int, int]] = _Sent("channel")
        # The times of the oldest unacked deliveries that were sent.
        self._queues_unacked: dict[int, int] = {}
        self._channels_unacked: dict[tuple[int, int], int] = {}
        # The id of the last change in the audit log that was sent.
        self._audited = 0

    def changes(self, managed: ManagedBroker) -> Iterator[Change | None]:
        """Yield the changes since the last pass; None for each object that has not changed.

        Totals of a vhost precede its objects: what is deleted meanwhile counts in neither for one pass, and never twice.
        """
        number = self._pass = self._pass + 1
        others = (self._vhosts, self._exchanges, self._connections, self._channels)
        self._queues.begin(number)
        for sent in others:
            sent.begin()
        yield Change(kind="begin", value=number == 1)
        for vhost in list(managed.broker.vhosts.values()):
            for route in list(vhost.routes.values()):
                vhost.statistics.fold(route)
                yield None
            yield from self._vhost(vhost, number)
            for exchange in list(vhost.exchanges.values()):
                yield from self._exchange(vhost.name, exchange, number)
            walk = vhost.queue_list.walk()
            while batch := list(islice(walk, QUEUE_BATCH)):
                for queue, sample, before in self._queues.changed(batch):
                    yield from self._queue(queue, sample, before)
                    yield from self._head(queue, managed.ready_ages)
                yield None
        for session in list(managed.sessions()):
            yield from self._connection(session, number)
        yield from managed.unacked_ages.sample(managed.broker)
        if number != self._pass:
            return  # the reader has begun another pass
        yield from self._queues_gone(managed.ready_ages)
        # A new reader does not know which queues were deleted before.
        managed.ready_ages.end_pass(managed.broker.timers.now(), set(self._queues.ids()) if number == 1 else None)
        for sent in others:
            yield from sent.gone(number)
        ages, timers = managed.unacked_ages, managed.broker.timers
        yield from _unacked("queue.unacked", self._queues_unacked, ages.queues, timers)
        yield from _unacked("channel.unacked", self._channels_unacked, ages.channels, timers)
        yield from self._changes_in(managed.audit.recent, number == 1)
        yield Change(kind="node", value=_node(managed))
        yield Change(kind="end")

    def _changes_in(self, recent: Iterable[AuditRecord], is_first: bool) -> Iterator[Change]:
        """Yield the changes in the audit log since the last pass."""
        for record in list(recent):
            if record.id > self._audited:
                self._audited = record.id
                if not is_first:
                    yield Change(kind="audit", key=record.id, value=record)

    def _vhost(self, vhost: Vhost, number: int) -> Iterator[Change | None]:
        totals = vhost.statistics
        sample = (
            vhost.number,
            totals.publish_in,
            totals.publish_out,
            totals.unroutable,
            totals.returned,
            totals.confirmed,
            totals.bytes_in,
            totals.bytes_out,
            *totals.queues,
        )
        if self._vhosts.is_known(vhost.name, number, sample):
            yield None
            return
        known = self._vhosts.definition(vhost.name)
        if known is not None and known != vhost.number:
            yield Change(kind="vhost.gone", key=vhost.name)  # it was added again, and counts from 0
        self._vhosts.is_defined(vhost.name, number, vhost.number, sample)
        yield Change(kind="vhost.sample", key=vhost.name, value=sample[1:])

    def _exchange(self, vhost: str, exchange: Exchange, number: int) -> Iterator[Change | None]:
        # The exchange itself, not its id: one that is declared later may get the id of one that was deleted.
        definition = (exchange, exchange.revision)
        sample = (definition, exchange.publish_in, exchange.publish_out, *exchange.deduplication_figures())
        key = (vhost, exchange.name)
        if self._exchanges.is_known(key, number, sample):
            yield None
            return
        known = self._exchanges.definition(key)
        if known is not None and known[0] is not exchange:
            yield Change(kind="exchange.gone", key=key)  # it was declared again, and begins to count at 0
        if not self._exchanges.is_defined(key, number, definition, sample):
            yield Change(kind="exchange", key=key, value=exchanges.describe(vhost, exchange))
        yield Change(kind="exchange.sample", key=key, value=sample[1:])

    def _queue(self, queue: Queue, sample: tuple[int, ...], before: tuple[int, ...] | None) -> Iterator[Change]:
        tags = queues.consumer_tags(queue)
        is_defined = before is not None and before[-1] == sample[-1]
        if tags != self._tags.get(queue.id, _NO_TAGS):
            self._tags[queue.id] = tags
            is_defined = False
        if is_defined and sample == before:
            return
        if not is_defined:
            self._queues_unacked.pop(queue.id, None)  # if it was sent, the queue was not known yet
            self._heads.pop(queue.id, None)
            yield Change(kind="queue", key=queue.id, value=queues.describe(queue))
        yield Change(kind="queue.sample", key=queue.id, value=sample)
        incoming = queue.counters.incoming
        if incoming is not None:
            yield Change(kind="queue.incoming", key=queue.id, value=dict(incoming))

    def _head(self, queue: Queue, ages: ReadyAges) -> Iterator[Change]:
        head = ages.note(queue)
        if head == self._heads.get(queue.id, EMPTY):
            return
        if head == EMPTY:
            del self._heads[queue.id]
        else:
            self._heads[queue.id] = head
        yield Change(kind="queue.head", key=queue.id, value=head)

    def _queues_gone(self, ages: ReadyAges) -> Iterator[Change | None]:
        """Forget the queues that a pass has not found."""
        if self._queues.is_complete():
            return
        ids = self._queues.ids()
        for at in range(0, len(ids), GONE_BATCH):
            for queue_id in self._queues.forget_missing(ids[at : at + GONE_BATCH]):
                self._tags.pop(queue_id, None)
                self._heads.pop(queue_id, None)
                ages.forget(queue_id)
                yield Change(kind="queue.gone", key=queue_id)
            yield None

    def _connection(self, session: Any, number: int) -> Iterator[Change | None]:
        item = session.describe()
        sample = (item.bytes_in, item.reads, item.bytes_out, item.writes, item.channels, item.unwritten)
        definition = (item.state, item.user, item.vhost, item.frame_max, item.heartbeat)
        if self._connections.is_known(item.number, number, (sample, definition)):
            yield None
        else:
            if not self._connections.is_defined(item.number, number, definition, (sample, definition)):
                yield Change(kind="connection", key=item.number, value=item)
            yield Change(kind="connection.sample", key=item.number, value=sample)
        for channel in session.describe_channels():
            key = (channel.connection, channel.number)
            if self._channels.is_known(key, number, channel):
                yield None
                continue
            if not self._channels.is_defined(key, number, None, channel):
                self._channels_unacked.pop(key, None)
            yield Change(kind="channel", key=key, value=channel)


def _unacked(kind: str, sent: dict[K, int], found: dict[K, int], timers: Timers) -> Iterator[Change | None]:
    """Yield changed times of the oldest unacked deliveries.

    Args:
        kind: The kind of the changes.
        sent: The times that were sent, which is changed.
        found: The present times, by the broker's clock.
        timers: The clock.
    """
    now = timers.now()
    for key in list(sent.keys() | found.keys()):
        at = found.get(key, now)
        since = at + timers.step if now - at >= MIN_UNACKED_AGE else 0
        if since == sent.get(key, 0):
            yield None
            continue
        if since:
            sent[key] = since
        else:
            del sent[key]
        yield Change(kind=kind, key=key, value=since)


def _node(managed: ManagedBroker) -> dict[str, object]:
    log, overflow = managed.broker.log, managed.broker.overflow
    return {
        "process": managed.facts(),
        "alarm": managed.alarm(),
        "performance": managed.performance(),
        "log": {"state": log.state, **log.statistics()},
        "churn": managed.broker.churn.counts(),
        "overflow": 0 if overflow is None else overflow.statistics()["bytes"],
    }


class Feeds:
    """The feeds of all readers, by the names that these have chosen."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}

    def feed(self, name: str) -> Feed:
        """Return the feed of a reader; a new reader, or one that was forgotten, gets everything."""
        now = time.monotonic()
        feeds = self._feeds
        for other in [other for other, feed in feeds.items() if now - feed.read_at > FEED_TIMEOUT]:
            del feeds[other]
        found = feeds.pop(name, None)
        if found is None:
            found = Feed()
            if len(feeds) >= MAX_FEEDS:
                del feeds[next(iter(feeds))]
        feeds[name] = found  # the last one
        found.read_at = now
        return found

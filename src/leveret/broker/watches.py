"""Watches on the messages of queues and exchanges.

A queue or an exchange has a watch only while something observes it, so that others do no work: a watched queue takes the
code paths of limits and selective consumers (`guarded`, `selective`), and routes from a watched exchange are `dynamic`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.outcomes import ACCEPTED, GET_PROTOCOL

if TYPE_CHECKING:
    from leveret.broker.consumer import Client, Consumer
    from leveret.broker.events import ExchangeEvents, QueueEvents
    from leveret.broker.firehose import Firehose
    from leveret.broker.message import Entry, Message
    from leveret.broker.queues.deduplication import Deduplication
    from leveret.broker.queues.queue import Queue
    from leveret.broker.tails import Tail
    from leveret.broker.tracing import ExchangeTraces, QueueTraces


class QueueWatch:
    """The observers of one queue: its events, its traces, the firehose of the vhost, and live tails.

    keys  the deduplication of the queue if its keys last until their entries leave
    """

    __slots__ = ("events", "firehose", "keys", "tails", "traces")

    def __init__(
        self,
        events: QueueEvents | None,
        traces: QueueTraces | None,
        firehose: Firehose | None,
        tails: list[Tail],
        keys: Deduplication | None,
    ) -> None:
        self.events = events
        self.traces = traces
        self.firehose = firehose
        self.tails = tails
        self.keys = keys

    def watches_deliveries(self) -> bool:
        """Return whether deliveries and settlements are observed."""
        if self.traces is not None or self.firehose is not None or self.keys is not None:
            return True
        return self.events is not None and self.events.watches_deliveries()

    def routed(self, entry: Entry) -> None:
        """Record the arrival of an entry."""
        if self.events is not None:
            self.events.routed(entry)
        if self.traces is not None:
            self.traces.routed(entry)
        for tail in self.tails:
            tail.add(entry.message, entry)

    def delivered(self, entry: Entry, consumer: Consumer, copy: bool = False) -> None:
        """Record a delivery; `copy`: the entry stays. The firehose ignores browsers."""
        if self.events is not None:
            self.events.delivered(entry, consumer.protocol(), copy)
        if self.traces is not None:
            self.traces.delivered(entry, consumer.protocol(), copy)
        if self.firehose is not None and consumer.seen is None:
            self.firehose.delivered(entry, consumer.client())

    def got(self, entry: Entry) -> None:
        """Record that an entry was got without a consumer. The firehose needs `trace_get`, too."""
        if self.events is not None:
            self.events.delivered(entry, GET_PROTOCOL)
        if self.traces is not None:
            self.traces.delivered(entry, GET_PROTOCOL, False)

    def settled(self, entry: Entry, outcome: str, protocol: str) -> None:
        """Record the outcome of a delivery."""
        if self.keys is not None and outcome == ACCEPTED:
            self.keys.forget(entry)
        if self.events is not None:
            self.events.settled(entry, outcome, protocol)
        if self.traces is not None:
            self.traces.settled(entry, outcome, protocol)

    def left(self, entry: Entry, reason: str) -> None:
        """Record that an entry leaves the queue for a reason, which may be an outcome."""
        if self.keys is not None:
            self.keys.forget(entry)
        if self.events is not None:
            self.events.left(entry, reason)
        if self.traces is not None:
            self.traces.left(entry, reason)

    def removed(self, reason: str, count: int) -> None:
        """Record the removal of several entries at once."""
        if self.events is not None:
            self.events.removed(reason, count)

    def committed(self, count: int) -> None:
        """Record the settlement of several leased entries at once."""
        if self.events is not None:
            self.events.committed(count)

    def dead_lettered(self, entry: Entry, reason: str, targets: int) -> None:
        """Record that an entry was dead-lettered to `targets` queues."""
        if self.events is not None:
            self.events.dead_lettered(entry, reason, targets)
        if self.traces is not None:
            self.traces.dead_lettered(entry, reason, targets)


class ExchangeWatch:
    """The observers of one exchange: its events, its traces, the firehose of the vhost, and live tails."""

    __slots__ = ("events", "firehose", "tails", "traces")

    def __init__(
        self, events: ExchangeEvents | None, traces: ExchangeTraces | None, firehose: Firehose | None, tails: list[Tail]
    ) -> None:
        self.events = events
        self.traces = traces
        self.firehose = firehose
        self.tails = tails

    def published(self, message: Message, queues: list[Queue], more_keys: list[str], client: Client) -> None:
        """Record the publish of a message that was routed to these queues, also by the keys of its CC and BCC headers."""
        if self.events is not None:
            self.events.published(message, queues)
        if self.traces is not None:
            self.traces.published(message, queues)
        if self.firehose is not None:
            self.firehose.published(message, queues, more_keys, client)
        for tail in self.tails:
            tail.add(message, None)


def events_of(queue: Queue) -> QueueEvents | None:
    """Return the events of a queue."""
    watch = queue.watch
    return None if watch is None else watch.events


def tails_of(queue: Queue) -> list[Tail]:
    """Return the live tails of a queue."""
    watch = queue.watch
    return [] if watch is None else watch.tails


def set_events(queue: Queue, events: QueueEvents | None) -> None:
    """Start or stop to observe a queue for its events."""
    watch = _watch_of(queue)
    _set(queue, events, watch.traces, watch.firehose, watch.tails)


def set_traces(queue: Queue, traces: QueueTraces) -> None:
    """Start to observe a queue for its traces."""
    watch = _watch_of(queue)
    _set(queue, watch.events, traces, watch.firehose, watch.tails)


def set_firehose(queue: Queue, firehose: Firehose | None) -> None:
    """Start or stop to observe a queue for the firehose."""
    watch = _watch_of(queue)
    _set(queue, watch.events, watch.traces, firehose, watch.tails)


def set_tails(queue: Queue, tails: list[Tail]) -> None:
    """Set the live tails of a queue."""
    watch = _watch_of(queue)
    _set(queue, watch.events, watch.traces, watch.firehose, tails)


def watch_keys(queue: Queue) -> None:
    """Start to observe a new queue for its keys, if these last until their entries leave."""
    _set(queue, None, None, None, [])


def _watch_of(queue: Queue) -> QueueWatch:
    """Return the watch of a queue, or one without observers."""
    watch = queue.watch
    return QueueWatch(None, None, None, [], None) if watch is None else watch


def _set(
    queue: Queue, events: QueueEvents | None, traces: QueueTraces | None, firehose: Firehose | None, tails: list[Tail]
) -> None:
    deduplication = queue.deduplication
    keys = deduplication if deduplication is not None and deduplication.follows_entries else None
    if events is None and traces is None and firehose is None and not tails and keys is None:
        queue.set_watch(None)
    else:
        queue.set_watch(QueueWatch(events, traces, firehose, tails, keys))


def trace_get(queue: Queue, entry: Entry, client: Client) -> None:
    """Record for the firehose that a client got an entry without a consumer."""
    watch = queue.watch
    if watch is not None and watch.firehose is not None:
        watch.firehose.delivered(entry, client)

"""Watches on the messages of queues and exchanges.

A queue or an exchange has a watch only while something observes it, so that others do no work: a watched queue takes the
code paths of limits and selective consumers (`guarded`, `selective`), and routes from a watched exchange are `dynamic`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.broker.events import ExchangeEvents, QueueEvents
    from leveret.broker.message import Entry, Message
    from leveret.broker.queues.queue import Queue
    from leveret.broker.tracing import ExchangeTraces, QueueTraces


class QueueWatch:
    """The observers of one queue: its events, and its traces."""

    __slots__ = ("events", "traces")

    def __init__(self, events: QueueEvents | None, traces: QueueTraces | None) -> None:
        self.events = events
        self.traces = traces

    def watches_deliveries(self) -> bool:
        """Return whether deliveries and settlements are observed."""
        return self.traces is not None or (self.events is not None and self.events.watches_deliveries())

    def routed(self, entry: Entry) -> None:
        """Record the arrival of an entry."""
        if self.events is not None:
            self.events.routed(entry)
        if self.traces is not None:
            self.traces.routed(entry)

    def delivered(self, entry: Entry, protocol: str, copy: bool = False) -> None:
        """Record a delivery; `copy`: to a browser, so that the entry stays."""
        if self.events is not None:
            self.events.delivered(entry, protocol, copy)
        if self.traces is not None:
            self.traces.delivered(entry, protocol, copy)

    def settled(self, entry: Entry, outcome: str, protocol: str) -> None:
        """Record the outcome of a delivery."""
        if self.events is not None:
            self.events.settled(entry, outcome, protocol)
        if self.traces is not None:
            self.traces.settled(entry, outcome, protocol)

    def left(self, entry: Entry, reason: str) -> None:
        """Record that an entry leaves the queue for a reason, which may be an outcome."""
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
    """The observers of one exchange: its events, and its traces."""

    __slots__ = ("events", "traces")

    def __init__(self, events: ExchangeEvents | None, traces: ExchangeTraces | None) -> None:
        self.events = events
        self.traces = traces

    def published(self, message: Message, queues: list[Queue]) -> None:
        """Record the publish of a message that was routed to these queues."""
        if self.events is not None:
            self.events.published(message, queues)
        if self.traces is not None:
            self.traces.published(message, queues)


def events_of(queue: Queue) -> QueueEvents | None:
    """Return the events of a queue."""
    watch = queue.watch
    return None if watch is None else watch.events


def set_events(queue: Queue, events: QueueEvents | None) -> None:
    """Start or stop to observe a queue for its events."""
    watch = queue.watch
    traces = None if watch is None else watch.traces
    queue.set_watch(None if events is None and traces is None else QueueWatch(events, traces))


def set_traces(queue: Queue, traces: QueueTraces) -> None:
    """Start to observe a queue for its traces."""
    queue.set_watch(QueueWatch(events_of(queue), traces))

"""Statistics of a vhost that outlive its objects: totals of routes, of deleted queues and of closed connections.

Counters of live objects are integers of these objects, which the hot path increments. A publish whose queues the route
knows increments only `Route.published`: the counters of the exchange follow from it and the number of queues, in
`VhostStatistics.fold`. Other publishes call `VhostStatistics.count`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.routing import destinations_of

if TYPE_CHECKING:
    from leveret.broker.exchanges.base import Exchange
    from leveret.broker.queues.queue import Queue
    from leveret.broker.routing import Route

# Counters of a queue, in the order of `QueueCounters.totals`.
QUEUE_COUNTERS: Final = (
    "publish",
    "deliver_get",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "redeliver",
    "ack",
)
# Queues of a message that count it by its exchange.
MAX_COUNTED_QUEUES: Final = 50
# Values that follow the counters in `Queue.sample`: numbers of entries, bytes of their bodies, bytes in memory, consumers,
# keys and dropped messages. `paged` are the entries of which only the positions are in memory.
QUEUE_GAUGES: Final = (
    "ready",
    "delayed",
    "unacked",
    "leased",
    "ready_bytes",
    "delayed_bytes",
    "leased_bytes",
    "unacked_bytes",
    "persistent",
    "persistent_bytes",
    "paged",
    "paged_bytes",
    "memory",
    "consumers",
    "deduplication_keys",
    "dropped_duplicates",
)


class Churn:
    """The numbers of connections, channels and queues that came and went since the start of the process.

    Attributes:
        connections_opened: Connections that have opened a vhost. `connections_closed` are those that have left it.
        channels_opened: Channels and sessions.
        queues_created: Queues that did not exist before, without those that a start has found in the log.
        queues_declared: Declarations, also of queues that existed.
    """

    def __init__(self) -> None:
        self.connections_opened = 0
        self.connections_closed = 0
        self.channels_opened = 0
        self.channels_closed = 0
        self.queues_created = 0
        self.queues_deleted = 0
        self.queues_declared = 0

    def connection_opened(self) -> None:
        self.connections_opened += 1

    def connection_closed(self) -> None:
        self.connections_closed += 1

    def channel_opened(self) -> None:
        self.channels_opened += 1

    def channel_closed(self) -> None:
        self.channels_closed += 1

    def queue_created(self) -> None:
        self.queues_created += 1

    def queue_deleted(self) -> None:
        self.queues_deleted += 1

    def queue_declared(self) -> None:
        self.queues_declared += 1

    def client_changes(self) -> int:
        """Return the number of connections and channels that came or went."""
        return self.connections_opened + self.connections_closed + self.channels_opened + self.channels_closed

    def counts(self) -> dict[str, int]:
        """Return the numbers by RabbitMQ's names."""
        return {
            "channel_closed": self.channels_closed,
            "channel_created": self.channels_opened,
            "connection_closed": self.connections_closed,
            "connection_created": self.connections_opened,
            "queue_created": self.queues_created,
            "queue_declared": self.queues_declared,
            "queue_deleted": self.queues_deleted,
        }


class VhostStatistics:
    """Totals of a vhost.

    Attributes:
        publish_in: Publishes to exchanges that `fold` or `count` has counted.
        publish_out: The same for copies of messages that exchanges routed to queues.
        unroutable: The same for messages without a queue, returned or dropped.
        returned: Messages without a queue that were returned to their publishers.
        confirmed: Publisher confirms.
        queues: Counters of deleted queues, in the order of `QUEUE_COUNTERS`.
        bytes_in: Bytes received by connections that have left the vhost.
        bytes_out: The same for bytes sent.
    """

    def __init__(self) -> None:
        self.publish_in = 0
        self.publish_out = 0
        self.unroutable = 0
        self.returned = 0
        self.confirmed = 0
        self.queues: list[int] = [0] * len(QUEUE_COUNTERS)
        self.bytes_in = 0
        self.bytes_out = 0

    def count(self, exchange: Exchange, queues: int, messages: int = 1) -> None:
        """Count messages to an exchange that go to this number of queues."""
        copies = messages * queues
        self.publish_in += messages
        self.publish_out += copies
        if not queues:
            self.unroutable += messages
        exchange.count(messages, copies)

    def fold(self, route: Route) -> None:
        """Count the messages of a route since the last call."""
        messages = route.take_published()
        if messages:
            queues = destinations_of(route.queues)
            self.count(route.exchange, len(queues), messages)
            self.count_incoming(route.exchange, queues, messages)

    def count_incoming(self, exchange: Exchange, queues: list[Queue], messages: int = 1) -> None:
        """Count messages in their queues by their exchange, unless there are very many queues."""
        if len(queues) <= MAX_COUNTED_QUEUES:
            for queue in queues:
                queue.counters.count_incoming(exchange.name, messages)

    def count_returned(self) -> None:
        """Count a message without a queue that is returned to its publisher."""
        self.returned += 1

    def count_confirms(self, count: int) -> None:
        """Count publisher confirms."""
        self.confirmed += count

    def retire_queue(self, queue: Queue) -> None:
        """Add the counters of a deleted queue."""
        for index, value in enumerate(queue.counters.totals()):
            self.queues[index] += value

    def retire_connection(self, bytes_in: int, bytes_out: int) -> None:
        """Add the bytes of a connection that leaves the vhost."""
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

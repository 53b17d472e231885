"""Metrics of objects: queues, exchanges, channels, connections and named consumers of streams.

With 10,000 queues there are 210,000 samples, so they are written line by line here. `prometheus_client`, which writes the
others, makes an object of each sample and encodes all of them in one call.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from leveret.management.http.cache import Cache
from leveret.management.http.connections import channel_name
from leveret.management.http.control import Row
from leveret.management.http.metrics.totals import queue_type_of
from leveret.management.http.objects import (
    CachedChannel,
    CachedConnection,
    CachedExchange,
    CachedQueue,
    ready_bytes_of,
    ready_of,
    unacked_of,
)

T = TypeVar("T")
Values: TypeAlias = tuple[float, ...]
COUNTER: Final = "counter"
GAUGE: Final = "gauge"
OWN_PREFIX: Final = "leveret_"
# Number of objects, and of lines, after which other requests are served.
_STEP: Final = 1000


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of each object of a kind.

    Attributes:
        name: The name without its prefix.
        kind: `counter` or `gauge`.
        help: The description.
        families: The families of `/metrics/detailed` that have it.
        own: Whether RabbitMQ lacks the metric, so that its prefix is `OWN_PREFIX`.
    """

    name: str
    kind: str
    help: str
    families: tuple[str, ...]
    own: bool = False


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of objects.

    Attributes:
        metrics: The metrics.
        objects: Returns the objects.
        vhost: Returns the vhost of an object.
        labels: Returns the labels of an object, as in the text.
        values: Returns the values of the metrics, in their order.
        has_metrics: Returns whether an object has the metrics.
    """

    metrics: tuple[Metric, ...]
    objects: Callable[[Cache], Iterable[T]]
    vhost: Callable[[T], str]
    labels: Callable[[Cache, T], str]
    values: Callable[[T], Values]
    has_metrics: Callable[[T], bool] = lambda _: True


def readable(text: str) -> str:
    """Return a name with bytes that are not UTF-8 as escape sequences."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape(text: str) -> str:
    """Return a text as the value of a label."""
    text = readable(text)
    if '"' in text or "\\" in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text


# Deliveries, of queues and channels


def _delivery_metrics(kind: str, groups: tuple[str, ...]) -> tuple[Metric, ...]:
    """Return the metrics of deliveries of a queue or channel."""
    names = (
        ("get_ack", "Messages fetched with basic.get that need an acknowledgement"),
        ("get", "Messages fetched with basic.get that need no acknowledgement"),
        ("messages_delivered_ack", "Messages delivered to consumers that need an acknowledgement"),
        ("messages_delivered", "Messages delivered to consumers that need no acknowledgement"),
        ("messages_redelivered", "Messages delivered again"),
        ("messages_acked", "Messages acknowledged by consumers"),
        ("get_empty", "Replies to basic.get without a message"),
    )
    return tuple(Metric(f"{kind}_{name}_total", COUNTER, help, groups) for name, help in names)


def _delivery_values(item: Row) -> Values:
    """Return the values of `_delivery_metrics`."""
    got, got_no_ack, no_ack = item["got"], item["got_no_ack"], item["delivered_no_ack"]
    return (
        got,
        got_no_ack,
        item["delivered"] - no_ack - got - got_no_ack,
        no_ack,
        item["redelivered"],
        item["acked"],
        item["got_empty"],
    )


# Queues

_COARSE: Final = ("queue_coarse_metrics",)
_QUEUE: Final = ("queue_metrics",)
_DELIVERY: Final = ("queue_delivery_metrics",)
QUEUE_METRICS: Final = (
    Metric("queue_messages_ready", GAUGE, "Messages ready to be delivered to consumers", _COARSE),
    Metric("queue_messages_unacked", GAUGE, "Messages delivered to consumers but not yet acknowledged", _COARSE),
    Metric("queue_messages", GAUGE, "Sum of ready and unacknowledged messages", _COARSE),
    Metric("queue_consumers", GAUGE, "Consumers of the queue", ("queue_consumer_count", *_QUEUE)),
    Metric("queue_process_memory_bytes", GAUGE, "Bytes that ready messages use in memory", _QUEUE),
    Metric("queue_memory_bytes", GAUGE, "Bytes that ready messages use in memory", _QUEUE, own=True),
    Metric("queue_messages_ram", GAUGE, "Messages in memory", _QUEUE),
    Metric("queue_messages_ram_bytes", GAUGE, "Bytes of the bodies of messages in memory", _QUEUE),
    Metric("queue_messages_ready_ram", GAUGE, "Ready messages in memory", _QUEUE),
    Metric("queue_messages_unacked_ram", GAUGE, "Unacknowledged messages in memory", _QUEUE),
    Metric("queue_messages_persistent", GAUGE, "Messages that are kept on disk", _QUEUE),
    Metric("queue_messages_persistent_bytes", GAUGE, "Bytes of the bodies of messages that are kept on disk", _QUEUE),
    Metric("queue_messages_bytes", GAUGE, "Bytes of the bodies of all messages", _QUEUE),
    Metric("queue_messages_ready_bytes", GAUGE, "Bytes of the bodies of ready messages", _QUEUE),
    Metric("queue_messages_unacked_bytes", GAUGE, "Bytes of the bodies of unacknowledged messages", _QUEUE),
    Metric("queue_messages_paged_out", GAUGE, "Messages of which only the positions are in memory", _QUEUE),
    Metric("queue_messages_paged_out_bytes", GAUGE, "Bytes of the bodies of these", _QUEUE),
    Metric(
        "queue_messages_published_total",
        COUNTER,
        "Messages published to the queue",
        (*_DELIVERY, "queue_exchange_metrics", "channel_queue_exchange_metrics"),
    ),
    *_delivery_metrics("queue", _DELIVERY),
    # The last two are not sums: the metrics of all queues together omit them.
    Metric("queue_consumer_capacity", GAUGE, "Share of the time in which a consumer was able to take a message", _QUEUE),
    Metric("queue_consumer_utilisation", GAUGE, "Same as the consumer capacity", _QUEUE),
)
# The number of metrics of queues that can be added up.
QUEUE_SUMS: Final = len(QUEUE_METRICS) - 2


def queue_sums(item: Row) -> Values:
    """Return the values of the first `QUEUE_SUMS` of `QUEUE_METRICS`, of a queue or of several together."""
    ready, unacked, memory = ready_of(item), unacked_of(item), item["memory"]
    ready_bytes, unacked_bytes = ready_bytes_of(item), item["unacked_bytes"]
    paged, paged_bytes = item["paged"], item["paged_bytes"]
    return (
        ready,
        unacked,
        ready + unacked,
        item["consumers"],
        memory,
        memory,
        ready + unacked - paged,
        ready_bytes + unacked_bytes - paged_bytes,
        ready - paged,
        unacked,
        item["persistent"],
        item["persistent_bytes"],
        ready_bytes + unacked_bytes,
        ready_bytes,
        unacked_bytes,
        paged,
        paged_bytes,
        item["published"],
        *_delivery_values(item),
    )


def _queue_values(queue: CachedQueue) -> Values:
    """Return the values of `QUEUE_METRICS`."""
    capacity = queue.consumer_capacity(queue.item, time.time())
    return (*queue_sums(queue.item), capacity, capacity)


def _queue_labels(_: Cache, queue: CachedQueue) -> str:
    item = queue.item
    return f'vhost="{escape(item["vhost"])}",queue="{escape(item["name"])}"'


def _queue_info_labels(cache: Cache, queue: CachedQueue) -> str:
    return f'{_queue_labels(cache, queue)},queue_type="{queue_type_of(queue.item["type"])}",membership="leader"'


QUEUES: Final[Kind[CachedQueue]] = Kind(
    QUEUE_METRICS,
    lambda cache: cache.queues.values(),
    lambda queue: queue.item["vhost"],
    _queue_labels,
    _queue_values,
)
QUEUE_INFO: Final[Kind[CachedQueue]] = Kind(
    (Metric("queue_info", GAUGE, "Type of the queue", ("queue_metrics", "queue_info")),),
    lambda cache: cache.queues.values(),
    lambda queue: queue.item["vhost"],
    _queue_info_labels,
    lambda queue: (1,),
)


def _first_messages(queue: CachedQueue) -> Values:
    """Return the values of `FIRST_MESSAGES`. As in RabbitMQ, a missing timestamp is not a number."""
    now, timestamp = time.time(), queue.item["head_timestamp"]
    return (
        queue.oldest_ready_age(now) or 0,
        queue.oldest_unacked_age(now) or 0,
        math.nan if timestamp is None else timestamp,
    )


FIRST_MESSAGES: Final[Kind[CachedQueue]] = Kind(
    (
        Metric(
            "queue_oldest_ready_seconds", GAUGE, "Minimum age of the oldest ready message, 0 for none", _QUEUE, own=True
        ),
        Metric(
            "queue_oldest_unacked_seconds",
            GAUGE,
            "Minimum age of the oldest unacknowledged message, 0 for none",
            _QUEUE,
            own=True,
        ),
        Metric("queue_head_message_timestamp", GAUGE, "Property timestamp of the next message, if any", _QUEUE),
    ),
    lambda cache: cache.queues.values(),
    lambda queue: queue.item["vhost"],
    _queue_labels,
    _first_messages,
)


def _deduplication_metrics(kind: str, family: str) -> tuple[Metric, ...]:
    """Return the metrics of objects that drop duplicates."""
    return (
        Metric(f"{kind}_deduplication_keys", GAUGE, "Keys of messages that are remembered", (family,), own=True),
        Metric(f"{kind}_dropped_duplicates_total", COUNTER, "Messages dropped as duplicates", (family,), own=True),
    )


def _deduplication_values(item: Row) -> Values:
    """Return the values of `_deduplication_metrics`."""
    return item["deduplication_keys"], item["dropped_duplicates"]


DEDUPLICATING_QUEUES: Final[Kind[CachedQueue]] = Kind(
    _deduplication_metrics("queue", *_QUEUE),
    lambda cache: cache.queues.values(),
    lambda queue: queue.item["vhost"],
    _queue_labels,
    lambda queue: _deduplication_values(queue.item),
    lambda queue: queue.item["deduplicates"],
)

# Exchanges


def _exchange_labels(_: Cache, exchange: CachedExchange) -> str:
    return f'vhost="{escape(exchange.item["vhost"])}",exchange="{escape(exchange.item["name"])}"'


EXCHANGES: Final[Kind[CachedExchange]] = Kind(
    (
        Metric("exchange_messages_published_total", COUNTER, "Messages published to the exchange", ("exchange_metrics",)),
        Metric(
            "exchange_messages_routed_total",
            COUNTER,
            "Copies of messages that the exchange routed to queues",
            ("exchange_metrics",),
            own=True,
        ),
    ),
    lambda cache: cache.exchanges.values(),
    lambda exchange: exchange.item["vhost"],
    _exchange_labels,
    lambda exchange: (exchange.item["publish_in"], exchange.item["publish_out"]),
)
DEDUPLICATING_EXCHANGES: Final[Kind[CachedExchange]] = Kind(
    _deduplication_metrics("exchange", "exchange_metrics"),
    lambda cache: cache.exchanges.values(),
    lambda exchange: exchange.item["vhost"],
    _exchange_labels,
    lambda exchange: _deduplication_values(exchange.item),
    lambda exchange: exchange.item["deduplicates"],
)

# Channels

_CHANNEL: Final = ("channel_metrics",)
_CHANNEL_EXCHANGE: Final = ("channel_exchange_metrics",)
_CHANNEL_QUEUE: Final = ("channel_queue_metrics",)
CHANNEL_METRICS: Final = (
    Metric("channel_consumers", GAUGE, "Consumers of the channel", _CHANNEL),
    Metric("channel_messages_unacked", GAUGE, "Messages delivered but not yet acknowledged", _CHANNEL),
    Metric("channel_messages_unconfirmed", GAUGE, "Messages published but not yet confirmed", _CHANNEL),
    Metric("channel_messages_uncommitted", GAUGE, "Messages published in the open transaction", _CHANNEL),
    Metric("channel_acks_uncommitted", GAUGE, "Acknowledgements in the open transaction", _CHANNEL),
    Metric("consumer_prefetch", GAUGE, "Limit of unacknowledged messages for each consumer", _CHANNEL),
    Metric("channel_messages_published_total", COUNTER, "Messages published on the channel", _CHANNEL_EXCHANGE),
    Metric("channel_messages_confirmed_total", COUNTER, "Messages confirmed on the channel", _CHANNEL_EXCHANGE),
    Metric(
        "channel_messages_unroutable_returned_total",
        COUNTER,
        "Messages without a queue that were returned to the publisher",
        _CHANNEL_EXCHANGE,
    ),
    Metric(
        "channel_messages_unroutable_dropped_total",
        COUNTER,
        "Messages without a queue that were dropped",
        _CHANNEL_EXCHANGE,
    ),
    *_delivery_metrics("channel", _CHANNEL_QUEUE),
)


def channel_values(channel: CachedChannel) -> Values:
    """Return the values of `CHANNEL_METRICS`."""
    item = channel.item
    return (
        item["consumers"],
        item["unacked"],
        item["unconfirmed"],
        item["uncommitted"],
        item["uncommitted_acks"],
        item["prefetch"],
        item["published"],
        item["confirmed"],
        item["returned"],
        item["dropped"],
        *_delivery_values(item),
    )


def _channel_labels(cache: Cache, channel: CachedChannel) -> str:
    connection = cache.connections.get(channel.item["connection"])
    name = channel_name(None if connection is None else connection.item, channel.item["number"])
    return f'channel="{escape(name)}"'


CHANNELS: Final[Kind[CachedChannel]] = Kind(
    CHANNEL_METRICS,
    lambda cache: cache.channels.values(),
    lambda channel: channel.item["vhost"],
    _channel_labels,
    channel_values,
)

# Connections

CONNECTION_METRICS: Final = (
    Metric("connection_incoming_bytes_total", COUNTER, "Bytes received on the connection", ("connection_coarse_metrics",)),
    Metric("connection_outgoing_bytes_total", COUNTER, "Bytes sent on the connection", ("connection_coarse_metrics",)),
    Metric("connection_incoming_packets_total", COUNTER, "Reads of the connection's socket", ("connection_metrics",)),
    Metric("connection_outgoing_packets_total", COUNTER, "Writes to the connection's socket", ("connection_metrics",)),
    Metric("connection_channels", GAUGE, "Channels of the connection", ("connection_metrics",)),
)


def connection_values(connection: CachedConnection) -> Values:
    """Return the values of `CONNECTION_METRICS`."""
    item = connection.item
    return item["bytes_in"], item["bytes_out"], item["reads"], item["writes"], item["channels"]


CONNECTIONS: Final[Kind[CachedConnection]] = Kind(
    CONNECTION_METRICS,
    lambda cache: cache.connections.values(),
    lambda connection: connection.item["vhost"],
    lambda _, connection: f'connection="{escape(connection.item["name"])}"',
    connection_values,
)


# Named consumers of streams

STREAM_CONSUMER_FAMILY: Final = "stream_consumer_metrics"
_STREAM_CONSUMER: Final = (STREAM_CONSUMER_FAMILY,)
_STREAM_CONSUMER_METRICS: Final = (
    Metric("stream_consumer_lag_messages", GAUGE, "Messages that the consumer has not read", _STREAM_CONSUMER, own=True),
    Metric(
        "stream_consumer_lag_bytes",
        GAUGE,
        "Bytes of the bodies of messages that the consumer has not read",
        _STREAM_CONSUMER,
        own=True,
    ),
    Metric(
        "stream_consumer_lag_seconds",
        GAUGE,
        "Age of the oldest message that the consumer has not read, 0 for none",
        _STREAM_CONSUMER,
        own=True,
    ),
)


def _stream_consumers(rows: Sequence[Row]) -> Kind[Row]:
    """Return the named consumers that have stored a position, as the broker lists them."""
    return Kind(
        _STREAM_CONSUMER_METRICS,
        lambda _: [row for row in rows if row["lag"] is not None],
        lambda row: str(row["vhost"]),
        lambda _, row: ",".join(
            f'{label}="{escape(row[key])}"'
            for label, key in (("vhost", "vhost"), ("queue", "stream"), ("consumer", "consumer"))
        ),
        lambda row: (row["lag"], row["lag_bytes"], row["lag_seconds"]),
    )


class Selection:
    """The metrics of objects that a scrape asks for.

    Args:
        prefix: The prefix of the names.
        families: The families, or None for all.
        vhosts: The vhosts, or None for all.
        consumers: The named consumers of streams.
    """

    def __init__(self, prefix: str, families: set[str] | None, vhosts: set[str] | None, consumers: Sequence[Row]) -> None:
        self._prefix = prefix
        self._families = families
        self._vhosts = vhosts
        self._consumers = consumers

    async def write(self, cache: Cache) -> AsyncIterator[bytes]:
        """Yield the text of the metrics in parts, and serve other requests between them."""
        for parts in (
            self._write(QUEUES, cache),
            self._write(FIRST_MESSAGES, cache),
            self._write(QUEUE_INFO, cache),
            self._write(DEDUPLICATING_QUEUES, cache),
            self._write(EXCHANGES, cache),
            self._write(DEDUPLICATING_EXCHANGES, cache),
            self._write(CHANNELS, cache),
            self._write(CONNECTIONS, cache),
            self._write(_stream_consumers(self._consumers), cache),
        ):
            async for part in parts:
                yield part

    async def _write(self, kind: Kind[T], cache: Cache) -> AsyncIterator[bytes]:
        families = self._families
        wanted = [
            index
            for index, metric in enumerate(kind.metrics)
            if families is None or not families.isdisjoint(metric.families)
        ]
        if not wanted:
            return
        rows = await self._rows(kind, cache)
        for index in wanted:
            metric = kind.metrics[index]
            name = (OWN_PREFIX if metric.own else self._prefix) + metric.name
            text = f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
            for at in range(0, max(len(rows), 1), _STEP):
                text += "".join([f"{name}{{{labels}}} {values[index]}\n" for labels, values in rows[at : at + _STEP]])
                yield text.encode()
                text = ""
                await asyncio.sleep(0)

    async def _rows(self, kind: Kind[T], cache: Cache) -> list[tuple[str, Values]]:
        """Return the labels and the current values of the objects, so that all metrics are those of the same time."""
        vhosts, rows = self._vhosts, []
        objects: Sequence[T] = list(kind.objects(cache))
        for at in range(0, len(objects), _STEP):
            rows += [
                (kind.labels(cache, item), kind.values(item))
                for item in objects[at : at + _STEP]
                if kind.has_metrics(item) and (vhosts is None or kind.vhost(item) in vhosts)
            ]
            await asyncio.sleep(0)
        return rows

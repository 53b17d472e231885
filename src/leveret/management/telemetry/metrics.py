"""Export of metrics: counters and gauges of the broker and its vhosts, and if the settings say so, of queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, CallbackT, Observation
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableUpDownCounter
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource

from leveret.management.http.cache import Cache
from leveret.management.http.control import Control
from leveret.management.http.errors import BrokerRefused, BrokerUnavailable
from leveret.management.http.objects import CachedExchange, CachedQueue
from leveret.management.telemetry.collector import Collector, make_session
from leveret.management.telemetry.settings import TelemetrySettings

_MESSAGES: Final = "{message}"
_BYTES: Final = "By"
# Counters of vhosts: the metric, the total in the cache, its unit and description.
_VHOST_COUNTERS: Final = (
    ("leveret.messages.published", "publish", _MESSAGES, "Messages that clients have published."),
    ("leveret.messages.confirmed", "confirm", _MESSAGES, "Publishes that the broker has confirmed."),
    ("leveret.messages.returned", "return_unroutable", _MESSAGES, "Unroutable messages returned to their publishers."),
    ("leveret.messages.dropped", "drop_unroutable", _MESSAGES, "Unroutable messages that were dropped."),
    ("leveret.messages.delivered", "deliver", _MESSAGES, "Deliveries to consumers that acknowledge."),
    ("leveret.messages.delivered_no_ack", "deliver_no_ack", _MESSAGES, "Deliveries that need no acknowledgement."),
    ("leveret.messages.redelivered", "redeliver", _MESSAGES, "Deliveries that were not the first of their message."),
    ("leveret.messages.acknowledged", "ack", _MESSAGES, "Messages that consumers have acknowledged."),
    ("leveret.network.received", "recv_oct", _BYTES, "Bytes received from clients."),
    ("leveret.network.sent", "send_oct", _BYTES, "Bytes sent to clients."),
)
# Counters of queues: the metric, the key in the broker's answers, and the description.
_QUEUE_COUNTERS: Final = (
    ("leveret.queue.published", "published", "Messages that entered the queue."),
    ("leveret.queue.delivered", "delivered", "Messages delivered from the queue."),
    ("leveret.queue.redelivered", "redelivered", "Deliveries that were not the first of their message."),
    ("leveret.queue.acknowledged", "acked", "Messages of the queue that consumers have acknowledged."),
)
# Gauges of the broker's process: the metric, the key in the cache, its unit and description.
_NODE_GAUGES: Final = (
    ("leveret.memory.usage", "mem_used", _BYTES, "Memory of the broker's process."),
    ("leveret.disk.free", "disk_free", _BYTES, "Free space in the data directory."),
    ("leveret.open_files", "fd_used", "{file}", "Open files and sockets of the broker's process."),
)
_STATES: Final = ("ready", "unacked")
_VHOST: Final = "leveret.vhost"
_QUEUE: Final = "leveret.queue.name"
_EXCHANGE: Final = "leveret.exchange.name"
_STATE: Final = "leveret.message.state"
# Maximum number of time series per metric.
_MAX_SERIES: Final = 1_000_000

Observations = Iterable[Observation]


class Metrics:
    """The export of metrics, from a copy of the broker's counters that is refreshed before each export."""

    def __init__(self, control: Control, collector: Collector, resource: Resource, settings: TelemetrySettings) -> None:
        self._cache = Cache(control)
        self._collector = collector
        self._interval = settings.metrics_interval
        self._exporter = OTLPMetricExporter(endpoint=f"{settings.endpoint}/v1/metrics", session=make_session())
        self._reader = InMemoryMetricReader(
            cardinality_limits={ObservableCounter: _MAX_SERIES, ObservableUpDownCounter: _MAX_SERIES}
        )
        provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self._meter = provider.get_meter("leveret", settings.version)
        self._add_totals()
        if settings.queue_metrics:
            self._add_queues()

    async def run(self, stopping: asyncio.Event) -> None:
        """Export metrics periodically until the process stops."""
        while not stopping.is_set():
            await self._export()
            try:
                async with asyncio.timeout(self._interval):
                    await stopping.wait()
            except TimeoutError:
                pass

    async def _export(self) -> None:
        try:
            await self._cache.refresh_now()
        except (BrokerUnavailable, BrokerRefused):
            return  # the broker reopens its store, or stops
        data = self._reader.get_metrics_data()
        if data is not None:
            result = await asyncio.to_thread(self._exporter.export, data)
            self._collector.note(result is MetricExportResult.SUCCESS)

    # Instruments

    def _counter(self, name: str, unit: str, description: str, observe: Callable[[], Observations]) -> None:
        self._meter.create_observable_counter(name, [_callback(observe)], unit, description)

    def _gauge(self, name: str, unit: str, description: str, observe: Callable[[], Observations]) -> None:
        self._meter.create_observable_up_down_counter(name, [_callback(observe)], unit, description)

    def _add_totals(self) -> None:
        for name, total, unit, description in _VHOST_COUNTERS:
            self._counter(name, unit, description, partial(self._totals, total))
        self._gauge("leveret.messages", _MESSAGES, "Messages in queues, by state.", self._messages)
        self._gauge("leveret.queues", "{queue}", "Queues.", self._queues)
        self._gauge("leveret.consumers", "{consumer}", "Consumers.", self._consumers)
        self._gauge("leveret.connections", "{connection}", "Connections.", self._connections)
        self._gauge("leveret.channels", "{channel}", "Channels and sessions.", self._channels)
        for name, key, unit, description in _NODE_GAUGES:
            self._gauge(name, unit, description, partial(self._node, key))
        self._counter("leveret.traces.lost", "{span}", "Spans that were not exported.", self._lost)

    def _add_queues(self) -> None:
        for name, key, description in _QUEUE_COUNTERS:
            self._counter(name, _MESSAGES, description, partial(self._of_queues, key))
        self._gauge("leveret.queue.messages", _MESSAGES, "Messages in the queue, by state.", self._queue_messages)
        self._gauge("leveret.queue.consumers", "{consumer}", "Consumers.", partial(self._of_queues, "consumers"))
        self._add_deduplication("queue", _QUEUE, lambda: self._cache.queues.values())
        self._add_deduplication("exchange", _EXCHANGE, lambda: self._cache.exchanges.values())

    def _add_deduplication(
        self, kind: str, attribute: str, objects: Callable[[], Iterable[CachedQueue | CachedExchange]]
    ) -> None:
        """Add the metrics of objects that drop duplicates."""

        def observe(key: str) -> Observations:
            return [
                Observation(found.item[key], {_VHOST: found.item["vhost"], attribute: found.item["name"]})
                for found in objects()
                if found.item["deduplicates"]
            ]

        keys, dropped = partial(observe, "deduplication_keys"), partial(observe, "dropped_duplicates")
        self._gauge(f"leveret.{kind}.deduplication_keys", "{key}", "Keys of messages that are remembered.", keys)
        self._counter(f"leveret.{kind}.dropped_duplicates", _MESSAGES, "Messages dropped as duplicates.", dropped)

    # Observations

    def _totals(self, name: str) -> Observations:
        return [Observation(found.totals[name], {_VHOST: vhost}) for vhost, found in self._cache.vhosts.items()]

    def _messages(self) -> Observations:
        return [
            Observation(found.totals[state], {_VHOST: vhost, _STATE: state})
            for vhost, found in self._cache.vhosts.items()
            for state in _STATES
        ]

    def _queues(self) -> Observations:
        return self._per_vhost(Counter(queue.item["vhost"] for queue in self._cache.queues.values()))

    def _consumers(self) -> Observations:
        counts: Counter[str] = Counter()
        for queue in self._cache.queues.values():
            counts[queue.item["vhost"]] += queue.item["consumers"]
        return self._per_vhost(counts)

    def _connections(self) -> Observations:
        return self._per_vhost(Counter(found.item["vhost"] for found in self._cache.connections.values()))

    def _per_vhost(self, counts: Counter[str]) -> Observations:
        return [Observation(counts[vhost], {_VHOST: vhost}) for vhost in self._cache.vhosts]

    def _channels(self) -> Observations:
        return [Observation(len(self._cache.channels))]

    def _node(self, key: str) -> Observations:
        return [Observation(self._cache.node.values[key])]

    def _lost(self) -> Observations:
        return [Observation(self._collector.lost)]

    def _of_queues(self, key: str) -> Observations:
        return [Observation(queue.item[key], _attributes(queue)) for queue in self._cache.queues.values()]

    def _queue_messages(self) -> Observations:
        for queue in self._cache.queues.values():
            item = queue.item
            ready = item["ready"] + item["delayed"] + item["leased"]
            yield Observation(ready, _attributes(queue) | {_STATE: "ready"})
            yield Observation(item["unacked"], _attributes(queue) | {_STATE: "unacked"})


def _callback(observe: Callable[[], Observations]) -> CallbackT:
    def callback(options: CallbackOptions) -> Observations:
        return observe()

    return callback


def _attributes(queue: CachedQueue) -> dict[str, str]:
    return {_VHOST: queue.item["vhost"], _QUEUE: queue.item["name"]}

"""Metrics of the broker as a whole."""

from __future__ import annotations

import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.utils import floatToGoString

from leveret.broker.durations import BOUNDS
from leveret.broker.log import AWAY, FAILED, FULL, OK
from leveret.management.descriptions import RUNNING, STARTING, TERMINATED
from leveret.management.http.cache import Cache, open_files
from leveret.management.http.control import Row
from leveret.management.http.deliveries import Deliveries
from leveret.management.http.metrics.objects import (
    CHANNEL_METRICS,
    CONNECTION_METRICS,
    COUNTER,
    OWN_PREFIX,
    QUEUE_METRICS,
    QUEUE_SUMS,
    Values,
    channel_values,
    connection_values,
    queue_sums,
    readable,
)
from leveret.management.http.metrics.objects import Metric as ObjectMetric
from leveret.management.http.metrics.totals import PROTOCOLS, QUEUE_TYPES, SIZES, protocol_of
from leveret.management.http.objects import VHOST
from leveret.management.http.overview import PRODUCT
from leveret.management.http.settings import HttpSettings
from leveret.management.operations.nodes import DRAINING, GONE, LIVE
from leveret.management.operations.shards import READY

PREFIX: Final = "rabbitmq_"
DETAILED_PREFIX: Final = "rabbitmq_detailed_"
_GLOBAL_PREFIX: Final = "rabbitmq_global_"
_CLUSTER_PREFIX: Final = "rabbitmq_cluster_"
_CHURN: Final = (
    ("connections_opened", "Connections opened", "connection_created"),
    ("connections_closed", "Connections closed", "connection_closed"),
    ("channels_opened", "Channels opened", "channel_created"),
    ("channels_closed", "Channels closed", "channel_closed"),
    ("queues_declared", "Queues declared", "queue_declared"),
    ("queues_created", "Queues created", "queue_created"),
    ("queues_deleted", "Queues deleted", "queue_deleted"),
)
_ALARMS: Final = (
    ("alarms_memory_used_watermark", "Whether the memory alarm is in effect", "memory"),
    ("alarms_free_disk_space_watermark", "Whether the disk alarm is in effect", "disk"),
)
_NODE_COARSE: Final = (
    ("process_open_fds", "Open file descriptors", "fd_used"),
    ("process_open_tcp_sockets", "Open connections", "sockets_used"),
    ("process_resident_memory_bytes", "Resident memory in bytes", "mem_used"),
    ("disk_space_available_bytes", "Free disk space in bytes", "disk_free"),
)
# Counters of channels and connections, with those of vhosts that include closed ones.
_TOTALS: Final = {
    "channel_messages_published_total": "publish",
    "channel_messages_confirmed_total": "confirm",
    "channel_messages_unroutable_returned_total": "return_unroutable",
    "channel_messages_unroutable_dropped_total": "drop_unroutable",
    "channel_get_ack_total": "get",
    "channel_get_total": "get_no_ack",
    "channel_messages_delivered_ack_total": "deliver",
    "channel_messages_delivered_total": "deliver_no_ack",
    "channel_messages_redelivered_total": "redeliver",
    "channel_messages_acked_total": "ack",
    "channel_get_empty_total": "get_empty",
    "connection_incoming_bytes_total": "recv_oct",
    "connection_outgoing_bytes_total": "send_oct",
}
# Totals by protocol: the name, the description, and the counter.
_BY_PROTOCOL: Final = (
    ("messages_received", "Messages received from publishers", "publish"),
    ("messages_confirmed", "Messages confirmed to publishers", "confirm"),
    ("messages_unroutable_dropped", "Messages without a queue that were dropped", "drop_unroutable"),
    (
        "messages_unroutable_returned",
        "Messages without a queue that were returned to their publishers",
        "return_unroutable",
    ),
)
# Totals by protocol and queue type: the name, the description, and the counters to add.
_BY_TYPE: Final = (
    ("messages_acknowledged", "Messages acknowledged by consumers", ("ack",)),
    (
        "messages_delivered",
        "Messages delivered to consumers and fetched with basic.get",
        ("deliver", "deliver_no_ack", "get", "get_no_ack"),
    ),
    (
        "messages_delivered_consume_auto_ack",
        "Messages delivered to consumers that need no acknowledgement",
        ("deliver_no_ack",),
    ),
    ("messages_delivered_consume_manual_ack", "Messages delivered to consumers that need an acknowledgement", ("deliver",)),
    (
        "messages_delivered_get_auto_ack",
        "Messages fetched with basic.get that need no acknowledgement",
        ("get_no_ack",),
    ),
    ("messages_delivered_get_manual_ack", "Messages fetched with basic.get that need an acknowledgement", ("get",)),
    ("messages_get_empty", "Replies to basic.get without a message", ("get_empty",)),
    ("messages_redelivered", "Messages delivered again", ("redeliver",)),
)
# RabbitMQ's stream protocol, which Leveret does not have, so that dashboards of it show 0.
_STREAM: Final = "stream"
_STREAM_QUEUE: Final = "rabbit_stream_queue"
_NO_STREAM: Final = "Always 0: there is no stream protocol"
_STREAM_ERRORS: Final = (
    "access_refused",
    "authentication_failure",
    "frame_too_large",
    "internal_error",
    "precondition_failed",
    "publisher_does_not_exist",
    "sasl_authentication_failure_loopback",
    "sasl_challenge",
    "sasl_error",
    "sasl_mechanism_not_supported",
    "stream_already_exists",
    "stream_does_not_exist",
    "stream_not_available",
    "subscription_id_already_exists",
    "subscription_id_does_not_exist",
    "unknown_frame",
    "vhost_access_failure",
)


def _of_log(key: str) -> Callable[[Row], float]:
    """Return a function for a figure of the log, which not every engine has."""
    return lambda row: row["log"].get(key, 0)


# Figures of each process: the kind, the name, the description, and the value in the broker's answer.
_OWN_OF_PROCESS: Final[
    tuple[tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], str, str, Callable[[Row], float]], ...]
] = (
    (CounterMetricFamily, "slow_turns", "Turns longer than server.slow_turn", lambda row: row["process"]["slow_turns"]),
    (
        CounterMetricFamily,
        "event_loop_cpu_seconds",
        "CPU time of the event loop",
        lambda row: row["performance"]["loop_cpu"],
    ),
    (
        GaugeMetricFamily,
        "resident_memory_bytes",
        "Resident memory of the broker",
        lambda row: row["process"]["memory"],
    ),
    (CounterMetricFamily, "log_commits", "Commits to the log", lambda row: row["log"]["commits"]),
    (CounterMetricFamily, "log_written_bytes", "Bytes of new records that were written", _of_log("written_bytes")),
    (CounterMetricFamily, "log_copied_bytes", "Bytes that housekeeping has copied", _of_log("copied_bytes")),
    (GaugeMetricFamily, "log_bytes", "Bytes of records in the log", _of_log("bytes")),
    (GaugeMetricFamily, "log_live_bytes", "Bytes of records that are still needed", _of_log("live_bytes")),
    (GaugeMetricFamily, "log_rows", "Rows of the log", _of_log("rows")),
    (GaugeMetricFamily, "log_pending_bytes", "Bytes that wait for a commit", _of_log("pending_bytes")),
    (GaugeMetricFamily, "log_file_bytes", "Bytes of the file of the log", _of_log("file_bytes")),
    (GaugeMetricFamily, "log_wal_bytes", "Bytes of the write-ahead log", _of_log("wal_bytes")),
    (GaugeMetricFamily, "overflow_bytes", "Bytes of paged-out transient messages", lambda row: row["overflow"]),
)
# Figures of each shard, as above.
_OF_SHARDS: Final = (
    (GaugeMetricFamily, "shard_up", "Whether the shard is ready", lambda shard: shard["state"] == READY),
    (CounterMetricFamily, "shard_restarts", "Restarts after an unexpected end", lambda shard: shard["restarts"]),
    (
        GaugeMetricFamily,
        "shard_connections",
        "Open connections of the shard",
        lambda shard: shard["connections"],
    ),
    (GaugeMetricFamily, "shard_vhosts", "Vhosts in the shard", lambda shard: len(shard["vhosts"])),
    (CounterMetricFamily, "shard_hangs", "Processes that were killed because they hung", lambda shard: shard["hangs"]),
)
# Figures of each shard of a cluster, as above.
_OF_OWNED_SHARDS: Final = (
    (GaugeMetricFamily, "shard_epoch", "Epoch of the owner of the shard", lambda shard: shard["epoch"]),
    (CounterMetricFamily, "shard_takeovers", "Take-overs of the shard", lambda shard: shard["takeovers"]),
    (
        GaugeMetricFamily,
        "shard_takeover_seconds",
        "Duration of the last take-over, 0 without one",
        lambda shard: shard["takeover_seconds"] or 0.0,
    ),
)
_SHOVEL_STATES: Final = (STARTING, RUNNING, TERMINATED)
# Figures of each shovel, with the key of the value.
_OF_SHOVELS: Final[tuple[tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], str, str, str], ...]] = (
    (CounterMetricFamily, "published_messages", "Messages published to the destination", "published"),
    (CounterMetricFamily, "forwarded_messages", "Messages acknowledged to the source", "forwarded"),
    (GaugeMetricFamily, "pending_messages", "Messages that the destination has not confirmed", "pending"),
    (CounterMetricFamily, "restarts", "Starts after a failure", "restarts"),
)
_NODE_STATES: Final = (LIVE, DRAINING, GONE)

# A metric of either kind with labels.
Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily
Group: TypeAlias = Callable[[str, Cache, HttpSettings], Iterator[Metric]]


class Scrape:
    """Metrics for `prometheus_client.generate_latest`."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._metrics


def identity(endpoint: str, cache: Cache, settings: HttpSettings) -> Iterator[Metric]:
    """Yield what each scrape has once: the versions, and the node to join other metrics with."""
    build = UnknownMetricFamily(
        f"{PREFIX}build_info",
        "Versions",
        labels=(
            "rabbitmq_version",
            "prometheus_plugin_version",
            "prometheus_client_version",
            "erlang_version",
            "product_name",
            "product_version",
        ),
    )
    version = settings.version
    build.add_metric(
        (
            settings.rabbitmq_version,
            version,
            metadata.version("prometheus_client"),
            sys.version.split()[0],
            PRODUCT,
            version,
        ),
        1,
    )
    yield build
    info = UnknownMetricFamily(
        f"{PREFIX}identity_info",
        "Node and cluster",
        labels=("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_cluster_permanent_id", "rabbitmq_endpoint"),
    )
    permanent = uuid.uuid5(uuid.NAMESPACE_URL, f"{settings.node}:{cache.process['process']['data_dir']}")
    info.add_metric((settings.node, settings.node, f"leveret-{permanent}", endpoint), 1)
    yield info


def all_metrics(cache: Cache, settings: HttpSettings) -> Iterator[Metric]:
    """Yield the metrics of `/metrics`."""
    yield from of_process(cache, settings)
    yield from _sums_of_objects(cache)
    yield from identity("aggregated", cache, settings)


def of_process(cache: Cache, settings: HttpSettings) -> Iterator[Metric]:
    """Yield the metrics of the broker's process, and totals that are not sums of metrics of objects."""
    process, alarm = cache.process["process"], cache.process["alarm"]
    yield GaugeMetricFamily(
        "process_start_time_seconds", "Start of the broker in Unix time", time.time() - process["uptime"]
    )
    for name, help, word in _ALARMS:
        yield UnknownMetricFamily(PREFIX + name, help, word in alarm)
    yield UnknownMetricFamily(f"{PREFIX}alarms_file_descriptor_limit", "Always 0: there is no such alarm", 0)
    for group in (_churn, _node_coarse, _node):
        yield from group(PREFIX, cache, settings)
    yield from _numbers(cache)
    yield from _global(cache)
    yield from _own(cache)
    yield from _shards(cache)
    yield from _cluster(cache)


def of_alerts(deliveries: Iterable[Deliveries]) -> Iterator[Metric]:
    """Yield the metrics of alerts that were sent."""
    sent = CounterMetricFamily(
        f"{OWN_PREFIX}alert_deliveries", "Mails and requests with alerts, by their result", labels=("kind", "result")
    )
    pending = GaugeMetricFamily(f"{OWN_PREFIX}alert_deliveries_pending", "Deliveries that wait", labels=("kind",))
    counts: Counter[tuple[str, str]] = Counter()
    for found in deliveries:
        counts[found.kind, "delivered"] += found.delivered
        counts[found.kind, "failed"] += found.failed
        counts[found.kind, "dropped"] += found.dropped
        counts[found.kind, ""] += found.pending
    for (kind, result), count in counts.items():
        if result:
            sent.add_metric((kind, result), count)
        else:
            pending.add_metric((kind,), count)
    yield sent
    yield pending


def of_shovels(rows: Iterable[Row]) -> Iterator[Metric]:
    """Yield the metrics of shovels."""
    labels = ("vhost", "shovel", "type")
    state = GaugeMetricFamily(f"{OWN_PREFIX}shovel_state", "1 for the current state", labels=(*labels, "state"))
    figures = [(family(f"{OWN_PREFIX}shovel_{name}", help, labels=labels), key) for family, name, help, key in _OF_SHOVELS]
    for row in rows:
        shovel = (row["vhost"], row["name"], row["type"])
        for known in _SHOVEL_STATES:
            state.add_metric((*shovel, known), row["state"] == known)
        for figure, key in figures:
            figure.add_metric(shovel, row[key])
    yield state
    for figure, _ in figures:
        yield figure


# Objects


def _numbers(cache: Cache) -> Iterator[Metric]:
    numbers = (
        ("connections", "Open connections", len(cache.connections)),
        ("channels", "Open channels", len(cache.channels)),
        ("consumers", "Consumers", sum(totals.queue_sums()["consumers"] for totals in cache.vhosts.values())),
        ("queues", "Queues", len(cache.queues)),
    )
    for name, help, value in numbers:
        yield GaugeMetricFamily(PREFIX + name, help, value)


def _sums_of_objects(cache: Cache) -> Iterator[Metric]:
    """Yield the metrics of all queues, channels and connections together. Counters include closed and deleted ones."""
    vhosts = cache.vhosts.values()
    queues = _added_up(queue_sums(totals.queue_sums()) for totals in vhosts)
    yield from _sums(QUEUE_METRICS[:QUEUE_SUMS], queues, {})
    totals = {name: sum(found.totals[name] for found in vhosts) for name in VHOST.names}
    counters = {metric: totals[name] for metric, name in _TOTALS.items()}
    yield from _sums(CHANNEL_METRICS, _added_up(map(channel_values, cache.channels.values())), counters)
    yield from _sums(CONNECTION_METRICS, _added_up(map(connection_values, cache.connections.values())), counters)


def _added_up(rows: Iterable[Values]) -> Values:
    return tuple(map(sum, zip(*rows, strict=True)))


def _sums(metrics: Sequence[ObjectMetric], values: Values, totals: Mapping[str, int]) -> Iterator[Metric]:
    for index, metric in enumerate(metrics):
        value = totals.get(metric.name, values[index] if index < len(values) else 0)
        name = (OWN_PREFIX if metric.own else PREFIX) + metric.name
        family = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
        yield family(name, metric.help, value)


# Families of `/metrics/detailed` about the broker


def _churn(prefix: str, cache: Cache, _: HttpSettings) -> Iterator[Metric]:
    for name, help, key in _CHURN:
        yield CounterMetricFamily(prefix + name, help, cache.node.churn[key])


def _node_coarse(prefix: str, cache: Cache, _: HttpSettings) -> Iterator[Metric]:
    values = cache.node.values
    for name, help, key in _NODE_COARSE:
        yield GaugeMetricFamily(prefix + name, help, values[key])


def _node(prefix: str, cache: Cache, settings: HttpSettings) -> Iterator[Metric]:
    process = cache.process["process"]
    files = open_files(process["pid"])[1]
    for name, help, value in (
        ("process_max_fds", "Limit of open file descriptors", files),
        ("process_max_tcp_sockets", "Limit of open sockets", files),
        ("resident_memory_limit_bytes", "Bytes of memory above which publishers are blocked", process["memory_limit"]),
        (
            "disk_space_available_limit_bytes",
            "Bytes of free disk space below which publishers are blocked",
            settings.disk_free_limit,
        ),
        ("erlang_uptime_seconds", "Seconds since the start of the broker", process["uptime"]),
    ):
        yield GaugeMetricFamily(prefix + name, help, value)


def _vhost_status(_: str, cache: Cache, __: HttpSettings) -> Iterator[Metric]:
    status = GaugeMetricFamily(f"{_CLUSTER_PREFIX}vhost_status", "Whether the vhost is running", labels=("vhost",))
    for name in cache.vhosts:
        status.add_metric((readable(name),), 1)
    yield status


def _exchange_names(_: str, cache: Cache, __: HttpSettings) -> Iterator[Metric]:
    yield _exchanges("exchange_name", "Exchanges", cache, lambda item: 1)


def _exchange_bindings(_: str, cache: Cache, __: HttpSettings) -> Iterator[Metric]:
    yield _exchanges("exchange_bindings", "Number of bindings of the exchange", cache, lambda item: item["bindings"])


def _exchanges(name: str, help: str, cache: Cache, value: Callable[[Row], int]) -> Metric:
    found = GaugeMetricFamily(_CLUSTER_PREFIX + name, help, labels=("vhost", "exchange", "type"))
    for (vhost, exchange), cached in cache.exchanges.items():
        if exchange:  # not the default exchange
            labels = (readable(vhost), readable(exchange), cached.item["type"])
            found.add_metric(labels, value(cached.item))
    return found


# By the names of families. Families of objects are in `objects`.
GROUPS: Final[Mapping[str, Group]] = {
    "connection_churn_metrics": _churn,
    "node_coarse_metrics": _node_coarse,
    "node_metrics": _node,
    "vhost_status": _vhost_status,
    "exchange_names": _exchange_names,
    "exchange_bindings": _exchange_bindings,
}


# Totals by protocol and queue type


def _global(cache: Cache) -> Iterator[Metric]:
    messages = cache.messages
    publishers, consumers, unconfirmed = (dict.fromkeys(PROTOCOLS, 0) for _ in range(3))
    for (number, _), channel in cache.channels.items():
        connection = cache.connections.get(number)
        if connection is not None:
            protocol, item = protocol_of(connection.item["protocol"]), channel.item
            publishers[protocol] += item["published"] > 0
            consumers[protocol] += item["consumers"]
            unconfirmed[protocol] += item["unconfirmed"]
    for name, help, numbers in (
        ("publishers", "Channels that have published", publishers),
        ("consumers", "Consumers", consumers),
    ):
        yield _by_protocol(GaugeMetricFamily, name, help, numbers)
    for name, help, counter in _BY_PROTOCOL:
        yield _by_protocol(
            CounterMetricFamily, name, help, {protocol: messages.by_protocol[counter, protocol] for protocol in PROTOCOLS}
        )
    yield _by_protocol(
        CounterMetricFamily,
        "messages_received_confirm",
        "Messages received from publishers that expect confirms",
        {protocol: messages.received_confirm(protocol, unconfirmed[protocol]) for protocol in PROTOCOLS},
    )
    yield _by_protocol(
        CounterMetricFamily,
        "messages_routed",
        "Messages that were routed to a queue",
        {protocol: messages.routed(protocol) for protocol in PROTOCOLS},
    )
    for name, help, counters in _BY_TYPE:
        family = CounterMetricFamily(f"{_GLOBAL_PREFIX}{name}", help, labels=("protocol", "queue_type"))
        for protocol in PROTOCOLS:
            for queue_type in QUEUE_TYPES:
                value = sum(messages.by_type[counter, protocol, queue_type] for counter in counters)
                family.add_metric((protocol, queue_type), value)
        family.add_metric((_STREAM, _STREAM_QUEUE), 0)
        yield family
    for error in _STREAM_ERRORS:
        family = CounterMetricFamily(f"{_GLOBAL_PREFIX}stream_error_{error}", _NO_STREAM, labels=("protocol",))
        family.add_metric((_STREAM,), 0)
        yield family
    yield _sizes(cache)


def _by_protocol(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, help: str, values: Mapping[str, int]
) -> Metric:
    family = kind(f"{_GLOBAL_PREFIX}{name}", help, labels=("protocol",))
    for protocol, value in {**values, _STREAM: 0}.items():
        family.add_metric((protocol,), value)
    return family


def _sizes(cache: Cache) -> Metric:
    family = HistogramMetricFamily(
        f"{PREFIX}message_size_bytes", "Estimated size of published messages", labels=("protocol",)
    )
    for protocol, sizes in cache.messages.sizes.items():
        family.add_metric((protocol,), _buckets(SIZES, sizes.counts), sizes.total)
    return family


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return cumulative buckets with their bounds as Prometheus's client for Go writes them."""
    return list(zip([*map(floatToGoString, bounds), "+Inf"], accumulate(counts), strict=True))


# Leveret's own metrics


def _own(cache: Cache) -> Iterator[Metric]:
    """Yield the metrics of each process: with the label `shard` if there are several."""
    processes: Mapping[str, Row] | None = cache.process.get("processes")
    labels = () if processes is None else ("shard",)
    rows = [((), cache.process)] if processes is None else [((name,), found) for name, found in processes.items()]
    for name, help, key in (
        ("longest_turn_seconds", "Longest turn of the event loop in each interval of 50 ms", "turns"),
        ("commit_seconds", "Duration of commits to the log", "commits"),
    ):
        histogram = HistogramMetricFamily(OWN_PREFIX + name, help, labels=labels)
        for values, row in rows:
            counts, total = row["performance"][key]
            histogram.add_metric(values, _buckets(BOUNDS, counts), total)
        yield histogram
    for kind, name, help, value in _OWN_OF_PROCESS:
        family = kind(OWN_PREFIX + name, help, labels=labels)
        for values, row in rows:
            family.add_metric(values, value(row))
        yield family
    state = GaugeMetricFamily(f"{OWN_PREFIX}log_state", "State of the log", labels=(*labels, "state"))
    for values, row in rows:
        for name in (OK, FULL, AWAY, FAILED):
            state.add_metric((*values, name), row["log"]["state"] == name)
    yield state


def _shards(cache: Cache) -> Iterator[Metric]:
    """Yield the metrics of the shards, if the broker has several processes."""
    for kind, name, help, value in _OF_SHARDS if cache.shards else ():
        yield _of_shards(cache, kind(OWN_PREFIX + name, help, labels=("shard",)), value)


def _of_shards(cache: Cache, family: Family, value: Callable[[Row], float]) -> Family:
    for shard in cache.shards:
        family.add_metric((str(shard["number"]),), value(shard))
    return family


def _cluster(cache: Cache) -> Iterator[Metric]:
    """Yield the metrics of the cluster, if the broker is a node."""
    cluster = cache.cluster
    if cluster is None:
        return
    for kind, name, help, value in _OF_OWNED_SHARDS:
        yield _of_shards(cache, kind(OWN_PREFIX + name, help, labels=("shard",)), value)
    owner = GaugeMetricFamily(f"{OWN_PREFIX}shard_owner", "Owner of the shard: 1", labels=("shard", "node"))
    for shard in cache.shards:
        if shard["node"]:
            owner.add_metric((str(shard["number"]), shard["node"]), 1)
    yield owner
    state = GaugeMetricFamily(f"{OWN_PREFIX}node_state", "State of the node", labels=("node", "state"))
    clock = GaugeMetricFamily(
        f"{OWN_PREFIX}node_clock_seconds", "Seconds by which the node's clock is ahead of PostgreSQL's", labels=("node",)
    )
    unreachable = GaugeMetricFamily(
        f"{OWN_PREFIX}node_unreachable", "Live nodes that the node does not reach", labels=("node",)
    )
    for node in cache.nodes:
        unreachable.add_metric((node["name"],), len(node["unreachable"]))
        for name in _NODE_STATES:
            state.add_metric((node["name"], name), node["state"] == name)
        if node["clock"] is not None:
            clock.add_metric((node["name"],), node["clock"])
    yield state
    yield clock
    yield unreachable
    lag = GaugeMetricFamily(f"{OWN_PREFIX}standby_lag_bytes", "Lag of a standby of PostgreSQL", labels=("standby",))
    for standby in cluster["standbys"]:
        if standby["lag"] is not None:
            lag.add_metric((standby["name"],), standby["lag"])
    yield lag
    for name, help, figure in (
        ("standby_waits", "Transactions that wait for a standby", cluster["waiting"]),
        ("standby_wait_seconds", "Longest of these waits", cluster["waiting_seconds"]),
        ("transaction_id_age", "Age of the oldest transaction id that is not frozen", cluster["transaction_age"]),
        ("unowned_shards", "Shards that need an owner and have none that lives", len(cluster["unowned"])),
    ):
        yield GaugeMetricFamily(OWN_PREFIX + name, help, figure)

"""The broker as a whole: overview, node, versions and the user of the request."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from leveret.broker.parameters import CLUSTER_NAME
from leveret.management.http.cache import disk_free, open_files
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.history_store import BROKER
from leveret.management.http.lists import columns_of
from leveret.management.http.measured import Rates
from leveret.management.http.objects import (
    CHURN_STATISTICS,
    ERLANG_COUNTERS,
    ERLANG_TIMES,
    NODE_STATISTICS,
    VHOST,
    VHOST_STATISTICS,
    CachedChannel,
    CachedConnection,
)
from leveret.management.http.request import NO_CONTENT, Answer, Request
from leveret.management.http.statistics import message_stats, queue_totals, stats_of, with_rates

PRODUCT: Final = "Leveret"
_EXCHANGE_TYPES: Final = (
    "direct",
    "fanout",
    "headers",
    "topic",
    "x-consistent-hash",
    "x-delayed-message",
    "x-local-random",
    "x-message-deduplication",
    "x-modulus-hash",
    "x-random",
    "x-recent-history",
)
_MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "ANONYMOUS", "EXTERNAL", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SCHEMES: Final = {"amqp": "amqp", "amqps": "amqp/ssl", "http": "http", "https": "https"}
# Options of the sockets of listeners.
_SOCKET_OPTIONS: Final = {"backlog": 128, "exit_on_close": False, "linger": [True, 0], "nodelay": True}
# Keys of the memory breakdown of RabbitMQ's process. Leveret knows two of them.
_MEMORY: Final = (
    "allocated_unused",
    "atom",
    "binary",
    "code",
    "connection_channels",
    "connection_other",
    "connection_readers",
    "connection_writers",
    "metadata_store",
    "metadata_store_ets",
    "metrics",
    "mgmt_db",
    "mnesia",
    "msg_index",
    "other_ets",
    "other_proc",
    "other_system",
    "plugins",
    "queue_procs",
    "queue_slave_procs",
    "quorum_ets",
    "quorum_queue_dlx_procs",
    "quorum_queue_procs",
    "reserved_unallocated",
    "stream_queue_coordinator_procs",
    "stream_queue_procs",
    "stream_queue_replica_reader_procs",
)
# Objects whose statistics RabbitMQ deletes after them, later.
_COLLECTED: Final = (
    "channel_closed",
    "channel_consumer_deleted",
    "connection_closed",
    "consumer_deleted",
    "exchange_deleted",
    "node_node_deleted",
    "queue_deleted",
    "vhost_deleted",
)
# Rows of a list of processes or tables.
_DEFAULT_ROWS: Final = 20
# Seconds of the windows of samples.
_RETENTION: Final = [600, 3600]


def endpoints(request: Request, listeners: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield protocol, address and port of each listener."""
    for url in [*listeners, *request.settings.listeners]:
        yield _endpoint(url)


def metrics_endpoints(request: Request) -> Iterator[tuple[str, str, int]]:
    """Yield protocol, address and port of each listener of the metrics."""
    for url in request.settings.metrics_listeners:
        protocol, host, port = _endpoint(url)
        yield f"{protocol}/prometheus", host, port


def _endpoint(url: str) -> tuple[str, str, int]:
    scheme, _, address = url.partition("://")
    host, _, port = address.partition("/")[0].rpartition(":")
    return _SCHEMES.get(scheme, scheme), host.strip("[]"), int(port)


def _listeners(request: Request, status: Row) -> list[Row]:
    return [
        {
            "ip_address": host,
            "node": request.settings.node,
            "port": port,
            "protocol": protocol,
            "socket_opts": _SOCKET_OPTIONS,
        }
        for protocol, host, port in (*endpoints(request, status["listeners"]), *metrics_endpoints(request))
    ]


def _contexts(request: Request) -> list[Row]:
    return [
        {
            "cowboy_opts": "[]",
            "description": "HTTP API",
            "ip": host,
            "node": request.settings.node,
            "path": request.settings.path_prefix or "/",
            "port": str(port),
            "protocol": protocol,
            "ssl_opts": [],
        }
        for protocol, host, port in endpoints(request, [])
    ]


def _exchange_types() -> list[Row]:
    return [{"description": f"exchange type {name}", "enabled": True, "name": name} for name in _EXCHANGE_TYPES]


# RabbitMQ's feature flags of what Leveret has.
_FEATURE_FLAGS: Final = {
    "drop_unroutable_metric": "Statistics count unroutable messages",
    "empty_basic_get_metric": "Statistics count `basic.get` of empty queues",
    "implicit_default_bindings": "Bindings of the default exchange are implicit",
    "quorum_queue": "Queues of the type quorum",
    "stream_filtering": "Filters of streams",
    "stream_queue": "Queues of the type stream",
    "user_limits": "Limits of connections and channels of a user",
    "virtual_host_metadata": "Descriptions and tags of vhosts",
}


async def overview(request: Request) -> Answer:
    """Return versions and totals: of the visible vhosts, or of all for monitoring."""
    identity, settings = request.identity, request.settings
    cache = request.cache
    await cache.refresh()
    queues = [queue.item for queue in cache.queues.values() if identity.sees(queue.item["vhost"])]
    vhosts = [found for name, found in cache.vhosts.items() if identity.sees(name)]
    totals = {name: sum(found.totals[name] for found in vhosts) for name in VHOST.names}
    # The history has the sum of all vhosts.
    older = await request.history.older([BROKER], request.windows, cache) if identity.is_monitor() else {}
    rates = Rates(vhosts, VHOST_STATISTICS, cache.tick, request.windows, older.get(BROKER))

    def count(objects: Iterable[CachedConnection | CachedChannel]) -> int:
        return sum(1 for found in objects if identity.is_monitor() or found.item["user"] == identity.name)

    churn = Rates([cache.node], CHURN_STATISTICS, cache.tick, request.windows)
    body: Row = {
        "churn_rates": with_rates(cache.node.churn, churn),
        "cluster_name": await _cluster_name(request),
        "cluster_tags": {},
        "default_queue_type": "classic",
        "disable_stats": request.asks_for("disable_stats"),
        "enable_queue_totals": request.asks_for("enable_queue_totals"),
        "erlang_full_version": f"Python {sys.version.split()[0]}",
        "erlang_version": sys.version.split()[0],
        "exchange_types": _exchange_types(),
        "is_op_policy_updating_enabled": True,
        "management_version": settings.rabbitmq_version,
        "message_stats": message_stats(stats_of(totals), rates),
        "node": settings.node,
        "node_tags": {},
        "object_totals": {
            "channels": count(cache.channels.values()),
            "connections": count(cache.connections.values()),
            "consumers": sum(item["consumers"] for item in queues),
            "exchanges": sum(1 for vhost, _ in cache.exchanges if identity.sees(vhost)),
            "queues": len(queues),
        },
        "product_name": PRODUCT,
        "product_version": settings.version,
        "queue_totals": queue_totals(totals["ready"], totals["unacked"], rates),
        "rabbitmq_version": settings.rabbitmq_version,
        "rates_mode": "basic",
        "release_series_support_status": "supported",
        "sample_retention_policies": {"basic": _RETENTION, "detailed": _RETENTION, "global": _RETENTION},
        "statistics_db_event_queue": 0,
    }
    if identity.is_monitor():
        body |= {"contexts": _contexts(request), "listeners": _listeners(request, cache.process["process"])}
    else:
        body |= {"contexts": [], "listeners": []}
    return Answer(body=columns_of(body, request.query))


def _node(request: Request, status: Row) -> Row:
    settings = request.settings
    alarm = status["alarm"]
    files, files_limit = open_files(status["pid"])
    files += sum(open_files(shard["pid"])[0] for shard in status.get("shards", ()))
    free = disk_free(status["data_dir"])
    rates = _node_rates(request)
    return {
        "applications": [{"description": PRODUCT, "name": "rabbit", "version": settings.rabbitmq_version}],
        "auth_mechanisms": [
            {"description": name, "enabled": name in settings.mechanisms, "name": name} for name in _MECHANISMS
        ],
        "being_drained": False,
        "cluster_links": [],
        "config_files": [status["config"]],
        "contexts": _contexts(request),
        "db_dir": status["data_dir"],
        **with_rates({"disk_free": free}, rates),
        "disk_free_alarm": "disk" in alarm,
        "disk_free_limit": settings.disk_free_limit,
        "enabled_plugins": ["rabbitmq_management"],
        "exchange_types": _exchange_types(),
        "fd_total": files_limit,
        **with_rates({"fd_used": files}, rates),
        "log_files": [],
        "maintenance": False,
        "mem_alarm": "memory" in alarm,
        "mem_calculation_strategy": "rss",
        "mem_limit": status["memory_limit"],
        **with_rates({"mem_used": status["memory"]}, rates),
        "metrics_gc_queue_length": dict.fromkeys(_COLLECTED, 0),
        "name": settings.node,
        "net_ticktime": 60,
        "os_pid": str(status["pid"]),
        "partitions": [],
        "proc_total": 1048576,
        **with_rates({"proc_used": 1}, rates),
        "processors": os.cpu_count() or 1,
        "rates_mode": "basic",
        "ra_open_file_metrics": {"ra_log_segment_writer": 0, "ra_log_wal": 0},
        "run_queue": 0,
        "running": True,
        "sockets_total": files_limit,
        **with_rates({"sockets_used": status["connections"]}, rates),
        "type": "disc",
        "uptime": round(status["uptime"] * 1000),
        **with_rates(request.cache.node.churn, rates),
        **with_rates(dict.fromkeys(ERLANG_COUNTERS, 0), rates),
        **with_rates(dict.fromkeys(ERLANG_TIMES, 0.0), rates),
    }


def _node_rates(request: Request) -> Rates:
    return Rates([request.cache.node], NODE_STATISTICS, request.cache.tick, request.windows)


def _memory(status: Row) -> Row:
    used = status["memory"]
    queues = min(status["queue_memory"], used)
    return {
        "memory": {
            **dict.fromkeys(_MEMORY, 0),
            "other_system": used - queues,
            "queue_procs": queues,
            "strategy": "rss",
            "total": {"allocated": used, "erlang": used, "rss": used},
        }
    }


async def list_nodes(request: Request) -> Answer:
    cache = request.cache
    await cache.refresh()
    facts = {"alarm": cache.process["alarm"], "connections": len(cache.connections), "shards": cache.shards}
    status = {**cache.process["process"], **facts}
    return Answer(body=[columns_of(_node(request, status), request.query)])


async def show_node(request: Request) -> Answer:
    _check_node(request)
    status = await request.control.call("status")
    row = _node(request, status)
    if request.asks_for("memory"):
        row |= _memory(status)
    return Answer(body=columns_of(row, request.query))


async def show_node_memory(request: Request) -> Answer:
    _check_node(request)
    return Answer(body=_memory(await request.control.call("status")))


async def show_relative_memory(request: Request) -> Answer:
    """Return the shares of memory in percent."""
    _check_node(request)
    status = await request.control.call("status")
    queues = min(round(100 * status["queue_memory"] / max(status["memory"], 1)), 100)
    shares = dict.fromkeys(_MEMORY, 0) | {"other_system": 100 - queues, "queue_procs": queues, "total": 100}
    return Answer(body={"memory": shares})


async def list_processes(request: Request) -> Answer:
    """Return an empty list: Leveret has no processes of Erlang."""
    _check_node(request)
    return Answer(body={"node": request.settings.node, "processes": [], "row_count": _DEFAULT_ROWS})


async def list_tables(request: Request) -> Answer:
    """Return an empty list: Leveret has no tables of Erlang."""
    _check_node(request)
    return Answer(body={"ets_tables": [], "node": request.settings.node, "row_count": _DEFAULT_ROWS})


async def list_login_attempts(request: Request) -> Answer:
    """Return an empty list: Leveret does not count attempts to log in."""
    _check_node(request)
    return Answer(body=[])


async def forget_login_attempts(request: Request) -> Answer:
    _check_node(request)
    return NO_CONTENT


async def rebalance(request: Request) -> Answer:
    """Accept a request to move the leaders of queues to other nodes. There is one node."""
    return NO_CONTENT


async def extensions(request: Request) -> Answer:
    """Return the scripts of RabbitMQ's console: the one that has its pages."""
    return Answer(body=[{"javascript": "dispatcher.js"}])


async def feature_flags(request: Request) -> Answer:
    """Return RabbitMQ's feature flags of what Leveret has, which are always enabled."""
    return Answer(
        body=[
            {
                "name": name,
                "desc": description,
                "doc_url": "",
                "state": "enabled",
                "stability": "required",
                "provided_by": "leveret",
            }
            for name, description in _FEATURE_FLAGS.items()
        ]
    )


async def enable_feature_flag(request: Request) -> Answer:
    """Do nothing: feature flags are always enabled. Raises `HttpError` (400) for one that does not exist."""
    if request.name not in _FEATURE_FLAGS and request.name != "all":
        raise bad_request(f"unknown feature flag '{request.name}'; expected one of {', '.join(_FEATURE_FLAGS)}, or all")
    return NO_CONTENT


def _check_node(request: Request) -> None:
    if request.path["node"] != request.settings.node:
        raise not_found()


async def whoami(request: Request) -> Answer:
    return Answer(body={"name": request.identity.name, "tags": sorted(request.identity.tags)})


async def version(request: Request) -> Answer:
    return Answer(body=request.settings.rabbitmq_version)


async def empty(request: Request) -> Answer:
    """Return the list of a feature that Leveret does not have, such as federation, or that needs no list."""
    return Answer(body=[])


async def auth(request: Request) -> Answer:
    """Return how users of the console may sign in, with the first provider."""
    settings = request.settings
    if not settings.oauth_clients:
        return Answer(body={"oauth_enabled": False})
    client = settings.oauth_clients[0]
    return Answer(
        body={
            "oauth_enabled": True,
            "oauth_client_id": client.client_id,
            "oauth_disable_basic_auth": not settings.basic_auth,
            "oauth_provider_url": client.issuer,
            "oauth_scopes": client.scopes,
        }
    )


async def list_providers(request: Request) -> Answer:
    """List the OpenID providers at which users of the console may sign in."""
    return Answer(
        body=[
            {"label": client.label, "issuer": client.issuer, "client_id": client.client_id, "scopes": client.scopes}
            for client in request.settings.oauth_clients
        ]
    )


async def cluster_name(request: Request) -> Answer:
    return Answer(body={"name": await _cluster_name(request)})


async def set_cluster_name(request: Request) -> Answer:
    """Set the name of the cluster, which is a global parameter."""
    (name,) = request.required("name")
    await request.change("global_parameters.set", {"name": CLUSTER_NAME, "value": name})
    return NO_CONTENT


async def _cluster_name(request: Request) -> str:
    """Return the name of the cluster: that of the node unless it has been set."""
    found = await request.control.call("global_parameters.list", {"prefix": CLUSTER_NAME})
    return next((item["value"] for item in found if item["name"] == CLUSTER_NAME), request.settings.node)

"""The broker as a whole: overview, node, versions and the user of the request."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from leveret.management.http.cache import disk_free, open_files
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.lists import columns_of
from leveret.management.http.measured import Rates
from leveret.management.http.objects import NODE_STATISTICS, VHOST, VHOST_STATISTICS, CachedChannel, CachedConnection
from leveret.management.http.request import Answer, Request
from leveret.management.http.statistics import message_stats, queue_totals, stats_of, with_rates

PRODUCT: Final = "Leveret"
_EXCHANGE_TYPES: Final = ("direct", "fanout", "headers", "topic", "x-consistent-hash")
_MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SCHEMES: Final = {"amqp": "amqp", "amqps": "amqp/ssl", "http": "http", "https": "https"}
# Statistics of Erlang's storage and virtual machine, which are always 0.
_NODE_COUNTERS: Final = (
    "context_switches",
    "gc_bytes_reclaimed",
    "gc_num",
    "io_file_handle_open_attempt_count",
    "io_read_bytes",
    "io_read_count",
    "io_reopen_count",
    "io_seek_count",
    "io_sync_count",
    "io_write_bytes",
    "io_write_count",
    "mnesia_disk_tx_count",
    "mnesia_ram_tx_count",
    "msg_store_read_count",
    "msg_store_write_count",
    "queue_index_read_count",
    "queue_index_write_count",
)
_NODE_TIMES: Final = (
    "io_file_handle_open_attempt_avg_time",
    "io_read_avg_time",
    "io_seek_avg_time",
    "io_sync_avg_time",
    "io_write_avg_time",
)


def endpoints(request: Request, listeners: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield protocol, address and port of each listener."""
    for url in [*listeners, *request.settings.listeners]:
        scheme, _, address = url.partition("://")
        host, _, port = address.rstrip("/").rpartition(":")
        yield _SCHEMES.get(scheme, scheme), host.strip("[]"), int(port)


def _listeners(request: Request, status: Row) -> list[Row]:
    return [
        {
            "ip_address": host,
            "node": request.settings.node,
            "port": port,
            "protocol": protocol,
            "socket_opts": {"backlog": 128, "exit_on_close": False, "linger": [True, 0], "nodelay": True},
        }
        for protocol, host, port in endpoints(request, status["listeners"])
    ]


def _contexts(request: Request) -> list[Row]:
    return [
        {
            "description": "HTTP API",
            "ip": host,
            "node": request.settings.node,
            "path": request.settings.path_prefix or "/",
            "port": port,
            "protocol": protocol,
        }
        for protocol, host, port in endpoints(request, [])
    ]


def _exchange_types() -> list[Row]:
    return [{"description": f"exchange type {name}", "enabled": True, "name": name} for name in _EXCHANGE_TYPES]


async def overview(request: Request) -> Answer:
    """Return versions and totals: of the visible vhosts, or of all for monitoring."""
    identity, settings = request.identity, request.settings
    status, _ = await asyncio.gather(request.control.call("status"), request.cache.refresh())
    cache = request.cache
    queues = [queue.item for queue in cache.queues.values() if identity.sees(queue.item["vhost"])]
    vhosts = [found for name, found in cache.vhosts.items() if identity.sees(name)]
    totals = {name: sum(found.totals[name] for found in vhosts) for name in VHOST.names}
    rates = Rates(vhosts, VHOST_STATISTICS, cache.tick, request.windows)

    def count(objects: Iterable[CachedConnection | CachedChannel]) -> int:
        return sum(1 for found in objects if identity.is_monitor() or found.item["user"] == identity.name)

    body: Row = {
        "churn_rates": with_rates(cache.node.churn, _node_rates(request)),
        "cluster_name": settings.node,
        "cluster_tags": {},
        "default_queue_type": "classic",
        "disable_stats": False,
        "enable_queue_totals": False,
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
        "sample_retention_policies": {"basic": [600], "detailed": [600], "global": [600]},
        "statistics_db_event_queue": 0,
    }
    if identity.is_monitor():
        body |= {"contexts": _contexts(request), "listeners": _listeners(request, status)}
    else:
        body |= {"contexts": [], "listeners": []}
    return Answer(body=columns_of(body, request.query))


def _node(request: Request, status: Row) -> Row:
    settings = request.settings
    alarm = status["alarm"]
    files, files_limit = open_files(status["pid"])
    free = disk_free(status["data_dir"])
    rates = _node_rates(request)
    times = with_rates(dict.fromkeys(_NODE_TIMES, 0.0))
    return {
        "applications": [{"description": PRODUCT, "name": "rabbit", "version": settings.rabbitmq_version}],
        "auth_mechanisms": [{"description": name, "enabled": True, "name": name} for name in _MECHANISMS],
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
        "metrics_gc_queue_length": {},
        "name": settings.node,
        "net_ticktime": 60,
        "os_pid": str(status["pid"]),
        "partitions": [],
        "proc_total": 1048576,
        **with_rates({"proc_used": 1}),
        "processors": os.cpu_count() or 1,
        "rates_mode": "basic",
        "ra_open_file_metrics": {},
        "run_queue": 0,
        "running": True,
        "sockets_total": files_limit,
        **with_rates({"sockets_used": status["connections"]}, rates),
        "type": "disc",
        "uptime": round(status["uptime"] * 1000),
        **with_rates(request.cache.node.churn, rates),
        **with_rates(dict.fromkeys(_NODE_COUNTERS, 0)),
        **times,
    }


def _node_rates(request: Request) -> Rates:
    return Rates([request.cache.node], NODE_STATISTICS, request.cache.tick, request.windows)


def _memory(status: Row) -> Row:
    used = status["memory"]
    queues = min(status["queue_memory"], used)
    return {
        "memory": {
            "connection_other": 0,
            "other_system": used - queues,
            "queue_procs": queues,
            "strategy": "rss",
            "total": {"allocated": used, "erlang": used, "rss": used},
        }
    }


async def list_nodes(request: Request) -> Answer:
    return Answer(body=[columns_of(_node(request, await request.control.call("status")), request.query)])


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
    return Answer(body={"oauth_enabled": False})


async def cluster_name(request: Request) -> Answer:
    return Answer(body={"name": request.settings.node})


async def set_cluster_name(request: Request) -> Answer:
    """Refuse to rename the cluster, except to its name."""
    (name,) = request.required("name")
    if name != request.settings.node:
        raise bad_request(f"the cluster name is always '{request.settings.node}'")
    return Answer(204)

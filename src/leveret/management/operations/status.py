"""State of the broker."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from leveret.config.flat import flat_settings
from leveret.management.descriptions import ProcessInfo
from leveret.management.operations.cluster import ClusterStatus
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.operations.shards import ShardInfo
from leveret.management.structs import Reply, Request

# Maximum number of queues to sum up per turn.
STEP: Final = 200


class Status(ProcessInfo, kw_only=True):
    """State of the process, totals, and log statistics, in bytes and seconds.

    While messages are being indexed after a start, `indexed` is the part that was read, from 0 to 1, and the messages of
    `unindexed_queues` are not counted. `unsealed` is the reason why streams are not sealed, "" without
    streams. `shards` is not set for a broker of one process, `cluster` only for a node.
    """

    alarm: str
    vhosts: int
    connections: int
    exchanges: int
    queues: int
    consumers: int
    ready: int
    unacked: int
    queue_memory: int
    unindexed_queues: int
    indexed: float
    unsealed: str
    log: dict[str, str | int]
    shards: list[ShardInfo] | msgspec.UnsetType = msgspec.UNSET
    cluster: ClusterStatus | msgspec.UnsetType = msgspec.UNSET


class Health(Reply, kw_only=True):
    """State of the broker for health checks, without a walk through all queues.

    Attributes:
        alarm: The reason why publishers are blocked, or "".
        state: The state of the log: `ok`, `full`, `away` or `failed`.
        reason: The reason for another state than `ok`.
        max_connections: The maximum number of connections; 0 is unlimited.
        unindexed_queues: Queues whose messages are still being indexed after a start.
        indexed: The part of the messages that was read for that, from 0 to 1.
        draining: Whether the broker is a node that moves its shards away, and takes no clients.
        isolated: Whether it is a node without a link to another one, though others reach each other.
    """

    alarm: str
    state: str
    reason: str
    listeners: list[str]
    connections: int
    max_connections: int
    vhosts: int
    unindexed_queues: int
    indexed: float
    draining: bool = False
    isolated: bool = False


class Settings(Reply, kw_only=True):
    """All settings of the running broker by full name, with `***` for passwords and other secrets that are set."""

    settings: dict[str, Any]


def show_config(context: Context, request: Request) -> Settings:
    """Return the configuration of the running broker, without secrets."""
    return Settings(settings=flat_settings(context.managed.config))


def health(context: Context, request: Request) -> Health:
    """Return the state of the broker for health checks."""
    log = context.broker.log
    return Health(
        alarm=context.managed.alarm(),
        state=log.state,
        reason=log.reason,
        listeners=context.managed.facts().listeners,
        connections=len(list(context.managed.sessions())),
        max_connections=context.managed.config.limits.connections,
        vhosts=len(context.broker.vhosts),
        unindexed_queues=len(context.broker.indexing.queues),
        indexed=round(context.broker.indexing.progress(), 3),
    )


async def status(context: Context, request: Request) -> Status:
    """Return the state of the process, totals, and log statistics.

    With many queues this takes several turns, in which queues may be created and deleted.
    """
    queues = exchanges = ready = unacked = consumers = memory = 0
    for vhost in list(context.broker.vhosts.values()):
        exchanges += len(vhost.exchanges)
        for queue in vhost.queue_list.walk():
            queues += 1
            if not queues % STEP:
                await asyncio.sleep(0)
            if not queue.is_unindexed():
                ready += queue.ready_count
            unacked += queue.unacked
            consumers += len(queue.consumers)
            memory += queue.paging.memory()
    log = context.broker.log
    return Status(
        **msgspec.structs.asdict(context.managed.facts()),
        alarm=context.managed.alarm(),
        vhosts=len(context.broker.vhosts),
        connections=len(list(context.managed.sessions())),
        exchanges=exchanges,
        queues=queues,
        consumers=consumers,
        ready=ready,
        unacked=unacked,
        queue_memory=memory,
        unindexed_queues=len(context.broker.indexing.queues),
        indexed=round(context.broker.indexing.progress(), 3),
        unsealed=context.broker.unsealed if context.broker.has_unsealed else "",
        log={
            "state": log.state,
            "reason": log.reason,
            **{_reply_name(name): value for name, value in log.statistics().items()},
        },
    )


def _reply_name(name: str) -> str:
    """Return the name of a statistic of the log in replies, where sizes keep the names of version 0.2."""
    return name.replace("bytes", "octets")


OPERATIONS: Operations = {
    "status": Operation(status, Request, Status, early=True),
    "config.show": Operation(show_config, Request, Settings, early=True),
    "health": Operation(health, Request, Health, early=True),
}

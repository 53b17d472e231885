"""Vhosts: list, add, change, delete. Vhosts from the configuration can only be changed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from leveret.broker.errors import NotAllowed, NotFound, PreconditionFailed
from leveret.broker.queues.registry import DEFAULT_TYPES
from leveret.config import CompatConfig, VhostConfig
from leveret.management.operations.operation import Applied, Context, Operation, Operations
from leveret.management.structs import Named, Reply, Request
from leveret.security.tags import parse_tags

# Metadata kind of the vhost settings that operators set.
KIND = "vhost-settings"
DEFAULT_VHOST = "/"


class Change(Named, kw_only=True):
    """Request to add or change a vhost. Omitted fields stay unchanged, or get their defaults in a new vhost."""

    strict: bool | None = None
    qos_global: Literal["rabbitmq", "spec"] | None = None
    max_queues: int | None = None
    max_connections: int | None = None
    consumer_timeout: float | None = None
    description: str | None = None
    tags: list[str] | str | None = None
    default_queue_type: str | None = None
    protected_from_deletion: bool | None = None


class Add(Change, kw_only=True):
    """Request to add a vhost. `shard` is the number of the shard to place it in; None for the least busy one."""

    shard: int | None = None


class Trace(Named, kw_only=True):
    """Request to switch the firehose of a vhost."""

    on: bool


def stored_vhosts(metadata: Mapping[tuple[str, str], bytes]) -> dict[str, VhostConfig]:
    """Return the vhost settings that operators set, from the log's metadata."""
    return {name: msgspec.json.decode(value, type=VhostConfig) for (kind, name), value in metadata.items() if kind == KIND}


class VhostInfo(Reply, kw_only=True):
    """A vhost with the totals of its objects. A limit of 0 means unlimited, one of -1 that none is allowed."""

    name: str
    source: str
    strict: bool
    queues: int
    exchanges: int
    ready: int
    unacked: int
    connections: int
    max_queues: int
    max_connections: int
    description: str
    tags: list[str]
    default_queue_type: str
    protected_from_deletion: bool
    tracing: bool
    qos_global: str | None
    consumer_timeout: float


def list_vhosts(context: Context, request: Request) -> Iterator[VhostInfo | None]:
    """List vhosts."""
    for vhost in context.vhosts(None):
        ready = unacked = 0
        for queue in vhost.queue_list.walk():
            ready += queue.ready_count
            unacked += queue.unacked
            yield None
        config = context.managed.vhost_config(vhost.name)
        yield VhostInfo(
            name=vhost.name,
            source=_source(context, vhost.name),
            strict=vhost.strict,
            queues=len(vhost.queues),
            exchanges=len(vhost.exchanges),
            ready=ready,
            unacked=unacked,
            connections=vhost.connections,
            max_queues=_shown(vhost.settings.max_queues),
            max_connections=_shown(vhost.settings.max_connections),
            description=config.description,
            tags=list(config.tags),
            default_queue_type=config.default_queue_type,
            protected_from_deletion=config.protected_from_deletion,
            tracing=vhost.firehose.on,
            qos_global=config.qos_global,
            consumer_timeout=config.consumer_timeout,
        )


def _shown(limit: int) -> int:
    """Return a limit of the broker, where -1 is unlimited, as in the configuration, where -1 allows none."""
    return {-1: 0, 0: -1}.get(limit, limit)


def _source(context: Context, name: str) -> str:
    if name in context.managed.config.vhosts:
        return "config"
    return "default" if name == DEFAULT_VHOST and name not in context.managed.vhost_settings else "metadata"


def _check_changeable(context: Context, name: str) -> None:
    """Raise `NotAllowed` if the vhost is declared in the configuration."""
    if name in context.managed.config.vhosts:
        raise NotAllowed(f"vhost '{name}' is declared in {context.managed.config_name}; change it there")


def add(context: Context, request: Add) -> None:
    """Add a vhost."""
    if request.shard is not None:
        raise PreconditionFailed(
            "'shard' is set, and the broker has no shards; their number is the setting 'cluster.shards'"
        )
    _check_changeable(context, request.name)
    if request.name in context.broker.vhosts:
        raise PreconditionFailed(f"vhost '{request.name}' already exists")
    if not 1 <= len(request.name.encode("utf-8", "surrogateescape")) <= 255:
        raise PreconditionFailed("invalid vhost name; expected 1 to 255 bytes")
    _set(context, request, VhostConfig())


def change(context: Context, request: Change) -> None:
    """Change the settings of a vhost."""
    context.vhost(request.name)
    _set(context, request, context.managed.vhost_config(request.name))


def _set(context: Context, request: Change, old: VhostConfig) -> None:
    """Store the settings of a vhost. One of the configuration may be written as it is, and is refused otherwise."""
    changes: dict[str, str | float | CompatConfig | list[str]] = {
        name: value
        for name in ("qos_global", "consumer_timeout", "description", "default_queue_type", "protected_from_deletion")
        if (value := getattr(request, name)) is not None
    }
    limits = {name: value for name in ("max_queues", "max_connections") if (value := getattr(request, name)) is not None}
    if request.strict is not None:
        changes["compat"] = CompatConfig(strict=request.strict)
    if request.tags is not None:
        changes["tags"] = list(parse_tags(request.tags))
    new = msgspec.structs.replace(old, limits=msgspec.structs.replace(old.limits, **limits), **changes)
    if new.consumer_timeout < 0:
        raise PreconditionFailed("negative timeout; expected at least 0, which means none")
    if new.default_queue_type not in DEFAULT_TYPES:
        expected = ", ".join(DEFAULT_TYPES)
        raise PreconditionFailed(f"unknown queue type '{new.default_queue_type}'; expected one of {expected}")
    if min(new.limits.max_queues, new.limits.max_connections) < -1:
        raise PreconditionFailed("negative limit; expected at least 0, which means none, or -1, which allows none")
    if request.name in context.managed.config.vhosts:
        if new != old:
            _check_changeable(context, request.name)
        return
    context.managed.vhost_settings[request.name] = new
    context.broker.log.put(KIND, request.name, msgspec.json.encode(new))
    context.managed.apply_vhost(request.name, new)


def trace(context: Context, request: Trace) -> None:
    """Switch the firehose of a vhost on or off. A restart of the broker switches it off."""
    context.vhost(request.name).firehose.switch(request.on)


async def delete(context: Context, request: Named) -> None:
    """Delete a vhost with all its objects and permissions, and close its connections. Returns when all are deleted."""
    name = request.name
    _check_changeable(context, name)
    if name == DEFAULT_VHOST:
        raise NotAllowed(f"vhost '{DEFAULT_VHOST}' always exists")
    if name not in context.broker.vhosts:
        raise NotFound(f"vhost '{name}' does not exist")
    if context.managed.vhost_config(name).protected_from_deletion:
        raise PreconditionFailed(f"vhost '{name}' is protected from deletion; remove the protection first")
    applied = Applied()
    context.broker.remove_vhost(name, applied.done)
    if context.managed.vhost_settings.pop(name, None) is not None:
        context.broker.log.put(KIND, name, None)
    context.users.forget_vhost(name)
    await applied.future


OPERATIONS: Operations = {
    "vhosts.list": Operation(list_vhosts, Request, VhostInfo),
    "vhosts.add": Operation(add, Add, changes=True),
    "vhosts.change": Operation(change, Change, changes=True),
    "vhosts.trace": Operation(trace, Trace, changes=True),
    "vhosts.delete": Operation(delete, Named, changes=True, removes=True),
}

"""Routes of the operations of a broker of several processes.

Shared objects (users, permissions, roles, global parameters) and the audit log are in this process. Everything else is in
the shard of its vhost. A list without a vhost is that of all shards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

from leveret.cluster import backups, batches, feeds, node_calls, objects, tails, totals
from leveret.cluster.front import Front
from leveret.cluster.requests import FrontCall
from leveret.cluster.shards import Shard

# Executes a call, and yields the lines of the reply.
Route: TypeAlias = Callable[[Front, FrontCall], AsyncGenerator[bytes, None]]


async def here(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Execute an operation on shared objects in this process."""
    async with aclosing(front.here(call)) as lines:
        async for line in lines:
            yield line


def _in_shard(find: Callable[[Front, FrontCall], Shard]) -> Route:
    async def forward(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
        async with aclosing(front.forward(call, find(front, call))) as lines:
            async for line in lines:
                yield line

    return forward


def _listed(vhost_of: Callable[[FrontCall], str | None]) -> Route:
    """Return the route of a list of objects in one vhost, or in all."""

    async def listed(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
        vhost = vhost_of(call)
        found = front.concatenate(call) if vhost is None else front.forward(call, front.shard_of(vhost))
        async with aclosing(found) as lines:
            async for line in lines:
                yield line

    return listed


def _vhost_of_tables(call: FrontCall) -> str | None:
    """Return the vhost of a list of tables: a single stream is in the default vhost unless the request names another."""
    vhost: str | None = call.fields.vhost
    return "/" if vhost is None and call.fields.name is not None else vhost


in_vhost: Final = _in_shard(lambda front, call: front.shard_of(call.fields.vhost))
of_vhost: Final = _in_shard(lambda front, call: front.shard_of(call.fields.name))
of_connection: Final = _in_shard(lambda front, call: front.shards.of_connection(call.fields.number))

# By the names of operations on the broker as a whole. Operations inside a vhost are executed in its shard.
ROUTES: Final[dict[str, Route]] = {
    "status": totals.status,
    "health": totals.health,
    "config.show": totals.show_config,
    "shards.list": totals.list_shards,
    "cluster.status": node_calls.show_status,
    "cluster.check": node_calls.check,
    "nodes.list": node_calls.list_nodes,
    "nodes.move": node_calls.move,
    "nodes.drain": node_calls.drain,
    "nodes.forget": node_calls.forget,
    "statistics.changes": feeds.changes,
    "traces.take": feeds.take_traces,
    "log.read": feeds.read_log,
    "tails.open": tails.open_tail,
    **dict.fromkeys(("tails.read", "tails.close"), tails.of_tail),
    **dict.fromkeys(("definitions.apply", "definitions.check"), batches.run_batch),
    "objects.delete": objects.delete_objects,
    "backup.start": backups.start,
    "backup.show": backups.show,
    "backup.end": backups.end,
    "users.delete": objects.delete_user,
    "connections.close_user": objects.close_user,
    "vhosts.add": objects.add_vhost,
    "vhosts.delete": objects.delete_vhost,
    "streams.sync_tables": objects.sync_tables,
    "streams.tables": _listed(_vhost_of_tables),
    **dict.fromkeys(("vhosts.list", "statistics.topology"), _listed(lambda call: None)),
    **dict.fromkeys(("vhosts.change", "vhosts.trace"), of_vhost),
    **dict.fromkeys(
        ("connections.close", "connections.throttling", "connections.sessions", "connections.links"), of_connection
    ),
    **dict.fromkeys(
        (
            "audit.search",
            "global_parameters.delete",
            "global_parameters.list",
            "global_parameters.set",
            "global_parameters.show",
            "permissions.delete",
            "permissions.list",
            "permissions.set",
            "permissions.show_own",
            "roles.grant",
            "roles.list",
            "roles.revoke",
            "roles.set",
            "topic_permissions.clear",
            "topic_permissions.list",
            "topic_permissions.set",
            "user_limits.clear",
            "user_limits.list",
            "user_limits.set",
            "users.add",
            "users.authenticate",
            "users.change",
            "users.hash_password",
            "users.keep_default",
            "users.list",
            "users.resume",
            "users.set",
        ),
        here,
    ),
    **dict.fromkeys(
        (
            "bindings.list",
            "channels.list",
            "connections.list",
            "consumers.list",
            "dtx.list",
            "exchanges.list",
            "leases.list",
            "links.list",
            "operator_policies.list",
            "parameters.list",
            "policies.list",
            "queues.list",
            "shovels.list",
            "staged.list",
            "stages.apps",
            "stages.list",
            "streams.list",
            "streams.list_consumers",
            "streams.list_supers",
            "transactions.list",
            "vhost_limits.list",
        ),
        _listed(lambda call: call.fields.vhost),
    ),
    **dict.fromkeys(
        (
            "bindings.add",
            "bindings.delete",
            "consumers.cancel",
            "dtx.commit",
            "dtx.forget",
            "dtx.prepare",
            "dtx.rollback",
            "exchanges.add",
            "exchanges.delete",
            "exchanges.show",
            "leases.release",
            "links.delete",
            "links.release",
            "messages.browse",
            "messages.copy",
            "messages.count",
            "messages.dead_letters",
            "messages.delete",
            "messages.destinations",
            "messages.export",
            "messages.get",
            "messages.import",
            "messages.move",
            "messages.payload",
            "messages.preview",
            "messages.publish",
            "messages.resend",
            "operator_policies.delete",
            "operator_policies.set",
            "operator_policies.show",
            "parameters.delete",
            "parameters.set",
            "parameters.show",
            "policies.delete",
            "policies.set",
            "policies.show",
            "queues.add",
            "queues.change_matching",
            "queues.delete",
            "queues.pause",
            "queues.purge",
            "queues.resume",
            "queues.show",
            "shovels.restart",
            "shovels.show",
            "staged.discard",
            "staged.show",
            "stages.discard",
            "stages.forget",
            "streams.add_super",
            "streams.consumers",
            "streams.delete_super",
            "streams.erase",
            "streams.erasing",
            "streams.names",
            "streams.seal",
            "streams.segments",
            "streams.set_offset",
            "streams.show",
            "vhost_limits.clear",
            "vhost_limits.set",
        ),
        in_vhost,
    ),
}

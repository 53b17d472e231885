"""Changes that concern more than the shard of one vhost: vhosts, users, and connections of a user."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from leveret.broker.errors import NotFound
from leveret.cluster.calls import RESULT
from leveret.cluster.front import Front
from leveret.cluster.requests import FrontCall
from leveret.cluster.shards import Shard
from leveret.management.control_socket import encode_result
from leveret.management.operations import bulk
from leveret.management.operations.connections import Closed, close_all
from leveret.management.operations.operation import Context
from leveret.management.operations.segments import Streamed
from leveret.management.operations.table import OPERATIONS
from leveret.management.structs import Reply


async def add_vhost(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Add a vhost in the wanted shard, or in the least busy one."""
    request = call.line()
    if call.fields.shard is not None:
        arguments = {name: value for name, value in msgspec.structs.asdict(call.fields).items() if name != "shard"}
        request = call.derived(call.name, arguments)
    await front.shards.prepare(call.fields.name, call.fields.shard)
    with front.placing(call.fields.name, call.fields.shard) as shard:
        async with aclosing(front.calls.lines(shard, request)) as lines:
            line = await anext(lines)
        if line.startswith(RESULT):
            front.shards.note_vhost(shard, call.fields.name, exists=True)
            await front.shards.applied()
    yield line


async def delete_vhost(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Delete a vhost in its shard, and the permissions in it."""
    await _delete_vhost(front, front.shard_of(call.fields.name), call.fields.name, call.line())
    async for line in encode_result(None):
        yield line


async def _delete_vhost(front: Front, shard: Shard, name: str, request: bytes) -> None:
    await front.calls.call(shard, request, type(None))
    # That also removes the permissions in the vhost.
    front.shards.note_vhost(shard, name, exists=False)
    await front.admin.committed()
    await front.shards.applied()


async def delete_objects(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Delete objects whose names match: those of a vhost in its shard, users and vhosts here."""
    kind, request = call.fields.kind, call.fields
    if kind == "vhosts":
        result = await _delete_vhosts(front, call)
    elif kind == "users":
        found = await front.admin.call(call.name, call.arguments, call.principal)
        assert isinstance(found, bulk.DeletedObjects)
        result = found
        if not request.dry_run:
            await front.shards.applied()
            for name in result.names:
                await front.close_user(name, _deleted(name))
    else:
        async with aclosing(front.forward(call, front.shard_of(request.vhost))) as lines:
            async for line in lines:
                yield line
        return
    async for line in encode_result(result):
        yield line


async def _delete_vhosts(front: Front, call: FrontCall) -> bulk.DeletedObjects:
    async def delete(context: Context, request: bulk.DeleteMatching, name: str) -> None:
        shard = front.shards.of_vhost(name)
        if shard is None:
            raise NotFound(f"vhost '{name}' does not exist")
        await _delete_vhost(front, shard, name, call.derived("vhosts.delete", {"name": name}))

    kind = bulk.ObjectKind(lambda context, request: iter(sorted(front.vhost_names())), delete)
    return await bulk.delete_objects(Context(front.managed, call.principal), call.fields, kind)


async def delete_user(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Delete a user, and close its connections in all shards."""
    name = call.fields.name
    # Shards begin to close the connections when they know of the deletion.
    connections = sum(shard.connections_of(name) for shard in front.shards.all)
    closed = await front.admin.call(call.name, call.arguments, call.principal)
    assert isinstance(closed, Closed)
    await front.shards.applied()
    await front.close_user(name, _deleted(name))
    closed.connections += connections
    async for line in encode_result(closed):
        yield line


def _deleted(user: str) -> str:
    return f"user '{user}' was deleted"


async def close_user(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Close the connections of a user in all processes, as one change in the audit log."""
    request = call.fields
    own = close_all(Context(front.managed, call.principal), request.user, request.reason)
    closed = Closed(connections=own + await front.close_user(request.user, request.reason))
    await record(front, call, closed)
    async for line in encode_result(closed):
        yield line


async def sync_tables(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Start updating the tables of a vhost, or those of all shards as one change in the audit log."""
    request = call.fields
    if request.vhost is not None or request.name is not None:
        async with aclosing(front.forward(call, front.shard_of(request.vhost or "/"))) as lines:
            async for line in lines:
                yield line
        return
    found = await front.calls.call_all(front.shards.used, call.line(is_audited=False), Streamed)
    streamed = Streamed(streams=sum(one.streams for one in found))
    await record(front, call, streamed)
    async for line in encode_result(streamed):
        yield line


async def record(front: Front, call: FrontCall, result: Reply | None) -> None:
    """Record a change that several processes have made."""
    context = Context(front.managed, call.principal)
    change = context.auditor.begin(OPERATIONS[call.name], context, call.fields)
    if change is not None:
        change.done(result)
    await front.managed.audit.written()

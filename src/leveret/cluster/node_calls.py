"""Operations on the nodes of the cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from leveret.broker.errors import StorageFailed
from leveret.cluster.front import Front
from leveret.cluster.requests import FrontCall
from leveret.management.control_socket import encode_result
from leveret.management.operations.operation import Context
from leveret.management.operations.table import OPERATIONS


async def list_nodes(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """List the nodes."""
    async for line in encode_result(iter(front.shards.cluster.list_nodes())):
        yield line


async def show_status(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield the state of the cluster."""
    async for line in encode_result(await front.shards.cluster.status()):
        yield line


async def check(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Check the cluster, and yield the findings."""
    async for line in encode_result(iter(await front.shards.cluster.check())):
        yield line


async def move(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Move a shard to another node. Yields the reply when that node owns it."""
    fields = call.fields
    async for line in _changed(front, call, front.shards.cluster.move(fields.shard, fields.node)):
        yield line


async def drain(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Move all shards away from a node. Yields the reply when it has none."""
    async for line in _changed(front, call, front.shards.cluster.drain(call.fields.name, on=call.fields.on)):
        yield line


async def forget(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Remove a node that is gone from the list."""
    async for line in _changed(front, call, front.shards.cluster.forget(call.fields.name)):
        yield line


async def _changed(
    front: Front, call: FrontCall, changing: Coroutine[Any, Any, dict[str, Any]]
) -> AsyncGenerator[bytes, None]:
    """Make a change, record it with its result, and yield the reply."""
    context = Context(front.managed, call.principal)
    change = context.auditor.begin(OPERATIONS[call.name], context, call.fields)
    assert change is not None
    try:
        change.done(await changing)
    except StorageFailed as error:
        # The nodes have the order, and may still carry it out.
        change.done({"error": str(error)})
        raise
    finally:
        await front.managed.audit.written()
    async for line in encode_result(None):
        yield line

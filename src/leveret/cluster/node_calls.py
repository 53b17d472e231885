"""Operations on the nodes of the cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from leveret.cluster.front import Front
from leveret.cluster.requests import FrontCall
from leveret.management.control_socket import encode_result


async def list_nodes(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """List the nodes."""
    async for line in encode_result(iter(front.shards.cluster.list_nodes())):
        yield line


async def move(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Move a shard to another node. Yields the reply when that node owns it."""
    await front.shards.cluster.move(call.fields.shard, call.fields.node)
    async for line in encode_result(None):
        yield line


async def drain(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Move all shards away from a node. Yields the reply when it has none."""
    await front.shards.cluster.drain(call.fields.name, on=call.fields.on)
    async for line in encode_result(None):
        yield line


async def forget(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Remove a node that is gone from the list."""
    await front.shards.cluster.forget(call.fields.name)
    async for line in encode_result(None):
        yield line

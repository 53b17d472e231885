"""Live tails: each is in the shard of its vhost, whose number begins the id of the tail."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from leveret.broker.errors import NotFound
from leveret.cluster.front import Front
from leveret.cluster.requests import FrontCall
from leveret.cluster.shards import Shard
from leveret.management.control_socket import encode_result
from leveret.management.operations.tails import TIMEOUT, OpenedTail


async def open_tail(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Open a tail in the shard of its vhost."""
    shard = front.shard_of(call.fields.vhost)
    opened = await front.calls.call(shard, call.line(), OpenedTail)
    async for line in encode_result(OpenedTail(id=f"{shard.number}.{opened.id}")):
        yield line


async def of_tail(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Have the shard of a tail read or close it."""
    number, _, own = call.fields.id.partition(".")
    request = call.derived(call.name, {"id": own})
    async with aclosing(front.calls.lines(_shard(front, number, call.fields.id), request)) as lines:
        async for line in lines:
            yield line


def _shard(front: Front, number: str, id: str) -> Shard:
    for shard in front.shards.all:
        if str(shard.number) == number:
            return shard
    raise NotFound(f"no live tail '{id}'; one that is not read for {TIMEOUT:g} seconds is closed")

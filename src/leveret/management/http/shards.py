"""The shards of the broker."""

from __future__ import annotations

from leveret.management.http.lists import select
from leveret.management.http.request import Answer, Request


async def list_all(request: Request) -> Answer:
    """List the processes that the vhosts are in. A broker of one process is one shard."""
    return Answer(body=select(await request.control.call("shards.list"), request.query))

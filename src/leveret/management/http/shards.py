"""The shards of the broker, and the nodes of its cluster."""

from __future__ import annotations

from leveret.management.http.errors import HttpError, bad_request
from leveret.management.http.lists import select
from leveret.management.http.request import NO_CONTENT, Answer, Request


async def list_all(request: Request) -> Answer:
    """List the processes that the vhosts are in. A broker of one process is one shard."""
    return Answer(body=select(await request.control.call("shards.list"), request.query))


async def show_cluster(request: Request) -> Answer:
    """Return the database, the replication, the nodes by state and the take-overs of the cluster."""
    await request.cache.refresh()
    if request.cache.cluster is None:
        raise HttpError(404, "Object Not Found", "the broker is not a node of a cluster")
    return Answer(body=request.cache.cluster)


async def list_nodes(request: Request) -> Answer:
    """List the nodes of the cluster: none for a broker that is not a node."""
    await request.cache.refresh()
    return Answer(body=select(request.cache.nodes, request.query))


async def move(request: Request) -> Answer:
    """Move a shard to another node, and wait until it serves there."""
    shard = request.path["shard"]
    if not shard.isdecimal():
        raise bad_request(f"invalid shard '{shard}'; expected a number")
    await request.change("nodes.move", {"shard": int(shard), "node": request.text("node")})
    return NO_CONTENT


async def drain(request: Request) -> Answer:
    """Move all shards away from a node, which claims none until `on` is false or it restarts."""
    on = request.body().get("on", True)
    if not isinstance(on, bool):
        raise bad_request("invalid value of 'on'; expected true or false")
    await request.change("nodes.drain", {"name": request.path["node"], "on": on})
    return NO_CONTENT


async def forget(request: Request) -> Answer:
    """Remove a node that is gone from the list."""
    await request.change("nodes.forget", {"name": request.path["node"]})
    return NO_CONTENT

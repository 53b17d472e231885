"""The nodes of the cluster: brokers on other machines that share vhosts and users with this one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leveret.broker.errors import PreconditionFailed
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Named, Reply, Request

LIVE: Final = "live"
DRAINING: Final = "draining"
GONE: Final = "gone"


class NodeDetails(Reply, kw_only=True):
    """A node.

    Attributes:
        name: Its name.
        state: `live`, `draining` or `gone`.
        address: Where it listens for other nodes.
        version: Its version of Leveret.
        shards: The numbers of the shards that it owns.
        here: Whether it is the node that answers.
        clock: Seconds by which its clock is ahead of PostgreSQL's; None if that is unknown.
        format: The format of the database that it writes; None if that is unknown.
        unreachable: The names of the live nodes that it does not reach.
    """

    name: str
    state: str
    address: str
    version: str
    shards: list[int]
    here: bool
    clock: float | None = None
    format: int | None = None
    unreachable: list[str] = []


class Move(Request, kw_only=True):
    """Request to move a shard to another node."""

    shard: int
    node: str


class Drain(Named, kw_only=True):
    """Request to move all shards away from a node, which claims no more, or to let it claim shards again."""

    on: bool = True


def not_a_node() -> PreconditionFailed:
    """Return the error for a broker that is not a node."""
    return PreconditionFailed(
        "this broker is not a node of a cluster; expected 'storage.engine' = \"postgresql\" and at least 2 'cluster.shards'"
    )


def list_nodes(context: Context, request: Request) -> Iterator[NodeDetails]:
    """List the nodes. Only the front of a node has any."""
    raise not_a_node()


def change(context: Context, request: Request) -> None:
    """Change the nodes. Only the front of a node has any."""
    raise not_a_node()


OPERATIONS: Operations = {
    "nodes.list": Operation(list_nodes, Request, NodeDetails, early=True),
    "nodes.move": Operation(change, Move),
    "nodes.drain": Operation(change, Drain),
    "nodes.forget": Operation(change, Named),
}

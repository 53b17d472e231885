"""The cluster as a whole: its database, its replication, its nodes and take-overs."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.management.operations.nodes import not_a_node
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Reply, Request


class Standby(Reply, kw_only=True):
    """A standby of PostgreSQL. Texts are "" if the node's user may not see them.

    Attributes:
        name: Its application name.
        state: Its state, such as `streaming`.
        sync: `sync`, `quorum`, `potential` or `async`.
        lag: Bytes of the write-ahead log that it has not on disk yet; None if unknown.
    """

    name: str
    state: str
    sync: str
    lag: int | None


class LastTakeover(Reply, kw_only=True):
    """The last take-over.

    Attributes:
        shard: The shard.
        node: The node that owns it now; "" if none does.
        age: Seconds since the last sign of life of the owner before.
        seconds: Seconds from then until the shard served again; None while it does not.
    """

    shard: int
    node: str
    age: float
    seconds: float | None


class ClusterStatus(Reply, kw_only=True):
    """The cluster at a glance.

    Attributes:
        database: The host, the port and the name of the database.
        problem: Why it does not answer, when the following is as it was before; "" if it answers.
        version: The version of PostgreSQL.
        synchronous: `synchronous_standby_names`; "" if messages are on one disk.
        standbys: The connected standbys.
        waiting: The number of transactions that wait for a standby.
        waiting_seconds: The longest of these waits.
        transaction_age: The age of the oldest transaction id that is not frozen.
        nodes: The number of nodes by state.
        shards: The number of shards.
        unowned: The shards that need an owner and have none that lives.
        unreached: For each live node that does not reach other live ones, their names.
        takeovers: The number of take-overs of all shards.
        last_takeover: The last one; None if there was none.
    """

    database: str
    problem: str
    version: str
    synchronous: str
    standbys: list[Standby]
    waiting: int
    waiting_seconds: float
    transaction_age: int
    nodes: dict[str, int]
    shards: int
    unowned: list[int]
    unreached: dict[str, list[str]]
    takeovers: int
    last_takeover: LastTakeover | None


class Finding(Reply, kw_only=True):
    """The result of a check.

    Attributes:
        check: What was checked.
        good: Whether nothing must be changed.
        text: What was found.
        remedy: What to do; "" if nothing must be changed.
    """

    check: str
    good: bool
    text: str
    remedy: str


def status(context: Context, request: Request) -> ClusterStatus:
    """Return the state of the cluster. Only the front of a node has one."""
    raise not_a_node()


def check(context: Context, request: Request) -> Iterator[Finding]:
    """Check the cluster. Only the front of a node has one."""
    raise not_a_node()


OPERATIONS: Operations = {
    "cluster.status": Operation(status, Request, ClusterStatus, early=True),
    "cluster.check": Operation(check, Request, Finding, early=True),
}

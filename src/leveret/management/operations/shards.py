"""The shards of the broker: the processes that its vhosts are in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Reply, Request

READY: Final = "ready"


class ShardInfo(Reply, kw_only=True):
    """A shard.

    Attributes:
        number: Its number, from 0.
        state: `ready`, `starting`, `restarting`, `moving`, `stopped`, or `idle` without vhosts.
        pid: Its process; 0 if there is none.
        vhosts: The names of its vhosts.
        connections: The number of connections to its vhosts.
        memory: The memory of the process in bytes; 0 unless it is ready.
        restarts: How often it was restarted because it ended unexpectedly.
        node: The node that owns it; "" if the broker is not a node, or no node owns it.
        hangs: How often its process was killed because it did not answer.
        epoch: The epoch of its owner, as all following ones of a node; 0 otherwise.
        takeovers: How often it was taken over: claimed although its owner had not released it.
        takeover_age: Seconds since the last sign of life of the owner before the last take-over; None without one.
        takeover_seconds: Seconds from then until the shard served again; None while it does not.
    """

    number: int
    state: str
    pid: int
    vhosts: list[str]
    connections: int
    memory: int
    restarts: int
    node: str = ""
    hangs: int = 0
    epoch: int = 0
    takeovers: int = 0
    takeover_age: float | None = None
    takeover_seconds: float | None = None


def list_shards(context: Context, request: Request) -> Iterator[ShardInfo]:
    """List the shards. A broker of one process is one shard."""
    managed = context.managed
    facts = managed.facts()
    yield ShardInfo(
        number=0,
        state=READY,
        pid=facts.pid,
        vhosts=sorted(context.broker.vhosts),
        connections=len(list(managed.sessions())),
        memory=facts.memory,
        restarts=0,
    )


OPERATIONS: Operations = {"shards.list": Operation(list_shards, Request, ShardInfo, early=True)}

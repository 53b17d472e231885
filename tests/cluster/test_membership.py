"""Orders of operators that PostgreSQL does not carry out."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from leveret.broker.errors import PreconditionFailed, StorageFailed
from leveret.cli.cluster_status import cluster_lines
from leveret.cluster import membership
from leveret.cluster.condition import status_of
from leveret.cluster.membership import Cluster
from leveret.cluster.watch import NodeRow, OwnerRow, View, Watch


class Waiting:
    """A directory whose changes wait for a lock."""

    def __getattr__(self, name: str) -> Any:
        async def wait(*arguments: object) -> None:
            await asyncio.Event().wait()

        return wait


def node(name: str, *, live: bool = True) -> NodeRow:
    return NodeRow(name, "1", f"{name}:1", "0.3.0", 1, draining=False, live=live)


def watched(owners: list[OwnerRow]) -> Watch:
    watch = Watch("a", 0.6)
    nodes = [node("a"), node("b"), node("lost", live=False)]
    watch.observe(View(version=1, shards=4, owners=owners, nodes=nodes), 0.0, 0.01)
    return watch


def cluster(owners: list[OwnerRow]) -> Cluster:
    shards: Any = [None] * 4
    directory: Any = Waiting()
    return Cluster("a", directory, watched(owners), shards, directory.wait, lambda: {0, 1}, balances=False)


@pytest.mark.parametrize("order", ["move", "drain", "drain --off", "forget"])
def test_an_order_ends_with_an_error_after_a_while(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MOVE_TIMEOUT", 0.01)
    monkeypatch.setattr(membership, "DRAIN_TIMEOUT", 0.01)

    async def scenario() -> str:
        found = cluster([OwnerRow(0, node="a")])
        orders = {
            "move": lambda: found.move(0, "b"),
            "drain": lambda: found.drain("a", on=True),
            "drain --off": lambda: found.drain("a", on=False),
            "forget": lambda: found.forget("lost"),
        }
        async with asyncio.timeout(20):
            with pytest.raises(StorageFailed) as failed:
                await orders[order]()
        return str(failed.value)

    expected = {
        "move": "shard 0 has not moved to node 'b'",
        "drain": "node 'a' still has shards",
        "drain --off": "node 'a' still drains",
        "forget": "node 'lost' is still in the list",
    }
    assert asyncio.run(scenario()) == f"{expected[order]} after 0.01 seconds; see `leveret cluster check`"


def test_a_shard_that_no_node_has_claimed_yet_is_not_moved() -> None:
    """Shard 1 has vhosts, and shard 2 has none."""

    async def scenario() -> None:
        found = cluster([OwnerRow(0, node="a"), OwnerRow(1), OwnerRow(2)])
        with pytest.raises(PreconditionFailed, match="shard 1 has no owner yet; wait until a node has claimed it"):
            await found.move(1, "b")
        with pytest.raises(PreconditionFailed, match="shard 2 has no owner, because it has no vhosts"):
            await found.move(2, "b")
        with pytest.raises(PreconditionFailed, match="node 'lost' is gone; expected one that takes shards: 'a', 'b'"):
            await found.move(0, "lost")

    asyncio.run(scenario())


def test_what_the_database_has_never_told_is_not_shown() -> None:
    lines = dict(cluster_lines(msgspec.to_builtins(status_of(watched([OwnerRow(0, node="a")]), {0}, None, "it is away"))))
    assert lines["problem"] == "it is away"
    assert not {"database", "replication", "waits for a standby"} & lines.keys()

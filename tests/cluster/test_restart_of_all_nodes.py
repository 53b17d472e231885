"""The moves of shards while all nodes are restarted, one after another, as each node decides them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from leveret.cluster.membership import SETTLED, Cluster
from leveret.cluster.watch import NodeRow, OwnerRow, View, Watch

NAMES = ("a", "b", "c")
SHARDS = 6


@dataclass
class Rows:
    """The database, and each node's view of it."""

    owners: list[OwnerRow] = field(
        default_factory=lambda: [OwnerRow(number, node=NAMES[number % 3]) for number in range(SHARDS)]
    )
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    views: dict[str, Cluster] = field(default_factory=dict)
    watches: dict[str, Watch] = field(default_factory=dict)
    moves: Counter[int] = field(default_factory=Counter)
    runs: int = 0

    def start(self, name: str) -> None:
        self.runs += 1
        self.nodes[name] = NodeRow(name, str(self.runs), "host:1", "0", 0, False, True)
        self.watches[name] = Watch(name, 0.6)
        shards: Any = [type("Shard", (), {"connections": 0})() for _ in range(SHARDS)]
        unused: Any = None
        self.views[name] = Cluster(name, unused, self.watches[name], shards, unused, unused, balances=True)
        self.look()

    def look(self) -> None:
        for name, watch in self.watches.items():
            now = time.monotonic()
            watch.observe(View(1, SHARDS, self.owners, list(self.nodes.values())), now, now)
            self.views[name].note_look()

    def move(self, name: str) -> bool:
        """Make the next move of a shard of a node. Return whether there is one."""
        move = self.views[name].next_move()
        if move is not None:
            shard, target = move
            self.owners[shard] = msgspec.structs.replace(self.owners[shard], node=target)
            self.moves[shard] += 1
            self.look()
        return move is not None

    def restart(self, name: str) -> None:
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], draining=True)
        self.look()
        while self.move(name):
            pass
        del self.nodes[name], self.watches[name], self.views[name]
        self.look()
        self.start(name)


def test_a_shard_moves_to_a_node_that_was_restarted_before(monkeypatch: Any) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rows = Rows()
    for name in NAMES:
        rows.start(name)
    now += 60
    for name in NAMES:
        rows.restart(name)
        assert all(owner.node != name for owner in rows.owners)
        now += 30
        assert not any(rows.move(other) for other in NAMES)
    # Those of `a` twice, because no node was restarted before; all others once.
    assert [rows.moves[number] for number in range(SHARDS)] == [2, 1, 1, 2, 1, 1]
    # The shards are balanced only afterwards.
    now += 60
    moved = rows.moves.total()
    while any(rows.move(name) for name in NAMES):
        now += 10
    assert rows.moves.total() == moved + 2
    assert sorted(Counter(owner.node for owner in rows.owners).values()) == [2, 2, 2]


def test_shards_are_balanced_whatever_the_order_in_which_the_database_returns_the_nodes(monkeypatch: Any) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rows = Rows([OwnerRow(number, node="a") for number in range(2)])
    for name in NAMES[:2]:
        rows.start(name)
    for _ in range(4):
        assert not rows.move("a")
        rows.nodes = dict(reversed(rows.nodes.items()))
        now += SETTLED / 4
        rows.look()
    assert rows.move("a")
    assert Counter(owner.node for owner in rows.owners) == {"a": 1, "b": 1}

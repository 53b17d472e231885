"""The state of a cluster at a glance, and what its check finds."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from leveret.cluster.condition import Database, Prepared, Slot, findings, is_isolated, state_of, status_of, unreached
from leveret.cluster.link import Link, make_pair
from leveret.cluster.nodes import IDLE, NodeShards
from leveret.cluster.shards import STARTING
from leveret.cluster.watch import NodeRow, OwnerRow, View, Watch
from leveret.config import Config
from leveret.config.model import ClusterConfig
from leveret.management.operations.cluster import Standby
from leveret.management.operations.nodes import GONE, LIVE
from leveret.management.operations.shards import READY
from leveret.node.part import Record
from leveret.storage.cluster import Observed
from leveret.storage.salvage import NOTHING_LOST
from tests.support.polling import wait_until_async

NODE = NodeRow("a", "1", "a:1", "0.3.0", 1, draining=False, live=True, clock=0.01, format=1)
STANDBY = Standby(name="second", state="streaming", sync="quorum", lag=0)
DATABASE = Database(
    version="15.4",
    user="leveret",
    synchronous="ANY 1 (second)",
    standbys=[STANDBY],
    waits=[0.01],
    transaction_age=1_000_000,
    slots=[],
    prepared=[Prepared("recent", 10.0)],
    address="db1:5432/leveret",
)
REPLACED = msgspec.structs.replace


def watched(nodes: list[NodeRow], owners: list[OwnerRow] | None = None, shows_signs: Collection[int] = ()) -> Watch:
    """Return the view of node `a` after a second.

    Args:
        nodes: The nodes.
        owners: The shards. The owners of those in live nodes show signs of life.
        shows_signs: The numbers of other shards whose owners do so.
    """
    watch = Watch("a", 0.6)
    found = [OwnerRow(0, node="a")] if owners is None else owners
    live = {node.name for node in nodes if node.live}
    for look in range(11):
        rows = [REPLACED(row, seen=str(look)) if row.node in live or row.shard in shows_signs else row for row in found]
        watch.observe(View(1, 4, rows, nodes), look / 10, look / 10 + 0.01)
    return watch


def faults(watch: Watch, database: Database = DATABASE, needed: tuple[int, ...] = (0,)) -> list[tuple[str, str, str]]:
    found = list(findings(watch, needed, database))
    assert all(bool(finding.remedy) != finding.good for finding in found)
    return [(finding.check, finding.text, finding.remedy) for finding in found if not finding.good]


def test_a_good_cluster() -> None:
    found = list(findings(watched([NODE]), [0], DATABASE))
    assert [finding.check for finding in found] == [
        "postgresql",
        "replication",
        "clocks",
        "versions",
        "transaction ids",
        "replication slots",
        "prepared transactions",
        "nodes",
        "links",
        "shards",
    ]
    assert all(finding.good for finding in found)
    assert found[1].text == "synchronous standby second"
    one_disk = list(findings(watched([NODE]), [0], REPLACED(DATABASE, synchronous="", standbys=[])))
    assert one_disk[1].good and one_disk[1].text.startswith("one disk")


@pytest.mark.parametrize(
    ("changes", "check", "text", "remedy"),
    [
        ({"standbys": []}, "replication", "nothing is confirmed", "start the standbys of 'ANY 1 (second)'"),
        (
            {"standbys": [REPLACED(STANDBY, sync="async")]},
            "replication",
            "no synchronous standby is connected",
            "start the standbys",
        ),
        (
            {"standbys": [REPLACED(STANDBY, sync="")]},
            "replication",
            "'leveret' may not see",
            'GRANT pg_monitor TO "leveret"',
        ),
        ({"waits": [0.1, 7.25]}, "replication", "2 transactions wait for a synchronous standby, one for 7.2", "start the"),
        ({"transaction_age": 500_000_000}, "transaction ids", "500 million transactions old", "VACUUM (FREEZE)"),
        (
            {"slots": [Slot("old", 3 << 20)]},
            "replication slots",
            "'old', which keeps 3.0 MiB",
            "drop_replication_slot('old')",
        ),
        ({"prepared": [Prepared("x", 300.0)]}, "prepared transactions", "'x' was prepared 300", "ROLLBACK PREPARED 'x'"),
    ],
)
def test_faults_of_the_database(changes: dict[str, object], check: str, text: str, remedy: str) -> None:
    [(found, shown, what)] = faults(watched([NODE]), REPLACED(DATABASE, **changes))
    assert found == check
    assert text in shown
    assert remedy in what


def test_faults_of_nodes() -> None:
    other = REPLACED(NODE, name="b")
    assert faults(watched([NODE, other, REPLACED(NODE, name="c", draining=True)])) == []
    for clock, text in ((0.3, "0.30 seconds ahead of"), (-2.0, "2.00 seconds behind")):
        [(check, shown, _)] = faults(watched([NODE, REPLACED(other, clock=clock)]))
        assert check == "clocks"
        assert shown == f"the clock of node 'b' is {text} PostgreSQL's; expected at most 0.25"
    [(check, shown, _)] = faults(watched([NODE, REPLACED(other, leveret="0.4.0", format=2)]))
    assert check == "versions"
    assert shown == "0.3.0 (format 1): node a; 0.4.0 (format 2): node b; the database has format 1"
    [(check, shown, remedy)] = faults(watched([NODE, REPLACED(other, live=False, clock=9.0)]))
    assert (check, shown) == ("nodes", "node 'b' shows no sign of life")
    assert "`leveret cluster forget b`" in remedy
    gone = REPLACED(other, live=False)
    owners = [OwnerRow(0, node="a"), OwnerRow(1, node="b"), OwnerRow(2)]
    [_, (check, shown, _)] = faults(watched([NODE, gone], owners), needed=(0, 1))
    assert (check, shown) == ("shards", "shard 1 without an owner that lives")


def linked(**unreachable: list[str]) -> Watch:
    """Return the view of the nodes a, b and c, which do not reach these others, and of one that is gone."""
    nodes = [REPLACED(NODE, name=name, unreachable=unreachable.get(name, [])) for name in ("a", "b", "c")]
    return watched([*nodes, REPLACED(NODE, name="gone", live=False, unreachable=["a", "b", "c"])])


def test_links_between_nodes() -> None:
    assert unreached(linked(a=["gone", "unknown"])) == {}
    one_way = linked(c=["a", "b", "gone"])
    assert status_of(one_way, {0}, DATABASE, "").unreached == unreached(one_way) == {"c": ["a", "b"]}
    assert [is_isolated(one_way, name) for name in ("a", "b", "c", "gone")] == [False, False, True, False]
    _, (check, text, remedy) = faults(one_way)
    assert (check, text.split(",")[0]) == ("links", "node 'c' does not reach nodes a")
    assert remedy.endswith("; `leveret cluster drain c` moves its shards to the others until then")
    # A node with one link is not isolated, and neither are nodes of which none has a link.
    for links in (linked(a=["c"], c=["a"]), linked(a=["b"], b=["c"], c=["a"])):
        assert not any(is_isolated(links, name) for name in ("a", "b", "c"))
        assert not any("drain" in remedy for _, _, remedy in faults(links))


def test_the_status() -> None:
    owners = [
        OwnerRow(0, node="a", epoch=5, takeovers=2, lost_ago=60.0, outage=0.7),
        OwnerRow(1, node="a", epoch=2, takeovers=1, lost_ago=3.0),
        OwnerRow(2, node="b"),
    ]
    nodes = [NODE, REPLACED(NODE, name="b", live=False), REPLACED(NODE, name="c", draining=True)]
    status = status_of(watched(nodes, owners), {0, 1, 2, 3}, DATABASE, "")
    assert status.nodes == {"live": 1, "draining": 1, "gone": 1}
    assert (status.shards, status.unowned) == (4, [2, 3])
    assert status.takeovers == 3
    last = status.last_takeover
    assert last is not None
    assert (last.shard, last.node, last.age, last.seconds) == (1, "a", 3.0, None)
    assert (status.waiting, status.waiting_seconds, status.database) == (1, 0.01, "db1:5432/leveret")
    unknown = status_of(watched([NODE]), {0}, None, "PostgreSQL does not answer")
    assert (unknown.problem, unknown.last_takeover) == ("PostgreSQL does not answer", None)


def test_a_node_whose_look_is_late_is_not_gone_as_long_as_its_shards_live() -> None:
    """The status, the list of nodes and the check say the same, and what the nodes that claim shards go by."""
    late = REPLACED(NODE, name="b", live=False)
    owners = [OwnerRow(0, node="a"), OwnerRow(1, node="b"), OwnerRow(2, node="b")]
    watch = watched([NODE, late], owners, shows_signs=[2])
    status = status_of(watch, [0, 1, 2], DATABASE, "")
    assert (status.nodes["gone"], status.unowned) == (0, [1])
    assert [check for check, _, _ in faults(watch, needed=(0, 1, 2))] == ["shards"]
    gone = watched([NODE, late], owners)
    assert status_of(gone, [0, 1, 2], DATABASE, "").unowned == [1, 2]
    assert [check for check, _, _ in faults(gone, needed=(0, 1, 2))] == ["nodes", "shards"]
    for view, state in ((watch, LIVE), (gone, GONE)):
        assert [state_of(view, node) for node in view.nodes.values()] == [LIVE, state]


def test_a_shard_is_ready_as_long_as_its_owner_is_not_gone() -> None:
    directory: Any = SimpleNamespace(name="a")
    config = Config(cluster=ClusterConfig(shards=2))
    shard = NodeShards(config, "", NOTHING_LOST, directory, stop_timeout=1.0).all[1]
    for is_gone, state in ((False, READY), (True, "restarting"), (False, READY)):
        shard.note_owner(OwnerRow(1, node="b"), REPLACED(NODE, name="b"), "a", is_gone=is_gone)
        assert (shard.state, shard.node) == (state, "b")
        assert bool(shard.unavailable) == is_gone


class SlowDirectory:
    """A database that answers looks, but not any more what changed records are."""

    name = "a"

    def __init__(self, *owners: OwnerRow) -> None:
        draining = REPLACED(NODE, draining=True)  # so that it claims nothing
        self.view = View(1, 2, list(owners), [draining, REPLACED(NODE, name="b")])

    async def enter(self, address: str) -> None:
        pass

    async def look(self, applied: int) -> View:
        return self.view

    async def records(self, version: int) -> tuple[int, list[Record]]:
        if version:
            await asyncio.Event().wait()
        return 1, []

    async def leave(self) -> None:
        pass


def test_the_shards_agree_with_the_status_while_a_node_waits_for_the_database() -> None:
    async def run() -> None:
        directory: Any = SlowDirectory(OwnerRow(0, node="b"), OwnerRow(1, node="b"))
        config = Config(cluster=ClusterConfig(shards=2))
        shards = NodeShards(config, "", NOTHING_LOST, directory, stop_timeout=1.0)
        client: Any = SimpleNamespace(close_relays=lambda shard, node: None)
        shards.connect(client, pytest.fail)
        start: Any = SimpleNamespace(repeat=lambda step: step())
        await shards.join("a:1", start)
        await shards.begin()
        assert [shard.state for shard in shards.all] == [READY, READY]
        directory.view = REPLACED(directory.view, version=2, owners=[OwnerRow(0), OwnerRow(1, node="b", seen="1")])
        await wait_until_async(lambda: status_of(shards.watch, [0, 1], None, "").unowned, "a look")
        assert [shard.state for shard in shards.all] == [IDLE, READY]
        await shards.stop("")

    asyncio.run(run())


def test_a_shard_whose_claim_another_node_has_won_is_ready_there_before_its_process_here_has_ended() -> None:
    directory: Any = SimpleNamespace(name="a")
    config = Config(cluster=ClusterConfig(shards=2))
    shard = NodeShards(config, "", NOTHING_LOST, directory, stop_timeout=1.0).all[1]
    link, other = make_pair()
    shard._link = Link(link)
    shard._set_state(STARTING)
    shard.observed = Observed(1, 0, None)
    owner = REPLACED(NODE, name="b")
    for epoch, state in ((1, STARTING), (2, READY)):
        shard.note_owner(OwnerRow(1, epoch=epoch, node="b"), owner, "a", is_gone=False)
        assert (shard.state, shard.node, shard.is_here, shard.is_running) == (state, "b", False, True)
    for end in (link, other):
        end.close()

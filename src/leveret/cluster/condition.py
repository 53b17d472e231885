"""The condition of a cluster: what its database and its nodes are like, and what an operator has to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import combinations
from typing import Final

import msgspec

from leveret.cluster.watch import NodeRow, OwnerRow, Watch
from leveret.management.operations.cluster import ClusterStatus, Finding, LastTakeover, Standby
from leveret.management.operations.nodes import DRAINING, GONE, LIVE

# Seconds between the clock of a node and PostgreSQL's from which it is not synchronized.
MAX_CLOCK_DIFFERENCE: Final = 0.25
# The age of transaction ids at which autovacuum should long have frozen them. PostgreSQL stops at 2 billion.
MAX_TRANSACTION_AGE: Final = 500_000_000
# Seconds from which a transaction that waits for a standby is more than a slow one, and a prepared one is forgotten.
MIN_WAIT: Final = 1.0
_MAX_PREPARED_AGE: Final = 300.0
# States of a standby that confirms commits.
_SYNCHRONOUS: Final = ("sync", "quorum")


class Slot(msgspec.Struct, frozen=True):
    """A replication slot that nothing uses, and the bytes of the write-ahead log that it keeps."""

    name: str
    bytes: int


class Prepared(msgspec.Struct, frozen=True):
    """A prepared transaction, and its age in seconds."""

    name: str
    age: float


class Database(msgspec.Struct, frozen=True):
    """The condition of the database server.

    Attributes:
        version: The version of PostgreSQL.
        user: The user of the node.
        synchronous: `synchronous_standby_names`.
        standbys: The connected standbys.
        waits: For each transaction in the database that waits for a standby, the seconds since it began.
        transaction_age: The age of the oldest transaction id that is not frozen.
        slots: Replication slots that nothing uses.
        prepared: Prepared transactions.
        address: The host, the port and the name of the database.
    """

    version: str
    user: str
    synchronous: str
    standbys: list[Standby]
    waits: list[float]
    transaction_age: int
    slots: list[Slot]
    prepared: list[Prepared]
    address: str = ""


def state_of(watch: Watch, node: NodeRow) -> str:
    """Return the state of a node."""
    return GONE if watch.is_gone(node) else DRAINING if node.draining else LIVE


def unowned(watch: Watch, needed: Collection[int]) -> list[int]:
    """Return the shards that need an owner and have none, or one that is gone."""
    return sorted(number for number in needed if watch.owner_of(number) is None)


def _live(watch: Watch) -> set[str]:
    return {node.name for node in watch.nodes.values() if node.live}


def unreached(watch: Watch) -> dict[str, list[str]]:
    """Return the other live nodes that a live node does not reach, for each node that does not reach all."""
    live = _live(watch)
    found = {name: sorted(live.intersection(watch.nodes[name].unreachable) - {name}) for name in sorted(live)}
    return {name: others for name, others in found.items() if others}


def is_isolated(watch: Watch, name: str) -> bool:
    """Return whether no link between a live node and another one works, though others reach each other."""
    live = _live(watch)
    broken = {frozenset((one, other)) for one, others in unreached(watch).items() for other in others}
    links = {frozenset(pair) for pair in combinations(live, 2)} - broken
    return name in live and bool(links) and not any(name in link for link in links)


def status_of(watch: Watch, needed: Collection[int], database: Database | None, problem: str) -> ClusterStatus:
    """Return the cluster at a glance.

    Args:
        watch: What this node knows of the others.
        needed: The shards that need an owner.
        database: The condition of the database when it last answered; None if it never has.
        problem: Why it does not answer; "" if it does.
    """
    taken = [row for row in watch.owners.values() if row.takeovers and row.lost_ago is not None]
    last = min(taken, key=lambda row: row.lost_ago or 0.0, default=None)
    counts = Counter(state_of(watch, node) for node in watch.nodes.values())
    return ClusterStatus(
        database="" if database is None else database.address,
        problem=problem,
        version="" if database is None else database.version,
        synchronous="" if database is None else database.synchronous,
        standbys=[] if database is None else database.standbys,
        waiting=0 if database is None else len(database.waits),
        waiting_seconds=0.0 if database is None else round(max(database.waits, default=0.0), 3),
        transaction_age=0 if database is None else database.transaction_age,
        nodes={state: counts[state] for state in (LIVE, DRAINING, GONE)},
        shards=watch.shards or 0,
        unowned=unowned(watch, needed),
        unreached=unreached(watch),
        takeovers=sum(row.takeovers for row in watch.owners.values()),
        last_takeover=None if last is None else _last_takeover(last),
    )


def _last_takeover(row: OwnerRow) -> LastTakeover:
    return LastTakeover(shard=row.shard, node=row.node or "", age=row.lost_ago or 0.0, seconds=row.outage)


def findings(watch: Watch, needed: Collection[int], database: Database) -> Iterator[Finding]:
    """Yield what is as it should be, and what must be changed. All nodes find the same."""
    yield _good("postgresql", f"PostgreSQL {database.version} at {database.address}")
    yield from _replication(database)
    nodes = sorted(watch.nodes.values(), key=lambda node: node.name)
    live = [node for node in nodes if node.live]
    yield from _clocks(live)
    yield from _versions(live, watch.format)
    yield from _transactions(database)
    yield from _nodes(watch, nodes)
    yield from _links(watch)
    missing = unowned(watch, needed)
    if missing:
        yield _bad(
            "shards",
            f"{_named('shard', missing)} without an owner that lives",
            "wait a second for a take-over; then see the logs of the nodes, or let one that drains own shards again with"
            " `leveret cluster drain NODE --off`",
        )
    else:
        yield _good("shards", "each shard with vhosts has an owner")


def _good(check: str, text: str) -> Finding:
    return Finding(check=check, good=True, text=text, remedy="")


def _bad(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, good=False, text=text, remedy=remedy)


def _named(noun: str, names: Iterable[object]) -> str:
    found = [str(name) for name in names]
    return f"{noun}{'s' if len(found) > 1 else ''} {', '.join(found)}"


def _replication(database: Database) -> Iterator[Finding]:
    hidden = [standby for standby in database.standbys if not standby.sync]
    synchronous = [standby for standby in database.standbys if standby.sync in _SYNCHRONOUS]
    wait = max(database.waits, default=0.0)
    if not database.synchronous:
        yield _good("replication", "one disk: no synchronous standby, as 'cluster.unreplicated' allows")
    elif wait >= MIN_WAIT:
        yield _bad(
            "replication",
            f"{len(database.waits)} transactions wait for a synchronous standby, one for {wait:.1f} seconds",
            f"start the standbys of '{database.synchronous}' (synchronous_standby_names), or check their connections",
        )
    elif hidden:
        yield _bad(
            "replication",
            f"the user '{database.user}' may not see the states of the standbys",
            f'as an administrator of PostgreSQL: GRANT pg_monitor TO "{database.user}"',
        )
    elif not synchronous:
        yield _bad(
            "replication",
            "no synchronous standby is connected: nothing is confirmed",
            f"start the standbys of '{database.synchronous}' (synchronous_standby_names)",
        )
    else:
        yield _good("replication", f"synchronous {_named('standby', [standby.name for standby in synchronous])}")


def _clocks(nodes: Iterable[NodeRow]) -> Iterator[Finding]:
    off = [node for node in nodes if node.clock is not None and abs(node.clock) > MAX_CLOCK_DIFFERENCE]
    for node in off:
        assert node.clock is not None
        yield _bad(
            "clocks",
            f"the clock of node '{node.name}' is {abs(node.clock):.2f} seconds {'ahead of' if node.clock > 0 else 'behind'}"
            f" PostgreSQL's; expected at most {MAX_CLOCK_DIFFERENCE:g}",
            "synchronize the clocks of the node's machine and the database server, such as by NTP",
        )
    if not off:
        yield _good("clocks", f"all within {MAX_CLOCK_DIFFERENCE:g} seconds of PostgreSQL's")


def _versions(nodes: Iterable[NodeRow], format: int) -> Iterator[Finding]:
    by_version: dict[str, list[str]] = {}
    for node in nodes:
        by_version.setdefault(f"{node.leveret} (format {node.format or 1})", []).append(node.name)
    known = f"the database has format {format}"
    if len(by_version) > 1:
        shown = "; ".join(f"{version}: {_named('node', names)}" for version, names in sorted(by_version.items()))
        yield _bad("versions", f"{shown}; {known}", "finish the upgrade: install the same version of Leveret on all nodes")
    else:
        yield _good("versions", "; ".join([*by_version, known]))


def _transactions(database: Database) -> Iterator[Finding]:
    age = f"{database.transaction_age / 1e6:.0f} million"
    if database.transaction_age >= MAX_TRANSACTION_AGE:
        yield _bad(
            "transaction ids",
            f"the oldest one is {age} transactions old; PostgreSQL stops at 2000 million",
            "end what keeps autovacuum from freezing (unused replication slots, prepared and long transactions), then run"
            " VACUUM (FREEZE) in the database",
        )
    else:
        yield _good("transaction ids", f"the oldest one is {age} transactions old")
    for slot in database.slots:
        yield _bad(
            "replication slots",
            f"nothing uses the slot '{slot.name}', which keeps {slot.bytes / (1 << 20):.1f} MiB of the write-ahead log",
            f"start its standby, or drop it: SELECT pg_drop_replication_slot('{slot.name}')",
        )
    if not database.slots:
        yield _good("replication slots", "none is unused")
    forgotten = [prepared for prepared in database.prepared if prepared.age >= _MAX_PREPARED_AGE]
    for prepared in forgotten:
        yield _bad(
            "prepared transactions",
            f"'{prepared.name}' was prepared {prepared.age:.0f} seconds ago, and keeps autovacuum from cleaning up",
            f"end it in its database: COMMIT PREPARED '{prepared.name}' or ROLLBACK PREPARED '{prepared.name}'",
        )
    if not forgotten:
        yield _good("prepared transactions", "none is forgotten")


def _nodes(watch: Watch, nodes: Collection[NodeRow]) -> Iterator[Finding]:
    gone = [node.name for node in nodes if watch.is_gone(node)]
    for name in gone:
        yield _bad(
            "nodes",
            f"node '{name}' shows no sign of life",
            f"start it, or remove it from the list with `leveret cluster forget {name}`",
        )
    if not gone:
        yield _good("nodes", f"{_named('node', [node.name for node in nodes])} live")


def _links(watch: Watch) -> Iterator[Finding]:
    found = unreached(watch)
    for name, others in found.items():
        drains = [
            f"; `leveret cluster drain {one}` moves its shards to the others until then"
            for one in (name, *others)
            if is_isolated(watch, one)
        ]
        yield _bad(
            "links",
            f"node '{name}' does not reach {_named('node', others)}, and its clients do not reach the vhosts there",
            "let it connect to the addresses of `leveret cluster nodes`; its log says what is wrong" + "".join(drains),
        )
    if not found:
        yield _good("links", "all nodes reach each other")

"""The owners of the shards, by repeated looks at the database, and the shards that a node should claim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from leveret.storage.cluster import MIN_LOOKS, Observed, Silence

# Seconds between two looks, and in which one is answered unless the server or this machine is slow.
INTERVAL: Final = 0.1
# Seconds for owners to connect to the server again after it did not answer: their pause, an attempt at a host that does not
# answer, and one at the next host.
RECONNECT_TIME: Final = 3.0
# Seconds between the claims of two nodes, so that the node with the fewest shards is first.
STEP: Final = 0.03
# Seconds for which a free shard is left to the node that it is to move to.
MOVE_TIMEOUT: Final = 2.0
# Bytes of a short string of AMQP 0-9.
_MAX_SHORTSTR: Final = 255


class OwnerRow(msgspec.Struct, frozen=True):
    """A shard in the database.

    Attributes:
        shard: Its number.
        epoch: The epoch of its last owner.
        committed: The number of the last commit.
        node: The name of its owner; None if it has none.
        seen: The last sign of life.
        wanted: The name of the node that it is to move to, or None.
        takeovers: How often it was claimed although its owner had not released it.
        lost_ago: Seconds since the last sign of life of that owner, before the last take-over.
        outage: Seconds from then until the shard served again; None if there was no take-over, or it is in progress.
        in_session: Whether the database session in which this owner commits exists.
    """

    shard: int
    epoch: int = 0
    committed: int = 0
    node: str | None = None
    seen: str | None = None
    wanted: str | None = None
    takeovers: int = 0
    lost_ago: float | None = None
    outage: float | None = None
    in_session: bool = False

    def state(self) -> Observed:
        """Return what changes as long as the owner lives."""
        return Observed(self.epoch, self.committed, self.seen)


class NodeRow(msgspec.Struct, frozen=True):
    """A node in the database.

    Attributes:
        name: Its name.
        incarnation: The run of its front.
        address: Where it listens for other nodes.
        leveret: Its version of Leveret.
        applied: The version of the shared records that it has applied.
        draining: Whether it claims no shards, and moves away those that it has.
        live: Whether it has shown a sign of life lately, by PostgreSQL's clock.
        clock: Seconds by which its clock is ahead of PostgreSQL's; None if that is not known yet.
        format: The format of the database that it writes; None for a version that does not say.
        unreachable: The names of the nodes that it did not reach when it last tried.
    """

    name: str
    incarnation: str
    address: str
    leveret: str
    applied: int
    draining: bool
    live: bool
    clock: float | None = None
    format: int | None = None
    unreachable: list[str] = []


class View(msgspec.Struct, frozen=True):
    """The result of a look: the version of the shared records, the shards, and the nodes.

    Attributes:
        shards: The number of shards; None before the first start of a node has finished.
        format: The format of the database.
        link_format: The format of messages between nodes.
        now: PostgreSQL's clock, in seconds of Unix time.
        started: When the server was started, by that clock.
    """

    version: int
    shards: int | None
    owners: list[OwnerRow]
    nodes: list[NodeRow]
    format: int = 1
    link_format: int = 1
    now: float = 0.0
    started: float = 0.0


class Announcement(msgspec.Struct, frozen=True):
    """The announcement of a live node to the others, once a second.

    Attributes:
        name: Its name.
        clients: Where clients connect to it: without TLS and with TLS, as "HOST:PORT" or "".
        usage: The numbers of connections and channels in its shards, by user.
    """

    name: str
    clients: tuple[str, str] = ("", "")
    usage: dict[str, tuple[int, int]] = {}


def known_hosts(nodes: Iterable[Announcement]) -> str:
    """Return the addresses of nodes for `known-hosts` of AMQP 0-9, as many as it takes."""
    hosts = ""
    for node in sorted(nodes, key=lambda node: node.name):
        address = node.clients[0] or node.clients[1]
        longer = f"{hosts},{address}" if hosts and address else hosts or address
        if len(longer.encode()) <= _MAX_SHORTSTR:
            hosts = longer
    return hosts


class _Session:
    """The database session of an owner.

    Attributes:
        epoch: The epoch of the owner.
        started: When the server was started that has had the session.
        ended: The state of the shard when the session was first missing; None while the session exists.
    """

    def __init__(self, epoch: int, started: float) -> None:
        self.epoch = epoch
        self.started = started
        self.ended: Observed | None = None


class Watch:
    """The view of one node.

    Args:
        name: The name of the node.
        lease: Seconds without a sign of life after which an owner is gone.

    Attributes:
        owners: The shards by number, as of the last look.
        nodes: The nodes by name, as of the last look.
        version: The version of the shared records.
        shards: The number of shards; None before the first start of a node has finished.
        format: The format of the database.
        restarts: When each node was seen in another incarnation than before, by the clock of this process.
        moved: When each shard was seen in another node than before, which drains, by the same clock.
        retired: When a node that had drained was last seen to leave the list.
    """

    def __init__(self, name: str, lease: float) -> None:
        self._name = name
        self._lease = lease
        self.owners: dict[int, OwnerRow] = {}
        self.nodes: dict[str, NodeRow] = {}
        self.version = 0
        self.shards: int | None = None
        self.format = 0
        self.restarts: dict[str, float] = {}
        self.moved: dict[int, float] = {}
        self.retired = -math.inf
        self._incarnations: dict[str, str] = {}
        # The last owner of each shard, and the nodes that drained at the last look.
        self._homes: dict[int, str] = {}
        self._draining: set[str] = set()
        # The last state of each shard, and how long it has been the same.
        self._unchanged: dict[int, tuple[Observed, Silence]] = {}
        # When the last look was answered, and whether the server did not answer one since.
        self._looked = 0.0
        self._is_interrupted = False
        # For each node that was live: the looks in which it was not.
        self._absent: dict[str, int] = {}
        # When each shard that a node may claim was first seen so.
        self._free: dict[int, float] = {}
        # Shards whose process in this node has ended.
        self._dead: set[int] = set()
        # The sessions of owners that were seen.
        self._sessions: dict[int, _Session] = {}
        # Shards of other nodes whose session has ended, and whose node did not listen any more, with their state then.
        self._deserted: dict[int, Observed] = {}

    def observe(self, view: View, asked: float, answered: float) -> None:
        """Note what a look has found. The times are those of the clock of this process."""
        self.version = view.version
        self.shards = view.shards
        self.format = view.format
        self.nodes = {node.name: node for node in view.nodes}
        self.owners = {owner.shard: owner for owner in view.owners}
        is_prompt = answered - asked <= INTERVAL
        self._note_drains(answered)
        pause = answered - self._looked
        allowance = RECONNECT_TIME if self._is_interrupted else 0.0
        if self._is_interrupted:
            self._free.clear()
        self._looked, self._is_interrupted = answered, False
        for node in view.nodes:
            if node.live:
                self._absent[node.name] = 0
            if self._incarnations.setdefault(node.name, node.incarnation) != node.incarnation:
                self._incarnations[node.name] = node.incarnation
                self.restarts[node.name] = answered
        for number, owner in self.owners.items():
            known = self._unchanged.get(number)
            if known is None:
                self._unchanged[number] = owner.state(), Silence(self._lease, INTERVAL, allowance)
            elif known[0] != owner.state():
                self._unchanged[number] = owner.state(), Silence(self._lease, INTERVAL)
            else:
                known[1].note(answered - asked, pause)
            self._note_session(owner, view.started, is_prompt=is_prompt)
            if not self._is_free(owner):
                self._free.pop(number, None)
            else:
                self._free.setdefault(number, answered)

        for name in self._absent:
            if not self._is_live(name):
                self._absent[name] = self._absent[name] + 1 if is_prompt else 0

    def _note_drains(self, now: float) -> None:
        """Note the shards that have left nodes which drain, and such nodes that have left the list."""
        draining = {node.name for node in self.nodes.values() if node.draining}
        if not self._draining <= self.nodes.keys():
            self.retired = now
        for number, owner in self.owners.items():
            if owner.node is not None and self._homes.setdefault(number, owner.node) != owner.node:
                if self._homes[number] in self._draining | draining:
                    self.moved[number] = now
                self._homes[number] = owner.node
        self._draining = draining

    def _note_session(self, owner: OwnerRow, started: float, *, is_prompt: bool) -> None:
        """Note whether the session of an owner exists."""
        if owner.in_session:
            self._sessions[owner.shard] = _Session(owner.epoch, started)
            return
        known = self._sessions.get(owner.shard)
        if known is None or not is_prompt:
            return
        if known.ended is None:
            known.ended = owner.state()
        if owner.node is None or (owner.epoch, started) != (known.epoch, known.started) or owner.state() != known.ended:
            # The server was restarted, or the owner shows signs of life without the session, as through a pooler.
            del self._sessions[owner.shard]

    def is_moving_on(self, shard: int, now: float, seconds: float) -> bool:
        """Return whether clients of a shard reconnect, because a node has drained or stopped some seconds ago."""
        return now - max(self.moved.get(shard, -math.inf), self.retired) < seconds

    def suspects(self) -> dict[str, str]:
        """Return the other nodes with a shard whose session has ended without a sign of life since: names and addresses."""
        names = {owner.node for owner in self._without_session() if owner.shard not in self._deserted} - {self._name}
        return {node.name: node.address for node in self.nodes.values() if node.name in names}

    def _without_session(self) -> list[OwnerRow]:
        sessions = self._sessions
        return [row for number, row in self.owners.items() if number in sessions and sessions[number].ended is not None]

    def note_desertion(self, name: str, now: float) -> None:
        """Note that a node which is suspect does not listen: no node needs to wait for the leases of these shards."""
        for owner in self._without_session():
            if owner.node == name:
                self._deserted[owner.shard] = owner.state()
                self._free.setdefault(owner.shard, now)

    def _is_live(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.live

    def lost_nodes(self) -> list[str]:
        """Return the names of the nodes that are gone, each once."""
        lost = [name for name, looks in self._absent.items() if looks >= MIN_LOOKS]
        for name in lost:
            del self._absent[name]
        return lost

    def interrupt(self) -> None:
        """Note that the server does not answer: all owners may connect again, and then have their whole lease.

        What is known stays known until the next look.
        """
        self._is_interrupted = True
        self._unchanged.clear()
        self._sessions.clear()
        self._deserted.clear()
        self._absent = dict.fromkeys(self._absent, 0)

    def note_death(self, number: int) -> None:
        """Note that the process of a shard in this node has ended: no node needs to wait for its lease."""
        self._dead.add(number)

    def note_claim(self, number: int) -> None:
        """Note that this node claims a shard."""
        self._dead.discard(number)

    def _is_free(self, owner: OwnerRow) -> bool:
        if owner.node is None:
            return True
        if owner.shard in self._dead and owner.node == self._name:
            return True
        self._dead.discard(owner.shard)
        if self._deserted.get(owner.shard) == owner.state() and not owner.in_session:
            return True
        self._deserted.pop(owner.shard, None)
        return self._unchanged[owner.shard][1].is_over()

    def owner_of(self, number: int) -> str | None:
        """Return the node that owns a shard; None if none does, or if that is gone."""
        owner = self.owners.get(number)
        return None if owner is None or number in self._free else owner.node

    def is_gone(self, node: NodeRow) -> bool:
        """Return whether a node shows no sign of life, nor does any of its shards: one look of it may be late."""
        return not node.live and not any(self.owner_of(number) == node.name for number in self.owners)

    def claims(self, now: float, wanted: Collection[int], running: Collection[int]) -> list[OwnerRow]:
        """Return the shards that this node should claim now.

        Args:
            now: The time, by the clock of this process.
            wanted: The shards that need an owner.
            running: The shards that have a process in this node.
        """
        own = self.nodes.get(self._name)
        if own is None or own.draining:
            return []
        counts = Counter(owner.node for owner in self.owners.values() if owner.shard not in self._free)
        counts[self._name] = len(running)
        absent = {self._name, *(owner.node for owner in self.owners.values() if owner.shard in self._deserted)}
        others = [node.name for node in self.nodes.values() if node.live and not node.draining and node.name not in absent]
        found: list[OwnerRow] = []
        for number in sorted(wanted):
            owner = self.owners.get(number, OwnerRow(number))
            if number in running or (number in self.owners and number not in self._free):
                continue
            since = self._free.setdefault(number, now)
            if owner.wanted in others and now - since < MOVE_TIMEOUT:
                continue
            rank = sum((counts[name], name) < (counts[self._name], self._name) for name in others)
            if owner.wanted == self._name or number in self._dead or now - since >= rank * STEP:
                found.append(owner)
                counts[self._name] += 1
        return found

"""The nodes as operators see them: their list, moves of shards between them, and the balance of their numbers of shards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.errors import NotFound, PreconditionFailed, StorageFailed
from leveret.cluster.condition import Database, findings, state_of, status_of
from leveret.management.operations.nodes import NodeDetails
from leveret.management.operations.shards import READY

if TYPE_CHECKING:
    from leveret.cluster.directory import Directory
    from leveret.cluster.nodes import NodeShard
    from leveret.cluster.watch import Watch
    from leveret.management.operations.cluster import ClusterStatus, Finding

# Seconds for a shard to move, and for a node to move all its shards away.
MOVE_TIMEOUT: Final = 30.0
DRAIN_TIMEOUT: Final = 80.0
# Seconds without a change of owners and nodes before a node balances their numbers of shards.
SETTLED: Final = 2.0
# The same after the restart of a node, which may be followed by that of another one.
RESTART_PAUSE: Final = 60.0
# Seconds for which a node that was restarted is unlikely to be restarted again.
_ROUND: Final = 3600.0
# Seconds for the database to tell its condition, and the age from which that is asked for again.
_ANSWER_TIMEOUT: Final = 3.0
_MAX_AGE: Final = 1.0
# Seconds in which a look finds a node that was ready before: it comes ten times a second.
_LOOK_TIMEOUT: Final = 1.0


class Cluster:
    """The nodes.

    Args:
        name: The name of this node.
        directory: The database.
        watch: What this node knows of the others.
        shards: The shards.
        until: Waits for a condition, which it checks after each look at the database.
        needed: Returns the shards that need an owner.
        balances: Whether this node moves shards to nodes that have fewer.
    """

    def __init__(
        self,
        name: str,
        directory: Directory,
        watch: Watch,
        shards: Sequence[NodeShard],
        until: Callable[[Callable[[], bool]], Coroutine[Any, Any, None]],
        needed: Callable[[], set[int]],
        *,
        balances: bool,
    ) -> None:
        self._name = name
        self._directory = directory
        self._watch = watch
        self._shards = shards
        self._until = until
        self._needed = needed
        self._balances = balances
        # The owners and live nodes, and since when they are the same.
        self._state: object = None
        self._since = 0.0
        # The condition of the database, when it was asked for, and why the last answer is missing.
        self._database: Database | None = None
        self._asked = 0.0
        self._problem = ""
        self._asking: asyncio.Task[None] | None = None

    # For operators

    def list_nodes(self) -> list[NodeDetails]:
        """Return the nodes by name."""
        return [
            NodeDetails(
                name=node.name,
                state=state_of(self._watch, node),
                address=node.address,
                version=node.leveret,
                shards=sorted(self._owned(node.name)),
                here=node.name == self._name,
                clock=node.clock,
                format=node.format,
                unreachable=node.unreachable,
            )
            for node in sorted(self._watch.nodes.values(), key=lambda node: node.name)
        ]

    async def status(self) -> ClusterStatus:
        """Return the cluster at a glance, as of now if the database answers."""
        await self._ask()
        return self.last_status()

    def last_status(self) -> ClusterStatus:
        """Return the cluster at a glance, as the database was a short while ago. Asks it again if that is too old."""
        if time.monotonic() - self._asked >= _MAX_AGE:
            self._begin_to_ask()
        return status_of(self._watch, self._needed(), self._database, self._problem)

    async def check(self) -> list[Finding]:
        """Return what must be changed, and what not. Raises `StorageFailed` if the database does not answer."""
        await self._ask()
        if self._problem or self._database is None:
            raise StorageFailed(self._problem or "PostgreSQL has not answered yet")
        return list(findings(self._watch, self._needed(), self._database))

    def _begin_to_ask(self) -> asyncio.Task[None]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._read_database())
        return self._asking

    async def _ask(self) -> None:
        """Ask the database for its condition, and wait a while for the answer."""
        if not (await asyncio.wait([self._begin_to_ask()], timeout=_ANSWER_TIMEOUT))[0]:
            self._problem = f"PostgreSQL has not answered within {_ANSWER_TIMEOUT:g} seconds"

    async def _read_database(self) -> None:
        self._asked = time.monotonic()
        try:
            self._database = await self._directory.condition()
            self._problem = ""
        except StorageFailed as error:
            self._problem = str(error)

    async def move(self, shard: int, node: str) -> dict[str, Any]:
        """Move a shard to a node, and wait until it serves there.

        Returns:
            The result for the audit log, as those of the following ones: the node that has owned the shard.

        Raises:
            NotFound: There is no such node.
            PreconditionFailed: There is no such shard, or the node takes none.
            StorageFailed: The move takes too long.
        """
        await self._find(node)
        if not 0 <= shard < len(self._shards):
            raise PreconditionFailed(f"shard {shard} does not exist; expected 0 to {len(self._shards) - 1}")
        if node not in self._takers():
            raise PreconditionFailed(
                f"node '{node}' is {state_of(self._watch, self._watch.nodes[node])}; expected one that takes shards:"
                f" {_named(self._takers()) or 'there is none'}"
            )
        owner = self._watch.owners.get(shard)
        if owner is None or owner.node is None:
            if shard in self._needed():
                raise PreconditionFailed(f"shard {shard} has no owner yet; wait until a node has claimed it")
            raise PreconditionFailed(f"shard {shard} has no owner, because it has no vhosts; expected one with vhosts")
        async with _limit(MOVE_TIMEOUT, f"shard {shard} has not moved to node '{node}'"):
            if owner.node != node:
                await self._directory.want(shard, node)
            await self._until(lambda: self._shards[shard].node == node and self._shards[shard].state == READY)
        return {"from": owner.node}

    async def drain(self, node: str, *, on: bool) -> dict[str, Any]:
        """Have a node move its shards away, and wait until it has none; or let it own shards again.

        Returns:
            The shards that it has had.

        Raises:
            NotFound: There is no such node.
            PreconditionFailed: There is no other node that takes shards.
            StorageFailed: The node still has shards after a while.
        """
        await self._find(node)
        if on and not set(self._takers()) - {node}:
            raise PreconditionFailed(
                f"no other node than '{node}' takes shards; start one, or let one own shards again with"
                " `leveret cluster drain NODE --off`"
            )
        owned = sorted(self._owned(node))
        problem = f"node '{node}' still has shards" if on else f"node '{node}' still drains"
        async with _limit(DRAIN_TIMEOUT, problem):
            await self._directory.drain(node, on)
            # A node that stops meanwhile leaves the list, and its shards are free.
            await self._until(
                lambda: self._is_draining(node) in (on, None) and not (on and (self._owned(node) or self._is_moving()))
            )
        return {"shards": owned}

    async def forget(self, node: str) -> dict[str, Any]:
        """Remove a node that is gone from the list. Returns its address.

        Raises `NotFound`, or `PreconditionFailed` if it is alive.
        """
        self._check_node(node)
        address = self._watch.nodes[node].address
        async with _limit(MOVE_TIMEOUT, f"node '{node}' is still in the list"):
            if not await self._directory.forget(node):
                raise PreconditionFailed(f"node '{node}' is alive; stop it first")
            await self._until(lambda: node not in self._watch.nodes)
        return {"address": address}

    async def _find(self, node: str) -> None:
        """Check that a node exists, after a look if need be: it may have started since the last one."""

        def is_live() -> bool:
            found = self._watch.nodes.get(node)
            return found is not None and found.live

        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_TIMEOUT):
                await self._until(is_live)
        self._check_node(node)

    def _check_node(self, node: str) -> None:
        if node not in self._watch.nodes:
            raise NotFound(f"node '{node}' does not exist; expected one of {_named(self._watch.nodes)}")

    # After each look

    def _owned(self, node: str) -> list[int]:
        return [owner.shard for owner in self._watch.owners.values() if owner.node == node]

    def _is_draining(self, node: str) -> bool | None:
        """Return whether a node drains; None if it is not in the list any more."""
        found = self._watch.nodes.get(node)
        return None if found is None else found.draining

    def _is_moving(self) -> bool:
        """Return whether a shard is between two nodes."""
        return any(owner.node is None and owner.wanted is not None for owner in self._watch.owners.values())

    def _takers(self) -> list[str]:
        """Return the names of the nodes that take shards."""
        return [node.name for node in self._watch.nodes.values() if node.live and not node.draining]

    def has_other_takers(self) -> bool:
        """Return whether other nodes take shards."""
        return any(name != self._name for name in self._takers())

    def leaving(self) -> list[int]:
        """Return the shards of this node that are to move to others now."""
        takers = self._takers()
        return [
            owner.shard
            for owner in self._watch.owners.values()
            if owner.node == self._name and owner.wanted in takers and owner.wanted != self._name
        ]

    def next_move(self) -> tuple[int, str] | None:
        """Return a shard of this node that another one should have, and that node; None if there is none."""
        takers = self._takers()
        if any(owner.wanted in takers for owner in self._watch.owners.values()):
            return None  # one after another
        own = self._owned(self._name)
        others = [name for name in takers if name != self._name]
        if not own or not others:
            return None
        now = time.monotonic()
        fewest = min(others, key=lambda name: (len(self._owned(name)), name))
        if self._watch.nodes[self._name].draining:
            # When all nodes are restarted, a shard should not move to one that is still to be.
            fewest = min(others, key=lambda name: (not self._is_restarted(name, now), len(self._owned(name)), name))
        elif not self._balances or not self._is_settled(now) or len(own) < len(self._owned(fewest)) + 2:
            return None
        return min(own, key=lambda number: self._shards[number].connections), fewest

    def _is_restarted(self, node: str, now: float) -> bool:
        """Return whether a node was restarted lately, while this one was running."""
        return now - self._watch.restarts.get(node, -_ROUND) < _ROUND

    def note_look(self) -> None:
        """Note the owners and nodes that a look has found."""
        state = ({shard: owner.node for shard, owner in self._watch.owners.items()}, set(self._takers()))
        if state != self._state:
            self._state, self._since = state, time.monotonic()

    def _is_settled(self, now: float) -> bool:
        last = max(self._watch.restarts.values(), default=now - RESTART_PAUSE)
        return now - self._since >= SETTLED and now - last >= RESTART_PAUSE


def _named(nodes: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(nodes))


@asynccontextmanager
async def _limit(timeout: float, problem: str) -> AsyncIterator[None]:
    """Return a context that takes at most some seconds. Raises `StorageFailed` with the problem if it takes longer."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise StorageFailed(f"{problem} after {timeout:g} seconds; see `leveret cluster check`") from None

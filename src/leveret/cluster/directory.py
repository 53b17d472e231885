"""The tables of the nodes in PostgreSQL: the list of the nodes, the owners of the shards, and the shared records."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec
import psycopg

from leveret._build import __version__
from leveret.broker.errors import StorageFailed
from leveret.cluster.watch import View
from leveret.node.part import Record
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_joining import check_shards, join
from leveret.storage.postgres_session import Session, StoreLost, Unfit, unopened
from leveret.storage.worker import StoreBroken, StoreFull

logger = logging.getLogger("leveret.cluster")

Result = TypeVar("Result")

# Pauses between attempts to connect again.
_FIRST_DELAY: Final = 0.05
_MAX_DELAY: Final = 1.0
_SCHEMA: Final = "leveret"
# Seconds in which a node of the same name must show a sign of life, and the pause between two looks at it.
_NAME_TIMEOUT: Final = 2.0
_NAME_INTERVAL: Final = 0.1

# The version belongs to the change that raised it: the row stays locked until its records are committed.
_PUT: Final = (
    "WITH raised AS (UPDATE leveret.cluster SET version = version + 1 RETURNING version)"
    " INSERT INTO leveret.shared SELECT r.kind, r.key, r.value, raised.version"
    " FROM raised, unnest(?::text[], ?::bytea[], ?::bytea[]) r(kind, key, value)"
    " ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, version = excluded.version{condition}"
    " RETURNING version"
)
_PUT_ALWAYS: Final = _PUT.format(condition="")
_PUT_NEW: Final = _PUT.format(condition=" WHERE shared.value IS NULL")
_RECORDS: Final = "SELECT kind, key, value, version FROM leveret.shared WHERE version > ?"
# A look is also a sign of life, which need not reach the disk.
_LOOK: Final = (
    "WITH own AS (UPDATE leveret.node SET seen = clock_timestamp(), applied = ? WHERE name = ? AND incarnation = ?"
    " RETURNING set_config('synchronous_commit', 'off', true))"
    " SELECT (SELECT count(*) FROM own), (SELECT json_build_object('version', version, 'shards', shards, 'owners',"
    " (SELECT coalesce(json_agg(o), '[]') FROM (SELECT shard, epoch, committed, node, seen, wanted FROM leveret.owner) o),"
    " 'nodes', (SELECT coalesce(json_agg(n), '[]') FROM (SELECT name, incarnation, address, leveret, applied, draining,"
    " coalesce(seen > clock_timestamp() - interval '3 seconds', false) AS live FROM leveret.node) n))::text"
    " FROM leveret.cluster)"
)
_ENTER: Final = (
    "INSERT INTO leveret.node(name, incarnation, address, leveret, seen, applied, draining)"
    " VALUES (?, ?, ?, ?, clock_timestamp(), 0, false) ON CONFLICT (name) DO UPDATE SET incarnation = excluded.incarnation,"
    " address = excluded.address, leveret = excluded.leveret, seen = excluded.seen, applied = 0, draining = false"
    " WHERE node.seen IS NOT DISTINCT FROM ?"
)


class NameTaken(StorageFailed):
    """Another node has the name of this one."""


class Directory:
    """The tables that all nodes share. Its statements run in a thread of its own.

    Args:
        settings: The place of the database. The number of its shards must be that of the database.

    Attributes:
        name: The name of this node.
        secret: The secret of the cluster, which nodes prove to each other; empty before `join`.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self.name = settings.node
        self.secret = b""
        self._incarnation = uuid.uuid4()
        self._address = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="leveret-directory")
        self._session: Session | None = None
        self._facts = ""

    def describe(self) -> str:
        """Return what the database is, for operators."""
        return self._facts

    async def join(self) -> None:
        """Create the schema unless it exists.

        Raises:
            StorageFailed: The database cannot be used, or has another number of shards.
        """
        await self._once(self._join)

    async def enter(self, address: str) -> None:
        """Enter this node in the list.

        Args:
            address: Where the node listens for others.

        Raises:
            NameTaken: Another node has its name.
            StorageFailed: The database cannot be used.
        """
        self._address = address
        await self._once(self._enter)

    async def leave(self) -> None:
        """Remove this node from the list. Raises `StorageFailed`."""
        await self._once(self._leave)

    async def begin(self, records: Iterable[Record]) -> None:
        """Set the number of shards and the first shared records, unless another node has done so. Raises as `join`."""
        first = list(records)
        await self._once(lambda: self._begin(first))

    async def look(self, applied: int) -> View:
        """Show a sign of life, and return the owners and the nodes.

        Args:
            applied: The version of the shared records that this node has applied.

        Raises:
            NameTaken: Another node has the name of this one.
            StorageFailed: The database does not answer.
        """
        return await self._once(lambda: self._look(applied))

    async def records(self, version: int) -> tuple[int, list[Record]]:
        """Return the version of the shared records, and the records after another version. Raises `StorageFailed`."""
        return await self._once(lambda: self._records(version))

    async def put(self, records: Iterable[Record]) -> int:
        """Store changes of shared records, on all disks that they must be on, however long that takes.

        Returns:
            The version of the changes.
        """
        changed = list(records)
        return await self._always(lambda: self._put(_PUT_ALWAYS, changed))

    async def put_new(self, records: Iterable[Record]) -> None:
        """Store shared records that do not exist yet; the others stay as they are. Raises `StorageFailed`."""
        new = list(records)
        await self._once(lambda: self._put(_PUT_NEW, new))

    async def want(self, shard: int, node: str) -> None:
        """Note that a shard is to move to a node. Raises `StorageFailed`."""
        await self._once(lambda: self._change("UPDATE leveret.owner SET wanted = ? WHERE shard = ?", node, shard))

    async def drain(self, node: str, on: bool) -> None:
        """Note whether a node is to own no shards. Raises `StorageFailed`."""
        await self._once(lambda: self._change("UPDATE leveret.node SET draining = ? WHERE name = ?", on, node))

    async def forget(self, node: str) -> bool:
        """Remove a node that shows no signs of life from the list. Return whether it was there. Raises `StorageFailed`."""
        gone = "(seen IS NULL OR seen < clock_timestamp() - interval '3 seconds')"
        return await self._once(lambda: self._change(f"DELETE FROM leveret.node WHERE name = ? AND {gone}", node))

    def close(self) -> None:
        """Close the connection. Does not wait for a statement that the server does not answer."""
        self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)

    # On the event loop

    async def _once(self, work: Callable[[], Result]) -> Result:
        """Run work in the thread. Raises `StorageFailed`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def _always(self, work: Callable[[], Result]) -> Result:
        """Run work in the thread until it succeeds."""
        delay = _FIRST_DELAY
        reason = ""
        while True:
            try:
                return await self._once(work)
            except StorageFailed as error:
                if str(error) != reason:
                    reason = str(error)
                    logger.error("shared records cannot be stored yet: %s", reason)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_DELAY)

    # In the thread

    def _run(self, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except (psycopg.Error, Unfit, StoreLost, StoreFull, StoreBroken) as error:
            self._disconnect()
            raise unopened(error) from None

    def _connected(self) -> Session:
        if self._session is None:
            session = self._session = Session(self._settings, _SCHEMA)
            standbys = session.facts.standbys
            where = f"synchronous standbys: {standbys}" if standbys else "one disk (no synchronous standby)"
            self._facts = f"PostgreSQL {session.facts.version}, {self._settings.shards} shards, {where}"
        return self._session

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _row(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._connected().execute(query, values).fetchone()
        return row

    @contextmanager
    def _replicated(self) -> Iterator[Session]:
        """Return the connection for statements that are on all disks that they must be on when the context ends."""
        session = self._connected()
        session.warned = False
        yield session
        session.replicate()

    def _change(self, statement: str, *values: Any) -> bool:
        with self._replicated() as session:
            return session.execute(statement, values).rowcount > 0

    def _join(self) -> None:
        session = self._connected()
        join(session)
        check_shards(session, self._settings.shards)
        row = self._row("SELECT secret FROM leveret.cluster")
        assert row is not None
        self.secret = row[0]

    def _enter(self) -> None:
        find = "SELECT address, seen FROM leveret.node WHERE name = ? AND seen > clock_timestamp() - interval '3 seconds'"
        found = last = self._row(find, self.name)
        deadline = time.monotonic() + _NAME_TIMEOUT
        # A node of this name may have ended a moment ago.
        while found is not None and last is not None and time.monotonic() < deadline:
            if found[1] != last[1]:
                raise self._name_taken(found[0])
            time.sleep(_NAME_INTERVAL)
            found = self._row(find, self.name)
        row = self._row("SELECT seen FROM leveret.node WHERE name = ?", self.name)
        values = (self.name, self._incarnation, self._address, __version__, None if row is None else row[0])
        with self._replicated() as session:
            if not session.execute(_ENTER, values).rowcount:
                raise self._name_taken("")

    def _name_taken(self, address: str) -> NameTaken:
        where = f" (listening for nodes on {address})" if address else ""
        return NameTaken(
            f"'cluster.name' is '{self.name}', which is the name of another live node{where}; expected another name"
        )

    def _leave(self) -> None:
        self._row("DELETE FROM leveret.node WHERE name = ? AND incarnation = ? RETURNING 1", self.name, self._incarnation)

    def _begin(self, records: list[Record]) -> None:
        with self._replicated() as session, session.transaction():
            # A second first node waits here for the transaction of the other one, and finds that it is not the first.
            changed = session.execute(
                "UPDATE leveret.cluster SET shards = ? WHERE shards IS NULL RETURNING shards", (self._settings.shards,)
            )
            if changed.fetchone() is not None:
                session.execute(_PUT_ALWAYS, _columns(records))
        check_shards(self._connected(), self._settings.shards)

    def _look(self, applied: int) -> View:
        row = self._row(_LOOK, applied, self.name, self._incarnation)
        assert row is not None
        if not row[0]:
            # An operator has removed a node that was away.
            self._enter()
        return msgspec.json.decode(row[1], type=View)

    def _records(self, version: int) -> tuple[int, list[Record]]:
        rows = self._connected().execute(_RECORDS, (version,)).fetchall()
        records = [(kind, key.decode("utf-8", "surrogateescape"), value) for kind, key, value, _ in rows]
        return max((row[3] for row in rows), default=version), records

    def _put(self, statement: str, records: list[Record]) -> int:
        with self._replicated() as session:
            row = session.execute(statement, _columns(records)).fetchone()
        return 0 if row is None else int(row[0])


def _columns(records: list[Record]) -> tuple[list[str], list[bytes], list[bytes | None]]:
    return (
        [kind for kind, _, _ in records],
        [key.encode("utf-8", "surrogateescape") for _, key, _ in records],
        [value for _, _, value in records],
    )

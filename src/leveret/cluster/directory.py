"""The tables of the nodes in PostgreSQL: the list of the nodes, the owners of the shards, and the shared records."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from leveret._build import __version__
from leveret.broker.errors import StorageFailed
from leveret.cluster.condition import Database
from leveret.cluster.database_thread import DatabaseThread
from leveret.cluster.watch import INTERVAL, Announcement, View
from leveret.node.part import Record
from leveret.storage.cluster import LINK_FORMAT, ClusterSettings, Server
from leveret.storage.postgres_formats import KNOWN, check_formats
from leveret.storage.postgres_joining import check_shards, join
from leveret.storage.postgres_schema import FORMAT_VERSION, OWNERS_IN_SESSION
from leveret.storage.postgres_session import NotPrimary, Session

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
    "WITH own AS (UPDATE leveret.node SET seen = clock_timestamp(), applied = ?, clock = ?"
    " WHERE name = ? AND incarnation = ? RETURNING set_config('synchronous_commit', 'off', true))"
    " SELECT (SELECT count(*) FROM own), (SELECT json_build_object('version', version, 'shards', shards, 'format', format,"
    " 'link_format', link_format,"
    " 'now', extract(epoch FROM clock_timestamp()), 'started', extract(epoch FROM pg_postmaster_start_time()),"
    " 'owners', (SELECT coalesce(json_agg(o), '[]') FROM"
    " (SELECT shard, epoch, committed, node, seen, wanted, coalesce(count, 0) AS takeovers,"
    " extract(epoch FROM clock_timestamp() - lost_at) AS lost_ago, extract(epoch FROM served_at - lost_at) AS outage,"
    f" {OWNERS_IN_SESSION} AS in_session"
    " FROM leveret.owner LEFT JOIN leveret.takeover USING (shard)) o), 'nodes', (SELECT coalesce(json_agg(n), '[]') FROM"
    " (SELECT name, incarnation, address, leveret, applied, draining,"
    " clock, format, coalesce(unreachable, '[]')::json AS unreachable,"
    " coalesce(seen > clock_timestamp() - interval '3 seconds', false) AS live FROM leveret.node) n))::text"
    " FROM leveret.cluster)"
)
# Like a look, it need not reach the disk.
_ANNOUNCE: Final = (
    "WITH given AS (SELECT ?::text AS clients, ?::text AS usage, ?::text AS unreachable), own AS (UPDATE leveret.node SET"
    " clients = given.clients, usage = given.usage, unreachable = given.unreachable FROM given WHERE name = ?"
    " AND incarnation = ? AND (node.clients, node.usage, node.unreachable) IS DISTINCT FROM"
    " (given.clients, given.usage, given.unreachable) RETURNING set_config('synchronous_commit', 'off', true))"
    " SELECT (SELECT count(*) FROM own), coalesce(json_agg(json_build_object('name', name, 'clients', clients::json,"
    " 'usage', usage::json)), '[]')::text FROM leveret.node WHERE name <> ? AND clients IS NOT NULL AND usage IS NOT NULL"
    " AND seen > clock_timestamp() - interval '3 seconds'"
)
_ENTER: Final = (
    "INSERT INTO leveret.node(name, incarnation, address, leveret, format, formats, seen, applied, draining)"
    " VALUES (?, ?, ?, ?, ?, ?, clock_timestamp(), 0, false) ON CONFLICT (name) DO UPDATE SET"
    " incarnation = excluded.incarnation, address = excluded.address, leveret = excluded.leveret,"
    " format = excluded.format, formats = excluded.formats, clock = NULL, seen = excluded.seen, applied = 0,"
    " draining = false, clients = NULL, unreachable = NULL WHERE node.seen IS NOT DISTINCT FROM ?"
)
# A shard that was taken over serves. That need not reach the disk, either.
_SERVED: Final = (
    "UPDATE leveret.takeover SET served_at = clock_timestamp() WHERE shard = ANY(?) AND served_at IS NULL"
    " RETURNING set_config('synchronous_commit', 'off', true)"
)
# Nor need this: otherwise, other nodes wait for the lease. A row is locked while the last commit waits for a standby.
_RELEASE: Final = (
    "WITH released AS (UPDATE leveret.owner SET node = NULL, incarnation = NULL WHERE shard IN (SELECT shard FROM"
    " leveret.owner WHERE node = ? AND shard = ANY(?) FOR UPDATE SKIP LOCKED) RETURNING shard, seen)"
    " INSERT INTO leveret.takeover AS known SELECT shard, 1, seen, NULL FROM released ON CONFLICT (shard) DO UPDATE SET"
    " count = known.count + 1, lost_at = excluded.lost_at, served_at = NULL"
    " RETURNING set_config('synchronous_commit', 'off', true)"
)
# Nor need these, whose row an owner or a node needs for its signs of life: it must not stay locked while the change waits
# for a standby. The caller waits for the effect.
_WANT: Final = (
    "UPDATE leveret.owner SET wanted = ? WHERE shard = ? AND node IS DISTINCT FROM ?"
    " RETURNING set_config('synchronous_commit', 'off', true)"
)
_DRAIN: Final = (
    "UPDATE leveret.node SET draining = ? WHERE name = ? RETURNING set_config('synchronous_commit', 'off', true)"
)
_LEAVE: Final = "DELETE FROM leveret.node WHERE name = ? AND incarnation = ? RETURNING 1"
_FORGET: Final = (
    "DELETE FROM leveret.node WHERE name = ? AND (seen IS NULL OR seen < clock_timestamp() - interval '3 seconds')"
    " RETURNING set_config('synchronous_commit', 'off', true)"
)
# Users without the role pg_monitor do not see the states of standbys.
_CONDITION: Final = (
    "SELECT json_build_object('version', current_setting('server_version'), 'user', current_user,"
    " 'synchronous', current_setting('synchronous_standby_names'),"
    " 'standbys', (SELECT coalesce(json_agg(s), '[]') FROM (SELECT coalesce(application_name, '') AS name,"
    " coalesce(state, '') AS state, coalesce(sync_state, '') AS sync, pg_wal_lsn_diff(pg_current_wal_flush_lsn(),"
    " flush_lsn)::bigint AS lag FROM pg_stat_replication ORDER BY 1) s),"
    " 'waits', (SELECT coalesce(json_agg(extract(epoch FROM clock_timestamp() - state_change)), '[]') FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event = 'SyncRep'),"
    " 'transaction_age', (SELECT max(age(datfrozenxid)) FROM pg_database),"
    " 'slots', (SELECT coalesce(json_agg(s), '[]') FROM (SELECT slot_name AS name, coalesce(pg_wal_lsn_diff("
    "pg_current_wal_lsn(), restart_lsn), 0)::bigint AS bytes FROM pg_replication_slots WHERE NOT active ORDER BY 1) s),"
    " 'prepared', (SELECT coalesce(json_agg(p), '[]') FROM (SELECT gid AS name, extract(epoch FROM clock_timestamp() -"
    " prepared) AS age FROM pg_prepared_xacts ORDER BY 1) p))::text"
)


class MustStop(StorageFailed):
    """This node must stop."""


class NameTaken(MustStop):
    """Another node has the name of this one."""


class Restored(MustStop):
    """The database was restored from a backup, and this node knows more than it does."""


class Directory:
    """The tables that all nodes share. Its statements run in threads of its own.

    Changes have one of them: while they wait for a standby, this node shows signs of life and finds out what it waits for.

    Args:
        settings: The place of the database. The number of its shards must be that of the database.

    Attributes:
        settings: The place of the database.
        name: The name of this node.
        secret: The secret of the cluster, which nodes prove to each other; empty before `join`.
        server: The server that was used last; None before `join`.
        link_format: The format of messages between nodes that is in use. This version may know newer ones.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.name = settings.node
        self.secret = b""
        self.server: Server | None = None
        self.link_format = LINK_FORMAT
        self._incarnation = uuid.uuid4()
        self._address = ""
        self._looks, self._changes = (
            DatabaseThread(f"leveret-directory-{name}", settings, self._connect, self._is_current)
            for name in ("looks", "changes")
        )
        # Held to note a server, by each of the threads.
        self._noting = threading.Lock()
        self._facts = ""
        # Seconds by which the clock of this machine is ahead of PostgreSQL's; None before the first look.
        self._clock: float | None = None

    def describe(self) -> str:
        """Return what the database is, for operators."""
        return self._facts

    async def join(self) -> None:
        """Create the schema unless it exists.

        Raises:
            StorageFailed: The database cannot be used, or has another number of shards.
        """
        await self._looks.run(self._join)

    async def enter(self, address: str) -> None:
        """Enter this node in the list.

        Args:
            address: Where the node listens for others.

        Raises:
            NameTaken: Another node has its name.
            StorageFailed: The database cannot be used.
        """
        self._address = address
        await self._looks.run(self._enter)

    async def leave(self) -> None:
        """Remove this node from the list. Raises `StorageFailed`."""
        await self._looks.run(self._leave)

    async def begin(self, records: Iterable[Record]) -> None:
        """Set the number of shards and the first shared records, unless another node has done so. Raises as `join`."""
        first = list(records)
        await self._looks.run(lambda session: self._begin(session, first))

    async def look(self, applied: int) -> View:
        """Show a sign of life, and return the owners and the nodes.

        Args:
            applied: The version of the shared records that this node has applied.

        Raises:
            NameTaken: Another node has the name of this one.
            StorageFailed: The database does not answer.
        """
        return await self._looks.run(lambda session: self._look(session, applied))

    async def announce(self, own: Announcement, unreachable: list[str]) -> list[Announcement]:
        """Tell the other nodes what they need to know of this one. Return the same of those that are live.

        Args:
            own: The announcement.
            unreachable: The names of the nodes that this one does not reach, which `look` returns at all nodes.

        Raises:
            StorageFailed: The database does not answer.
        """
        values = [msgspec.json.encode(value).decode() for value in (own.clients, own.usage, unreachable)]
        return await self._looks.run(lambda session: self._announce(session, values))

    async def records(self, version: int) -> tuple[int, list[Record]]:
        """Return the version of the shared records, and the records after another version. Raises `StorageFailed`."""
        return await self._looks.run(lambda session: _records(session, version))

    async def put(self, records: Iterable[Record]) -> int:
        """Store changes of shared records, on all disks that they must be on, however long that takes.

        Returns:
            The version of the changes.
        """
        changed = list(records)
        return await self._always(lambda session: _put(session, _PUT_ALWAYS, changed))

    async def put_new(self, records: Iterable[Record]) -> None:
        """Store shared records that do not exist yet; the others stay as they are. Raises `StorageFailed`."""
        new = list(records)
        await self._changes.run(lambda session: _put(session, _PUT_NEW, new))

    async def note_served(self, shards: list[int]) -> None:
        """Note that shards that were taken over serve. Raises `StorageFailed`."""
        await self._looks.run(lambda session: _row(session, _SERVED, shards))

    async def release(self, shards: list[int]) -> None:
        """Release shards whose processes in this node have ended. Raises `StorageFailed`."""
        await self._looks.run(lambda session: _row(session, _RELEASE, self.name, shards))

    async def condition(self) -> Database:
        """Return the condition of the database server. Raises `StorageFailed`."""
        return await self._looks.run(_condition)

    async def want(self, shard: int, node: str) -> None:
        """Note that a shard is to move to a node, unless that has it. Raises `StorageFailed`."""
        await self._changes.run(lambda session: _row(session, _WANT, node, shard, node))

    async def drain(self, node: str, on: bool) -> None:
        """Note whether a node is to own no shards. Raises `StorageFailed`."""
        await self._changes.run(lambda session: _row(session, _DRAIN, on, node))

    async def forget(self, node: str) -> bool:
        """Remove a node that shows no signs of life from the list. Return whether it was there. Raises `StorageFailed`."""
        return await self._changes.run(lambda session: _row(session, _FORGET, node) is not None)

    def close(self) -> None:
        """Close the connections. Does not wait for a statement that the server does not answer."""
        self._looks.close()
        self._changes.close()

    async def _always(self, work: Callable[[Session], Result]) -> Result:
        """Make a change until it succeeds."""
        delay = _FIRST_DELAY
        reason = ""
        while True:
            try:
                return await self._changes.run(work)
            except StorageFailed as error:
                if str(error) != reason:
                    reason = str(error)
                    logger.error("shared records cannot be stored yet: %s", reason)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_DELAY)

    # In the threads

    def _connect(self) -> Session:
        """Return a connection to the server that was used last, or to one that was promoted since."""
        session = Session(self.settings, _SCHEMA, self.server)
        try:
            self._check_secret(session)
            with self._noting:
                if not self._is_current(session):
                    raise NotPrimary("the server is an old primary: a standby was promoted since")
                self.server = session.facts.server
            for thread in (self._looks, self._changes):
                thread.check()  # one of them may wait for an old primary that hangs
        except BaseException:
            session.close()
            raise
        standbys = session.facts.standbys
        where = f"synchronous standbys: {standbys}" if standbys else "one disk (no synchronous standby)"
        self._facts = f"PostgreSQL {session.facts.version}, {self.settings.shards} shards, {where}"
        return session

    def _is_current(self, session: Session) -> bool:
        """Return whether no standby was promoted since a connection was made. Knows only what this node has seen."""
        return self.server is None or session.facts.server.timeline >= self.server.timeline

    def _check_secret(self, session: Session) -> None:
        """Raise `Restored` if this node has joined with another secret."""
        if not self.secret:
            return
        row = _row(session, "SELECT secret FROM leveret.cluster")
        if row is None or row[0] != self.secret:
            raise Restored("the database was restored from a backup since this node has joined; start the node again")

    def _join(self, session: Session) -> None:
        join(session)
        check_shards(session, self.settings.shards)
        row = _row(session, "SELECT secret FROM leveret.cluster")
        assert row is not None
        self.secret = row[0]

    def _enter(self, session: Session) -> None:
        # The row is this node's own if the answer to an earlier attempt was lost.
        find = (
            "SELECT address, seen FROM leveret.node WHERE name = ? AND incarnation <> ?"
            " AND seen > clock_timestamp() - interval '3 seconds'"
        )
        found = last = _row(session, find, self.name, self._incarnation)
        deadline = time.monotonic() + _NAME_TIMEOUT
        # A node of this name may have ended a moment ago.
        while found is not None and last is not None and time.monotonic() < deadline:
            if found[1] != last[1]:
                raise self._name_taken(found[0])
            time.sleep(_NAME_INTERVAL)
            found = _row(session, find, self.name, self._incarnation)
        row = _row(session, "SELECT seen FROM leveret.node WHERE name = ?", self.name)
        seen = None if row is None else row[0]
        values = (self.name, self._incarnation, self._address, __version__, FORMAT_VERSION, list(KNOWN), seen)
        with _replicated(session):
            if not session.execute(_ENTER, values).rowcount:
                raise self._name_taken("")
        # A format may have been raised since the first look.
        self.link_format = check_formats(session).link

    def _name_taken(self, address: str) -> NameTaken:
        where = f" (listening for nodes on {address})" if address else ""
        return NameTaken(
            f"'cluster.name' is '{self.name}', which is the name of another live node{where}; expected another name"
        )

    def _leave(self, session: Session) -> None:
        _row(session, _LEAVE, self.name, self._incarnation)

    def _begin(self, session: Session, records: list[Record]) -> None:
        with _replicated(session), session.transaction():
            # A second first node waits here for the transaction of the other one, and finds that it is not the first.
            changed = session.execute(
                "UPDATE leveret.cluster SET shards = ? WHERE shards IS NULL RETURNING shards", (self.settings.shards,)
            )
            if changed.fetchone() is not None:
                session.execute(_PUT_ALWAYS, _columns(records))
        check_shards(session, self.settings.shards)

    def _look(self, session: Session, applied: int) -> View:
        asked = time.time()
        row = _row(session, _LOOK, applied, self._clock, self.name, self._incarnation)
        answered = time.time()
        assert row is not None
        if not row[0]:
            # An operator has removed a node that was away.
            self._enter(session)
        view = msgspec.json.decode(row[1], type=View)
        self.link_format = view.link_format
        if 0 <= answered - asked <= INTERVAL or self._clock is None:
            self._clock = round((asked + answered) / 2 - view.now, 3)
        return view

    def _announce(self, session: Session, values: list[str]) -> list[Announcement]:
        row = _row(session, _ANNOUNCE, *values, self.name, self._incarnation, self.name)
        assert row is not None
        return msgspec.json.decode(row[1], type=list[Announcement])


def _row(session: Session, query: str, *values: Any) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = session.execute(query, values).fetchone()
    return row


@contextmanager
def _replicated(session: Session) -> Iterator[None]:
    """Return a context whose statements are on all disks that they must be on when it ends."""
    session.warned = False
    yield
    session.replicate()


def _condition(session: Session) -> Database:
    row = _row(session, _CONDITION)
    assert row is not None
    return msgspec.structs.replace(msgspec.json.decode(row[0], type=Database), address=session.address())


def _records(session: Session, version: int) -> tuple[int, list[Record]]:
    rows = session.execute(_RECORDS, (version,)).fetchall()
    records = [(kind, key.decode("utf-8", "surrogateescape"), value) for kind, key, value, _ in rows]
    return max((row[3] for row in rows), default=version), records


def _put(session: Session, statement: str, records: list[Record]) -> int:
    with _replicated(session):
        row = session.execute(statement, _columns(records)).fetchone()
    return 0 if row is None else int(row[0])


def _columns(records: list[Record]) -> tuple[list[str], list[bytes], list[bytes | None]]:
    return (
        [kind for kind, _, _ in records],
        [key.encode("utf-8", "surrogateescape") for _, key, _ in records],
        [value for _, _, value in records],
    )

"""The database of the PostgreSQL engine: ownership, commits, recovery, and lost connections.

A shard belongs to the broker that claimed it last: a claim raises the shard's epoch, and every commit checks it. In the
same row `committed` counts commits, so after a lost connection a broker finds out whether its last one took effect.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import psycopg
from psycopg import pq

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.broker.kept_files import PLACES
from leveret.broker.log import AWAY, OK, Log
from leveret.storage.batch import Commit
from leveret.storage.checksums import Checksums, RowDamaged, chunk_sum, definition_sum, number_sum, row_columns
from leveret.storage.cluster import ClaimLost, ClusterSettings, ServerAway, Silence
from leveret.storage.indexing import MALFORMED, RowScan
from leveret.storage.postgres_formats import KNOWN, check_formats
from leveret.storage.postgres_joining import check_shards, join, join_shard
from leveret.storage.postgres_marker import Marker
from leveret.storage.postgres_probe import Probe
from leveret.storage.postgres_schema import HOLD, Statement, Statements, shard_schema
from leveret.storage.postgres_session import (
    Session,
    StoreLost,
    Unfit,
    bigint,
    bigints,
    byteas,
    read_bigint,
    texts,
    unopened,
)
from leveret.storage.recovery import Rebuilt
from leveret.storage.salvage import Salvage
from leveret.storage.verification import read_marks, read_metadata
from leveret.storage.worker import StoreBroken, StoreFenced, StoreFull, Worker, chunk_bytes, copied_row

logger = logging.getLogger("leveret.storage")

# Rows that recovery reads at a time. Unlike SQLite, the server sends them all before the first is used.
SLICE_ROWS: Final = 200
# Seconds between two looks at the owner of a shard, and in which they must show whether it lives.
POLL_INTERVAL: Final = 0.1
POLL_TIMEOUT: Final = 30.0
# Time that a claim waits for a commit in progress. An owner that waits for a standby keeps the shard.
CLAIM_TIMEOUT: Final = "200ms"
# Pauses between attempts to connect again. The other nodes wait for these (`watch.RECONNECT_TIME`).
FIRST_DELAY: Final = 0.05
MAX_DELAY: Final = 0.5
# Seconds between two measurements of the size.
MEASURE_INTERVAL: Final = 10.0
# Seconds for a connection or a beat that is in progress when the log is recovered.
KEEPER_TIMEOUT: Final = 0.5
# Beats in a lease.
BEATS: Final = 4

_OWNER: Final = "SELECT epoch, committed, node, incarnation, seen, next_row, clean, lost FROM leveret.owner WHERE shard = ?"
_CLAIM: Final = (
    "WITH claimed AS (UPDATE leveret.owner SET epoch = epoch + 1, node = ?, incarnation = ?, seen = clock_timestamp(),"
    " clean = false, lost = NULL, wanted = NULL, formats = ? WHERE shard = ? AND epoch = ? AND committed = ?"
    " AND seen IS NOT DISTINCT FROM ?::timestamptz RETURNING shard, epoch)"
    # The rest of the statement sees the row as it was before. An owner that is in it has not released the shard.
    ", noted AS (INSERT INTO leveret.takeover AS known SELECT shard, 1, before.seen, NULL"
    " FROM claimed JOIN leveret.owner before USING (shard) WHERE before.node IS NOT NULL ON CONFLICT (shard)"
    " DO UPDATE SET count = known.count + 1, lost_at = excluded.lost_at, served_at = NULL) SELECT epoch FROM claimed"
)


class Owner:
    """The row of a shard in `leveret.owner`."""

    __slots__ = ("clean", "committed", "epoch", "incarnation", "lost", "next_row", "node", "seen")

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.epoch: int = row[0]
        self.committed: int = row[1]
        self.node: str | None = row[2]
        self.incarnation: uuid.UUID | None = row[3]
        self.seen: Any = row[4]
        self.next_row: int = row[5]
        self.clean: bool = row[6]
        self.lost: str = row[7] or ""

    def state(self) -> tuple[int, int, Any]:
        """Return what changes as long as the owner lives."""
        return self.epoch, self.committed, self.seen


class PostgresStore:
    """The tables of one shard. Implements `worker.Store`; opened on the event loop's thread, then used by the worker's.

    Args:
        settings: The place of the log.
        shard: The number of the shard.
        salvage: The losses that the operator accepts for this start.
        marker: The evidence of earlier commits.

    Attributes:
        epoch: The epoch of this broker's claim.
        refused: Whether this process must not open the store again.
        on_state: Called with a state and its reason when the server is away, and when it is back.

    Raises:
        StorageFailed: The server cannot be used, or it has no schema that this version knows.
    """

    def __init__(self, settings: ClusterSettings, shard: int, salvage: Salvage, marker: Marker) -> None:
        self._settings = settings
        self._shard = shard
        self._salvage = salvage
        self._marker = marker
        self._identity = ""
        self._incarnation = uuid.uuid4()
        self._statements = Statements(shard)
        self._session: Session | None = None
        self._stopping = threading.Event()
        self._committed = 0
        self._measured = 0.0
        self._bytes = 0
        self._reconnects = 0
        self.checksums = Checksums(0, 0)
        self.epoch = 0
        self.refused = False
        self.on_state: Callable[[str, str], None] | None = None
        # Shows signs of life until the worker does.
        self.keeper: Keeper | None = None
        # Leaves a server that hangs, when the worker uses it.
        self._probe: Probe | None = None
        # When the last sign of life that the server has answered was sent. Its answer may have been read much later, by a
        # process that was frozen meanwhile.
        self.beaten = 0.0
        known = None if settings.observed is None else settings.observed.server
        try:
            self._session = session = Session(settings, shard_schema(shard), known)
            self.facts = session.facts
            self._join()
            session.prepare(self._statements.all())
        except BaseException as error:
            self.close()
            raise unopened(error) from None

    # Opening

    @property
    def session(self) -> Session:
        """The connection. Raises `StoreLost` while there is none."""
        if self._session is None:
            raise StoreLost("the connection is closed")
        return self._session

    def _join(self) -> None:
        """Create what is missing of the schema. Raises `StorageFailed` if it is not for this broker."""
        session = self.session
        self._identity = join(session)
        check_shards(session, self._settings.shards)
        join_shard(session, self._shard)

    # Ownership

    def _owner(self) -> Owner:
        row = self.session.execute(_OWNER, (self._shard,)).fetchone()
        if row is None:
            raise StorageFailed(f"shard {self._shard} has no row in 'leveret.owner'; restore the database from a backup")
        return Owner(row)

    def claim(self) -> Owner:
        """Become the owner. Returns the row as it was. Raises `StorageFailed` if another broker owns the shard."""
        owner = self._owner()
        observed = self._settings.observed
        if observed is not None:
            # The claim checks that this is still the state.
            state = observed.epoch, observed.committed, observed.seen
            if owner.epoch != observed.epoch:
                raise self._claimed()
        else:
            if owner.node is not None:
                owner = self._await_lapse(owner)
            state = owner.state()
        owner.lost = owner.lost or self._marker.fault(self._identity, owner.epoch, owner.committed)
        if owner.lost:
            if not self._salvage.accept_missing:
                raise StorageFailed(
                    f"{owner.lost}; connect to the server that has them, or restore it; or, to continue without them, start"
                    " once with --accept-missing"
                )
            logger.error("started with --accept-missing although %s", owner.lost)
        session = self.session
        session.execute(f"SET lock_timeout = '{CLAIM_TIMEOUT}'")
        try:
            values = (self._settings.node, self._incarnation, list(KNOWN), self._shard, *state)
            row = session.execute(_CLAIM, values).fetchone()
        except psycopg.errors.LockNotAvailable:
            raise StorageFailed(
                f"shard {self._shard} is owned by node '{owner.node}', which waits for a standby of PostgreSQL to commit"
            ) from None
        if row is None:
            raise self._claimed()
        session.execute("SET lock_timeout = 0")
        self.epoch = row[0]
        self._committed = owner.committed
        # A format may have been raised since the first look.
        check_formats(session)
        # A claim whose wait for a standby was cancelled is repeated, so that all that is read is replicated.
        self._confirm()
        session.execute(HOLD, (self._shard, self.epoch))
        self._marker.write(self._identity, self.epoch, self._committed)
        self.keeper = Keeper(self._settings, self._shard, self._statements.beat, self.epoch, session)
        return owner

    def _claimed(self) -> ClaimLost:
        return ClaimLost(f"shard {self._shard} was claimed by node '{self._owner().node}' at the same time")

    def _await_lapse(self, owner: Owner) -> Owner:
        """Wait until an owner has shown no sign of life for the lease, by this process' clock.

        Raises `StorageFailed` if it shows one.
        """
        began = answered = time.monotonic()
        silence = Silence(self._settings.lease, POLL_INTERVAL)
        while not silence.is_over():
            time.sleep(POLL_INTERVAL)
            before, asked = answered, time.monotonic()
            now = self._owner()
            answered = time.monotonic()
            if now.node is None:
                return now
            if now.state() != owner.state():
                raise StorageFailed(
                    f"shard {self._shard} in PostgreSQL is owned by node '{now.node}', which is alive; stop that broker, or"
                    " choose another database"
                )
            silence.note(answered - asked, answered - before)
            if answered - began > max(POLL_TIMEOUT, 2 * self._settings.lease):
                raise ServerAway(f"PostgreSQL is too slow to tell whether node '{owner.node}' is alive")
        logger.warning(
            "node '%s' has shown no sign of life for %g seconds: taking over shard %d",
            owner.node,
            self._settings.lease,
            self._shard,
        )
        return owner

    def _confirm(self) -> int:
        """Return the number of the last commit, which is then on all disks that it must be on.

        Raises `StoreFenced` if another broker owns the shard, and like `Session.run`.
        """
        while True:
            sent = time.monotonic()
            result = self.session.run(self._statements.confirm, bigint(self.epoch), self._incarnation.bytes)
            if not result.ntuples:
                raise self._fenced()
            self.beaten = sent
            if not self.session.warned:
                return read_bigint(result.get_value(0, 0))

    def _fenced(self) -> StoreBroken:
        """Return the error for a shard that does not have this broker's epoch any more."""
        try:
            row = self.session.execute(_OWNER, (self._shard,)).fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
        except psycopg.Error as error:
            raise StoreLost(str(error)) from None
        if row is None or Owner(row).epoch < self.epoch:
            return self._lost_commits(0 if row is None else Owner(row).committed)
        self.refused = True
        owner = Owner(row)
        return StoreFenced(
            f"node '{owner.node}' has taken over shard {self._shard} (epoch {owner.epoch}; this broker had {self.epoch})"
        )

    def _lost_commits(self, found: int) -> StoreBroken:
        """Return the error for a server without confirmed commits, and make sure that no start overlooks it."""
        self.refused = True
        text = (
            f"PostgreSQL has lost confirmed commits: shard {self._shard} is at commit {found}, and commit"
            f" {self._committed} of epoch {self.epoch} was confirmed"
        )
        try:
            self.session.execute(
                "UPDATE leveret.owner SET lost = ? WHERE shard = ? AND epoch <= ?",
                (text, self._shard, self.epoch),
            )
        except psycopg.Error as error:
            logger.error("the loss cannot be recorded in PostgreSQL: %s", error)
        return StoreBroken(text)

    # Lost connections

    def stop_waiting(self) -> None:
        """Make a wait for a server that is away fail. Called on the event loop."""
        self._stopping.set()

    def _regain(self, reason: str) -> int:
        """Connect again, however long it takes. Returns the number of the last commit.

        Raises `StoreBroken` if that cannot be: commits are lost, another broker is the owner, or the broker stops.
        """
        logger.error("PostgreSQL is away: %s; clients stay connected, and nothing is confirmed", reason)
        began = time.monotonic()
        delay = FIRST_DELAY
        while True:
            self._set_state(AWAY, f"PostgreSQL is away: {reason}")
            try:
                found = self._connect_again()
                break
            except (psycopg.Error, Unfit, StoreLost, StoreFull) as error:
                now = " ".join(str(error).split())
                if now != reason:
                    logger.error("PostgreSQL is away: %s", now)
                reason = now
            if self._stopping.wait(delay):
                raise StoreBroken(f"the broker stops while PostgreSQL is away: {reason}")
            delay = min(delay * 2, MAX_DELAY)
        if found not in (self._committed, self._committed + 1):
            raise self._lost_commits(found)
        self._reconnects += 1
        logger.warning("PostgreSQL is back after %.1f seconds", time.monotonic() - began)
        self._set_state(OK, "")
        return found

    def _connect_again(self) -> int:
        self._disconnect()
        self._session = session = Session(self._settings, shard_schema(self._shard), self.facts.server)
        try:
            session.prepare(self._statements.all())
        except StoreBroken:
            # The tables are gone: a start would create them again.
            raise self._lost_commits(0) from None
        found = self._confirm()
        session.execute(HOLD, (self._shard, self.epoch))
        self.facts = session.facts
        return found

    def _set_state(self, state: str, reason: str) -> None:
        if self.on_state is not None:
            self.on_state(state, reason)

    # Recovery

    def recover(self, log: Log) -> Rebuilt:
        """Claim the shard and read the state of the log. Raises `StorageFailed`."""
        try:
            return self._recover(log)
        except (psycopg.Error, StoreLost, StoreFull, StoreBroken) as error:
            raise unopened(error) from None
        except MALFORMED as error:
            raise StorageFailed(f"the log in PostgreSQL is damaged: {error}; restore the database from a backup") from None

    def _recover(self, log: Log) -> Rebuilt:
        # Rows are read only after the claim has returned: from then on, no other broker changes them.
        owner = self.claim()
        session = self.session
        rebuilt = Rebuilt()
        recovery = rebuilt.recovery
        recovery.clean = owner.clean
        recovery.metadata = {
            (kind, key.decode("utf-8", "surrogateescape")): value for kind, key, value in read_metadata(session)
        }
        # Of use only to an engine that indexes its rows later.
        recovery.metadata.pop((metadata.OCCUPIED, ""), None)
        if owner.lost:
            # The broker keeps files without a definition: a lost part of the log may refer to them.
            for place in PLACES:
                recovery.metadata[metadata.SALVAGED, place] = metadata.pack({})
                log.put(metadata.SALVAGED, place, metadata.pack({}))
        recovery.last_seq = dict(read_marks(session))
        rebuilt.next_row = max(owner.next_row, self._last("log") + 1)
        rebuilt.next_chunk = self._last("chunk") + 1
        RowScan(session, self.checksums, log, rebuilt, slice_rows=SLICE_ROWS).run()
        self._measure()
        return rebuilt

    def _last(self, table: str) -> int:
        row = self.session.execute(f"SELECT max(id) FROM {table}").fetchone()
        return 0 if row is None or row[0] is None else int(row[0])

    # Commits

    def commit(self, commit: Commit) -> None:
        number = self._committed + 1
        while True:
            try:
                self._write(commit, number)
                break
            except StoreLost as error:
                if self._regain(str(error)) == number:
                    break
        self._committed = number

    def _write(self, commit: Commit, number: int) -> None:
        """Write a commit. Raises `StoreLost` if it is unknown whether it took effect."""
        statements = self._statements
        head = (bigint(self.epoch), bigint(number))
        images = commit.images
        if not (commit.copies or commit.chunks or commit.dead_chunks or commit.puts or commit.marks or commit.next_row):
            if len(images) == 1:
                image = images[0]
                settled, index, data = row_columns(image)
                if commit.deletes:
                    dead = bigints(commit.deletes)
                    self._fence(number, statements.insert_and_delete, *head, bigint(image.id), settled, index, data, dead)
                else:
                    self._fence(number, statements.insert, *head, bigint(image.id), settled, index, data)
                return
            if not images and commit.deletes:
                self._fence(number, statements.delete, *head, bigints(commit.deletes))
                return
        for chunk_id, pieces in commit.chunks:
            chunk = chunk_bytes(pieces)
            values = (bigint(self.epoch), bigint(chunk_id), chunk, bigint(chunk_sum(chunk_id, chunk)))
            sent = time.monotonic()
            if not self.session.run(statements.chunk, *values).ntuples:
                raise self._fenced()
            self.beaten = sent
        images = images + [copied_row(plan, self._fetch_row) for plan in commit.copies]
        columns = [row_columns(image) for image in images]
        puts = [
            (kind, name.encode("utf-8", "surrogateescape"), value)
            for (kind, name), value in commit.puts.items()
            if value is not None
        ]
        dropped = [
            (kind, name.encode("utf-8", "surrogateescape")) for (kind, name), value in commit.puts.items() if value is None
        ]
        marks = [(queue, seq) for queue, seq in commit.marks.items() if seq]
        self._fence(
            number,
            statements.write,
            *head,
            bigint(commit.next_row),
            bigints(commit.deletes),
            bigints(image.id for image in images),
            byteas([settled for settled, _, _ in columns]),
            byteas([index for _, index, _ in columns]),
            byteas([data for _, _, data in columns]),
            bigints(first for first, _ in commit.dead_chunks),
            bigints(last for _, last in commit.dead_chunks),
            texts(kind for kind, _, _ in puts),
            byteas([key for _, key, _ in puts]),
            byteas([value for _, _, value in puts]),
            bigints(definition_sum(*put) for put in puts),
            texts(kind for kind, _ in dropped),
            byteas([key for _, key in dropped]),
            bigints(queue for queue, _ in marks),
            bigints(seq for _, seq in marks),
            bigints(number_sum(f"mark {queue}", seq) for queue, seq in marks),
            bigints(queue for queue, seq in commit.marks.items() if not seq),
        )

    def _fence(self, number: int, statement: Statement, *values: bytes) -> None:
        """Run the statement of a commit. Raises `StoreFenced` if another broker is the owner."""
        sent = time.monotonic()
        result = self.session.run(statement, *values)
        # The tags are INSERT 0 1 and SELECT 1.
        done = (result.command_status or b"").endswith(b" 1")
        if done:
            self.beaten = sent
        if (not done or self.session.warned) and self._confirm() != number:
            # Unless an earlier attempt arrived late, some other process has written with this broker's epoch.
            self.refused = True
            raise StoreFenced(f"another process writes to shard {self._shard} with epoch {self.epoch}")

    # Reading

    def _read(self, statement: Statement, *values: bytes) -> pq.abc.PGresult:
        while True:
            try:
                return self.session.run(statement, *values)
            except StoreLost as error:
                self._regain(str(error))

    def read_row(self, row_id: int) -> tuple[bytes, bytes] | None:
        row = self._fetch_row(row_id)
        return (row[1], row[2]) if row is not None else None

    def _fetch_row(self, row_id: int) -> tuple[bytes, bytes, bytes] | None:
        """Return the columns of a row, None if it does not exist. Raises `StoreBroken` if it is damaged."""
        result = self._read(self._statements.read_row, bigint(row_id))
        if not result.ntuples:
            return None
        settled, index, data = (result.get_value(0, column) or b"" for column in range(3))
        try:
            self.checksums.check_row(row_id, settled, index, data)
        except (RowDamaged, struct.error) as error:
            raise StoreBroken(f"row {row_id} of the log in PostgreSQL is damaged: {error}") from None
        return settled, index, data

    def read_chunks(self, first: int, count: int) -> list[bytes]:
        result = self._read(self._statements.read_chunks, bigint(first), bigint(first + count - 1))
        if result.ntuples != count:
            raise StoreBroken(f"chunks {first} to {first + count - 1} of the log in PostgreSQL are missing")
        chunks = []
        for row in range(count):
            chunk_id, data = read_bigint(result.get_value(row, 0)), result.get_value(row, 1)
            try:
                self.checksums.check_chunk(chunk_id, data, read_bigint(result.get_value(row, 2)))
            except RowDamaged as error:
                raise StoreBroken(f"chunk {chunk_id} of a large body in PostgreSQL is damaged: {error}") from None
            chunks.append(data or b"")
        return chunks

    # Housekeeping

    def beat(self) -> None:
        """Show a sign of life. Raises `StoreFenced` if another broker is the owner, and `StoreFull`."""
        sent = time.monotonic()
        try:
            result = self.session.run(self._statements.beat, bigint(self.epoch))
            if not result.ntuples:
                raise self._fenced()
            self.beaten = sent
        except StoreLost as error:
            self._regain(str(error))

    def tidy(self) -> None:
        """Measure the tables now and then."""
        if time.monotonic() - self._measured > MEASURE_INTERVAL:
            self._measure()

    def has_takers(self) -> bool:
        """Return whether another node takes shards."""
        return self._read(self._statements.takers, self._settings.node.encode()).ntuples > 0

    def maintain(self) -> bool:
        self.tidy()
        return False

    def _measure(self) -> None:
        self._bytes = read_bigint(self._read(self._statements.size).get_value(0, 0))
        self._measured = time.monotonic()

    def space(self, pending: int) -> str:
        """Return "": only a commit finds out whether the server has space."""
        return ""

    def make_room(self) -> None:
        """Do nothing: there is no reserve on the server."""

    def statistics(self) -> dict[str, int]:
        return {"file_bytes": self._bytes, "epoch": self.epoch, "reconnects": self._reconnects}

    def describe(self) -> str:
        """Return where the messages are, for operators."""
        standbys = self.facts.standbys
        where = f"synchronous standbys: {standbys}" if standbys else "one disk (no synchronous standby)"
        return f"PostgreSQL {self.facts.version}, shard {self._shard}, epoch {self.epoch}, {where}"

    # Shutdown

    def finish(self, commit: Commit) -> None:
        """Write the last commit, and release the shard. Raises `StoreFull` or `StoreBroken`."""
        self.commit(commit)
        try:
            self._give_up()
        except StoreFenced as error:
            # All is committed. If the connection was lost, the shard may have been released, and claimed since.
            logger.warning("released a shard that has another owner: %s", error)
        try:
            self._marker.write(self._identity, self.epoch, self._committed)
        except StorageFailed as error:
            logger.warning("%s", error)

    def _give_up(self) -> None:
        """Release the shard. Raises like `Session.run`, or `StoreFenced` if another broker is the owner."""
        while True:
            result = self._read(self._statements.release, bigint(self.epoch))
            if not result.ntuples:
                raise self._fenced()
            if not self.session.warned:
                return

    def begin(self) -> None:
        """Leave the signs of life to the worker, and look for another server while this one does not answer."""
        self.stop_keeper()
        self._probe = Probe(self._settings, lambda: self._session, lambda: time.monotonic() - self.beaten)

    def stop_keeper(self) -> None:
        """End the signs of life of the start. Never raises."""
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            keeper.stop()

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        """Close the connections. Never raises."""
        if self._probe is not None:
            self._probe.stop()
        self.stop_keeper()
        self._disconnect()


class Keeper:
    """Shows signs of life in a thread while the log is recovered, over a connection of its own.

    Args:
        settings: The place of the log.
        shard: The number of the shard.
        beat: The statement of a sign of life.
        epoch: The epoch of the owner.
        session: The connection over which the shard was claimed.
    """

    def __init__(self, settings: ClusterSettings, shard: int, beat: Statement, epoch: int, session: Session) -> None:
        self._settings = settings
        self._shard = shard
        self._beat = beat
        self._epoch = epoch
        self._server = session.facts.server
        # That of the host which has answered: another one may take seconds to fail, in which the shard would be lost.
        self._address = session.address_here()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"leveret-keeper-{shard}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        reason = ""
        while not self._stopped.is_set():
            try:
                self._keep_beating()
            except (psycopg.Error, Unfit, StoreLost, StoreFull, StoreBroken) as error:
                found = " ".join(str(error).split())
                if not self._stopped.wait(self._settings.lease / BEATS) and found != reason:
                    # If the shard is lost by it, the next commit is refused.
                    reason = found
                    logger.warning("no signs of life while the log is recovered: %s", reason)
                self._address = self._settings.dsn

    def _keep_beating(self) -> None:
        settings = ClusterSettings(
            self._address, self._settings.node, self._settings.lease, self._settings.unreplicated, shard=self._shard
        )
        with closing(Session(settings, shard_schema(self._shard), self._server)) as session:
            session.prepare([self._beat])
            while not self._stopped.wait(self._settings.lease / BEATS):
                session.run(self._beat, bigint(self._epoch))

    def stop(self) -> None:
        """End the thread. Waits for a connection or a beat in progress, but not for a host that does not answer."""
        self._stopped.set()
        self._thread.join(KEEPER_TIMEOUT)


class OwnerWorker(Worker):
    """A worker that shows a sign of life while there is nothing to commit.

    A sign begins in the thread, passes through the event loop and ends on the server, so that a process of which any of
    these hangs loses the shard.
    """

    def __init__(self, log: Any, store: PostgresStore, post: Callable[[Callable[[], None]], None], interval: float) -> None:
        self._owned = store
        self._interval = interval
        self._asked = False
        super().__init__(log, store, post)

    def _take(self, timeout: float | None) -> None:
        wait = self._owned.beaten + self._interval - time.monotonic()
        if wait <= 0.0:
            if not self._asked:
                self._asked = True
                self._post(self._answer)
            wait = self._interval
        super()._take(wait if timeout is None else min(timeout, wait))

    def _answer(self) -> None:
        """Answer on the event loop."""
        self._asked = False
        self._jobs.put(self._beat)

    def _beat(self) -> None:
        self._housekeep(self._owned.beat)

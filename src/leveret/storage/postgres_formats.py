"""The formats of a PostgreSQL database: which are in use, which this version knows, and how they are raised.

A new version starts with the formats in use, so that nodes of both versions share the database. When all of them know a
newer format, `upgrade` raises it, and from then on a version that does not know it cannot start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

import psycopg

from leveret.broker.errors import StorageFailed
from leveret.storage.batch import ROW_VERSION
from leveret.storage.cluster import LINK_FORMAT, ClusterSettings
from leveret.storage.postgres_schema import FORMAT_VERSION
from leveret.storage.postgres_session import Session, Unfit, unopened

# Seconds for a change, which waits for the standbys.
TIMEOUT = 30.0
# Added to the epochs of a restored database: more than the take-overs since any backup.
RESTORED_EPOCHS: Final = 1_000_000

_IN_USE: Final = "SELECT format, row_format, link_format FROM leveret.cluster"
# Nodes, and the owners of shards, which include brokers of one process.
_LIVE: Final = (
    "SELECT name, formats FROM leveret.node WHERE seen > clock_timestamp() - interval '3 seconds' UNION ALL"
    " SELECT node, formats FROM leveret.owner WHERE node IS NOT NULL AND seen > clock_timestamp() - interval '3 seconds'"
)


class Formats(NamedTuple):
    """The numbers of the formats of the tables, of the rows of logs, and of the messages between nodes."""

    schema: int
    row: int
    link: int


# The newest ones that this version knows.
KNOWN = Formats(FORMAT_VERSION, ROW_VERSION, LINK_FORMAT)


def check_formats(session: Session) -> Formats:
    """Return the formats in use, after waiting for an `upgrade` in progress.

    Raises:
        StorageFailed: This version does not know one of them.
        psycopg.Error: The server does not answer.
    """
    row = session.execute(f"{_IN_USE} FOR SHARE").fetchone()
    if row is None:
        raise StorageFailed("the table 'leveret.cluster' in PostgreSQL is empty; restore the database from a backup")
    in_use = Formats(*row)
    for name, used, known in zip(Formats._fields, in_use, KNOWN, strict=True):
        if used > known:
            raise StorageFailed(
                f"the database in PostgreSQL uses {name} format {used}, and this version of Leveret knows up to {known};"
                " install the version of Leveret that raised it, or a later one"
            )
    return in_use


def upgrade(settings: ClusterSettings, report: Callable[[str], None]) -> None:
    """Raise the formats in use to those of this version.

    Args:
        settings: The place of the database.
        report: Called with what was raised, as text.

    Raises:
        StorageFailed: A live node does not know them, or the server cannot be used.
    """
    with _database(settings) as session, session.transaction():
        # No node enters, and no broker claims a shard, until this transaction has ended.
        session.execute("SELECT FROM leveret.cluster FOR UPDATE")
        in_use = check_formats(session)
        behind = {
            f"'{name}'"
            for name, formats in session.execute(_LIVE).fetchall()
            if any(map(int.__lt__, formats or (0,), KNOWN))
        }
        raised = [
            f"{name} format from {used} to {known}"
            for name, used, known in zip(Formats._fields, in_use, KNOWN, strict=True)
            if used < known
        ]
        if raised and behind:
            raise StorageFailed(
                f"cannot raise the {', the '.join(raised)}: live nodes do not know it: {', '.join(sorted(behind))}; start"
                " this version of Leveret on them first"
            )
        session.execute("UPDATE leveret.cluster SET format = ?, row_format = ?, link_format = ?", KNOWN)
    for text in raised:
        report(f"raised the {text}")
    if not raised:
        report("nothing to raise: " + ", ".join(f"{name} format {used}" for name, used in in_use._asdict().items()))


def mark_restored(settings: ClusterSettings) -> None:
    """Make a database that was restored from a backup a new one, which brokers of before cannot write to.

    Raises:
        StorageFailed: A broker is using the database, or the server cannot be used.
    """
    with _database(settings) as session, session.transaction():
        session.execute("SELECT FROM leveret.cluster FOR UPDATE")
        check_formats(session)
        live = sorted({f"'{name}'" for name, _ in session.execute(_LIVE).fetchall()})
        if live:
            raise StorageFailed(f"nodes are using the database: {', '.join(live)}; stop them first")
        session.execute(
            "UPDATE leveret.cluster SET secret ="
            " decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')"
        )
        session.execute(
            "UPDATE leveret.owner SET epoch = epoch + ?, node = NULL, incarnation = NULL, wanted = NULL, lost = NULL",
            (RESTORED_EPOCHS,),
        )
        session.execute("DELETE FROM leveret.node")


@contextmanager
def _database(settings: ClusterSettings) -> Iterator[Session]:
    """Yield a connection to a database with the schema of a broker. Raises `StorageFailed`, also after a while."""
    expired = threading.Event()
    try:
        with closing(Session(settings, "leveret")) as session, _limit(session, expired):
            yield session
            session.replicate()
    except psycopg.errors.UndefinedTable:
        raise StorageFailed("the database has no schema 'leveret'; start a broker on it first") from None
    except psycopg.errors.UndefinedColumn as error:
        raise StorageFailed(
            f"this version of Leveret does not know the schema 'leveret' of the database: {error.diag.message_primary};"
            " name another database with --store, or install the version that has created the schema"
        ) from None
    except (psycopg.Error, Unfit) as error:
        if expired.is_set():
            raise StorageFailed(
                f"PostgreSQL has not confirmed the change within {TIMEOUT:g} seconds; start the standbys of"
                " 'synchronous_standby_names', and run the command again"
            ) from None
        raise unopened(error) from None


@contextmanager
def _limit(session: Session, expired: threading.Event) -> Iterator[None]:
    """Lose a connection whose work takes longer than `TIMEOUT`. Sets the event before."""

    def expire() -> None:
        expired.set()
        session.abort()

    timer = threading.Timer(TIMEOUT, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

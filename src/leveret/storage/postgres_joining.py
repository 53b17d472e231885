"""The first use of a database by a broker: it creates what is missing of the schema."""

from __future__ import annotations

import contextlib

import psycopg

from leveret.broker.errors import StorageFailed
from leveret.storage.postgres_formats import check_formats
from leveret.storage.postgres_schema import ADDED_COLUMNS, CREATE_CLUSTER, create_shard, shard_schema
from leveret.storage.postgres_session import Session


def join(session: Session) -> str:
    """Create the schema `leveret` unless it exists, and what an earlier version lacks. Return the identity of the database.

    Raises:
        StorageFailed: The database has a newer format, or is not complete, or the schema cannot be created.
        psycopg.Error: The server does not answer.
    """
    if not session.has_table("leveret.cluster"):
        _create(session, CREATE_CLUSTER)
    check_formats(session)
    row = session.execute("SELECT identity, importing FROM leveret.cluster").fetchone()
    assert row is not None
    identity, importing = str(row[0]), row[1]
    if importing is not None:
        raise StorageFailed(
            f"the import of {importing} into the database is not complete; start the broker when `leveret cluster import`"
            " has ended, or run it again if it was interrupted"
        )
    for table, name, kind in ADDED_COLUMNS:
        # Looked for first, because the change waits for the transactions of all nodes.
        if not session.has_column(table, name):
            _change(session, f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {name} {kind}")
    return identity


def check_shards(session: Session, shards: int) -> bool:
    """Check the number of shards in the database. Return whether it is known.

    Raises:
        StorageFailed: It is another one.
        psycopg.Error: The server does not answer.
    """
    row = session.execute("SELECT shards FROM leveret.cluster").fetchone()
    if row is None or row[0] is None:
        return False
    if row[0] != shards:
        raise StorageFailed(
            f"'cluster.shards' is {shards}, but the database has {row[0]} shards, and their number cannot be changed;"
            f" expected {row[0]}"
        )
    return True


def join_shard(session: Session, shard: int) -> None:
    """Create the schema of a shard unless it exists. Raises as `join`."""
    if not session.has_table(f"{shard_schema(shard)}.mark"):
        _create(session, create_shard(shard))


def _create(session: Session, script: str) -> None:
    with contextlib.suppress(psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
        # Another broker may create it at the same time.
        create(session, script)


def create(session: Session, script: str) -> None:
    """Run a script that creates tables, in one transaction.

    Raises:
        StorageFailed: The user of PostgreSQL may not do that.
        psycopg.Error: Another broker has done so, or the server does not answer.
    """
    _run(session, script, "create a schema", "grant it CREATE on the database")


def _change(session: Session, script: str) -> None:
    """Run a script that changes tables, as above."""
    _run(session, script, "change a table", "start the broker as the owner of the schema 'leveret' once")


def _run(session: Session, script: str, what: str, remedy: str) -> None:
    try:
        session.execute_script(script)
    except psycopg.errors.InsufficientPrivilege as error:
        raise StorageFailed(f"the user of PostgreSQL may not {what}: {error.diag.message_primary}; {remedy}") from None

"""The first use of a database by a broker: it creates what is missing of the schema."""

from __future__ import annotations

import psycopg

from leveret.broker.errors import StorageFailed
from leveret.storage.postgres_schema import (
    ADD_NODE_COLUMNS,
    CREATE_CLUSTER,
    CREATE_TAKEOVER,
    FORMAT_VERSION,
    create_shard,
    shard_schema,
)
from leveret.storage.postgres_session import Session


def join(session: Session) -> str:
    """Create the schema `leveret` unless it exists. Return the identity of the database.

    Raises:
        StorageFailed: The schema has another format, or cannot be created.
        psycopg.Error: The server does not answer.
    """
    if not _exists(session, "leveret.cluster"):
        _create(session, CREATE_CLUSTER)
    if not _exists(session, "leveret.takeover"):
        _create(session, CREATE_TAKEOVER)
    row = session.execute("SELECT format, identity FROM leveret.cluster").fetchone()
    version, identity = (0, "") if row is None else (row[0], str(row[1]))
    if version != FORMAT_VERSION:
        raise StorageFailed(
            f"the schema 'leveret' in PostgreSQL has format version {version}, and this version of Leveret reads"
            f" {FORMAT_VERSION}; install the version of Leveret that wrote it, or a later one"
        )
    if not _has_usage(session):
        _create(session, ADD_NODE_COLUMNS)
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
    if not _exists(session, f"{shard_schema(shard)}.mark"):
        _create(session, create_shard(shard))


def _exists(session: Session, table: str) -> bool:
    row = session.execute("SELECT to_regclass(?) IS NOT NULL", (table,)).fetchone()
    return row is not None and bool(row[0])


def _has_usage(session: Session) -> bool:
    query = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'leveret.node'::regclass AND attname = 'usage'"
    row = session.execute(query).fetchone()
    return row is not None and bool(row[0])


def _create(session: Session, script: str) -> None:
    try:
        session.execute_script(script)
    except (psycopg.errors.DuplicateSchema, psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation):
        pass  # another broker created it at the same time
    except psycopg.errors.InsufficientPrivilege as error:
        raise StorageFailed(
            f"the user of PostgreSQL may not create a schema: {error.diag.message_primary}; grant it CREATE on the database"
        ) from None

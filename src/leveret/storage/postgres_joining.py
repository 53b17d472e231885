"""The first use of a database by a broker: it creates what is missing of the schema."""

from __future__ import annotations

import contextlib

import psycopg

from leveret.broker.errors import StorageFailed
from leveret.storage.postgres_schema import CREATE_CLUSTER, FORMAT_VERSION, create_shard, shard_schema
from leveret.storage.postgres_session import Session


def join(session: Session) -> str:
    """Create the schema `leveret` unless it exists. Return the identity of the database.

    Raises:
        StorageFailed: The schema has another format, or cannot be created.
        psycopg.Error: The server does not answer.
    """
    if not session.has_table("leveret.cluster"):
        _create(session, CREATE_CLUSTER)
    row = session.execute("SELECT format, identity, importing FROM leveret.cluster").fetchone()
    version, identity, importing = (0, "", None) if row is None else (row[0], str(row[1]), row[2])
    if version != FORMAT_VERSION:
        raise StorageFailed(
            f"the schema 'leveret' in PostgreSQL has format version {version}, and this version of Leveret reads"
            f" {FORMAT_VERSION}; install the version of Leveret that wrote it, or a later one"
        )
    if importing is not None:
        raise StorageFailed(
            f"the import of {importing} into the database is not complete; start the broker when `leveret cluster import`"
            " has ended, or run it again if it was interrupted"
        )
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
    try:
        session.execute_script(script)
    except psycopg.errors.InsufficientPrivilege as error:
        raise StorageFailed(
            f"the user of PostgreSQL may not create a schema: {error.diag.message_primary}; grant it CREATE on the database"
        ) from None

"""The schema of the PostgreSQL engine, and its statements.

Schema `leveret` has one row in `cluster`, with the format, and a row for each shard in `owner`. Each shard has a schema of
its own with the tables of an SQLite log, and the same columns in them: `log`, `chunk`, `metadata` and `mark`.

While logs are imported, `cluster` says from where. With several shards, it has their number, `node` the nodes that serve
them, and `shared` the records that belong to all of them. `takeover` has the claims of shards whose owner had not released
them.

A commit is one statement. Its part `fence` locks and checks the shard's row in `owner`, and every other part depends on
it: a broker that has lost the shard changes nothing, and a claim waits for a commit in progress.
"""

from __future__ import annotations

from typing import Final

from leveret.storage.batch import ROW_VERSION
from leveret.storage.cluster import LINK_FORMAT

# Of the tables and what is in them. A broker refuses a newer one (see `postgres_formats`).
FORMAT_VERSION: Final = 1

# The types of parameters.
BIGINT: Final = 20
BYTEA: Final = 17
TEXT: Final = 25
UUID: Final = 2950
BIGINTS: Final = 1016
BYTEAS: Final = 1001
TEXTS: Final = 1009


class Statement:
    """A statement to prepare: its text, and the types of its parameters."""

    __slots__ = ("formats", "name", "text", "types")

    def __init__(self, name: str, text: str, *types: int) -> None:
        self.name = name.encode("ascii")
        self.text = text.encode("ascii")
        self.types = types
        # All parameters are binary.
        self.formats = (1,) * len(types)


CREATE_CLUSTER: Final = f"""
CREATE SCHEMA leveret;
CREATE TABLE leveret.cluster(
    format integer NOT NULL,
    identity uuid NOT NULL,
    row_format integer NOT NULL DEFAULT {ROW_VERSION},
    link_format integer NOT NULL DEFAULT {LINK_FORMAT},
    importing text,
    shards integer,
    version bigint NOT NULL DEFAULT 0,
    secret bytea NOT NULL DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
);
CREATE TABLE leveret.node(
    name text PRIMARY KEY,
    incarnation uuid NOT NULL,
    address text NOT NULL,
    leveret text NOT NULL,
    format integer,
    formats integer[],
    seen timestamptz,
    clock double precision,
    applied bigint NOT NULL,
    draining boolean NOT NULL,
    clients text,
    usage text,
    unreachable text
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE TABLE leveret.shared(kind text, key bytea, value bytea, version bigint NOT NULL, PRIMARY KEY (kind, key));
CREATE TABLE leveret.takeover(
    shard integer PRIMARY KEY,
    count bigint NOT NULL,
    lost_at timestamptz,
    served_at timestamptz
);
CREATE TABLE leveret.owner(
    shard integer PRIMARY KEY,
    epoch bigint NOT NULL,
    committed bigint NOT NULL,
    node text,
    incarnation uuid,
    seen timestamptz,
    next_row bigint NOT NULL,
    clean boolean NOT NULL,
    lost text,
    wanted text,
    formats integer[]
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
INSERT INTO leveret.cluster(format, identity) VALUES ({FORMAT_VERSION}, gen_random_uuid());
"""

# Columns that databases of earlier versions do not have: table, name and type. Versions that do not know them ignore them,
# so they are nullable, and need no new format.
ADDED_COLUMNS: Final = (("leveret.node", "unreachable", "text"),)

_SHARD: Final = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.log(id bigint PRIMARY KEY, settled bytea, entries bytea, data bytea)
    WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000, toast.autovacuum_vacuum_cost_delay = 0);
CREATE TABLE {schema}.chunk(id bigint PRIMARY KEY, data bytea, crc bigint)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000,
    toast.autovacuum_vacuum_cost_delay = 0);
CREATE TABLE {schema}.metadata(kind text, key bytea, value bytea, crc bigint, PRIMARY KEY (kind, key));
CREATE TABLE {schema}.mark(queue bigint PRIMARY KEY, seq bigint, crc bigint);
ALTER TABLE {schema}.log ALTER settled SET STORAGE EXTERNAL, ALTER entries SET STORAGE EXTERNAL,
    ALTER data SET STORAGE EXTERNAL;
ALTER TABLE {schema}.chunk ALTER data SET STORAGE EXTERNAL;
INSERT INTO leveret.owner(shard, epoch, committed, next_row, clean) VALUES ({shard}, 0, 0, 1, true);
"""


# An owner holds an advisory lock in the session in which it commits, which ends with the session. Its numbers are the shard
# with a prefix, and the epoch. It is shared, so that it never waits for a session that the server has not ended yet.
_LOCK_PREFIX: Final = int.from_bytes(b"LV") << 16
HOLD: Final = f"SELECT pg_advisory_lock_shared({_LOCK_PREFIX} + ?, (?::bigint & 2147483647)::int)"
OWNERS_IN_SESSION: Final = (
    f"(shard + {_LOCK_PREFIX}, epoch & 2147483647) IN (SELECT classid::bigint, objid::bigint FROM pg_locks WHERE granted"
    " AND locktype = 'advisory' AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)

# The schemas of all shards.
SHARD_SCHEMAS: Final = "SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^leveret_s[0-9]+$' ORDER BY nspname"


def shard_schema(shard: int) -> str:
    """Return the name of a shard's schema."""
    return f"leveret_s{shard}"


def create_shard(shard: int) -> str:
    """Return the statements that create the tables and the row of a shard."""
    return _SHARD.format(schema=shard_schema(shard), shard=shard)


class ReadStatements:
    """The prepared statements of a process that reads the rows of a shard for its owner.

    The first parameter is the epoch. Without a row in the result, the shard has another one.
    """

    def __init__(self, shard: int) -> None:
        schema = shard_schema(shard)
        owned = f"o.shard = {shard} AND o.epoch = $1"
        # The message in the write-ahead log, which nothing reads, makes it a commit.
        self.check_owner = Statement(
            "check_owner",
            f"SELECT pg_logical_emit_message(true, 'leveret', ''::text) FROM leveret.owner o WHERE {owned}",
            BIGINT,
        )
        self.read_row = Statement(
            "read_row",
            "SELECT l.id, coalesce(octet_length(l.settled), 0)::bigint, l.entries, l.data FROM leveret.owner o"
            f" LEFT JOIN {schema}.log l ON l.id = $2 WHERE {owned}",
            BIGINT,
            BIGINT,
        )
        self.read_chunks = Statement(
            "read_chunks",
            f"SELECT c.id, c.data, c.crc FROM leveret.owner o LEFT JOIN {schema}.chunk c ON c.id BETWEEN $2 AND $3"
            f" WHERE {owned} ORDER BY c.id",
            BIGINT,
            BIGINT,
            BIGINT,
        )

    def all(self) -> list[Statement]:
        """Return all statements."""
        return list(vars(self).values())


class Statements:
    """The prepared statements of a shard. The first parameters are the epoch and, of a commit, its number."""

    def __init__(self, shard: int) -> None:
        schema = shard_schema(shard)
        fence = (
            "WITH fence AS (UPDATE leveret.owner SET committed = $2, seen = clock_timestamp()"
            f" WHERE shard = {shard} AND epoch = $1 AND committed = $2 - 1 RETURNING 1)"
        )
        insert = f" INSERT INTO {schema}.log SELECT $3, $4, $5, $6 FROM fence"
        columns = (BIGINT, BYTEA, BYTEA, BYTEA)
        # The ordinary commits: a row, dead rows, or both.
        self.insert = Statement("insert", fence + insert, BIGINT, BIGINT, *columns)
        self.insert_and_delete = Statement(
            "insert_and_delete",
            f"{fence}, gone AS (DELETE FROM {schema}.log WHERE id = ANY($7) AND EXISTS (SELECT FROM fence)){insert}",
            BIGINT,
            BIGINT,
            *columns,
            BIGINTS,
        )
        self.delete = Statement(
            "delete",
            f"{fence}, gone AS (DELETE FROM {schema}.log WHERE id = ANY($3) AND EXISTS (SELECT FROM fence))"
            " SELECT 1 FROM fence",
            BIGINT,
            BIGINT,
            BIGINTS,
        )
        # Any commit.
        self.write = Statement(
            "write",
            "WITH fence AS (UPDATE leveret.owner SET committed = $2, seen = clock_timestamp(),"
            f" next_row = greatest(next_row, $3) WHERE shard = {shard} AND epoch = $1 AND committed = $2 - 1 RETURNING 1)"
            f", gone AS (DELETE FROM {schema}.log WHERE id = ANY($4) AND EXISTS (SELECT FROM fence))"
            f", added AS (INSERT INTO {schema}.log SELECT r.* FROM fence, unnest($5, $6, $7, $8) r)"
            f", dead AS (DELETE FROM {schema}.chunk c USING unnest($9, $10) r(first, last)"
            " WHERE c.id BETWEEN r.first AND r.last AND EXISTS (SELECT FROM fence))"
            f", put AS (INSERT INTO {schema}.metadata SELECT r.* FROM fence, unnest($11, $12, $13, $14) r"
            " ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, crc = excluded.crc)"
            f", dropped AS (DELETE FROM {schema}.metadata m USING unnest($15, $16) r(kind, key)"
            " WHERE m.kind = r.kind AND m.key = r.key AND EXISTS (SELECT FROM fence))"
            f", marked AS (INSERT INTO {schema}.mark SELECT r.* FROM fence, unnest($17, $18, $19) r"
            " ON CONFLICT (queue) DO UPDATE SET seq = excluded.seq, crc = excluded.crc)"
            f", forgotten AS (DELETE FROM {schema}.mark WHERE queue = ANY($20) AND EXISTS (SELECT FROM fence))"
            " SELECT 1 FROM fence",
            BIGINT,
            BIGINT,
            BIGINT,
            BIGINTS,
            *(BIGINTS, BYTEAS, BYTEAS, BYTEAS),
            *(BIGINTS, BIGINTS),
            *(TEXTS, BYTEAS, BYTEAS, BIGINTS),
            *(TEXTS, BYTEAS),
            *(BIGINTS, BIGINTS, BIGINTS),
            BIGINTS,
        )
        # A chunk before its commit, and on disk when that is. If it is there already, this is a repetition. It is a sign of
        # life, because the chunks of a large body take longer than the lease.
        self.chunk = Statement(
            "chunk",
            f"WITH fence AS (UPDATE leveret.owner SET seen = clock_timestamp() WHERE shard = {shard} AND epoch = $1"
            f" RETURNING set_config('synchronous_commit', 'off', true)), added AS (INSERT INTO {schema}.chunk"
            " SELECT $2, $3, $4 FROM fence ON CONFLICT DO NOTHING) SELECT 1 FROM fence",
            BIGINT,
            BIGINT,
            BYTEA,
            BIGINT,
        )
        # A sign of life without a commit, which need not reach the disk.
        self.beat = Statement(
            "beat",
            f"UPDATE leveret.owner SET seen = clock_timestamp() WHERE shard = {shard} AND epoch = $1"
            " RETURNING set_config('synchronous_commit', 'off', true)",
            BIGINT,
        )
        # Returns the last commit. When it has returned, that commit is on all disks that it must be on. On a server that
        # has lost this broker's claim, another one may have the same epoch, so it also checks the process.
        self.confirm = Statement(
            "confirm",
            "UPDATE leveret.owner SET seen = clock_timestamp()"
            f" WHERE shard = {shard} AND epoch = $1 AND incarnation = $2 RETURNING committed",
            BIGINT,
            UUID,
        )
        # The process stays in the row, so that it finds out what became of this if the connection is lost.
        self.release = Statement(
            "release",
            "UPDATE leveret.owner SET clean = true, node = NULL, seen = clock_timestamp()"
            f" WHERE shard = {shard} AND epoch = $1 RETURNING 1",
            BIGINT,
        )
        self.read_row = Statement("read_row", f"SELECT settled, entries, data FROM {schema}.log WHERE id = $1", BIGINT)
        self.read_chunks = Statement(
            "read_chunks",
            f"SELECT id, data, crc FROM {schema}.chunk WHERE id BETWEEN $1 AND $2 ORDER BY id",
            BIGINT,
            BIGINT,
        )
        # Nodes that show signs of life and take shards.
        self.takers = Statement(
            "takers",
            "SELECT name FROM leveret.node WHERE name <> $1 AND NOT draining"
            " AND seen > clock_timestamp() - interval '3 seconds'",
            TEXT,
        )
        self.size = Statement(
            "size",
            f"SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
            f" WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'r'",
        )

    def all(self) -> list[Statement]:
        """Return all statements."""
        return list(vars(self).values())

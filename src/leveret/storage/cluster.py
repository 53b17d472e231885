"""The settings of a log in PostgreSQL, apart from the engine, which imports psycopg."""

from __future__ import annotations


class ClusterSettings:
    """The place of a log in PostgreSQL.

    dsn           the address of the database, a URL or the keywords of libpq
    node          the name of this broker in messages of others
    lease         seconds without a sign of life after which another broker may take over the log
    unreplicated  whether a server without synchronous standbys is accepted
    shard         the number of the shard
    shards        the number of shards in the database
    """

    __slots__ = ("dsn", "lease", "node", "shard", "shards", "unreplicated")

    def __init__(self, dsn: str, node: str, lease: float, unreplicated: bool, *, shard: int = 0, shards: int = 1) -> None:
        self.dsn = dsn
        self.node = node
        self.lease = lease
        self.unreplicated = unreplicated
        self.shard = shard
        self.shards = shards

"""The settings of a log in PostgreSQL, apart from the engine, which imports psycopg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.broker.errors import StorageFailed

# Of the messages between nodes. A node refuses a newer one.
LINK_FORMAT: Final = 1


class ServerAway(StorageFailed):
    """The server does not answer, is no primary, or has lost the connection: another attempt may succeed."""


class ClaimLost(StorageFailed):
    """Another broker has claimed the shard at the same time."""


@dataclass(frozen=True, slots=True)
class Server:
    """The identity of a server, by which an old primary is recognized.

    system     the identifier of its cluster, which it shares with its standbys
    timeline   the number of the timeline, which each promotion of a standby raises
    """

    system: int
    timeline: int


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of a shard that has no living owner.

    epoch      the epoch of the last owner
    committed  the number of its last commit
    seen       its last sign of life, as text; None if there was none
    server     the server that says so; None if that does not matter
    """

    epoch: int
    committed: int
    seen: str | None
    server: Server | None = None


class ClusterSettings:
    """The place of a log in PostgreSQL.

    dsn           the address of the database, a URL or the keywords of libpq
    node          the name of this broker in messages of others
    lease         seconds without a sign of life after which another broker may take over the log
    unreplicated  whether a server without synchronous standbys is accepted
    shard         the number of the shard
    shards        the number of shards in the database
    observed      the state of the shard if it is known that the owner is gone
    """

    __slots__ = ("dsn", "lease", "node", "observed", "shard", "shards", "unreplicated")

    def __init__(
        self,
        dsn: str,
        node: str,
        lease: float,
        unreplicated: bool,
        *,
        shard: int = 0,
        shards: int = 1,
        observed: Observed | None = None,
    ) -> None:
        self.dsn = dsn
        self.node = node
        self.lease = lease
        self.unreplicated = unreplicated
        self.shard = shard
        self.shards = shards
        self.observed = observed

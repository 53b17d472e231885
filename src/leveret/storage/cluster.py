"""The settings of a log in PostgreSQL, apart from the engine, which imports psycopg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.broker.errors import StorageFailed

# Of the messages between nodes. A node refuses a newer one.
LINK_FORMAT: Final = 1
# Looks without a sign of life of an owner before it counts as gone, and how many times the slowest one it has in addition.
MIN_LOOKS: Final = 3
SLOW_LOOKS: Final = 2


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


class Silence:
    """The time without a sign of life of an owner, as repeated looks at the server see it.

    A slow server or machine also delays the signs of an owner that lives: the slower the looks, the longer it has.

    lease      seconds without a sign of life after which the owner is gone
    interval   seconds between two looks, and in which one is answered
    allowance  seconds that the owner has in addition
    """

    __slots__ = ("_interval", "_lease", "_looks", "_slowest", "_watched")

    def __init__(self, lease: float, interval: float, allowance: float = 0.0) -> None:
        self._lease = lease + allowance
        self._interval = interval
        self._looks = 0
        self._watched = 0.0
        self._slowest = 0.0

    def note(self, took: float, pause: float) -> None:
        """Note a look that has found no sign of life.

        took   seconds until it was answered
        pause  seconds since the answer to the one before
        """
        self._looks += 1
        # Of a longer pause between two looks, this process did not run, and perhaps the owner did not. A slow look counts:
        # `is_over` gives the owner more than that.
        self._watched += took + min(pause - took, 2 * self._interval)
        if took > self._interval:
            self._slowest = max(self._slowest, took)

    def is_over(self) -> bool:
        """Return whether the owner is gone."""
        return self._looks >= MIN_LOOKS and self._watched >= self._lease + SLOW_LOOKS * self._slowest


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

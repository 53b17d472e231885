"""The part of a broker that one process serves. With `cluster.shards` above 1, processes share the work of one broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from leveret.broker.errors import StorageFailed
from leveret.broker.metadata import GLOBAL_PARAMETER
from leveret.config import Config
from leveret.management.audit.log import AuditLog
from leveret.management.operations.vhosts import DEFAULT_VHOST
from leveret.protocols.opening import Protocols
from leveret.security import users
from leveret.server.server import MAX_TIMER_SLEEP
from leveret.storage.cluster import Observed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.log import Log, Recovery
    from leveret.protocols.amqp09.settings import Amqp09Settings
    from leveret.protocols.amqp10.settings import Amqp10Settings
    from leveret.protocols.services import Services
    from leveret.storage.salvage import Salvage

logger = logging.getLogger("leveret.serve")

# A definition in the log: kind, key and value; None deletes it.
Record: TypeAlias = tuple[str, str, bytes | None]

# Kinds of definitions that belong to the whole broker: users with their permissions, and global parameters with the roles.
SHARED_KINDS: Final = frozenset((users.KIND, users.SECRET[0], GLOBAL_PARAMETER))
# Kind and key of the definition in the log of shard 0 that says that the shared records are in another log.
DIVIDED: Final = ("shards", "divided")


def check_undivided(recovery: Recovery, salvage: Salvage) -> None:
    """Raise `StorageFailed` if the shared records are in another log, unless the operator accepts those in this one."""
    if DIVIDED not in recovery.metadata:
        return
    problem = "the users and global parameters are not in this log, but in the directory 'shared' of several processes"
    if not salvage.accept_missing:
        raise StorageFailed(
            f"{problem}; run `leveret serve` on the whole data directory, restore that directory from a backup, or, to use"
            " the users and parameters from before there were several processes, start once with --accept-missing"
        )
    logger.error("started with --accept-missing although %s", problem)


def shared_records(recovery: Recovery) -> list[Record]:
    """Return the shared records in a log."""
    return [(kind, key, value) for (kind, key), value in recovery.metadata.items() if kind in SHARED_KINDS]


class Part:
    """The whole broker in one process. Subclasses are parts of it.

    Attributes:
        has_listeners: Whether this process accepts connections and logins.
        has_vhosts: Whether this process has vhosts.
        shard: The number of the shard.
        observed: The state of the shard in PostgreSQL, which has no living owner; None if that is unknown.
        first_number: The number of the first connection.
        number_step: The difference between the numbers of two connections.
        audit: The audit log; None for one of this process.
        timer_interval: Maximum seconds between runs of the broker's timers.
        on_progress: Called from time to time while the log is recovered; None for no calls.
    """

    has_listeners = True
    has_vhosts = True
    shard = 0
    observed: Observed | None = None
    _was_divided = False
    first_number = 1
    number_step = 1
    audit: AuditLog | None = None
    timer_interval = MAX_TIMER_SLEEP
    on_progress: Callable[[], None] | None = None

    def store_path(self, config: Config) -> Path:
        """Return the directory of the log."""
        return config.server.data_path

    def engine(self, config: Config) -> str:
        """Return the storage engine of the log."""
        return config.storage.engine

    def describe(self, log: Log) -> str:
        """Return where durable data is, for operators; "" if it is in the data directory or in memory."""
        return log.describe()

    def wanted_vhosts(self, existing: Iterable[str], configured: Iterable[str]) -> list[str]:
        """Return the names of the vhosts to serve, some of which exist in the log, and some in the configuration."""
        return list(dict.fromkeys((DEFAULT_VHOST, *existing, *configured)))

    def take_shared(self, recovery: Recovery, salvage: Salvage) -> list[Record] | None:
        """Return the shared records that replace those in the log, or None if these are in effect. May block.

        Raises:
            StorageFailed: The shared records are missing.
        """
        self._was_divided = DIVIDED in recovery.metadata
        check_undivided(recovery, salvage)
        return None

    def put_shared(self, log: Log, kind: str, key: str, value: bytes | None) -> None:
        """Store a change of a shared record."""
        log.put(kind, key, value)

    async def started(self, log: Log, broker: Broker) -> None:
        """Handle that the broker has started, before anyone can connect."""
        if self._was_divided:
            log.put(*DIVIDED, None)  # the operator has accepted the records in this log

    def vhost_added(self, name: str) -> None:
        """Handle a new vhost."""

    def vhost_removed(self, name: str) -> None:
        """Handle the deletion of a vhost."""

    def make_protocols(self, services: Services, amqp10: Amqp10Settings, amqp09: Amqp09Settings) -> Protocols:
        """Return the protocols that clients may speak."""
        return Protocols(services, amqp10=amqp10, amqp09=amqp09)

"""The parts of a broker that the front and a shard serve."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from leveret.broker import metadata
from leveret.cluster.audit import ForwardedAudit
from leveret.cluster.front_session import FrontProtocols
from leveret.cluster.layout import SHARED, Committed
from leveret.cluster.link import Beat, Begin, Link, Message, Opened, Records, Vhosts
from leveret.cluster.settings import ShardSettings, beat_interval
from leveret.cluster.shards import Shards
from leveret.config import Config
from leveret.management.operations.vhosts import DEFAULT_VHOST
from leveret.node.part import DIVIDED, Part, Record, check_undivided, shared_records
from leveret.storage.registry import MEMORY

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.log import Log, Recovery
    from leveret.protocols.amqp09.settings import Amqp09Settings
    from leveret.protocols.amqp10.settings import Amqp10Settings
    from leveret.protocols.services import Services
    from leveret.storage.salvage import Salvage


class FrontStopped(Exception):
    """The front has stopped before the shard has started."""


class FrontPart(Part):
    """The front: listeners, logins and the shared records, but no vhosts.

    Args:
        shards: The shards.
        taken: The shared records of shard 0 that the front takes over at its first start; None afterwards.
    """

    has_vhosts = False
    # Without queues, only steps of the clock are noticed by this. Each run wakes up the process.
    timer_interval = 0.5
    # Negative numbers are never those of connections in shards, which the log names, too.
    first_number = -1
    number_step = -1

    def __init__(self, shards: Shards, taken: list[Record] | None) -> None:
        self._shards = shards
        self._taken = taken

    def store_path(self, config: Config) -> Path:
        """Return the directory of the shared records."""
        return config.server.data_path / SHARED

    def wanted_vhosts(self, existing: Iterable[str], configured: Iterable[str]) -> list[str]:
        """Return no vhosts, which are in the shards."""
        return []

    def take_shared(self, recovery: Recovery, salvage: Salvage) -> list[Record] | None:
        """Return the records that are taken over, if any. The shards get those in effect."""
        records = shared_records(recovery) if self._taken is None else self._taken
        self._shards.replace(records)
        return self._taken

    async def started(self, log: Log, broker: Broker) -> None:
        """Wait until the records that were taken over are on disk, before shard 0 notes that."""
        committed = Committed()
        log.wait(committed)
        broker.end_turn()
        await committed.future

    def put_shared(self, log: Log, kind: str, key: str, value: bytes | None) -> None:
        """Store a change of a shared record, and pass it on to the shards."""
        log.put(kind, key, value)
        self._shards.put(kind, key, value)

    def make_protocols(self, services: Services, amqp10: Amqp10Settings, amqp09: Amqp09Settings) -> FrontProtocols:
        """Return protocols that hand connections over to the shards."""
        return FrontProtocols(services, self._shards, amqp10=amqp10, amqp09=amqp09)


class NodePart(FrontPart):
    """The front whose shards have their logs in PostgreSQL, which also has the shared records.

    Args:
        shards: The shards.
        where: Where the data is, for operators.
    """

    def __init__(self, shards: Shards, where: str) -> None:
        super().__init__(shards, None)
        self._where = where

    def engine(self, config: Config) -> str:
        """Return the engine of a log that is always empty."""
        return MEMORY

    def describe(self, log: Log) -> str:
        """Return where the logs of the shards are."""
        return self._where

    def take_shared(self, recovery: Recovery, salvage: Salvage) -> None:
        """Recover the shared records, which need not be stored again."""
        recovery.metadata.update(self._shards.records)


class ShardPart(Part):
    """One shard: its vhosts, and the shared records of the front.

    Args:
        settings: The settings of the process.
        link: The link to the front.

    Attributes:
        audit: The audit log, which is at the front.
        records: The shared records by kind and key, once the front has sent them.
    """

    has_listeners = False

    def __init__(self, settings: ShardSettings, link: Link) -> None:
        self.shard = settings.number
        self.observed = settings.observed
        self._asks_shared = settings.asks_shared
        self._link = link
        self.audit: ForwardedAudit = ForwardedAudit(link)
        self.records: dict[tuple[str, str], bytes | None] = {}
        self._has_records = False
        self._is_divided = False
        self.on_progress = self._report_progress
        self._reported = 0.0
        self._timeout = settings.config.cluster.shard_timeout
        self.first_number = settings.number + 1
        self.number_step = settings.config.cluster.shards

    def wanted_vhosts(self, existing: Iterable[str], configured: Iterable[str]) -> list[str]:
        """Return the vhosts in the log; the front declares those of the configuration. Shard 0 has the default vhost."""
        return list(dict.fromkeys((*([] if self.shard else [DEFAULT_VHOST]), *existing)))

    def take_shared(self, recovery: Recovery, salvage: Salvage) -> list[Record]:
        """Report the vhosts in the log to the front, and return the shared records; the first time, wait for them.

        Raises:
            StorageFailed: The front has none, although it had some before.
        """
        # The shard is claimed. If its log is opened again, it may have another owner.
        self.observed = None
        self._is_divided = DIVIDED in recovery.metadata
        if self._asks_shared and not self._has_records:
            check_undivided(recovery, salvage)
        names = [metadata.split_key(key)[0] for kind, key in recovery.metadata if kind == metadata.VHOST]
        self._link.send(
            Opened(
                self.wanted_vhosts(names, ()),
                shared_records(recovery) if self._asks_shared and not self._has_records else [],
            )
        )
        if not self._has_records:
            self.records = {(kind, key): value for kind, key, value in self._receive_records()}
            self._has_records = True
        return [(*known, value) for known, value in self.records.items()]

    async def started(self, log: Log, broker: Broker) -> None:
        """Note in the log of shard 0 that the front has the shared records."""
        if not self.shard and not self._is_divided:
            log.put(*DIVIDED, b"")
            broker.end_turn()

    def _receive_records(self) -> Iterator[Record]:
        """Receive all shared records. Raises `FrontStopped`."""
        while True:
            match self._receive():
                case Records(records):
                    yield from records
                case Begin(records):
                    yield from records
                    return
                case _:
                    raise FrontStopped

    def _receive(self) -> Message | None:
        try:
            return self._link.receive_first()
        except EOFError:
            return None

    def check_front(self) -> None:
        """Raise `FrontStopped` if the front has stopped before the log is open."""
        if not self._has_records and self._link.is_readable():
            raise FrontStopped

    def _report_progress(self) -> None:
        """Show the front that recovery makes progress, once in a while."""
        now = time.monotonic()
        if now - self._reported >= beat_interval(self._timeout):
            self._reported = now
            self._link.send(Beat())

    def put_shared(self, log: Log, kind: str, key: str, value: bytes | None) -> None:
        """Store nothing: the front has the shared records."""

    def vhost_added(self, name: str) -> None:
        """Report a new vhost to the front."""
        self._link.send(Vhosts([name], []))

    def vhost_removed(self, name: str) -> None:
        """Report the deletion of a vhost to the front."""
        self._link.send(Vhosts([], [name]))

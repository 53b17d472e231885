"""The shards of a node, whose logs are in PostgreSQL together with the shared records."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from leveret.broker.errors import StorageFailed
from leveret.cluster.directory import Directory
from leveret.cluster.shards import APPLY_TIMEOUT, Shards
from leveret.config import Config
from leveret.node.part import Record
from leveret.storage.salvage import Salvage

# Seconds at the stop for changes that are not stored yet.
_LAST_WRITE_TIMEOUT: Final = 2.0


class NodeShards(Shards):
    """All shards, and the shared records, which are in the database.

    Args:
        config: The configuration of the broker.
        config_name: The name of the configuration in messages.
        salvage: The data losses that the operator accepts for the first start of each shard.
        directory: The database.
        asks_shared: Whether the shared records are still those in the log of shard 0.
        stop_timeout: Seconds for a shard to stop.
    """

    def __init__(
        self,
        config: Config,
        config_name: str,
        salvage: Salvage,
        directory: Directory,
        *,
        asks_shared: bool,
        stop_timeout: float,
    ) -> None:
        super().__init__(config, config_name, salvage, asks_shared=asks_shared, stop_timeout=stop_timeout)
        self._directory = directory
        # Changes that are not stored yet, and the number of the last one that is.
        self._unwritten: dict[tuple[str, str], bytes | None] = {}
        self._written = 0
        self._writing: asyncio.Task[None] | None = None

    def recover(self, records: list[Record]) -> None:
        """Take the shared records of the database."""
        self.records = {(kind, key): value for kind, key, value in records if value is not None}

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        """Store a change of a shared record, and pass it on to the shards."""
        super().put(kind, key, value)
        self._unwritten[kind, key] = value
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Store changes until all are stored."""
        while self._unwritten:
            number = self.change_number
            changed, self._unwritten = self._unwritten, {}
            await self._directory.put((*known, value) for known, value in changed.items())
            self._written = number
            self.changed()

    async def applied(self) -> None:
        """Wait until the changes so far are stored, and applied by all shards that serve. Raises `StorageFailed`."""
        if self._written < self.change_number:
            number = self.change_number
            try:
                async with asyncio.timeout(APPLY_TIMEOUT):
                    await self._until(lambda: self._written >= number)
            except TimeoutError:
                raise StorageFailed("the change is not stored yet: PostgreSQL does not answer") from None
        await super().applied()

    async def stop(self, reason: str) -> None:
        """Stop all shards, and store the last changes."""
        await super().stop(reason)
        if self._writing is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._writing, _LAST_WRITE_TIMEOUT)

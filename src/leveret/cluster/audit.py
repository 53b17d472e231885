"""The audit log of a broker of several processes, which is at the front. Shards send it their records."""

from __future__ import annotations

import asyncio

import msgspec

from leveret.cluster.link import Audited, Link
from leveret.management.audit.log import AuditLog
from leveret.management.audit.records import AuditRecord
from leveret.management.json_values import encode_json


class ForwardedAudit(AuditLog):
    """The audit log as a shard sees it.

    Args:
        link: The link to the front.
    """

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._sent = 0
        self._written = 0
        self._changed = asyncio.Event()

    def add(self, record: AuditRecord) -> None:
        """Send a record to the front."""
        self._sent += 1
        self._link.send(Audited(self._sent, encode_json(record)))

    def note_written(self, number: int) -> None:
        """Note that the front has written the record with this number, and those before it."""
        self._written = number
        self._changed.set()

    async def written(self) -> None:
        """Return when the front has written all records so far."""
        wanted = self._sent
        while self._written < wanted:
            self._changed.clear()
            await self._changed.wait()


def read_record(message: Audited) -> AuditRecord:
    """Return the record that a shard has sent."""
    return msgspec.json.decode(message.record, type=AuditRecord)

"""The latest log records of the front and of the shards as one list."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from typing import Final

import msgspec

from leveret.cluster.calls import ShardCalls, ShardUnavailable
from leveret.cluster.requests import encode_request
from leveret.cluster.shards import Shard
from leveret.management.operations.log import LogSlice
from leveret.management.recent_log import LogEntry, LogRecords

# Maximum number of slices to read of a shard at a time.
_MAX_SLICES: Final = 40
# Seconds for a shard to answer. The records of the others must not wait long for it.
_TIMEOUT: Final = 4.0


class _Position:
    """The position in the records of a shard: its process, and the number of the last record that was read."""

    def __init__(self) -> None:
        self.pid = 0
        self.last = 0


class ShardLogs:
    """The records of all processes, which are read on demand.

    Args:
        calls: The calls of shards.
        own: The records of this process.

    Attributes:
        records: The records of all processes. Their numbers are in the order in which they were read.
    """

    def __init__(self, calls: ShardCalls, own: LogRecords) -> None:
        self.records = LogRecords()
        self._calls = calls
        self._own = own
        self._own_last = 0
        self._positions: dict[int, _Position] = {}
        self._reading = asyncio.Lock()

    async def read(self, shards: Sequence[Shard]) -> None:
        """Read the new records of all processes.

        A shard that does not answer is left out: this process has logged its end.
        """
        async with self._reading:
            found = await asyncio.gather(*(self._read(shard) for shard in shards))
            own = self._own.after(self._own_last)
            missing = self._own.last - self._own_last - len(own)
            self._own_last = max(self._own.last, own[-1].id if own else 0)
            self.records.go_to(self.records.last + missing + sum(count for _, count in found))
            for entry in heapq.merge(own, *(entries for entries, _ in found), key=lambda entry: entry.time):
                self.records.add(msgspec.structs.replace(entry, id=self.records.last + 1))

    async def _read(self, shard: Shard) -> tuple[list[LogEntry], int]:
        """Return the new records of a shard, and the number of those that it has not kept."""
        position = self._positions.setdefault(shard.number, _Position())
        if position.pid != shard.pid:
            position.pid, position.last = shard.pid, 0
        entries: list[LogEntry] = []
        begin = position.last
        try:
            for _ in range(_MAX_SLICES):
                request = encode_request({"v": 1, "call": "log.read", "arguments": {"after": position.last}})
                piece = await self._calls.call(shard, request, LogSlice, _TIMEOUT)
                entries += [msgspec.structs.replace(entry, shard=shard.number) for entry in piece.records]
                position.last = piece.last
                if not piece.more:
                    break
        except ShardUnavailable:
            pass
        return entries, max(position.last - begin - len(entries), 0)

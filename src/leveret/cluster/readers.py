"""Readers of the changes in shards, and the shards whose objects each of them knows."""

from __future__ import annotations

from collections.abc import Sequence

from leveret.cluster.calls import ShardUnavailable
from leveret.cluster.shards import Shard
from leveret.management.feed import MAX_FEEDS


class Readers:
    """The latest readers, by the names that they have chosen."""

    def __init__(self) -> None:
        self._processes: dict[str, list[int]] = {}

    def check(self, name: str, is_first: bool, shards: Sequence[Shard]) -> None:
        """Note the shards that a reader reads.

        Args:
            name: The name of the reader.
            is_first: Whether it gets everything.
            shards: The shards that are ready.

        Raises:
            ShardUnavailable: The reader has read other shards before, or other processes of them.
        """
        processes = [shard.pid for shard in shards]
        known = self._processes.pop(name, None)
        if not is_first and known != processes:
            raise ShardUnavailable("a shard has become ready or is not ready any more; begin with a new reader")
        self._processes[name] = processes
        if len(self._processes) > MAX_FEEDS:
            del self._processes[next(iter(self._processes))]

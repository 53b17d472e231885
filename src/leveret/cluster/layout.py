"""The data directory of a broker of several processes, and its way back to a broker of one process.

The log of shard 0 is in the data directory itself, as that of a broker of one process. The other shards have `shards/1`,
`shards/2` and so on, and the front has `shared` for the shared records. The control sockets of the shards are
`shards/0.sock` and so on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.broker.log import CommitWaiter
from leveret.node.part import DIVIDED, SHARED_KINDS, Part, Record
from leveret.storage import disk
from leveret.storage.reading import LOG, read_definitions

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.log import Log, Recovery
    from leveret.storage.salvage import Salvage

SHARED: Final = "shared"
SHARDS: Final = "shards"
_REMOVED: Final = "shared.removed"


def shard_path(data: Path, number: int) -> Path:
    """Return the data directory of a shard."""
    return data / SHARDS / str(number) if number else data


def control_path(data: Path, number: int) -> Path:
    """Return the path of the control socket of a shard."""
    return data / SHARDS / f"{number}.sock"


def log_directories(data: Path) -> list[Path]:
    """Return the directories with the logs of all shards and of the front."""
    return [data, *(path for _, path in _others(data, 1)), data / SHARED]


def has_shared(data: Path) -> bool:
    """Return whether the front has stored shared records."""
    return (data / SHARED / f"{LOG}.marker").exists()


def check_shards(data: Path, count: int) -> None:
    """Check that no shard beyond the number of shards has vhosts. Raises `StorageFailed`, naming them."""
    others = [(number, vhosts) for number, path in _others(data, count) if (vhosts := _vhosts(path))]
    if others:
        named = "; ".join(f"shard {number} has {', '.join(map(repr, vhosts))}" for number, vhosts in others)
        raise StorageFailed(
            f"'cluster.shards' is {count}, but more shards in {data / SHARDS} have vhosts: {named}; expected at least"
            f" {others[-1][0] + 1}, or delete these vhosts first"
        )


def _others(data: Path, count: int) -> Iterator[tuple[int, Path]]:
    """Yield number and directory of each shard from a number on."""
    directory = data / SHARDS
    found = [int(path.name) for path in directory.iterdir() if path.name.isdecimal()] if directory.is_dir() else []
    for number in sorted(found):
        if number >= count:
            yield number, directory / str(number)


def _vhosts(path: Path) -> list[str]:
    return [metadata.split_key(key)[0] for kind, key, _ in read_definitions(path) if kind == metadata.VHOST]


class Reunited(Part):
    """The whole broker in one process, in a data directory that several processes have used before.

    The shared records of the front replace those in the log.

    Args:
        data: The data directory. Another shard than the first must not have vhosts.

    Raises:
        StorageFailed: Another shard has vhosts, or the shared records cannot be read.
    """

    def __init__(self, data: Path) -> None:
        check_shards(data, 1)
        self._data = data
        self._records: list[Record] = [
            (kind, key, value) for kind, key, value in read_definitions(data / SHARED) if kind in SHARED_KINDS
        ]

    def take_shared(self, recovery: Recovery, salvage: Salvage) -> list[Record]:
        """Return the records of the front."""
        return self._records

    async def started(self, log: Log, broker: Broker) -> None:
        """Remove the directories of the front and the other shards, once the log has the shared records."""
        log.put(*DIVIDED, None)
        committed = Committed()
        log.wait(committed)
        broker.end_turn()
        await committed.future
        shutil.rmtree(self._data / SHARDS, ignore_errors=True)
        shutil.rmtree(self._data / _REMOVED, ignore_errors=True)
        # The directory disappears at once, because its files are valid only together.
        (self._data / SHARED).rename(self._data / _REMOVED)
        disk.sync_directory(self._data)
        shutil.rmtree(self._data / _REMOVED, ignore_errors=True)


class Committed(CommitWaiter):
    """A waiter whose future is done when the changes so far are on disk."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self, batch: int) -> None:
        """Handle that the changes are on disk."""
        if not self.future.done():
            self.future.set_result(None)

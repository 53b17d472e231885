"""The evidence in a data directory that a database had commits, by which a server that has lost them is recognized."""

from __future__ import annotations

import json
from pathlib import Path

from leveret.broker.errors import StorageFailed
from leveret.storage import disk


class Marker:
    """A file with the last known state of a shard: the identity of its database, its epoch and its commits."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fault(self, identity: str, epoch: int, committed: int) -> str:
        """Describe what a database has lost since the marker was written. Returns "" if that is nothing.

        Raises `StorageFailed` if the file cannot be read.
        """
        try:
            known = json.loads(self.path.read_text("utf-8"))
            marked: tuple[str, int, int] = known["identity"], known["epoch"], known["committed"]
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageFailed(f"{self.path} cannot be read: {error}; to continue without it, remove it") from None
        if marked[0] != identity:
            return f"the broker with the data directory {self.path.parent} has its messages in another database"
        if (epoch, committed) < marked[1:]:
            return (
                f"PostgreSQL has lost confirmed commits: it is at commit {committed} of epoch {epoch}, and commit"
                f" {marked[2]} of epoch {marked[1]} was confirmed"
            )
        return ""

    def write(self, identity: str, epoch: int, committed: int) -> None:
        """Record the state. Raises `StorageFailed`."""
        text = json.dumps({"identity": identity, "epoch": epoch, "committed": committed})
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            disk.write_synced(temporary, text.encode("ascii"))
            temporary.replace(self.path)
            disk.sync_directory(self.path.parent)
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be written: {error.strerror}") from None

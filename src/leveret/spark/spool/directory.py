"""The spool: a directory that keeps messages of another broker from their acknowledgement until Spark has committed them.

    spool.json        queue, vhost and broker, the spool's id, and its position
    lock              locked by the process that writes
    00000000000000000000-00000000000000000999.parquet    messages by offset; the spool assigns the offsets

Files appear atomically: a file is written under another name, synced and renamed, and the directory is synced before the
messages are acknowledged.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.segments.typed_json import Document
from leveret.spark.errors import OffsetError, OptionError

VERSION: Final = 1
_STATE: Final = "spool.json"
_LOCK: Final = "lock"
# Key of the position in the metadata of a file.
_POSITION: Final = b"leveret.position"
# Seconds to wait for the lock, which the process of a query that has just ended still holds.
_LOCK_TIMEOUT: Final = 10.0
_PAUSE: Final = 0.05
_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet")


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file with the messages from the offset `first` to before `stop`."""

    path: str
    first: int
    stop: int


class Spool:
    """The spool directory, for the process that writes to it.

    Attributes:
        id: Unique to the spool.
        next: Offset of the next message.
        position: Position of the last message in its stream, as the consumer returned it; None for a queue.
    """

    def __init__(self, directory: str, source: dict[str, str], lock_timeout: float = _LOCK_TIMEOUT) -> None:
        """Open the spool, creating it if necessary.

        Args:
            directory: The directory.
            source: The mirrored queue: `queue`, `vhost`, `broker`, and the `kind` "stream" of a stream.
            lock_timeout: Seconds to wait while another process holds the lock.

        Raises:
            OptionError: The directory is unusable, in use, or the spool of another queue.
        """
        self.directory = Path(directory)
        self._source = source
        self.id = ""
        self.next = 0
        self.position: Document = None
        self._first = 0
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise OptionError(
                f"option spoolDir: {directory!r} cannot be used ({error.strerror}); expected a directory "
                "that the driver can write and all workers can read"
            ) from None
        if not self._acquire_lock(lock_timeout):
            os.close(self._lock)
            raise OptionError(
                f"option spoolDir: {directory!r} is in use by another query; expected a separate directory for each query"
            )
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _acquire_lock(self, lock_timeout: float) -> bool:
        """Acquire the lock; return False if another process holds it for longer than `lock_timeout` seconds."""
        deadline = time.monotonic() + lock_timeout
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_PAUSE)
            else:
                return True

    def _load(self) -> None:
        for leftover in self.directory.glob("*.part"):
            leftover.unlink()
        path = self.directory / _STATE
        if not path.exists():
            if self._files():
                raise OptionError(
                    f"option spoolDir: {str(self.directory)!r} has messages, but no {_STATE}; expected an "
                    "empty directory, or a complete spool"
                )
            self.id = uuid.uuid4().hex
            self._save()
            return
        try:
            state = json.loads(path.read_bytes())
            version, source = state["version"], state["source"]
            self.id, self.next, self._first = str(state["id"]), int(state["next"]), int(state["first"])
            self.position = state.get("position")
        except (OSError, ValueError, KeyError, TypeError):
            raise OptionError(
                f"option spoolDir: {str(path)!r} is damaged; expected an empty directory, or a complete spool"
            ) from None
        if version != VERSION:
            raise OptionError(
                f"option spoolDir: {str(self.directory)!r} has version {version}; expected {VERSION}: "
                "another version of Leveret wrote it"
            )
        if source != self._source:
            raise OptionError(
                f"option spoolDir: {str(self.directory)!r} is the spool of {_describe(source)}, not of "
                f"{_describe(self._source)}; expected a separate directory for each queue (if only the "
                f"broker's address has changed, edit {path})"
            )
        files = self._files()
        if files and files[-1].stop > self.next:
            self.next = files[-1].stop
            stored = (pq.read_schema(files[-1].path).metadata or {}).get(_POSITION)
            self.position = None if stored is None else json.loads(stored)

    def _files(self) -> list[SpoolFile]:
        found = []
        for path in self.directory.iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None:
                found.append(SpoolFile(str(path), int(name[1]), int(name[2]) + 1))
        return sorted(found, key=lambda file: file.first)

    @property
    def first(self) -> int:
        """The offset of the oldest message."""
        return self._first

    def append(self, batch: pa.RecordBatch, position: Document = None) -> None:
        """Store messages, whose offsets begin with `next`, and the position that they reach, durably. Raises OSError."""
        if position is not None:
            metadata = batch.schema.metadata or {}
            batch = batch.replace_schema_metadata({**metadata, _POSITION: json.dumps(position).encode()})
        stop = self.next + batch.num_rows
        name = f"{self.next:020}-{stop - 1:020}.parquet"
        part = self.directory / f"{name}.part"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            pq.write_table(pa.Table.from_batches([batch]), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.directory / name)
        self._sync()
        self.next = stop
        self.position = position

    def files_between(self, first: int, stop: int) -> list[SpoolFile]:
        """Return the files with these offsets. Raises OffsetError if some are missing."""
        if first < self._first:
            raise OffsetError(
                f"the spool {str(self.directory)!r} begins at offset {self._first}, but the checkpoint begins "
                f"at {first}: the checkpoint is outdated, and its messages are committed and removed; "
                "expected the latest checkpoint"
            )
        if stop > self.next:
            raise OffsetError(
                f"the spool {str(self.directory)!r} ends at offset {self.next}, but the checkpoint has read "
                f"up to {stop}: files of the spool were removed; expected the complete spool"
            )
        files = [file for file in self._files() if file.first < stop and file.stop > first]
        at = first
        for file in files:
            if file.first > at:
                break
            at = file.stop
        if at < stop:
            raise OffsetError(
                f"the spool {str(self.directory)!r} has no messages from offset {at}: a file is missing; "
                "expected the complete spool"
            )
        return files

    def remove_before(self, offset: int) -> None:
        """Remove the files that only have messages before `offset`."""
        if offset <= self._first:
            return
        self._first = min(offset, self.next)
        self._save()
        for file in self._files():
            if file.stop <= offset:
                Path(file.path).unlink(missing_ok=True)

    def _save(self) -> None:
        state = {"version": VERSION, "id": self.id, "source": self._source, "first": self._first, "next": self.next}
        if self.position is not None:
            state["position"] = self.position
        part = self.directory / f"{_STATE}.part"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(json.dumps(state).encode())
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.directory / _STATE)
        self._sync()

    def _sync(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release the lock."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _describe(source: dict[str, Document]) -> str:
    kind = source.get("kind", "queue")
    return f"{kind} {source.get('queue')!r} of vhost {source.get('vhost')!r} at {source.get('broker')}"

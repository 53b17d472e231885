"""A directory in which messages of another broker are kept from when it is told that we have them until Spark has them.

    spool.json        whose it is: queue, virtual host and broker, an id, and how far it has come
    lock              held by the one process that writes
    00000000000000000000-00000000000000000999.parquet    messages by their offsets, which are counted here

A file is there with all that is in it or not at all: it is written beside, synced and renamed, and the directory is synced
before the broker hears that it may forget the messages.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.spark.errors import OffsetError, OptionError

VERSION: Final = 1
_STATE: Final = "spool.json"
_LOCK: Final = "lock"
_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet")


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file with the messages from the offset `first` to before `stop`."""

    path: str
    first: int
    stop: int


class Spool:
    """The directory, for the process that writes into it.

    id    no other spool ever had it
    next  the offset of the next message
    """

    def __init__(self, directory: str, source: dict[str, str]) -> None:
        """Opens it, or makes it. `source` says whose it is: `queue`, `vhost`, `broker`. `OptionError` for a directory that
        cannot be used, or is another's."""
        self.directory = Path(directory)
        self._source = source
        self.id = ""
        self.next = 0
        self._first = 0
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise OptionError(f"option spoolDir: {directory!r} cannot be used ({error.strerror}); expected a "
                              "directory that "
                              "the driver can write and all workers can read") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise OptionError(f"option spoolDir: {directory!r} is in use by another query; expected a directory of "
                              "its own "
                              "for each") from None
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        for leftover in self.directory.glob("*.part"):
            leftover.unlink()
        path = self.directory / _STATE
        if not path.exists():
            if self._files():
                raise OptionError(f"option spoolDir: {str(self.directory)!r} has messages, but no {_STATE}; expected "
                                  "an empty "
                                  "directory, or a spool as it was")
            self.id = uuid.uuid4().hex
            self._save()
            return
        try:
            state = json.loads(path.read_bytes())
            version, source = state["version"], state["source"]
            self.id, self.next, self._first = str(state["id"]), int(state["next"]), int(state["first"])
        except (OSError, ValueError, KeyError, TypeError):
            raise OptionError(f"option spoolDir: {str(path)!r} is damaged; expected an empty directory, or a spool as "
                              "it was"
                              ) from None
        if version != VERSION:
            raise OptionError(f"option spoolDir: {str(self.directory)!r} is of version {version}; expected {VERSION}: "
                              "it was "
                              "written by another release of Leveret")
        if source != self._source:
            raise OptionError(f"option spoolDir: {str(self.directory)!r} is the spool of {_shown(source)}, not of "
                              f"{_shown(self._source)}; expected a directory of its own for each queue (where only the "
                              f"broker's address is new, change it in {path})")
        files = self._files()
        if files:
            self.next = max(self.next, files[-1].stop)

    def _files(self) -> list[SpoolFile]:
        found = []
        for path in self.directory.iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None:
                found.append(SpoolFile(str(path), int(name[1]), int(name[2]) + 1))
        return sorted(found, key=lambda file: file.first)

    @property
    def first(self) -> int:
        """The offset of the first message that is kept."""
        return self._first

    def append(self, batch: pa.RecordBatch) -> None:
        """Keep these messages, whose offsets begin with `next`; they are on disk then. OSError."""
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

    def between(self, first: int, stop: int) -> list[SpoolFile]:
        """The files with these offsets. `OffsetError` where some are missing."""
        if first < self._first:
            raise OffsetError(f"the spool {str(self.directory)!r} begins at {self._first}, the checkpoint asks for "
                              f"{first}: it "
                              "went back, and what it asks for is committed and removed; expected the latest "
                              "checkpoint")
        if stop > self.next:
            raise OffsetError(f"the spool {str(self.directory)!r} ends at {self.next}, the checkpoint has read up to "
                              f"{stop}: "
                              "files of the spool are gone; expected the directory as it was")
        files = [file for file in self._files() if file.first < stop and file.stop > first]
        at = first
        for file in files:
            if file.first > at:
                break
            at = file.stop
        if at < stop:
            raise OffsetError(f"the spool {str(self.directory)!r} has no messages from {at} on: a file is missing; "
                              "expected "
                              "the directory as it was")
        return files

    def remove_before(self, offset: int) -> None:
        """Remove the files whose messages all have lower offsets."""
        if offset <= self._first:
            return
        self._first = min(offset, self.next)
        self._save()
        for file in self._files():
            if file.stop <= offset:
                Path(file.path).unlink(missing_ok=True)

    def _save(self) -> None:
        state = {"version": VERSION, "id": self.id, "source": self._source, "first": self._first, "next": self.next}
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
        """Let another process have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _shown(source: dict[str, Any]) -> str:
    return f"queue {source.get('queue')!r} of vhost {source.get('vhost')!r} at {source.get('broker')}"

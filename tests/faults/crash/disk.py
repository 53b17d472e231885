"""The content of a disk after a power cut: a recording of `preload.c`, and two sets of rules for what has reached the disk.

`Machine` applies the records one by one. `cut` builds a directory as a file system might leave it after a power cut at that
point, any number of times; a `random.Random` selects the outcome.

POSIX, strict: a file's data survives if it was synced, a directory entry if its directory was. Any part of the rest may
survive: single entries, single sectors of writes, in any order.

EXT4, with `data=ordered`: directory operations, truncations and growth of files go through one journal, in order, and any
fsync writes the journal. An unsynced file grows by whole blocks of data, in order; overwritten data is as with POSIX.
"""

from __future__ import annotations

import enum
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

SECTOR = 512
BLOCK = 4096
_HEAD = struct.Struct("<c3xIQQQ")
MARK = b"M"


class Rules(enum.StrEnum):
    """The possible effects of a power cut."""

    POSIX = "posix"
    EXT4 = "ext4"


class Record(NamedTuple):
    """One record of a recording; see `preload.c`. Tests append `MARK` records themselves."""

    operation: bytes
    path: str
    inode: int
    offset: int
    data: bytes


class Recording:
    """The records of a log file, read on demand."""

    def __init__(self, path: Path) -> None:
        self._log = path.read_bytes() if path.exists() else b""

    def __iter__(self) -> Iterator[Record]:
        log, at = self._log, 0
        while at + _HEAD.size <= len(log):
            operation, path_length, inode, offset, length = _HEAD.unpack_from(log, at)
            at += _HEAD.size
            if at + path_length + length > len(log):
                return  # the process was killed while it wrote this record
            path = os.fsdecode(log[at : at + path_length])
            at += path_length
            yield Record(operation, path, inode, offset, log[at : at + length])
            at += length


def marker(data: bytes) -> bytes:
    """A record that notes the state of the test at this point."""
    return _HEAD.pack(MARK, 0, 0, 0, len(data)) + data


class Write(NamedTuple):
    """A change of a file since its last sync: data at an offset, or a truncation to it (`data` is None)."""

    time: int
    offset: int
    data: bytes | None


class File:
    """An inode: content that is on disk, and changes that may not be."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.pending: list[Write] = []

    def sync(self) -> None:
        for change in self.pending:
            apply(self.content, change)
        self.pending.clear()

    def visible(self) -> bytearray:
        """The content as running processes see it."""
        content = bytearray(self.content)
        for change in self.pending:
            apply(content, change)
        return content


DIRECTORY = File()
"""Marks an entry as a directory."""


def apply(content: bytearray, change: Write) -> None:
    _, offset, data = change
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def sectors(change: Write) -> list[Write]:
    """Split a write into the pieces that a disk writes at once."""
    time, offset, data = change
    if data is None:
        return [change]
    pieces: list[Write] = []
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
        pieces.append(Write(time, offset + start, data[start:end]))
        start = end
    return pieces


class Entry(NamedTuple):
    """A change of directories: the new target of each path; None removes it."""

    time: int
    changes: tuple[tuple[str, File | None], ...]


class Machine:
    """The files below a directory, as they are and as they are on disk.

    directory  it is empty when the recording begins
    lying      syncs do nothing, as on a disk that lies about them
    """

    def __init__(self, directory: Path, lying: bool = False) -> None:
        self.root = os.path.realpath(directory)
        self.lying = lying
        self.time = 0
        self.entries: dict[str, File] = {}
        self.inodes: dict[int, File] = {}
        # The entries that are on disk, and the changes that may not be.
        self.durable: dict[str, File] = {}
        self.pending: list[Entry] = []
        # When the journal was last written out.
        self.journal = 0

    @classmethod
    def of(cls, directory: Path, lying: bool = False) -> Machine:
        """Create a machine with the content of the directory, all of which counts as synced."""
        machine = cls(directory, lying)
        machine._load()
        return machine

    def _load(self) -> None:
        for base, names, file_names in os.walk(self.root):
            self.entries.update({os.path.join(base, name): DIRECTORY for name in names})
            for name in file_names:
                path = os.path.join(base, name)
                if os.path.isfile(path):
                    file = self.entries[path] = File(Path(path).read_bytes())
                    self.inodes[os.stat(path).st_ino] = file
        self.durable = dict(self.entries)

    def do(self, record: Record) -> None:
        """Apply the next record."""
        self.time += 1
        operation, path, inode, offset, data = record
        match operation:
            case b"C":
                self._change((path, self._new(inode)))
            case b"K":
                self._change((path, DIRECTORY))
            case b"U" | b"X":
                self._change((path, None))
            case b"R":
                moved = self.entries[path]
                assert moved is not DIRECTORY, f"a directory was renamed: {path}"
                self._change((path, None), (os.fsdecode(data), moved))
            case b"L":
                self._change((os.fsdecode(data), self.entries[path]))
            case b"W" | b"T":
                file = self.inodes.get(inode)
                if file is not None:
                    file.pending.append(Write(self.time, offset, data if operation == b"W" else None))
            case b"S" | b"D":
                file = self.inodes.get(inode)
                if file is not None and not self.lying:
                    # The size of a file is in the journal; that fdatasync writes only where the size has changed.
                    if operation == b"S" or _resized(file):
                        self.journal = self.time
                    file.sync()
            case b"Y":
                if not self.lying:
                    self.journal = self.time
                    self._sync_directory(path)
            case _:
                assert operation == MARK, f"unknown record {operation!r}"

    def _new(self, inode: int) -> File:
        file = self.inodes[inode] = File()
        return file

    def _change(self, *changes: tuple[str, File | None]) -> None:
        for path, file in changes:
            if file is None:
                self.entries.pop(path, None)
            else:
                self.entries[path] = file
        self.pending.append(Entry(self.time, changes))

    def _sync_directory(self, path: str) -> None:
        later: list[Entry] = []
        for time, changes in self.pending:
            here = [change for change in changes if os.path.dirname(change[0]) == path]
            elsewhere = tuple(change for change in changes if os.path.dirname(change[0]) != path)
            _enter(self.durable, here)
            if elsewhere:
                later.append(Entry(time, elsewhere))
        self.pending = later

    def visible(self) -> dict[str, bytes | None]:
        """Return everything as running processes see it: content by path, None for a directory."""
        return {path: None if file is DIRECTORY else bytes(file.visible()) for path, file in self.entries.items()}

    def cut(self, target: Path, rules: Rules, chance: random.Random) -> None:
        """Build in the empty directory `target` what may be left of the machine's directory."""
        build(target, self.left(rules, chance))

    def left(self, rules: Rules, chance: random.Random) -> dict[str, bytes | None]:
        """Return what may be left: content by relative path, None for a directory, parents before their content."""
        if rules is Rules.POSIX:
            entries = dict(self.durable)
            for entry in some(self.pending, chance):
                _enter(entries, entry.changes)
            until = self.time
        else:
            # The journal contains a prefix of the operations.
            until = chance.choice((self.journal, self.time, chance.randint(self.journal, self.time)))
            entries = dict(self.durable)
            for time, changes in self.pending:
                if time <= until:
                    _enter(entries, changes)
        made = {self.root}
        found: dict[str, bytes | None] = {}
        left: dict[int, bytes] = {}
        for path, file in sorted(entries.items(), key=lambda item: item[0]):
            if os.path.dirname(path) not in made:
                continue  # its directory does not exist
            name = os.path.relpath(path, self.root)
            if file is DIRECTORY:
                found[name] = None
                made.add(path)
            elif not path.endswith("-shm"):
                # The index of a write-ahead log is in a memory map; it is rebuilt after a power cut.
                if id(file) not in left:
                    left[id(file)] = (
                        _left_strictly(file, chance) if rules is Rules.POSIX else _left_in_order(file, until, chance)
                    )
                found[name] = left[id(file)]
        return found


def build(target: Path, left: dict[str, bytes | None]) -> None:
    """Create the remaining files in the empty directory `target`."""
    for name, content in left.items():
        place = target / name
        if content is None:
            place.mkdir(mode=0o700)
        else:
            place.write_bytes(content)
            place.chmod(0o600)


def _resized(file: File) -> bool:
    size = len(file.content)
    return any(change.data is None or change.offset + len(change.data) > size for change in file.pending)


def _enter(entries: dict[str, File], changes: tuple[tuple[str, File | None], ...] | list[tuple[str, File | None]]) -> None:
    for path, file in changes:
        if file is None:
            entries.pop(path, None)
        else:
            entries[path] = file


def some(items: list[T], chance: random.Random) -> list[T]:
    """Return none of the items, all, the first ones, or any."""
    match chance.choice(("nothing", "all", "first", "any")):
        case "nothing":
            return []
        case "all":
            return items
        case "first":
            return items[: chance.randint(0, len(items))]
        case _:
            return [item for item in items if chance.random() < 0.5]


def _left_strictly(file: File, chance: random.Random) -> bytes:
    if not file.pending:
        return bytes(file.content)
    content = bytearray(file.content)
    pieces = file.pending
    if chance.random() < 0.5:
        pieces = [piece for change in file.pending for piece in sectors(change)]
    for change in some(pieces, chance):
        apply(content, change)
    return bytes(content)


def _left_in_order(file: File, until: int, chance: random.Random) -> bytes:
    """Overwritten sectors in any order; growth by whole blocks in order; truncations that are in the journal."""
    content = bytearray(file.content)
    # Delayed allocation: growth may reach the disk after the journal, but not before its data.
    blocks = chance.choice((0, 1 << 40, chance.randint(0, 64)))
    share = chance.choice((0.0, 0.5, 1.0))
    for change in file.pending:
        time, offset, data = change
        if data is None:
            if time > until:
                break  # and no later change may have set the size
            apply(content, change)
            continue
        size = len(content)
        inside = data[: max(0, size - offset)]
        for piece in sectors(Write(time, offset, inside)):
            if chance.random() < share:
                apply(content, piece)
        grown = offset + len(data) - size
        if grown > 0 and blocks > 0 and time <= until:
            wanted = -(-grown // BLOCK)
            if wanted > blocks:
                grown = max(0, blocks * BLOCK - size % BLOCK)
            blocks -= wanted
            start = max(offset, size)
            end = min(offset + len(data), size + grown)
            if end > start:
                apply(content, Write(time, start, data[start - offset : end - offset]))
            if blocks <= 0:
                blocks = 0
        elif grown > 0:
            blocks = 0
    return bytes(content)

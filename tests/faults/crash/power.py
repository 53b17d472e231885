"""Power cuts: a killed process leaves what it wrote in the page cache; a machine that loses power does not.

A library that is preloaded into the broker records its writes, truncations and syncs (`record_writes.c`). After a kill
the data directory is built anew from what was synced, with an arbitrary part of what was not: nothing of it, all of it, a
prefix, or single sectors of it, torn and out of order. Creating, renaming and deleting files counts as done at once.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from tests.support.broker import START_TIMEOUT, LeveretProcess

SOURCE = Path(__file__).with_name("record_writes.c")
SECTOR = 512
_HEAD = struct.Struct("<c3xIQQ")


def build_recorder(directory: Path) -> Path | None:
    """Compile the library; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = directory / "record_writes.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


class File:
    """Content that survives, and the changes since the last sync: (offset, data), or (length, None) for a truncation."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.pending: list[tuple[int, bytes | None]] = []

    def change(self, offset: int, data: bytes | None) -> None:
        if data is None:
            del self.content[offset:]
            self.content.extend(bytes(offset - len(self.content)))
            return
        if offset > len(self.content):
            self.content.extend(bytes(offset - len(self.content)))
        self.content[offset : offset + len(data)] = data

    def sync(self) -> None:
        for offset, data in self.pending:
            self.change(offset, data)
        self.pending.clear()

    def cut(self, chance: random.Random) -> str:
        """The power goes: keep an arbitrary part of what is pending. Returns how it was chosen."""
        how = chance.choice(("nothing", "all", "prefix", "sectors"))
        if how == "prefix":
            del self.pending[chance.randint(0, len(self.pending)) :]
        elif how == "sectors":
            self.pending = [piece for change in self.pending for piece in sectors(*change) if chance.random() < 0.5]
        if how == "nothing":
            self.pending.clear()
        self.sync()
        return how


def sectors(offset: int, data: bytes | None) -> list[tuple[int, bytes | None]]:
    """A write in the pieces that a disk writes at once."""
    if data is None:
        return [(offset, None)]
    pieces: list[tuple[int, bytes | None]] = []
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
        pieces.append((offset + start, data[start:end]))
        start = end
    return pieces


def replay(base: Path, directory: Path, log: bytes, lying: bool = False) -> dict[Path, File]:
    """The files as they are after the recorded operations on top of `base`, synced and pending apart.

    `lying`: syncs do nothing, as on a disk that lies about them.
    """
    files = {directory / path.name: File(path.read_bytes()) for path in base.iterdir() if path.is_file()}
    at = 0
    while at + _HEAD.size <= len(log):
        operation, path_length, offset, length = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        path = Path(log[at : at + path_length].decode())
        at += path_length
        data = log[at : at + length]
        at += length
        if operation == b"U":
            files.pop(path, None)
        elif operation == b"R":
            files[Path(data.decode())] = files.pop(path)
        else:
            file = files.setdefault(path, File())
            if operation == b"S":
                if not lying:
                    file.sync()
            elif operation == b"W":
                file.pending.append((offset, data))
            elif operation == b"T":
                file.pending.append((offset, None))
            elif file.content or file.pending:
                file.pending.append((0, None))
    return files


class PoweredProcess(LeveretProcess):
    """A broker whose `kill` cuts the power of the machine that it would run on."""

    def __init__(self, directory: Path, library: Path, seed: int) -> None:
        super().__init__(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.data_dir.mkdir(mode=0o700, exist_ok=True)
        self.library = library
        self.chance = random.Random(seed)
        self.base = directory / "base"
        self.record = directory / "writes.log"
        self.cuts = 0
        self.lying = False
        self.environment = {
            "LD_PRELOAD": str(library),
            "RECORD_DIR": str(self.data_dir),
            "RECORD_LOG": str(self.record),
        }

    def start(self, timeout: float = START_TIMEOUT) -> PoweredProcess:
        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir()
        for path in self.data_dir.iterdir():
            if path.is_file():
                shutil.copy2(path, self.base / path.name)
        self.record.unlink(missing_ok=True)
        super().start(timeout)
        return self

    def kill(self) -> None:
        if self.process is None:
            return
        super().kill()
        log = self.record.read_bytes() if self.record.exists() else b""
        files = replay(self.base, self.data_dir, log, self.lying)
        for path in self.data_dir.iterdir():
            if not path.is_dir():
                path.unlink()
        for path, file in files.items():
            file.cut(self.chance)
            # The index of a write-ahead log lives in a memory map; after a power cut it is made anew.
            if not path.name.endswith("-shm"):
                path.write_bytes(file.content)
        self.cuts += 1


def powered(directory: Path, seed: int) -> PoweredProcess | None:
    """A broker to cut the power of, or None where there is no C compiler."""
    library = build_recorder(Path(tempfile.mkdtemp(prefix="recorder-", dir=directory)))
    return None if library is None else PoweredProcess(directory / "broker", library, seed)

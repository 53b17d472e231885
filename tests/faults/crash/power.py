"""Power cuts: a killed process leaves its writes in the page cache; a machine that loses power does not.

A library that is preloaded into the broker and its children records their file operations (`preload.c`). After a kill the
data directory is rebuilt as a disk might hold it at that point (`disk.py`).
"""

from __future__ import annotations

import fcntl
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.crash.disk import Machine, Recording, Rules
from tests.support.broker import START_TIMEOUT, LeveretProcess

SOURCE = Path(__file__).with_name("preload.c")


def build_library(directory: Path) -> Path | None:
    """Compile the library. Returns None if there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = directory / "preload.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def recorded(library: Path, root: Path, log: Path) -> dict[str, str]:
    """Return the environment of a process whose files below `root` are recorded."""
    return {"LD_PRELOAD": str(library), "RECORD_DIR": str(root), "RECORD_LOG": str(log), "RECORD_GATE": str(gate_of(log))}


def gate_of(log: Path) -> Path:
    """Return the file that a recorded process locks for each operation and its record."""
    return log.with_suffix(".gate")


@contextmanager
def between_records(log: Path) -> Iterator[None]:
    """Pause recorded processes between two operations, so that a kill leaves no operation without a record."""
    with open(gate_of(log), "ab") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield


class PoweredProcess(LeveretProcess):
    """A broker whose `kill` cuts the power of its simulated machine."""

    def __init__(self, directory: Path, library: Path, seed: int, rules: Rules = Rules.POSIX) -> None:
        super().__init__(directory, data_dir=directory / "disk" / "data")
        self.disk = self.data_dir.parent
        self.disk.mkdir(parents=True, exist_ok=True)
        self.rules = rules
        self.chance = random.Random(seed)
        self.record = directory / "writes.log"
        self.cuts = 0
        self.lying = False
        self.environment = recorded(library, self.disk, self.record)

    def start(self, timeout: float = START_TIMEOUT) -> PoweredProcess:
        self.machine = Machine.of(self.disk, self.lying)
        self.record.unlink(missing_ok=True)
        super().start(timeout)
        return self

    def kill(self) -> None:
        if self.process is None:
            return
        super().kill()
        for record in Recording(self.record):
            self.machine.do(record)
        shutil.rmtree(self.disk)
        self.disk.mkdir()
        self.machine.cut(self.disk, self.rules, self.chance)
        self.cuts += 1


def powered(directory: Path, seed: int, rules: Rules = Rules.POSIX) -> PoweredProcess | None:
    """Return a broker whose power can be cut, or None if there is no C compiler."""
    library = build_library(Path(tempfile.mkdtemp(prefix="preload-", dir=directory)))
    return None if library is None else PoweredProcess(directory / "broker", library, seed, rules)

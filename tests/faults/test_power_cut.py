"""Power cuts: synced data survives, and any part of the rest may. Confirmed means durable all the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.crash.disk import DIRECTORY, Machine, Record, Recording, Rules, Write, sectors
from tests.faults.crash.power import build_library, powered, recorded
from tests.faults.crash.rounds import CrashTest, Violation
from tests.support.broker import leveret_only
from tests.support.peers.async_amqp091 import Closed


@pytest.mark.slow
@pytest.mark.parametrize("rules", Rules)
def test_rounds(tmp_path: Path, rules: Rules) -> None:
    leveret_only("its power is cut")
    process = powered(tmp_path, 1, rules)
    if process is None:
        pytest.skip("no C compiler for the library that records writes")
    test = CrashTest(process, 1, tmp_path / "journal.jsonl")
    try:
        test.run(3, (0.2, 0.8), graceful=0, found=100)
        process.check_log()
        assert process.cuts >= 3
    finally:
        process.kill()


def test_a_lying_disk_is_detected(tmp_path: Path) -> None:
    """The check can fail: without syncs, confirmed messages are lost."""
    leveret_only("its power is cut")
    process = powered(tmp_path, 1)
    if process is None:
        pytest.skip("no C compiler for the library that records writes")
    process.lying = True
    test = CrashTest(process, 1, tmp_path / "journal.jsonl")
    try:
        # A guarantee is broken, a queue is missing, or the data directory is unusable.
        with pytest.raises((Violation, RuntimeError, Closed)):
            test.run(8, (0.2, 0.5), graceful=0, again=0)
    finally:
        process.kill()


OPERATIONS = """
import os, sys
os.chdir(sys.argv[1])
os.makedirs("a/b")
one = os.open("a/b/one", os.O_RDWR | os.O_CREAT)
os.write(one, b"x" * 3000)
os.pwrite(one, b"yy", 1000)
os.writev(one, [b"12", b"", b"345"])
os.fsync(one)
os.ftruncate(one, 2500)
os.rename("a/b/one", "a/two")
with open("a/b/three", "wb") as file:
    file.write(b"three")
os.truncate("a/b/three", 3)
os.link("a/two", "a/four")
os.unlink("a/two")
os.mkdir("gone")
os.rmdir("gone")
directory = os.open("a", os.O_RDONLY | os.O_DIRECTORY)
open(os.open("five", os.O_WRONLY | os.O_CREAT, dir_fd=directory), "wb").write(b"five")
os.fdatasync(one)
os.fsync(directory)
with open("a/b/three", "wb") as file:
    file.write(b"3")
"""


def test_everything_is_recorded(tmp_path: Path) -> None:
    library = build_library(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    disk = tmp_path / "disk"
    disk.mkdir()
    machine = Machine(disk)
    log = tmp_path / "log"
    subprocess.run(
        [sys.executable, "-c", OPERATIONS, str(disk)], check=True, env={**os.environ, **recorded(library, disk, log)}
    )
    for record in Recording(log):
        machine.do(record)
    there = {str(path): path.read_bytes() if path.is_file() else None for path in disk.rglob("*")}
    assert machine.visible() == there
    assert len(there) == 5
    # Synced: the directory `a`, but not its own entry; a link's content, by the descriptor of its first name.
    assert {os.path.relpath(path, disk) for path in machine.durable} == {"a/b", "a/four", "a/five"}
    assert machine.durable[f"{disk}/a/b"] is DIRECTORY
    assert bytes(machine.durable[f"{disk}/a/four"].content) == there[f"{disk}/a/four"]
    assert bytes(machine.durable[f"{disk}/a/five"].content) == b""


def outcomes(rules: Rules, records: list[Record], tmp_path: Path) -> set[tuple[tuple[str, bytes | None], ...]]:
    """Return all outcomes of 300 cuts after the records."""
    root = tmp_path / "machine"
    root.mkdir()
    machine = Machine(root)
    for record in records:
        machine.do(record._replace(path=f"{root}/{record.path}" if record.path else ""))
    found = set()
    chance = random.Random(1)
    for number in range(300):
        target = tmp_path / f"cut-{number}"
        target.mkdir()
        machine.cut(target, rules, chance)
        found.add(
            tuple(
                sorted(
                    (str(path.relative_to(target)), path.read_bytes() if path.is_file() else None)
                    for path in target.rglob("*")
                )
            )
        )
    return found


def record(operation: bytes, path: str = "", inode: int = 0, offset: int = 0, data: bytes = b"") -> Record:
    return Record(operation, path, inode, offset, data)


def test_an_entry_needs_its_directory_synced(tmp_path: Path) -> None:
    """A synced file in a directory that was not synced: there under ext4's rules, perhaps under those of POSIX."""
    records = [record(b"K", "d", 1), record(b"C", "d/f", 2), record(b"W", inode=2, data=b"data"), record(b"S", inode=2)]
    whole = (("d", None), ("d/f", b"data"))
    assert outcomes(Rules.EXT4, records, tmp_path) == {whole}
    (tmp_path / "strict").mkdir()
    assert outcomes(Rules.POSIX, records, tmp_path / "strict") == {whole, (("d", None),), ()}


def test_a_synced_directory_is_not_in_its_parent_yet(tmp_path: Path) -> None:
    records = [record(b"K", "d", 1), record(b"C", "d/f", 2), record(b"S", inode=2), record(b"Y", "d", 1)]
    assert outcomes(Rules.POSIX, records, tmp_path) == {(("d", None), ("d/f", b"")), ()}


def test_files_grow_in_order_under_ext4(tmp_path: Path) -> None:
    records = [
        record(b"C", "f", 1),
        record(b"S", inode=1),
        *[record(b"W", inode=1, offset=4096 * number, data=bytes((number + 1,)) * 4096) for number in range(3)],
    ]
    whole = b"".join(bytes((number + 1,)) * 4096 for number in range(3))
    assert {dict(state)["f"] for state in outcomes(Rules.EXT4, records, tmp_path)} == {
        whole[: 4096 * number] for number in range(4)
    }
    (tmp_path / "strict").mkdir()
    assert len(outcomes(Rules.POSIX, records, tmp_path / "strict")) > 20


def test_overwritten_data_may_be_torn(tmp_path: Path) -> None:
    records = [
        record(b"C", "f", 1),
        record(b"W", inode=1, data=b"a" * 2048),
        record(b"S", inode=1),
        record(b"W", inode=1, data=b"b" * 2048),
    ]
    found = {dict(state).get("f") for state in outcomes(Rules.EXT4, records, tmp_path)}
    assert {b"a" * 2048, b"b" * 2048, b"a" * 512 + b"b" * 512 + b"a" * 1024} <= found


def test_a_rename_is_atomic(tmp_path: Path) -> None:
    records = [
        record(b"C", "f", 1),
        record(b"S", inode=1),
        record(b"R", "f", data=os.fsencode(f"{tmp_path}/machine/g")),
        record(b"C", "h", 2),
        record(b"S", inode=2),
    ]
    assert outcomes(Rules.EXT4, records, tmp_path) == {(("g", b""), ("h", b""))}
    (tmp_path / "strict").mkdir()
    records[2] = records[2]._replace(data=os.fsencode(f"{tmp_path}/strict/machine/g"))
    found = {tuple(name for name, _ in state) for state in outcomes(Rules.POSIX, records, tmp_path / "strict")}
    assert found == {(), ("f",), ("g",), ("h",), ("f", "h"), ("g", "h")}


def test_sectors() -> None:
    pieces = sectors(Write(1, 500, b"x" * 600))
    assert [(offset, len(data or b"")) for _, offset, data in pieces] == [(500, 12), (512, 512), (1024, 76)]
    assert sectors(Write(1, 7, None)) == [Write(1, 7, None)]

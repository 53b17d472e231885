"""Opening a data directory: refused starts, with an error that names the remedy."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.broker.errors import StorageFailed
from leveret.storage.batch import INDEX_SUMS, RowImage
from leveret.storage.checksums import row_columns
from leveret.storage.data_directory import DirectoryLock, Reserve
from tests.storage.harness import FakeQueue, Harness, sqlite_log

pytestmark = pytest.mark.embedded("damages and locks the database file")


def filled(path: Path, count: int = 50) -> Path:
    """Create a data directory with some messages. Returns the database file."""
    harness = Harness(lambda: sqlite_log(path))
    queue = FakeQueue(1)
    for number in range(count):
        harness.publish(queue, b"%05d" % number * 300)
        harness.commit()
    harness.log.put("kind", "key", b"value")
    file = Path(sqlite_log(path).file)
    harness.log.close()
    return file


def refusal(path: Path) -> str:
    log = sqlite_log(path)
    with pytest.raises(StorageFailed) as caught:
        log.open()
    # A refused log has released the directory.
    DirectoryLock(path, f"{log.name}.lock").release()
    return str(caught.value)


def test_a_new_directory_is_created_clean(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    log = sqlite_log(path)
    recovery = log.open()
    assert recovery.clean
    assert not recovery.queues
    assert not recovery.metadata
    log.close()
    assert sqlite_log(path).open().clean


def test_an_unclean_stop_is_detected(tmp_path: Path) -> None:
    log = sqlite_log(tmp_path / "a")
    log.open()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    log.close()
    # A broker that ends before it has noted what was delivered leaves that to the next one.
    for _ in range(2):
        again = sqlite_log(tmp_path / "b")
        assert not again.open().clean
        again.close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    log = sqlite_log(tmp_path)
    log.open()
    script = (
        "import sys; from pathlib import Path; from leveret.storage.sqlite import SqliteLog\n"
        "try:\n    SqliteLog(Path(sys.argv[1])).open()\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": "src"},
        cwd=Path(__file__).parents[2],
    ).stdout
    assert output.startswith("DirectoryInUse")
    assert str(tmp_path) in output
    assert f"process {os.getpid()}" in output
    assert "stop that process" in output
    log.close()


def test_a_second_log_of_the_same_process_is_refused(tmp_path: Path) -> None:
    log = sqlite_log(tmp_path)
    log.open()
    with pytest.raises(StorageFailed, match="is in use by process"):
        sqlite_log(tmp_path).open()
    log.close()
    sqlite_log(tmp_path).open()


def test_the_lock_of_sqlite_is_respected(tmp_path: Path) -> None:
    file = filled(tmp_path)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "is in use by another process" in refusal(tmp_path)
    other.close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    file = filled(tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    message = refusal(tmp_path)
    assert str(file) in message
    assert "format version 7" in message
    assert "install the version of leveret that wrote it" in message


def test_a_record_of_a_later_version_is_refused(tmp_path: Path) -> None:
    file = filled(tmp_path, 1)
    with sqlite3.connect(file) as connection:
        entries, data = connection.execute("SELECT entries, data FROM log").fetchone()
        index = bytearray(entries[:-INDEX_SUMS])
        index[24 + 20] = 1 << 5 | 9
        image = RowImage(1, b"", bytes(index), [data])
        connection.execute("UPDATE log SET settled = ?, entries = ?, data = ?", row_columns(image))
    connection.close()
    assert "has a record of kind prepare, which this version of leveret does not support" in refusal(tmp_path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    log = sqlite_log(tmp_path)
    with sqlite3.connect(log.file) as connection:
        connection.execute("CREATE TABLE theirs(x)")
    connection.close()
    assert "not a leveret log" in refusal(tmp_path)
    with sqlite3.connect(log.file) as connection:
        assert connection.execute("SELECT count(*) FROM theirs").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("what", ["header", "garbage", "middle", "short"])
def test_a_damaged_file_is_refused(tmp_path: Path, what: str) -> None:
    file = filled(tmp_path)
    data = bytearray(file.read_bytes())
    if what == "header":
        data[:100] = bytes(range(100))
    elif what == "garbage":
        data[:] = os.urandom(5000)
    elif what == "middle":
        for page in range(1, len(data) // 4096):
            data[4096 * page : 4096 * page + 64] = b"\xff" * 64
    else:
        del data[len(data) // 2 :]
    file.write_bytes(data)
    message = refusal(tmp_path)
    assert str(file) in message
    assert "is damaged" in message
    assert "restore the directory" in message
    assert ".recover" in message


@pytest.mark.parametrize("column", ["entries", "settled", "data"])
def test_a_damaged_row_is_refused(tmp_path: Path, column: str) -> None:
    file = filled(tmp_path, 3)
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE log SET {column} = X'00ff00ff00ff00ff00ff' WHERE id = 2")
    connection.close()
    assert "is damaged" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed, match="make it writable"):
        sqlite_log(tmp_path / "data").open()


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StorageFailed, match="cannot be used"):
        sqlite_log(tmp_path / "data").open()


def test_an_overflow_file_that_cannot_be_removed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    first = sqlite_log(tmp_path, durable=False)
    first.open()
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(StorageFailed, match=r"overflow-0\.sqlite cannot be removed: Input/output error"):
        first.close()
    with pytest.raises(StorageFailed, match=r"cannot be used: Input/output error \(.*overflow-0\.sqlite\)"):
        sqlite_log(tmp_path, durable=False).open()
    monkeypatch.undo()
    again = sqlite_log(tmp_path, durable=False)
    again.open()
    again.close()
    assert not again.file.exists()


def test_less_than_full_synchronisation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FULL or EXTRA"):
        sqlite_log(tmp_path, synchronous="NORMAL")


def test_the_overflow_file_is_deleted(tmp_path: Path) -> None:
    first = sqlite_log(tmp_path, durable=False)
    harness = Harness(lambda: first)
    harness.publish(FakeQueue(1), b"gone")
    harness.commit()
    assert first.file.exists()
    # As after a kill: no files were removed.
    shutil.copytree(tmp_path, tmp_path / "copy")
    harness.log.close()
    assert not first.file.exists()
    second = sqlite_log(tmp_path / "copy", durable=False)
    recovery = second.open()
    assert not recovery.queues
    second.close()


def test_the_reserve_is_allocated_and_released(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", 1 << 20)
    assert reserve.allocate()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 1 << 20
    reserve.release()
    assert not (tmp_path / "reserve").exists()
    assert not Reserve(tmp_path / "reserve", 1 << 60).allocate()
    assert not (tmp_path / "reserve").exists()


def test_an_interrupted_creation_restarts(tmp_path: Path) -> None:
    """A power cut or a full disk while the database is created leaves its rollback journal."""
    source = tmp_path / "source.sqlite"
    connection = sqlite3.connect(source, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE log(data BLOB)")
    for _ in range(50):
        connection.execute("INSERT INTO log VALUES (zeroblob(5000))")
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    for suffix in ("", "-journal"):
        shutil.copy(f"{source}{suffix}", directory / f"log-0.sqlite{suffix}")
    connection.close()
    harness = Harness(lambda: sqlite_log(directory))
    harness.publish(FakeQueue(1), b"one")
    harness.commit()
    harness.reopen()
    assert harness.bodies(1) == [b"one"]
    harness.log.close()

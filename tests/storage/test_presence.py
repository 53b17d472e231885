"""A broker does not start empty if parts of its data still exist."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.storage import disk, sqlite_store
from leveret.storage.presence import LogFiles
from leveret.storage.salvage import NOTHING_LOST, Salvage
from tests.cli.runner import Commands
from tests.storage.harness import FakeQueue, Harness, sqlite_log
from tests.support.broker import LeveretProcess, leveret_only

pytestmark = pytest.mark.embedded("removes files of the log")

ACCEPTING = Salvage(accept_missing=True)


def stopped(path: Path, clean: bool) -> Path:
    """Create a data directory with one message, of a broker that was stopped properly or killed."""
    harness = Harness(lambda: sqlite_log(path / "live"))
    harness.publish(FakeQueue(1), b"kept")
    harness.commit()
    if not clean:
        shutil.copytree(path / "live", path / "data")
    harness.log.close()
    if clean:
        shutil.copytree(path / "live", path / "data")
    return path / "data"


def refusal(path: Path) -> str:
    with pytest.raises(StorageFailed) as caught:
        sqlite_log(path).open()
    return str(caught.value)


def bodies(path: Path, salvage: Salvage | None = None) -> list[bytes]:
    harness = Harness(lambda: sqlite_log(path, salvage=salvage) if salvage is not None else sqlite_log(path))
    found = harness.bodies(1)
    harness.log.close()
    return found


def test_a_copy_of_a_closed_log_needs_no_write_ahead_log(tmp_path: Path) -> None:
    path = stopped(tmp_path, clean=True)
    assert sorted(file.name for file in path.iterdir()) == ["log-0.lock", "log-0.marker", "log-0.sqlite"]
    assert bodies(path) == [b"kept"]


def test_the_database_alone_is_enough_after_a_proper_stop(tmp_path: Path) -> None:
    path = stopped(tmp_path, clean=True)
    (path / "log-0.marker").unlink()
    assert bodies(path) == [b"kept"]
    assert (path / "log-0.marker").exists()


def test_a_missing_write_ahead_log_is_refused_after_an_unclean_stop(tmp_path: Path) -> None:
    path = stopped(tmp_path, clean=False)
    (path / "log-0.sqlite-wal").unlink()
    message = refusal(path)
    assert f"the write-ahead log {path}/log-0.sqlite-wal is missing" in message
    assert "--accept-missing" in message and "restore" in message
    assert bodies(path, ACCEPTING) == []
    assert bodies(path) == []


def test_a_refusal_changes_nothing(tmp_path: Path) -> None:
    path = stopped(tmp_path, clean=False)
    wal = (path / "log-0.sqlite-wal").read_bytes()
    (path / "log-0.sqlite").rename(tmp_path / "database")
    refusal(path)
    (tmp_path / "database").rename(path / "log-0.sqlite")
    assert (path / "log-0.sqlite-wal").read_bytes() == wal
    assert bodies(path) == [b"kept"]


@pytest.mark.parametrize("how", ["missing", "empty"])
@pytest.mark.parametrize("left", ["log-0.sqlite-wal", "log-0.marker", "streams", "staged"])
def test_a_missing_database_is_refused(tmp_path: Path, how: str, left: str) -> None:
    path = stopped(tmp_path, clean=False)
    database = path / "log-0.sqlite"
    if how == "missing":
        database.unlink()
    else:
        database.write_bytes(b"")
    for name in {"log-0.sqlite-wal", "log-0.marker"} - {left}:
        (path / name).unlink()
    if left in ("streams", "staged"):
        (path / left / "home").mkdir(parents=True)
        (path / left / "home" / "file").touch()
    message = refusal(path)
    assert f"the database {database} is {how}, but {left} exists" in message
    assert bodies(path, ACCEPTING) == []
    orphaned = path / "log-0.sqlite-wal.orphaned"
    assert orphaned.exists() == (left == "log-0.sqlite-wal")


def test_each_orphaned_write_ahead_log_is_kept(tmp_path: Path) -> None:
    path = stopped(tmp_path, clean=False)
    kept = []
    for name in ("log-0.sqlite-wal.orphaned", "log-0.sqlite-wal.orphaned-2", "log-0.sqlite-wal.orphaned-3"):
        (path / "log-0.sqlite").unlink()
        wal = path / "log-0.sqlite-wal"
        wal.write_bytes(name.encode())
        assert bodies(path, ACCEPTING) == []
        kept.append((path / name, name.encode()))
        assert [file.read_bytes() for file, _ in kept] == [content for _, content in kept]


def test_an_orphaned_write_ahead_log_has_its_new_name_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite creates a file under the old name; after that, a power cut must not undo the rename."""
    path = stopped(tmp_path, clean=False)
    (path / "log-0.sqlite").unlink()
    calls: list[str] = []
    sync = disk.sync_directory

    def noted(place: str | Path) -> None:
        calls.append(str(place))
        sync(place)

    monkeypatch.setattr(disk, "sync_directory", noted)
    LogFiles(path, "log-0").put_aside()
    assert calls == [str(path)]


@pytest.mark.parametrize("lost", ["log-0.sqlite", "log-0.sqlite-wal"])
@pytest.mark.parametrize("crash", [False, True])
def test_files_without_a_definition_are_kept_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, crash: bool
) -> None:
    """The lost definitions may have named the files. The log records that, even if the start crashes."""
    path = stopped(tmp_path, clean=False)
    (path / lost).unlink()
    if crash:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(sqlite_store, "mark_salvaged", _killed)
            sqlite_log(path, salvage=ACCEPTING).open()
        monkeypatch.undo()
    log = sqlite_log(path, salvage=ACCEPTING if not crash else NOTHING_LOST)
    found = log.open().metadata
    assert {key for kind, key in found if kind == metadata.SALVAGED} == {"segments", "staged"}
    log.close()
    assert not (path / "log-0.incomplete").exists()


def _killed(connection: object) -> None:
    raise KeyboardInterrupt


def test_an_intact_log_keeps_no_files(tmp_path: Path) -> None:
    log = sqlite_log(stopped(tmp_path, clean=False), salvage=ACCEPTING)
    assert not [kind for kind, _ in log.open().metadata if kind == metadata.SALVAGED]
    log.close()


def test_a_database_without_tables_is_refused_with_the_marker(tmp_path: Path) -> None:
    path = stopped(tmp_path, clean=True)
    database = path / "log-0.sqlite"
    database.unlink()
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert "has no tables, but log-0.marker exists" in refusal(path)


@pytest.mark.parametrize("left", [[], ["log-0.sqlite"], ["log-0.sqlite", "log-0.lock", "log-0.reserve"]])
def test_a_crash_before_the_first_commit_starts_normally(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).touch()
    assert bodies(tmp_path) == []


def test_a_crash_before_the_marker_starts_normally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogFiles, "mark", lambda self: None)
    log = sqlite_log(tmp_path / "live")
    log.open()
    shutil.copytree(tmp_path / "live", tmp_path / "data")
    log.close()
    monkeypatch.undo()
    assert bodies(tmp_path / "data") == []


def test_a_store_that_failed_is_opened_again(tmp_path: Path) -> None:
    """The write-ahead log, which SQLite deletes with its last connection, stays if the store was not closed properly."""
    harness = Harness(lambda: sqlite_log(tmp_path))
    harness.publish(FakeQueue(1), b"kept")
    harness.commit()
    log = harness.log
    log._worker.close()  # type: ignore[attr-defined]
    log._release()  # type: ignore[attr-defined]
    assert (tmp_path / "log-0.sqlite-wal").stat().st_size
    assert bodies(tmp_path) == [b"kept"]


def test_serve_refuses_and_names_the_remedy(tmp_path: Path) -> None:
    leveret_only("its files are removed")
    process = LeveretProcess(tmp_path, config="")
    process.start()
    Commands(process.data_dir).ok("users", "add", "ana", "--no-password")
    process.kill()
    for name in ("log-0.sqlite", "log-0.sqlite-wal", "log-0.sqlite-shm"):
        (process.data_dir / name).unlink()
    with pytest.raises(RuntimeError, match=r"Error: the database .*log-0.sqlite is missing, but log-0.marker exists"):
        process.start()
    process.extra = ["--accept-missing"]
    with process.start():
        assert "started with --accept-missing although the database" in process.log()

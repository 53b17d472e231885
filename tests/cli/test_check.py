"""`leveret check DIR`: an intact directory, and one with every kind of damage."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.cli.app import leveret
from leveret.storage.upload_files import UploadFiles
from tests.storage.harness import FakeQueue, Harness, sqlite_log
from tests.storage.test_formats import ARCHIVE, extract


def check(path: Path, *more: str) -> Result:
    return CliRunner().invoke(leveret, ["check", str(path), *more])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory after a SIGKILL, in the current format: messages, a sealed segment, an upload."""
    path = extract(ARCHIVE, tmp_path)
    harness = Harness(lambda: sqlite_log(path))
    harness.publish(FakeQueue(1000), b"message" * 10)
    body = UploadFiles(path, 0).create("file", 10)
    body.append(b"12345")
    body.keep()
    body.close()
    harness.log.put(
        metadata.STAGED,
        metadata.make_key("/", "ana", "file", "upload"),
        metadata.pack({"file": "file", "size": 10, "header": b"", "checkpoints": {"c": 5}}),
    )
    harness.commit()
    shutil.copytree(path, tmp_path / "copy")
    harness.log.close()
    (tmp_path / "copy" / "log-0.sqlite-shm").unlink()
    return tmp_path / "copy"


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.suffix != ".lock"
    }


def test_an_intact_directory(data: Path) -> None:
    before = contents(data)
    result = check(data)
    assert result.exit_code == 0, result.output
    assert "everything is intact" in result.output
    assert "rows in an earlier format have no checksum" in result.output
    assert "\nuploads   1 files\n" in result.output
    assert contents(data) == before
    found = json.loads(check(data, "--json").output)
    assert found["sound"] is True and found["damaged"] == []
    assert found["segments"]["files"] == 1 and found["staged"]["contents"] == 1
    assert found["log"]["messages"] > 30 and found["log"]["chunks"] == 2


def test_a_missing_write_ahead_log_stays_missing(data: Path) -> None:
    """The check must not create a file: the broker would start with it, without the last commits."""
    (data / "log-0.sqlite-wal").unlink()
    before = contents(data)
    for _ in range(2):
        result = check(data)
        assert result.exit_code == 1
        assert f"the write-ahead log {data / 'log-0.sqlite-wal'} is missing" in result.output
        assert contents(data) == before
    with pytest.raises(StorageFailed, match=r"log-0\.sqlite-wal is missing"):
        sqlite_log(data).open()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_the_lock_file_belongs_to_the_owner_of_the_directory(data: Path) -> None:
    os.chown(data, 4321, 4322)
    (data / "log-0.lock").unlink()
    check(data)
    found = (data / "log-0.lock").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (4321, 4322, 0o600)


def test_a_directory_of_format_1(tmp_path: Path) -> None:
    result = check(extract(ARCHIVE, tmp_path))
    assert result.exit_code == 0, result.output
    assert "rows in an earlier format have no checksum" in result.output


@pytest.mark.parametrize("what", ["row", "segment", "short segment", "no segment", "staged", "definition", "database"])
def test_damage_is_named(data: Path, what: str) -> None:
    (segment,) = data.glob("streams/*/*/*.parquet")
    expected = segment.name
    if what == "row":
        with sqlite3.connect(data / "log-0.sqlite") as connection:
            connection.execute("UPDATE log SET data = x'00' || substr(data, 2) WHERE id = (SELECT max(id) FROM log)")
        expected = "it contained 1 message of queue 1000 (sequence 1 to 1)"
    elif what == "segment":
        segment.write_bytes(segment.read_bytes().replace(b"event 7", b"event 8", 1)[:-9] + b"x" + segment.read_bytes()[-8:])
    elif what == "short segment":
        segment.write_bytes(segment.read_bytes()[:-1])
    elif what == "no segment":
        segment.unlink()
    elif what == "staged":
        (data / "staged" / "file").write_bytes(b"1234")
        expected = "upload 'upload' of user 'ana' in vhost '/' has 4 bytes, expected 5 as at its last checkpoint"
    elif what == "definition":
        with sqlite3.connect(data / "log-0.sqlite") as connection:
            connection.execute("UPDATE metadata SET value = x'00' WHERE kind = 'user'")
        expected = "the definition of user ana is damaged"
    else:
        (data / "log-0.sqlite").unlink()
        expected = "log-0.sqlite is missing, but log-0.sqlite-wal, log-0.marker, streams, staged exist"
    result = check(data)
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("DAMAGED")]
    assert expected in line
    assert "damaged or missing parts: 1" in result.output


def test_directories_that_cannot_be_checked(tmp_path: Path, data: Path) -> None:
    assert check(tmp_path / "none").exit_code == 4
    (tmp_path / "empty").mkdir()
    result = check(tmp_path / "empty")
    assert result.exit_code == 4 and "is not a Leveret data directory" in result.output
    log = sqlite_log(data)
    log.open()
    result = check(data)
    assert result.exit_code == 4 and "is in use by process" in result.output
    log.close()
    with sqlite3.connect(data / "log-0.sqlite") as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    result = check(data)
    assert result.exit_code == 4 and "has format version 9" in result.output

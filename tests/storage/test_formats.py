"""A data directory of an earlier version opens without loss and gets checksums.

The last version of format 1 created `data/format-1.tar.xz`: the directory of a broker killed with SIGKILL, with a user, a
fan-out, a body in chunks, priorities, acknowledgements, and a stream with a sealed segment.
"""

from __future__ import annotations

import logging
import sqlite3
import tarfile
from pathlib import Path

import pika
import pytest

from leveret.broker.errors import StorageFailed
from leveret.node.checking import DirectoryCheck
from leveret.storage.salvage import Salvage
from leveret.storage.verification import LogCheck
from tests.storage.harness import Harness, sqlite_log
from tests.support.broker import LeveretProcess, leveret_only

pytestmark = pytest.mark.embedded("migrates files of earlier versions")

PLAIN = " WHERE kind = 'queue' AND instr(key, CAST('plain' AS BLOB))"
ARCHIVE = Path(__file__).with_name("data") / "format-1.tar.xz"


def extract(archive: Path, directory: Path) -> Path:
    """Extract an archive of a data directory, and return the data directory."""
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    return directory / "data"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return extract(ARCHIVE, tmp_path)


def version(path: Path) -> int:
    connection = sqlite3.connect(f"{(path / 'log-0.sqlite').as_uri()}?mode=ro", uri=True)
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


def test_a_log_of_format_1_is_migrated(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leveret.storage")
    assert version(old) == 1
    harness = Harness(lambda: sqlite_log(old))
    assert "from format version 1 to 3" in caplog.text
    assert not harness.recovery.clean
    assert sorted(len(queue.seqs) for queue in harness.recovery.queues.values()) == [1, 3, 3, 4, 5, 15]
    for queue_id in harness.recovery.queues:
        harness.load_queue(queue_id)
    harness.reopen()
    assert caplog.text.count("from format version") == 1
    harness.log.close()
    assert version(old) == 3
    connection = sqlite3.connect(old / "log-0.sqlite")
    check = LogCheck(connection)
    assert check.run() == []
    assert check.counts["rows_without_checksum"] > 0
    connection.close()


def test_an_interrupted_migration_restarts(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leveret.storage import sqlite_store

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sqlite_store, "definition_sum", interrupted)
        sqlite_log(old).open()
    assert version(old) == 1
    harness = Harness(lambda: sqlite_log(old))
    assert len(harness.recovery.queues) == 6
    harness.log.close()


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE metadata SET kind = CAST(kind AS BLOB)" + PLAIN, "the definition of b'queue'"),
        ("UPDATE metadata SET key = CAST(key AS TEXT)" + PLAIN, "the definition of queue"),
        ("UPDATE metadata SET value = NULL" + PLAIN, "the definition of queue"),
        ("UPDATE metadata SET value = CAST('x' AS TEXT)" + PLAIN, "the definition of queue"),
        (
            "UPDATE mark SET seq = CAST(x'ff' AS TEXT) WHERE queue = (SELECT min(queue) FROM mark)",
            "the highest sequence number",
        ),
        ("UPDATE state SET value = 'many' WHERE name = 'next_row'", "the fact next_row"),
        ("DELETE FROM state WHERE name = 'next_row'", "the fact next_row"),
        ("UPDATE state SET value = x'01' WHERE name = 'clean'", "the fact clean"),
        ("UPDATE state SET name = x'ff' WHERE name = 'next_row'", "the fact next_row"),
        ("UPDATE log SET settled = CAST(settled AS TEXT) WHERE id = (SELECT min(id) FROM log)", "row "),
        ("UPDATE log SET settled = NULL WHERE id = (SELECT min(id) FROM log)", "row "),
        ("UPDATE log SET entries = CAST(entries AS TEXT) WHERE id = (SELECT min(id) FROM log)", "row "),
        ("UPDATE log SET entries = 7 WHERE id = (SELECT min(id) FROM log)", "row "),
        (
            "UPDATE log SET data = CAST(hex(zeroblob(length(data) / 2)) || substr('x', 1, length(data) % 2) AS TEXT)"
            " WHERE id = (SELECT min(id) FROM log)",
            "row ",
        ),
        ("UPDATE log SET data = 1.5 WHERE id = (SELECT min(id) FROM log)", "row "),
        (
            "UPDATE chunk SET data = CAST(hex(zeroblob(length(data) / 2)) AS TEXT) WHERE id = (SELECT min(id) FROM chunk)",
            "chunk ",
        ),
        ("UPDATE chunk SET data = NULL WHERE id = (SELECT min(id) FROM chunk)", "chunk "),
    ],
)
def test_values_of_another_type_are_damage_in_format_1_too(old: Path, statement: str, named: str) -> None:
    """The log is not migrated before the operator decides; then damaged records are dropped as in format 2."""
    # SQLite would delete the write-ahead log with its last connection if that can write.
    keeper = sqlite3.connect(f"{(old / 'log-0.sqlite').as_uri()}?mode=ro", uri=True)
    keeper.execute("SELECT count(*) FROM log").fetchone()
    with sqlite3.connect(old / "log-0.sqlite") as connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()
    keeper.close()
    found = DirectoryCheck(old)
    found.run()
    assert any(named in text for text in found.damaged), found.damaged
    with pytest.raises(StorageFailed) as caught:
        sqlite_log(old).open()
    assert named in str(caught.value) and ("wrong type" in str(caught.value) or "it is missing" in str(caught.value))
    assert "start once with --drop-damaged" in str(caught.value)
    assert version(old) == 1
    harness = Harness(lambda: sqlite_log(old, salvage=Salvage(drop_damaged=True)))
    assert len(harness.recovery.queues) >= 5
    for queue_id in harness.recovery.queues:
        harness.load_queue(queue_id)
    harness.log.close()
    assert version(old) == 3
    again = DirectoryCheck(old)
    again.run()
    assert again.damaged == []


def test_a_broker_continues_with_a_migrated_log(old: Path) -> None:
    leveret_only("it starts on an existing directory")
    with LeveretProcess(old.parent / "broker", config="", data_dir=old) as process:
        process.start()
        parameters = pika.URLParameters(process.url(user="ana", password="secret"))
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        assert [channel.basic_get("plain", True)[2] for _ in range(2)] == [b"plain 5", b"plain 6"]
        assert channel.basic_get("left", True)[2] == b"both 1"
        assert channel.basic_get("right", True)[2] == b"both 0"
        assert channel.basic_get("large", True)[2] == b"x" * 1_500_000
        assert channel.basic_get("ranked", True)[2] == b"rank 2"
        channel.basic_qos(prefetch_count=50)
        bodies = [
            body
            for _, _, body in (next(channel.consume("events", arguments={"x-stream-offset": "first"})) for _ in range(33))
        ]
        assert bodies == [b"event %d" % number for number in range(33)]
        connection.close()
        process.check_log()

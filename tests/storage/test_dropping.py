"""`leveret serve --drop-damaged`: damaged records are dropped, and everything else is served."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner

from leveret.cli.app import leveret
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until

pytestmark = pytest.mark.embedded("`--drop-damaged` is for data directories")


@pytest.fixture
def process(tmp_path: Path) -> LeveretProcess:
    leveret_only("its files are changed")
    return LeveretProcess(tmp_path, config="")


def change(process: LeveretProcess, statement: str) -> None:
    database = process.data_dir / "log-0.sqlite"
    # SQLite would delete the write-ahead log with its last connection if that can write.
    keeper = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
    keeper.execute("SELECT count(*) FROM log").fetchone()
    with sqlite3.connect(database) as connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()
    keeper.close()


def fill(process: LeveretProcess, queue: str, kind: str) -> None:
    """Publish three messages, each in its own row."""
    connection = pika.BlockingConnection(pika.URLParameters(process.url()))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    for number in range(3):
        channel.basic_publish("", queue, b"message %d" % number, pika.BasicProperties(delivery_mode=2))
    connection.close()


def restart(process: LeveretProcess) -> None:
    """Check that a start is refused, and succeeds without the damaged records."""
    with pytest.raises(RuntimeError, match="--drop-damaged"):
        process.start()
    process.extra = ["--drop-damaged"]
    process.start()
    process.extra = []


def test_a_stream_continues_after_a_gap(process: LeveretProcess) -> None:
    with process.start():
        fill(process, "events", "stream")
        process.kill()
        change(
            process,
            "UPDATE log SET data = CAST(replace(data, 'message 1', 'massage 1') AS BLOB) WHERE instr(data, 'message 1')",
        )
        restart(process)
        assert "it contained 1 message of queue 'events' in vhost '/' (sequence 2 to 2)" in process.log()
        connection = pika.BlockingConnection(pika.URLParameters(process.url()))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "events", b"message 3", pika.BasicProperties(delivery_mode=2))
        channel.basic_qos(prefetch_count=10)
        found: list[tuple[int, bytes]] = []
        for method, properties, body in channel.consume(
            "events", arguments={"x-stream-offset": "first"}, inactivity_timeout=60
        ):
            assert method is not None, found
            found.append((properties.headers["x-stream-offset"], body))
            channel.basic_ack(method.delivery_tag)
            if len(found) == 3:
                break
        assert found == [(0, b"message 0"), (2, b"message 2"), (3, b"message 3")]
        connection.close()
        process.stop()
        process.start()
        process.check_log()


def test_segment_files_without_a_definition_are_never_deleted(process: LeveretProcess) -> None:
    pytest.importorskip("pyarrow")
    process.config = "[streams]\ngrace = 0\n"
    with process.start():
        for _ in range(2):
            fill(process, "events", "stream")
            Commands(process.data_dir).ok("streams", "seal", "events")
        process.kill()
        files = sorted((process.data_dir / "streams").rglob("*.parquet"))
        assert len(files) == 2
        change(
            process,
            "UPDATE metadata SET value = x'00' WHERE kind = 'stream-segment'"
            " AND instr(value, CAST('/00000000000000000000-' AS BLOB))",
        )
        restart(process)
        process.wait_for_log("1 files of segments have no definition and are kept")
        process.stop()
        assert "1 files beside the segments are in no manifest: the broker keeps them" in check(process)
        # Once the broker deletes the garbage of another queue, it has removed all files that it removes.
        garbage = files[0].with_name("00000000000000000099-garbage.parquet")
        for _ in range(2):
            garbage.touch()
            before = len(process.log())
            process.start()
            process.wait_for_log("1 files of segments have no definition and are kept", before)
            wait_until(lambda: not garbage.exists())
            process.kill()
            assert sorted((process.data_dir / "streams").rglob("*.parquet")) == files


def check(process: LeveretProcess) -> str:
    return CliRunner().invoke(leveret, ["check", str(process.data_dir)]).output


def test_the_default_user_is_not_created_again(process: LeveretProcess) -> None:
    with process.start():
        commands = Commands(process.data_dir)
        commands.ok("users", "add", "ana", "--password-file", "-", input="secret\n")
        process.kill()
        change(process, "UPDATE metadata SET value = CAST('{}' AS BLOB) WHERE kind = 'user'")
        restart(process)
        assert "the definition of user ana is damaged" in process.log()
        assert [user["name"] for user in commands.json("users", "list")] == ["ana"]
        for user, password in (("guest", "guest"), ("ana", "secret"), ("ana", "")):
            with pytest.raises(pika.exceptions.AMQPError):
                pika.BlockingConnection(pika.URLParameters(process.url(user=user, password=password)))
        process.kill()
        process.start()
        assert [user["name"] for user in commands.json("users", "list")] == ["ana"]
        process.check_log()

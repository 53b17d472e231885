"""`leveret serve` with a failing store: nothing is confirmed, the store is reopened, and clients reconnect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.support.broker import ROOT, STOP_TIMEOUT, LeveretProcess, leveret_only
from tests.support.polling import wait_until

pytestmark = pytest.mark.one_process("a shard reopens its store by itself, and the front does not report it")

# Makes commits fail while a file named `fail` is in the working directory, as an I/O error of the disk would.
BREAK = """
import os
from leveret.cli import running
from leveret.storage import sqlite_store

commit = sqlite_store.SqliteStore.commit

def breaking(self, batch):
    if os.path.exists("fail"):
        raise sqlite_store.StoreBroken("disk I/O error")
    return commit(self, batch)

sqlite_store.SqliteStore.commit = breaking
running.REOPEN_DELAY = float(os.environ["TEST_REOPEN_DELAY"])
"""


@pytest.fixture
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LeveretProcess]:
    """A broker. The parameter is the number of seconds before it opens a store that failed again."""
    leveret_only("its store is made to fail")
    (tmp_path / "sitecustomize.py").write_text(BREAK)
    process = LeveretProcess(
        tmp_path / "broker",
        config="[server]\nshutdown_timeout = 0.3\n",
        environment={
            "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}",
            "TEST_REOPEN_DELAY": str(getattr(request, "param", 1.0)),
        },
    )
    process.start()
    yield process
    process.kill()


def wait_for(process: LeveretProcess, text: str, count: int = 1) -> None:
    wait_until(lambda: process.log().count(text) >= count, process.log)


def publish(channel: pika.adapters.blocking_connection.BlockingChannel, body: bytes) -> None:
    channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))


def test_a_store_that_failed_is_opened_again(process: LeveretProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(process.url()))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    publish(channel, b"confirmed")
    failing = process.directory / "fail"
    failing.touch()
    with pytest.raises(pika.exceptions.AMQPError):
        publish(channel, b"not confirmed")
    wait_for(process, "reopening the store")
    failing.unlink()
    wait_for(process, " ready in ", 2)
    assert "the store has failed: disk I/O error" in process.log()
    connection = pika.BlockingConnection(pika.URLParameters(process.url()))
    channel = connection.channel()
    channel.confirm_delivery()
    publish(channel, b"afterwards")
    bodies = [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)]
    assert bodies == [b"confirmed", b"afterwards"]
    connection.close()
    process.stop()


def test_a_store_that_cannot_be_opened_again_ends_the_broker(process: LeveretProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(process.url()))
    (process.directory / "fail").touch()
    with pytest.raises(pika.exceptions.AMQPError):
        connection.channel().queue_declare("q", durable=True)
    wait_for(process, "reopening the store")
    (process.data_dir / "log-0.sqlite").write_bytes(b"no database at all" * 1000)
    assert process.process is not None
    assert process.process.wait(STOP_TIMEOUT) == 1
    assert str(process.data_dir) in process.log().splitlines()[-1]
    assert "Traceback" not in process.log()


@pytest.mark.parametrize("process", [600.0], indirect=True)
def test_a_signal_in_the_pause_before_the_store_is_opened_again_ends_the_broker(process: LeveretProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(process.url()))
    (process.directory / "fail").touch()
    with pytest.raises(pika.exceptions.AMQPError):
        connection.channel().queue_declare("q", durable=True)
    wait_for(process, "reopening the store")
    assert process.process is not None
    process.process.terminate()
    assert process.process.wait(STOP_TIMEOUT) == 0
    assert process.log().count(" ready in ") == 1

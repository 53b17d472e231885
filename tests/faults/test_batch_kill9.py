"""Record batches and `kill -9`: a confirmed batch is complete, and a retry with numbers adds nothing twice."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from leveret import Properties, sync
from leveret.client import Unpublished
from leveret.client.errors import Error
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until

ROWS = 500


@pytest.fixture
def process(tmp_path: Path) -> LeveretProcess:
    leveret_only("it is killed")
    return LeveretProcess(tmp_path).start()


class Publishing(threading.Thread):
    """Publishes numbered batches to a stream until the broker is killed."""

    def __init__(self, process: LeveretProcess) -> None:
        super().__init__()
        self.url = process.url()
        self.confirmed = 0

    def run(self) -> None:
        try:
            with sync.connect(self.url, reconnect=False) as connection, connection.channel() as channel:
                while True:
                    channel.publish_batch(batch(self.confirmed))
                    self.confirmed += 1
        except Error:
            pass


def batch(number: int) -> list[Unpublished]:
    return [
        Unpublished(
            "",
            "s",
            Properties(headers={"x-stream-publisher": "p", "x-stream-sequence": row + 1}, delivery_mode=2),
            b"%d" % row,
        )
        for row in range(number * ROWS, (number + 1) * ROWS)
    ]


def test_a_retry_after_a_kill_completes_a_stream_without_duplicates(process: LeveretProcess) -> None:
    try:
        with sync.connect(process.url()) as connection, connection.channel() as channel:
            channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        publishing = Publishing(process)
        publishing.start()
        wait_until(lambda: publishing.confirmed >= 3, "confirmed batches")
        process.kill()
        publishing.join()
        process.start()
        with sync.connect(process.url()) as connection, connection.channel() as channel:
            # The batch that was in flight may be stored in part.
            channel.publish_batch(batch(publishing.confirmed))
            total = (publishing.confirmed + 1) * ROWS
            found: list[bytes] = []
            consumer = channel.consume("s", arguments={"x-stream-offset": "first"})
            for message in consumer:
                found.append(message.body)
                message.ack()
                if len(found) == total:
                    break
            assert found == [b"%d" % row for row in range(total)]
        process.check_log()
    finally:
        process.kill()

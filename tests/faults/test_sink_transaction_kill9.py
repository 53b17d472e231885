"""SIGKILL of a broker while a sink publishes batches exactly once: each row is in the queue once, in order, or not at all.

The sink works like a batch engine: after a failure it repeats the batch with new sink transactions until the commit is
answered. After a crash it knows only the number of its batch.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from zlib import crc32

import pytest

from leveret import sync
from leveret.client import Error
from tests.support.broker import LeveretProcess
from tests.support.requests import Refused, ask

QUEUE = "results"
WRITERS = 3
ROWS = 400


def rows_of(batch: int, writer: int) -> list[bytes]:
    return [b"%d.%d.%d" % (batch, writer, row) for row in range(ROWS)]


def write(channel: sync.Channel, batch: int, writer: int) -> str:
    stage = str(uuid.uuid4())
    ask(channel, "stage.open", stage=stage, app="sink")
    checksum = 0
    with channel.publisher(f"leveret.stage:{stage}:amq.fanout", QUEUE) as publisher:
        for body in rows_of(batch, writer):
            publisher.publish(body, persistent=True)
            checksum = crc32(body, checksum)
    ask(channel, "stage.seal", stage=stage, count=ROWS, crc32=checksum)
    return stage


def do_batch(process: LeveretProcess, batch: int) -> bool:
    """Attempt a batch once. Returns whether the commit was answered."""
    try:
        with sync.connect(process.url(), reconnect=False) as connection, connection.channel() as channel:
            stages = [write(channel, batch, writer) for writer in range(WRITERS)]
            ask(channel, "stage.promote", app="sink", batch=batch, stages=stages)
    except (Error, OSError):
        return False
    return True


def contents(process: LeveretProcess, queue: str) -> list[bytes]:
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        count = channel.declare_queue(queue, durable=True).message_count
        with channel.consume(queue, no_ack=True) as consumer:
            return [consumer.next(30).body for _ in range(count)]


def test_every_row_once(process: LeveretProcess) -> None:
    process.start()
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        for queue in (QUEUE, "copies"):
            channel.declare_queue(queue, durable=True)
            channel.bind_queue(queue, "amq.fanout")
    random_number = random.Random(5)
    batches = attempts = killed = 0
    took = 1.0
    while batches < 8 or killed < 4:
        kill = None
        if attempts % 2:
            # In the middle, whatever the speed of this machine.
            kill = threading.Timer(random_number.uniform(0, took), process.kill)
            kill.start()
        attempts += 1
        began = time.monotonic()
        if do_batch(process, batches):
            batches += 1
            took = time.monotonic() - began
        if kill is not None:
            kill.cancel()
            kill.join()
        if not process.alive():
            killed += 1
            process.kill()
            process.start()
        assert attempts < 200
    expected = [row for batch in range(batches) for writer in range(WRITERS) for row in rows_of(batch, writer)]
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        last = ask(channel, "stage.last", app="sink")["batch"]
        assert last in (batches - 1, batches)
        # A batch that was decided without a reply is complete.
        assert ask(channel, "stage.promote", app="sink", batch=last, stages=[])["already"]
        moved = ask(channel, "stage.promote", app="sink", batch=last + 1, stages=[])
        assert not moved["already"], "a batch was answered before the one that it waits for"
        if last == batches:
            expected += [row for writer in range(WRITERS) for row in rows_of(last, writer)]
    assert contents(process, QUEUE) == expected
    assert contents(process, "copies") == expected


@pytest.mark.slow
def test_kills_during_a_long_commit(process: LeveretProcess) -> None:
    """A decided commit and a prepared transaction survive a kill at any later point."""
    process.start()
    rows = [b"%d" % number for number in range(20_000)]
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        channel.declare_queue(QUEUE, durable=True)
        ask(channel, "stage.open", stage="long", app="sink")
        with channel.publisher("leveret.stage:long:", QUEUE) as publisher:
            for row in rows:
                publisher.publish(row, persistent=True)
        ask(channel, "stage.seal", stage="long", count=len(rows), crc32=crc32(b"".join(rows)))
    process.kill()
    process.start()
    last = None
    delay = 0.03
    while last is None and delay < 5:
        try:
            with sync.connect(process.url(), reconnect=False) as connection, connection.channel() as channel:
                last = ask(channel, "stage.last", app="sink")["batch"]
                kill = threading.Timer(delay, process.kill)
                kill.start()
                try:
                    ask(channel, "stage.promote", app="sink", batch=1, stages=["long"])
                finally:
                    kill.join()
        except (Error, OSError, Refused):
            pass
        delay *= 1.6
        process.kill()
        process.start()
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        ask(channel, "stage.promote", app="sink", batch=1, stages=["long"])
        ask(channel, "stage.promote", app="sink", batch=2, stages=[])
        assert ask(channel, "stage.list")["stages"] == []
    assert last == 1
    assert contents(process, QUEUE) == rows

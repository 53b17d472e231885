"""SIGKILL of a broker while a sink publishes batches exactly once: each row is in the queue once, in order, or not at all.

The sink works like a batch engine: after a failure it repeats the batch with new sink transactions until the commit is
answered. After a crash it knows only the number of its batch.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from zlib import crc32

import pytest

from leveret import sync
from leveret.client import Error
from tests.support.broker import LeveretProcess
from tests.support.requests import Refused, ask

QUEUE = "results"
WRITERS = 3
ROWS = 400
Publish = Callable[[sync.Channel, str, list[bytes]], None]


def rows_of(batch: int, writer: int) -> list[bytes]:
    return [b"%d.%d.%d" % (batch, writer, row) for row in range(ROWS)]


def publish_singly(channel: sync.Channel, prefix: str, rows: list[bytes]) -> None:
    with channel.publisher(f"{prefix}amq.fanout", QUEUE) as publisher:
        for body in rows:
            publisher.publish(body, persistent=True)


def publish_batch(channel: sync.Channel, prefix: str, rows: list[bytes]) -> None:
    channel.publish_batch(rows, QUEUE, exchange=prefix, persistent=True)


def write(channel: sync.Channel, publish: Publish, batch: int, writer: int) -> str:
    stage = str(uuid.uuid4())
    ask(channel, "stage.open", stage=stage, app="sink")
    rows = rows_of(batch, writer)
    publish(channel, f"leveret.stage:{stage}:", rows)
    ask(channel, "stage.seal", stage=stage, count=ROWS, crc32=crc32(b"".join(rows)))
    return stage


def do_batch(process: LeveretProcess, publish: Publish, batch: int) -> bool:
    """Attempt a batch once. Returns whether the commit was answered."""
    try:
        with sync.connect(process.url(), reconnect=False) as connection, connection.channel() as channel:
            stages = [write(channel, publish, batch, writer) for writer in range(WRITERS)]
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
    expected = batches_until_killed(process, publish_singly)
    assert contents(process, QUEUE) == expected
    assert contents(process, "copies") == expected


@pytest.mark.slow
def test_every_row_of_record_batches_once_in_a_stream(process: LeveretProcess) -> None:
    process.start()
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "stream"})
    expected = batches_until_killed(process, publish_batch)
    process.kill()
    process.start()
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        channel.publish_batch([b"last"], QUEUE, persistent=True)
        with channel.consume(QUEUE, prefetch=200, arguments={"x-stream-offset": "first"}) as consumer:
            found = []
            for _ in range(len(expected) + 1):
                delivery = consumer.next(30)
                found.append((delivery.headers["x-stream-offset"], delivery.body))
                delivery.ack()
    assert found == list(enumerate([*expected, b"last"]))


def batches_until_killed(process: LeveretProcess, publish: Publish) -> list[bytes]:
    """Publish batches, killing the broker again and again. Returns the rows that must be there."""
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
        if do_batch(process, publish, batches):
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
    return expected


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

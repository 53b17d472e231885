"""SIGKILL of a broker and of its sealer process while streams are sealed and merged.

Every confirmed message keeps its offset, no file remains that is not in the manifest, and sealed messages are not in the
log.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.management.control_client import call
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until

CONFIG = (
    basic_config()
    + """
[streams]
segment_size = 20000
segment_age = "300ms"
merge_below = 15000
grace = 0
"""
)
SIZE = 200
LIMIT = 120.0


@pytest.fixture
def configuration() -> str:
    return CONFIG


def connect(process: LeveretProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port))


def declared(connection: pika.BlockingConnection) -> Any:
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    return channel


def body_of(number: int) -> bytes:
    return b"%08d" % number * (SIZE // 8)


def publish(process: LeveretProcess, confirmed: list[bytes], first: int, until: Callable[[], bool]) -> int:
    """Publish with confirms until the broker dies or the time is up. Returns the number of the next message."""
    number = first
    try:
        with connect(process) as connection:
            channel = declared(connection)
            channel.confirm_delivery()
            while not until():
                body = body_of(number)
                number += 1
                channel.basic_publish("", "s", body, pika.BasicProperties(headers={"number": number - 1}))
                confirmed.append(body)
    except (pika.exceptions.AMQPError, OSError):
        pass
    return number


def read(process: LeveretProcess, count: int, seen: dict[int, bytes]) -> None:
    """Read from the beginning to the end, at least this many; messages seen before must not have changed."""
    deadline = time.monotonic() + LIMIT
    with connect(process) as connection:
        channel = declared(connection)
        channel.basic_qos(prefetch_count=200)
        end = describe(process)["next_offset"]
        offsets: list[int] = []
        if end:
            for method, properties, body in channel.consume(
                "s", arguments={"x-stream-offset": "first"}, inactivity_timeout=5
            ):
                assert time.monotonic() < deadline, f"only {len(offsets)} of {end} came"
                if method is None:
                    continue
                offset = properties.headers["x-stream-offset"]
                offsets.append(offset)
                assert seen.setdefault(offset, body) == body, f"offset {offset} now has another message"
                assert body == body_of(properties.headers["number"])
                channel.basic_ack(method.delivery_tag)
                if offset + 1 >= end:
                    break
        assert offsets == list(range(end)), "the stream has gaps or duplicates"
        assert end >= count


def describe(process: LeveretProcess) -> dict[str, Any]:
    found: dict[str, Any] = call(process.data_dir, "streams.show", {"vhost": "/", "name": "s"})
    return found


def files_in(directory: Path) -> set[str]:
    return {str(path) for path in directory.rglob("*") if path.is_file()}


def manifest(process: LeveretProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(call(process.data_dir, "streams.segments", {"vhost": "/", "name": "s"}))
    return found


def check(process: LeveretProcess, confirmed: list[bytes], seen: dict[int, bytes], rounds: int) -> None:
    """The stream contains the confirmed messages in order, and at most one more per round, whose confirm was not sent."""
    read(process, len(confirmed), seen)
    bodies = [seen[offset] for offset in sorted(seen)]
    assert len(set(bodies)) == len(bodies)
    assert bodies == sorted(bodies)
    assert set(confirmed) <= set(bodies)
    assert len(bodies) <= len(confirmed) + rounds


def all_sealed(process: LeveretProcess) -> None:
    """Finally everything is in segments, nothing in the log, and the directory has the manifest's files."""
    wait_until(lambda: describe(process)["unsealed"] == 0, "not everything was sealed")
    wait_until(
        lambda: files_in(process.data_dir / "streams") == {segment["path"] for segment in manifest(process)},
        "the files are not those of the manifest",
    )
    found = manifest(process)
    assert found[0]["first"] == 0
    assert [segment["first"] for segment in found[1:]] == [segment["last"] + 1 for segment in found[:-1]]
    assert sum(segment["count"] for segment in found) == describe(process)["messages"]
    wait_until(
        lambda: int(call(process.data_dir, "status")["log"]["live_octets"]) < 5 * SIZE,
        "the log still contains sealed messages",
    )


@pytest.mark.slow
def test_kills_of_the_broker(process: LeveretProcess) -> None:
    seen: dict[int, bytes] = {}
    confirmed: list[bytes] = []
    number = 0
    rounds = 6
    for turn in range(rounds):
        process.start()
        check(process, confirmed, seen, rounds)
        kill = threading.Timer(random.Random(turn).uniform(0.3, 2.5), process.kill)
        kill.start()
        number = publish(process, confirmed, number, lambda: False)
        kill.join()
    process.start()
    check(process, confirmed, seen, rounds)
    all_sealed(process)
    check(process, confirmed, seen, rounds)
    assert len(manifest(process)) > 1


@pytest.mark.slow
def test_kills_of_the_sealer(process: LeveretProcess) -> None:
    process.start()
    confirmed: list[bytes] = []
    killed = 0
    stop = threading.Event()

    def kill() -> None:
        nonlocal killed
        chance = random.Random(7)
        while not stop.wait(chance.uniform(0.1, 1.0)):
            found = re.findall(r"sealer process (\d+) stores", process.log_path.read_text("utf-8", "replace"))
            if found:
                try:
                    os.kill(int(found[-1]), signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    pass

    killer = threading.Thread(target=kill)
    killer.start()
    end = time.monotonic() + 4
    publish(process, confirmed, 0, lambda: time.monotonic() > end and killed > 2)
    stop.set()
    killer.join()
    check(process, confirmed, {}, 0)
    all_sealed(process)
    check(process, confirmed, {}, 0)
    assert "died (signal 9)" in process.log_path.read_text("utf-8", "replace")


def test_a_missing_file(process: LeveretProcess) -> None:
    process.start()
    confirmed: list[bytes] = []
    publish(process, confirmed, 0, lambda: len(confirmed) == 400)
    wait_until(lambda: describe(process)["unsealed"] == 0, "not everything was sealed")
    process.stop()
    process.start()
    segments = manifest(process)
    assert len(segments) > 1
    Path(segments[0]["path"]).unlink()
    with connect(process) as connection:
        lost, other = declared(connection), declared(connection)
        for channel in (lost, other):
            channel.basic_qos(prefetch_count=500)
        gone: list[str] = []
        lost.add_on_cancel_callback(lambda frame: gone.append(frame.method.consumer_tag))
        taken: list[bytes] = []
        tag = lost.basic_consume("s", lambda *_: None, arguments={"x-stream-offset": "first"})
        other.basic_consume(
            "s", lambda _, __, ___, body: taken.append(body), arguments={"x-stream-offset": segments[1]["first"]}
        )
        wait_until(lambda: connection.process_data_events(0.05) or bool(gone), "the reader was not notified")
        assert gone == [tag]
        wait_until(
            lambda: connection.process_data_events(0.05) or len(taken) == 400 - segments[1]["first"],
            "another reader was affected",
        )
    assert f"offsets 0 to {segments[0]['last']} cannot be read from" in process.log_path.read_text("utf-8")

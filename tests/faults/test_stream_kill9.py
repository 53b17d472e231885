"""SIGKILL of a broker while a stream is appended to: confirmed messages survive at the offsets that readers saw."""

from __future__ import annotations

import random
import threading
from typing import Any

import pika
import pytest

from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until


def connect(process: LeveretProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port))


def declare(channel: Any) -> None:
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})


def read(process: LeveretProcess, count: int, seen: dict[int, bytes]) -> None:
    """Read from the beginning until this many messages arrived; messages seen before must not have changed."""
    with connect(process) as connection:
        channel = connection.channel()
        declare(channel)
        channel.basic_qos(prefetch_count=100)
        if not count:
            return
        offset = -1

        def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal offset
            offset = properties.headers["x-stream-offset"]
            assert seen.setdefault(offset, body) == body, f"offset {offset} now has another message"
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume("s", take, arguments={"x-stream-offset": "first"})
        wait_until(
            lambda: connection.process_data_events(0.02) or offset + 1 >= count, lambda: f"only {len(seen)} of {count} came"
        )


@pytest.mark.slow
def test_confirmed_messages_keep_their_offsets(process: LeveretProcess) -> None:
    seen: dict[int, bytes] = {}
    confirmed: list[bytes] = []
    number = 0
    rounds = 0
    # A busy machine may need more rounds.
    while rounds < 4 or len(confirmed) <= 20:
        process.start()
        read(process, len(confirmed), seen)
        kill = threading.Timer(random.Random(rounds).uniform(0.2, 0.8), process.kill)
        rounds += 1
        try:
            with connect(process) as connection:
                channel = connection.channel()
                declare(channel)
                channel.confirm_delivery()
                kill.start()
                while True:
                    body = b"%d" % number
                    number += 1
                    channel.basic_publish("", "s", body)
                    confirmed.append(body)
        except (pika.exceptions.AMQPError, OSError):
            pass
        kill.join()
    process.start()
    read(process, len(confirmed), seen)
    # Each round may end with one more message: on disk, but killed before its confirm was sent.
    bodies = [seen[offset] for offset in sorted(seen)]
    assert set(confirmed[: len(seen) - rounds]) <= set(bodies)
    assert len(set(bodies)) == len(bodies)
    assert bodies == sorted(bodies, key=int)
    assert sorted(seen) == list(range(len(seen)))

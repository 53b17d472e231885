"""AMQP 0-9 over sockets, against a broker process of its own: what takes its timers, and connections that are cut."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.support.amqp09 import Client
from tests.support.broker import LeveretProcess, leveret_only

STREAM = 80


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("it is started with a configuration of its own")
    with LeveretProcess(tmp_path).start() as process:
        yield process
        process.check_log()


def publish_stream(client: Client, body: bytes, key: str = "q", **properties: object) -> None:
    header = encode_header(STREAM, len(body), properties, QPID, V0_9)
    client.engine.send_content(1, "stream.publish", {"routing_key": key}, header, body)
    client.flush()


def test_a_stream_comes_at_its_rate(process: LeveretProcess) -> None:
    client = Client(process)
    client.call("queue.declare", "queue.declare-ok", queue="q")
    client.call("stream.qos", "stream.qos-ok", consume_rate=20_000, prefetch_count=1)
    for _ in range(11):
        publish_stream(client, bytes(1000))
    begin = time.monotonic()
    client.call("stream.consume", "stream.consume-ok", queue="q", consumer_tag="t")
    for _ in range(11):
        client.expect("stream.deliver")
    # Ten messages are used up before the last one: faster than that it cannot be, however busy the machine is.
    assert time.monotonic() - begin > 0.45
    client.close()

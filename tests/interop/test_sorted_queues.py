"""Sorted queues with real clients of AMQP 0-9-1 and 1.0, and across starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from leveret.management.control_client import call
from tests.interop.helpers import get
from tests.support.broker import LeveretProcess, leveret_only

proton = pytest.importorskip("proton")

from proton.utils import BlockingConnection  # noqa: E402


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("RabbitMQ has no sorted queues")
    process = LeveretProcess(tmp_path)
    with process.start():
        yield process
        process.check_log()


def test_both_protocols_and_a_restart(process: LeveretProcess) -> None:
    with pika.BlockingConnection(pika.URLParameters(process.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("tickets", durable=True, arguments={"x-sort-key": "severity"})
        for body, severity in ((b"3", 3), (b"1", 1), (b"5", 5)):
            channel.basic_publish(
                "", "tickets", body, pika.BasicProperties(headers={"severity": severity}, delivery_mode=2)
            )
    amqp10 = BlockingConnection(f"127.0.0.1:{process.port}", user="guest", password="guest", allowed_mechs="PLAIN")
    sender = amqp10.create_sender("tickets")
    for severity in (4, 2):
        sender.send(proton.Message(str(severity).encode(), inferred=True, durable=True, properties={"severity": severity}))
    receiver = amqp10.create_receiver("tickets", credit=1)
    assert bytes(receiver.receive().body) == b"1"
    receiver.release(delivered=False)
    receiver.close()
    amqp10.close()
    process.kill()
    with process.start(), pika.BlockingConnection(pika.URLParameters(process.url())) as connection:
        [found] = [queue for queue in call(process.data_dir, "queues.list", {"vhost": "/"}) if queue["name"] == "tickets"]
        assert (found["type"], found["arguments"]) == ("sorted", {"x-sort-key": "severity"})
        channel = connection.channel()
        channel.queue_declare("tickets", durable=True, arguments={"x-sort-key": "severity"})
        assert [get(channel, "tickets")[2] for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]

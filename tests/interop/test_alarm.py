"""An alarm, and connections that published before it: they can consume, get and settle until they publish."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from leveret import sync
from tests.interop.helpers import pump
from tests.support.broker import LeveretProcess, basic_config, leveret_only

# No disk has this much free space.
SHORT = '\n[limits]\ndisk_free = "1000000TiB"\n'


class Switch:
    """A broker whose disk is too small or large enough, as the test sets it."""

    def __init__(self, process: LeveretProcess) -> None:
        self.process = process

    def alarm(self, on: bool) -> None:
        seen = len(self.process.log())
        (self.process.directory / "leveret.toml").write_text(basic_config() + (SHORT if on else ""))
        os.kill(self.process.pid, signal.SIGHUP)
        self.process.wait_for_log("publishers blocked" if on else "publishers resumed", seen)


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    leveret_only("its configuration changes")
    with LeveretProcess(tmp_path / "broker") as process:
        process.start()
        yield Switch(process)
        process.check_log()


def prepare(switch: Switch) -> tuple[BlockingConnection, Callable[[], bool]]:
    """Open a pika connection that has published, and report whether it knows that it is blocked."""
    process = switch.process
    connection = BlockingConnection(pika.ConnectionParameters(process.host, process.port))
    blocked = threading.Event()
    connection.add_on_connection_blocked_callback(lambda *_: blocked.set())
    connection.add_on_connection_unblocked_callback(lambda *_: blocked.clear())
    channel = connection.channel()
    channel.queue_declare("mixed")
    for number in range(6):
        channel.basic_publish("", "mixed", b"%d" % number)
    return connection, blocked.is_set


def test_over_0_9_1(switch: Switch) -> None:
    connection, blocked = prepare(switch)
    channel = connection.channel()
    assert channel.queue_declare("mixed", passive=True).method.message_count == 6
    switch.alarm(True)
    frame, _, body = channel.basic_get("mixed")
    assert body == b"0"
    channel.basic_ack(frame.delivery_tag)
    channel.tx_select()
    frame, _, body = channel.basic_get("mixed")
    channel.basic_ack(frame.delivery_tag)
    channel.tx_commit()
    for frame, _, body in channel.consume("mixed"):
        channel.basic_ack(frame.delivery_tag)
        if body == b"5":
            break
    channel.cancel()
    channel.tx_commit()
    assert channel.queue_declare("mixed", passive=True).method.message_count == 0
    assert not blocked()
    confirming = connection.channel()
    confirming.confirm_delivery()
    confirming.basic_publish("", "mixed", b"taken")  # this publish blocks the connection, and is confirmed
    pump(connection, blocked, "connection.blocked")
    switch.alarm(False)
    pump(connection, lambda: not blocked(), "connection.unblocked")
    assert channel.queue_declare("mixed", passive=True).method.message_count == 1
    connection.close()


@pytest.mark.parametrize("protocol", ["0-9", "1.0"])
def test_over_the_others(switch: Switch, protocol: str) -> None:
    with sync.connect(switch.process.url(), protocol=protocol) as connection:
        channel = connection.open_channel()
        channel.declare_queue("mixed")
        for number in range(4):
            channel.publish(b"%d" % number, "mixed")
        switch.alarm(True)
        message = channel.get("mixed")
        assert message is not None
        assert message.body == b"0"
        message.ack()
        transactional = connection.open_channel(transactional=True)
        with transactional.transaction():
            message = transactional.get("mixed")
            assert message is not None
            message.ack()
        with channel.consume("mixed") as consumer:
            for message in consumer:
                message.ack()
                if message.body == b"3":
                    break
        with connection.open_channel() as other:
            assert other.declare_queue("mixed", passive=True).message_count == 0
        switch.alarm(False)
        channel.publish(b"again", "mixed")
        message = channel.get("mixed")
        assert message is not None
        assert message.body == b"again"

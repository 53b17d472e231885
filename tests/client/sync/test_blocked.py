"""Backpressure: a server that blocks publishers affects only them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leveret.client.errors import Timeout
from leveret.client.events import Blocked, Event, Unblocked
from tests.client.sync.conftest import Open
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until

MORE_THAN_THERE_IS = 1 << 60


def config(disk_free: int) -> str:
    return basic_config() + f"\n[limits]\ndisk_free = {disk_free}\n"


class Alarmed:
    """A broker with a disk alarm, until the test clears it."""

    def __init__(self, directory: Path) -> None:
        self.process = LeveretProcess(directory, config=config(MORE_THAN_THERE_IS))

    def release(self) -> None:
        (self.process.directory / "leveret.toml").write_text(config(0))
        os.kill(self.process.pid, signal.SIGHUP)


@pytest.fixture
def alarmed(tmp_path: Path) -> Iterator[Alarmed]:
    alarmed = Alarmed(tmp_path)
    with alarmed.process.start():
        yield alarmed


def test_publish_waits_while_blocked(alarmed: Alarmed, dial: Open, name: str) -> None:
    events: list[Event] = []
    connection = dial(alarmed.process.url(), on_event=events.append, blocked_timeout=0.2)
    channel, other = connection.channel(), dial(alarmed.process.url()).channel()
    channel.declare_queue(name)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(channel.publish, "first", name)
        wait_until(lambda: connection.blocked)
        with pytest.raises(Timeout, match="the server blocks publishers"):
            channel.publish("second", name)
        # A connection that publishes is blocked as a whole; others are not affected.
        assert other.declare_queue(name, passive=True).consumer_count == 0
        alarmed.release()
        first.result(timeout=60)
    wait_until(lambda: not connection.blocked)
    channel.publish("third", name)
    bodies = []
    while (message := channel.get(name, no_ack=True)) is not None:
        bodies.append(message.body)
    assert bodies == [b"first", b"third"]
    channel.delete_queue(name)
    connection.close()
    assert [type(event) for event in events if isinstance(event, (Blocked, Unblocked))] == [Blocked, Unblocked]

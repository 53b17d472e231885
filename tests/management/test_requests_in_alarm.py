"""Requests in an alarm are performed, because they may end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret import sync
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until
from tests.support.requests import ask


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker whose memory limit is exceeded."""
    config = '[limits]\nmemory_high_watermark = "1MiB"\n' + basic_config()
    with LeveretProcess(tmp_path, config=config).start() as process:
        yield process
        process.check_log()


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_requests_are_performed(process: LeveretProcess, protocol: str) -> None:
    with (
        sync.connect(process.url(), protocol=protocol) as connection,
        connection.open_channel() as channel,
        sync.connect(process.url()) as other,
        other.channel() as publisher,
    ):
        publisher.declare_queue("q", durable=True)
        for _ in range(3):
            assert ask(channel, "queue.describe", queue="q", timeout=60)["messages"] == 0
        publisher.publish(b"the first", "q")
        wait_until(lambda: other.blocked, "there is no alarm")
        assert ask(channel, "queue.describe", queue="q", timeout=60)["messages"] == 1
        assert not connection.blocked
        assert ask(channel, "stage.last", app="a", timeout=60)["batch"] is None
        process.kill()  # a throttled client gets no reply, not even to a close

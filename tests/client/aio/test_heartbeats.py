"""Heartbeats of the client: an idle connection sends one every half interval, even if one of them fails."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.client._async.driver import Driver
from tests.server.test_periodic import Loop

INTERVAL = 8.0


class Idle:
    """A connection without a server, with a fake clock. `sent` has the times of its writes."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.sent: list[float] = []
        self.waiting = b""
        self.error: Exception | None = None
        driver: Any = object.__new__(Driver)
        driver._loop = self.loop
        driver._heartbeat_timer = None
        driver._last_sent = driver._last_received = self.loop.now
        engine = SimpleNamespace(heartbeat=INTERVAL, send_heartbeat=self._heartbeat)
        driver.core = SimpleNamespace(engine=engine, heartbeat_timeout=0.0, socket_is_full=False, to_send=self._to_send)
        transport = SimpleNamespace(write=lambda data: self.sent.append(self.loop.now))
        driver.stream = SimpleNamespace(transport=transport)
        self.driver: Driver = driver

    def _heartbeat(self) -> None:
        if self.error is not None:
            raise self.error
        self.waiting = b"heartbeat"

    def _to_send(self) -> bytes:
        data, self.waiting = self.waiting, b""
        return data

    def longest_silence(self, begin: float) -> float:
        return max(second - first for first, second in itertools.pairwise([begin, *self.sent, self.loop.now]))


@pytest.mark.parametrize("after", [0.0, 0.5, 1.75, 2.0, 3.25])
def test_heartbeat_every_half_interval(after: float) -> None:
    idle = Idle()
    begin = idle.loop.now
    idle.driver._tick()
    idle.loop.run(after)
    idle.waiting = b"a publish"
    idle.driver._write()
    idle.loop.run(20 * INTERVAL)
    assert idle.longest_silence(begin) <= INTERVAL / 2
    assert len(idle.sent) <= 41


def test_heartbeats_continue_after_an_exception() -> None:
    idle = Idle()
    idle.error = ValueError("no")
    idle.driver._tick()
    with pytest.raises(ValueError, match="no"):
        idle.loop.run(INTERVAL)
    idle.error = None
    idle.loop.run(INTERVAL)
    assert idle.sent

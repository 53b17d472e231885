"""Heartbeats (0-9 and 0-9-1) and empty frames (1.0): the broker sends a frame in every half interval."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leveret.protocols.ingress_throttle import ALARM
from tests.broker.support import Clock
from tests.protocols.amqp09.support import Client as Client09
from tests.protocols.amqp10.support import Client as Client10
from tests.protocols.support import Client, Site

# Seconds.
INTERVAL = 4
STEP = 10


class Idle:
    """Advances the clock of a site's timers, and records when the broker sent output."""

    def __init__(self, site: Site) -> None:
        self.timers = site.broker.timers = Clock()
        self.site = site
        self.sent: list[int] = []
        self.peer: Any = None

    @property
    def now(self) -> int:
        return self.timers.time

    def advance(self, milliseconds: int) -> None:
        until = self.now + milliseconds
        while self.now < until:
            self.timers.time += STEP
            self.timers.run(self.now)
            self.site.run()
            self.note()

    def note(self) -> None:
        if self.peer.written:
            self.sent.append(self.now)
            self.peer.written.clear()

    def longest_silence(self) -> int:
        times = [*self.sent, self.now]
        return max(second - first for first, second in itertools.pairwise(times))


def open_0_9_1(site: Site) -> Any:
    client = Client(site)
    engine = client.engine
    engine.heartbeat = INTERVAL
    client.run()
    client.take("connection.start")
    engine.send(
        0,
        "connection.start-ok",
        {"client_properties": {}, "mechanism": "PLAIN", "response": "\0user\0user", "locale": "en_US"},
    )
    client.run()
    client.take("connection.tune")
    engine.send(0, "connection.tune-ok", {"channel_max": 10, "frame_max": 8192, "heartbeat": INTERVAL})
    engine.send(0, "connection.open", {"virtual_host": "/"})
    client.run()
    assert client.session.opened
    return client


def open_0_9(site: Site) -> Any:
    client = Client09(site)
    client.run()
    client.take("connection.start")
    client.engine.send(
        0,
        "connection.start-ok",
        {"client_properties": {"product": "tests"}, "mechanism": "PLAIN", "response": "\0user\0user", "locale": "en_US"},
    )
    client.run()
    client.take("connection.tune")
    client.engine.send(0, "connection.tune-ok", {"channel_max": 10, "frame_max": 8192, "heartbeat": INTERVAL})
    client.open_vhost()
    assert client.session.opened
    return client


def open_1_0(site: Site) -> Any:
    site.protocols.amqp10.settings.anonymous_user = "user"
    site.protocols.amqp10.settings.idle_timeout = 0
    client = Client10(site)
    client.open(idle_time_out=INTERVAL * 1000)
    return client


@pytest.fixture(params=[open_0_9_1, open_0_9, open_1_0], ids=["0-9-1", "0-9", "1.0"])
def idle(request: pytest.FixtureRequest) -> Iterator[Idle]:
    """An open connection whose client does not respond."""
    site = Site(heartbeat=INTERVAL)
    clock = Idle(site)
    opening: Callable[[Site], Any] = request.param
    clock.peer = opening(site).peer
    clock.peer.written.clear()
    clock.sent.append(clock.now)
    yield clock


def test_a_heartbeat_is_sent_every_half_interval(idle: Idle) -> None:
    idle.advance(INTERVAL * 1500)
    assert idle.longest_silence() <= INTERVAL * 500
    assert len(idle.sent) - 1 == 3


@pytest.mark.parametrize("after", range(10, INTERVAL * 500 + 1, 330))
def test_a_heartbeat_follows_other_traffic(idle: Idle, after: int) -> None:
    idle.advance(after)
    session = idle.site.services.sessions
    [connection] = list(session)
    sender: Any = getattr(connection, "engine", connection)
    # Any frame will do, if it is not sent by the timer.
    (sender.send_heartbeat if hasattr(sender, "send_heartbeat") else sender.send_empty)()
    connection.flush()
    idle.note()
    idle.advance(INTERVAL * 1000 - after)
    assert idle.longest_silence() <= INTERVAL * 500


@pytest.mark.parametrize("opening", [open_0_9_1, open_0_9], ids=["0-9-1", "0-9"])
def test_a_client_that_sends_nothing_for_two_intervals_is_dropped(opening: Callable[[Site], Any]) -> None:
    idle = Idle(Site(heartbeat=INTERVAL))
    idle.peer = opening(idle.site).peer
    idle.advance(INTERVAL * 2000 - STEP)
    assert not idle.peer.aborted
    # The client may have sent its last frame in the first quarter of an interval.
    idle.advance(INTERVAL * 250 + STEP)
    assert idle.peer.aborted


@pytest.mark.parametrize("opening", [open_0_9_1, open_0_9], ids=["0-9-1", "0-9"])
def test_a_client_whose_socket_is_not_read_is_not_dropped(opening: Callable[[Site], Any]) -> None:
    idle = Idle(Site(heartbeat=INTERVAL))
    client = opening(idle.site)
    idle.peer = client.peer
    client.session.ingress.pause(ALARM)
    idle.advance(INTERVAL * 3000)
    assert not idle.peer.aborted
    client.session.ingress.release(ALARM)
    idle.advance(INTERVAL * 2000 - STEP)
    assert not idle.peer.aborted
    idle.advance(INTERVAL * 250 + STEP)
    assert idle.peer.aborted

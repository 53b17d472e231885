"""Ingress flow control, shared by the connections of all protocols: when the broker reads a socket."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from leveret.protocols.ingress_throttle import (
    ALARM,
    COMMIT,
    MAX_UNCOMMITTED,
    OUTPUT,
    THROTTLE_RETRY_INTERVAL,
    TURN,
    IngressThrottle,
)
from leveret.protocols.vhost_session import VhostSession
from tests.broker.support import HeldLog
from tests.protocols.amqp10.support import connect, make_site
from tests.protocols.support import LinkedPeer, Site


@dataclass
class Throttled:
    """A connection of either protocol, and the throttle of its socket."""

    site: Site
    session: VhostSession
    throttle: IngressThrottle
    peer: LinkedPeer


@pytest.fixture(params=["0-9-1", "1.0"])
def client(request: pytest.FixtureRequest) -> Throttled:
    site = make_site()
    made = site.connect() if request.param == "0-9-1" else connect(site)
    return Throttled(site, made.session, made.session.ingress, made.peer)


def test_reading_resumes_after_the_last_reason(client: Throttled) -> None:
    client.throttle.pause(ALARM)
    client.throttle.pause(OUTPUT)
    client.throttle.release(ALARM)
    assert not client.peer.reading
    client.throttle.release(OUTPUT)
    assert client.peer.reading


def test_a_closing_connection_is_read(client: Throttled) -> None:
    client.throttle.pause(ALARM)
    client.session.shut_down("an operator wants it")
    assert client.peer.reading
    client.throttle.pause(OUTPUT)
    assert client.peer.reading


def test_a_lost_connection_performs_no_more_commands(client: Throttled) -> None:
    client.throttle.pause_for_turn()
    client.session.connection_lost()
    client.site.run()
    client.throttle.pause_for_turn()
    client.throttle.release(TURN)
    client.throttle.check_peer()
    assert not client.site.posted and not client.site.later and not client.peer.reading
    assert client.throttle.session is None


def test_the_rest_of_the_input_waits_for_the_next_turn(client: Throttled) -> None:
    client.throttle.pause_for_turn()
    assert not client.peer.reading
    client.site.run()
    assert client.peer.reading and not client.throttle.reasons


def test_the_rest_of_the_input_waits_for_the_other_reasons(client: Throttled) -> None:
    client.throttle.pause_for_turn()
    client.throttle.pause(ALARM)
    client.site.run()
    seconds, retry = client.site.later.pop()
    assert seconds == THROTTLE_RETRY_INTERVAL and set(client.throttle.reasons) == {ALARM, TURN}
    client.throttle.release(ALARM)
    assert not client.peer.reading
    retry()
    assert client.peer.reading


def test_a_publisher_waits_while_the_disk_is_slow(client: Throttled) -> None:
    log = HeldLog()
    log.pending_bytes = MAX_UNCOMMITTED
    client.throttle.pause_for_commit(log, False)
    assert client.peer.reading
    log.pending_bytes = MAX_UNCOMMITTED + 1
    client.throttle.pause_for_commit(log, False)
    client.throttle.pause_for_commit(log, False)
    assert set(client.throttle.reasons) == {COMMIT} and not client.peer.reading
    client.throttle.committed(1)
    assert client.peer.reading


def test_bodies_in_the_spool_count_for_their_publishers(client: Throttled) -> None:
    log = HeldLog()
    log.pending_bytes = log.pending_spooled = MAX_UNCOMMITTED + 1
    client.throttle.pause_for_commit(log, False)
    assert client.peer.reading
    client.throttle.pause_for_commit(log, True)
    assert not client.peer.reading


def test_a_throttled_client_is_exempt_from_heartbeats(client: Throttled) -> None:
    assert not client.throttle.heartbeat_exempt()
    client.throttle.pause(ALARM)
    assert client.throttle.heartbeat_exempt()
    client.throttle.pause(OUTPUT)
    assert not client.throttle.heartbeat_exempt()


def test_a_disconnect_while_throttled_is_detected(client: Throttled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.peer, "hung_up", lambda: True)
    client.session.check_peer()
    assert not client.peer.aborted
    client.throttle.pause(ALARM)
    client.session.check_peer()
    assert client.peer.aborted

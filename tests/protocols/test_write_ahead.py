"""Large bodies that the log writes before they are published: in transactions of 0-9-1, and over 1.0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leveret.broker.bodies import StoredBody, WrittenBody
from leveret.storage.memory import MemoryLog
from leveret.storage.spool import FileSpool
from leveret.wire.amqp10.messaging import Header
from tests.protocols.amqp10.link.test_large_messages import begin, end
from tests.protocols.amqp10.support import Session, connect, make_site, message
from tests.protocols.support import Channel, Site, bytes_of

THRESHOLD = 100_000
BODY = bytes(range(251)) * 2000


class SlowLog(MemoryLog):
    """A log that writes bodies ahead on request. `dropped` has the chunks of those that were not published."""

    def __init__(self, spool: FileSpool) -> None:
        super().__init__()
        self.spool = spool
        self.ahead: list[tuple[bytes, StoredBody, Callable[[StoredBody], None], Callable[[], bool]]] = []
        self.dropped: list[tuple[int, int]] = []

    def write_ahead(
        self, header: bytes, body: StoredBody, done: Callable[[StoredBody], None], wanted: Callable[[], bool]
    ) -> bool:
        if not body.is_written():
            self.ahead.append((header, body, done, wanted))
        return not body.is_written()

    def write(self) -> None:
        header, body, done, wanted = self.ahead.pop(0)
        assert wanted()
        done(WrittenBody(body, header, self, (1, 2), self.dropped.append))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SlowLog]:
    spool = FileSpool(tmp_path, 0)
    yield SlowLog(spool)
    spool.close()


@pytest.fixture
def site(log: SlowLog) -> Site:
    site = make_site(log=log, spool_threshold=THRESHOLD)
    site.vhost.declare_queue("q", None, durable=True)
    return site


@pytest.fixture
def transacted(site: Site) -> Channel:
    channel = site.channel()
    channel.call("tx.select", "tx.select-ok")
    channel.publish("q", BODY, delivery_mode=2)
    channel.publish("q", b"small", delivery_mode=2)
    channel.client.run()
    return channel


def bodies(site: Site) -> list[bytes]:
    """Return the bodies of the queue, which is empty afterwards."""
    channel = site.channel()
    found = []
    while (got := channel.get("q")) is not None:
        found.append(bytes_of(got.body))
    return found


def run_later(site: Site) -> None:
    """Run everything that is due later."""
    later, site.later = site.later, []
    for _, callback in later:
        callback()
    site.run()


def test_a_commit_waits_for_a_body_that_is_written(site: Site, log: SlowLog, transacted: Channel) -> None:
    transacted.client.engine.send(1, "tx.commit", {})
    transacted.client.run()
    assert transacted.client.take("tx.commit-ok", 1) is None
    log.write()
    transacted.client.run()
    assert transacted.client.take("tx.commit-ok", 1) is not None
    assert bodies(site) == [BODY, b"small"]
    assert not log.ahead


def test_a_rollback_drops_a_body_that_was_written(site: Site, log: SlowLog, transacted: Channel) -> None:
    log.write()
    transacted.call("tx.rollback", "tx.rollback-ok")
    assert log.dropped == [(1, 2)]
    assert bodies(site) == []


def test_a_connection_that_is_lost_does_not_want_the_rest(site: Site, log: SlowLog, transacted: Channel) -> None:
    wanted = log.ahead[0][3]
    assert wanted()
    transacted.client.session.connection_lost()
    site.run()
    assert not wanted()


def test_a_publish_that_is_refused_after_its_body_was_written(site: Site, log: SlowLog) -> None:
    channel = site.channel()
    channel.call("exchange.declare", "exchange.declare-ok", exchange="e", type="headers")
    channel.publish("q", BODY, exchange="e", delivery_mode=2)
    channel.client.run()
    site.channel().call("exchange.delete", "exchange.delete-ok", exchange="e")
    log.write()
    channel.client.run()
    assert channel.client.refusal()[0] == 404
    assert log.dropped == [(1, 2)]


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def test_the_input_of_a_connection_waits_for_a_body_over_amqp10(site: Site, log: SlowLog, session: Session) -> None:
    sender = session.sender()
    end(sender, begin(sender, message(BODY, header=Header(True))))
    sender.send(message(b"small", header=Header(True)))
    run_later(site)
    assert sender.outcomes() == []
    log.write()
    run_later(site)
    session.client.run()
    assert [name for *_, name in sender.outcomes()] == ["Accepted"]
    assert bodies(site) == [BODY, b"small"]
    assert not log.ahead


def test_a_connection_of_amqp10_that_is_lost_does_not_want_the_rest(site: Site, log: SlowLog, session: Session) -> None:
    sender = session.sender()
    end(sender, begin(sender, message(BODY, header=Header(True))))
    wanted = log.ahead[0][3]
    assert wanted()
    session.client.session.connection_lost()
    site.run()
    assert not wanted()
    log.ahead.clear()
    assert bodies(site) == []


def test_a_transient_body_over_amqp10_is_not_written(log: SlowLog, session: Session) -> None:
    sender = session.sender()
    end(sender, begin(sender, message(BODY)))
    assert [name for *_, name in sender.outcomes()] == ["Accepted"]
    assert not log.ahead

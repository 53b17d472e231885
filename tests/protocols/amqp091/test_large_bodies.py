"""Bodies that do not fit in memory: spooled while they arrive, sent as the socket accepts them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.broker.errors import ContentTooLarge
from leveret.protocols.amqp091.connection.outgoing import MAX_UNWRITTEN
from leveret.protocols.ingress_throttle import MAX_UNCOMMITTED
from leveret.storage.spool import BLOCK_BYTES, FileSpool
from leveret.wire.amqp0.commands import Deliver
from tests.broker.support import HeldLog
from tests.protocols.support import Channel, Site, bytes_of

MIB = 1 << 20
BODY = bytes(range(251)) * (3 * MIB // 251)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[FileSpool]:
    spool = FileSpool(tmp_path, 0)
    yield spool
    spool.close()


@pytest.fixture(params=["spooled", "in memory"])
def site(request: pytest.FixtureRequest, spool: FileSpool) -> Site:
    site = Site()
    if request.param == "spooled":
        site.log.spool = spool
    return site


def is_empty(spool: FileSpool) -> bool:
    """Wait for the spool's thread, and return whether the spool is empty."""
    spool.close()
    return not spool.blocks


def begin(channel: Channel, key: str = "q") -> bytes:
    """Send the first half of a publish of BODY, and return the rest."""
    channel.publish(key, BODY)
    data = channel.client.engine.to_send()
    half = len(data) // 2
    channel.client.session.data_received(data[:half])
    return data[half:]


def make_slow(channel: Channel, limit: int = MIB) -> None:
    """Stop the client from reading, with a socket that is full above `limit` bytes."""
    client = channel.client
    client.deaf = True
    write = client.peer.write

    def limited(data: bytes) -> None:
        write(data)
        if client.peer.unwritten() > limit:
            client.session.pause_writing()

    client.peer.write = limited  # type: ignore[method-assign]


def read_on(channel: Channel) -> None:
    """Let the client read everything, so that its socket has room again."""
    client = channel.client
    data = b"".join(client.peer.written)
    client.peer.written.clear()
    client.received.extend(client.engine.receive(data))
    client.session.resume_writing()
    client.site.run()


def test_a_body_is_published_and_delivered(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    channel.consume(no_ack=True)
    for body in (BODY, b"small", BODY[:-1], b""):
        channel.publish(body=body)
    assert channel.delivered() == [BODY, b"small", BODY[:-1], b""]


def test_by_get_and_by_return(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    channel.publish(body=BODY)
    channel.publish("nowhere", BODY, mandatory=True)
    channel.publish(body=b"next")
    assert channel.bodies() == [BODY, b"next"]
    returned = channel.client.take("basic.return", channel.number)
    assert returned is not None and bytes_of(returned.body) == BODY  # type: ignore[attr-defined]


def test_with_confirms_and_acknowledgements(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    channel.call("confirm.select", "confirm.select-ok")
    channel.consume()
    for _ in range(3):
        channel.publish(body=BODY)
    first, second, third = channel.deliveries()
    assert channel.confirms()[-1][1] == 3
    channel.nack(second.delivery_tag)
    channel.ack(first.delivery_tag)
    channel.ack(third.delivery_tag)
    assert channel.delivered() == [BODY]


def test_a_content_being_received_is_not_in_memory(spool: FileSpool) -> None:
    site = Site()
    site.log.spool = spool
    channel = site.channel()
    channel.declare()
    rest = begin(channel)
    assert spool.blocks * BLOCK_BYTES >= len(BODY) // 2 - BLOCK_BYTES
    channel.client.session.data_received(rest)
    assert channel.bodies() == [BODY]
    assert is_empty(spool)


@pytest.mark.parametrize("how", ["connection lost", "connection closed", "channel refused"])
def test_an_incomplete_content_leaves_no_state(spool: FileSpool, how: str) -> None:
    site = Site()
    site.log.spool = spool
    channel = site.channel()
    channel.declare()
    rest = begin(channel)
    assert spool.blocks
    if how == "connection lost":
        channel.client.drop()
    elif how == "connection closed":
        channel.client.session.close(320, "enough")
    else:
        session = channel.client.session
        session.refuse(session.channels[channel.number], 406, "enough", 0, 0)
        session.data_received(rest)
    site.run()
    assert is_empty(spool)
    other = site.channel()
    other.declare()
    other.publish(body=BODY)
    assert other.bodies() == [BODY]


@pytest.mark.parametrize("when", ["at the header", "in the middle"])
def test_a_full_spool_closes_the_channel(spool: FileSpool, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    site = Site()
    site.log.spool = spool
    channel, other = site.channel(), site.channel()
    channel.declare()
    if when == "at the header":
        monkeypatch.setattr(spool, "_keep_free", 1 << 60)
        rest = begin(channel)
    else:
        rest = begin(channel)
        monkeypatch.setattr(spool, "_keep_free", 1 << 60)
    channel.client.session.data_received(rest)
    channel.run()
    code, text = channel.client.refusal()
    assert code == 311
    assert "no room" in text and "limits.disk_free" in text
    assert channel.client.is_open
    assert is_empty(spool)
    other.publish(body=b"small")
    assert other.bodies() == [b"small"]
    # The same connection continues when there is room again.
    monkeypatch.setattr(spool, "_keep_free", 0)
    again = channel.client.channel(channel.number + 1)
    again.publish(body=BODY)
    assert again.bodies() == [BODY]


def test_a_persistent_body_also_needs_room_for_the_log(spool: FileSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_room", lambda: 5 * MIB)
    with pytest.raises(ContentTooLarge):
        spool.begin(2 * MIB, True)
    first = spool.begin(2 * MIB, False)
    second = spool.begin(3 * MIB, False)
    with pytest.raises(ContentTooLarge):
        spool.begin(1, False)
    del first
    spool.close()
    spool.begin(2 * MIB, False)
    assert second.size == 0


def test_a_slow_consumer_has_only_a_part_of_the_body_in_memory(site: Site) -> None:
    slow, fast = site.channel(), site.channel()
    slow.declare()
    slow.consume(no_ack=True)
    make_slow(slow)
    for _ in range(4):
        fast.publish(body=BODY)
    fast.run()
    session = slow.client.session
    assert slow.client.peer.unwritten() <= 2 * MIB
    assert session.engine.pending == 0
    # Other consumers get the rest of the queue.
    fast.consume(no_ack=True)
    assert fast.delivered() == [BODY] * 3
    found: list[Deliver] = []
    for _ in range(20):
        read_on(slow)
        assert slow.client.peer.unwritten() <= 2 * MIB
        found = [item for item in slow.client.received if isinstance(item, Deliver)]
        if found:
            break
    assert [bytes_of(item.body) for item in found] == [BODY]
    assert not session.output.paused


def test_replies_wait_for_a_body_in_order(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    channel.publish(body=BODY)
    channel.run()
    make_slow(channel)
    channel.send("basic.get", queue="q", no_ack=True)
    channel.send("basic.get", queue="q", no_ack=True)
    channel.send("basic.qos", prefetch_count=1)
    channel.run()
    for _ in range(20):
        read_on(channel)
    names = [getattr(item, "name", "") for item in channel.client.received]
    assert names == ["basic.get-ok", "basic.get-empty", "basic.qos-ok"]
    assert bytes_of(channel.client.received[0].body) == BODY  # type: ignore[attr-defined]


def test_the_end_of_a_connection_does_not_wait_for_a_body(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    channel.publish(body=BODY)
    channel.run()
    make_slow(channel)
    channel.send("basic.get", queue="q", no_ack=True)
    channel.run()
    channel.client.session.shut_down("the broker stops")
    channel.client.session.resume_writing()
    site.run()
    read_on(channel)
    code, text = channel.client.refusal()
    assert (code, "the broker stops" in text) == (320, True)


def test_unread_replies_pause_reading(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    channel.publish(body=BODY)
    channel.run()
    make_slow(channel)
    channel.send("basic.get", queue="q", no_ack=True)
    channel.run()
    for _ in range(MAX_UNWRITTEN // 200_000 + 1):
        channel.publish("nowhere", bytes(200_000), mandatory=True)
    channel.client.flush()
    site.run()
    assert not channel.client.peer.reading
    for _ in range(20):
        read_on(channel)
    assert channel.client.peer.reading


def test_parts_queued_behind_a_reply_are_bounded(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    session = channel.client.session
    session.channels[channel.number].stall()
    channel.publish(body=BODY + BODY)
    channel.client.flush()
    assert not channel.client.peer.reading
    session.channels[channel.number].resume()
    assert channel.client.peer.reading
    assert channel.bodies() == [BODY + BODY]


def test_an_unreadable_body_aborts_its_connection(spool: FileSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    site.log.spool = spool
    channel, other = site.channel(), site.channel()
    channel.declare()
    channel.publish(body=BODY)
    channel.run()
    spool._file.truncate(0)  # type: ignore[union-attr]
    channel.send("basic.get", queue="q", no_ack=True)
    channel.run()
    assert channel.client.peer.aborted
    other.publish(body=b"small")
    assert other.bodies() == [b"small"]


def test_only_publishers_of_large_bodies_wait_for_their_commit(spool: FileSpool) -> None:
    log = HeldLog()
    site = Site(log)
    log.spool = spool
    small, large = site.channel(), site.channel()
    small.declare()
    log.held = True
    log.pending_bytes = log.pending_spooled = MAX_UNCOMMITTED + 1
    for channel, body in ((small, b"small"), (large, BODY)):
        channel.publish(body=body)
        channel.run()
    assert small.client.peer.reading
    assert not large.client.peer.reading
    log.pending_spooled = 0
    small.publish()
    small.run()
    assert not small.client.peer.reading

"""Throttling of publishers when memory is low: channel.flow, and unread sockets of those that continue."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.conftest import CONFIG
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp091 import Channel, ChannelClass, Connection, Peer, Tx
from tests.support.polling import wait_until

# Far above what an idle broker needs, and soon reached by a transaction, whose content must stay in memory.
WATERMARK = 150_000_000
PIECE = b"m" * 500_000


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("it is short of memory")
    config = CONFIG + f"\n[limits]\nmemory_high_watermark = {WATERMARK}\n"
    process = LeveretProcess(tmp_path / "tight", config=config).start()
    yield process
    process.kill()
    process.check_log()


def connect(broker: LeveretProcess, **options: object) -> Peer:
    peer = Peer(broker.host, broker.port)
    peer.handshake(**options)  # type: ignore[arg-type]
    return peer


def fill(channel: Channel) -> None:
    """Publish in a transaction until the broker asks to stop. Frames in flight may stay unread."""
    channel.call(Tx.Select, Tx.SelectOk)
    channel.peer.socket.settimeout(5.0)
    for number in range(1000):
        try:
            channel.publish(PIECE, "nowhere")
        except TimeoutError:
            break
        if number > 200 and select.select([channel.peer.socket], [], [], 0.05)[0]:
            break
    assert channel.expect(ChannelClass.Flow).active is False


@pytest.mark.rule("0-9-1", "basic.03")
@pytest.mark.rule("0-9-1", "channel.flow.throttling")
@pytest.mark.rule("0-9-1", "channel.grammar.use-channel.server-flow")
@pytest.mark.rule("0-9-1", "channel.flow.chassis.client")
@pytest.mark.rule("0-9-1", "channel.flow.chassis.server")
@pytest.mark.rule("0-9-1", "channel.flow.response.flow-ok")
@pytest.mark.rule("0-9-1", "channel.flow-ok.chassis.server")
def test_publishers_are_asked_to_stop_and_later_to_resume(tight: LeveretProcess) -> None:
    publisher, consumer = connect(tight).channel(), connect(tight).channel()
    bystander = connect(tight).channel()
    knowing = connect(tight, properties={"capabilities": {"connection.blocked": True}}).channel()
    bystander.queue("q", exclusive=False)
    bystander.publish(b"before", "q")
    fill(publisher)
    # All publishers are asked; a channel that only consumes is not, and continues.
    assert bystander.expect(ChannelClass.Flow).active is False
    bystander.send(ChannelClass.FlowOk, active=False)
    knowing.publish(b"under the alarm", "nowhere")
    assert knowing.peer.expect(0, Connection.Blocked).reason
    assert consumer.drain("q") == [b"before"]
    consumer.quiet()
    # The end of an unread socket is visible only as a reset.
    publisher.peer.reset()
    assert bystander.expect(ChannelClass.Flow).active is True
    bystander.publish(b"after", "q")
    bystander.quiet()
    assert consumer.drain("q") == [b"after"]


@pytest.mark.rule("0-9-1", "channel.flow.expected-behaviour")
def test_a_publisher_that_does_not_stop_is_no_longer_read(tight: LeveretProcess) -> None:
    rude, polite = connect(tight).channel(), connect(tight).channel()
    fill(rude)
    rude.peer.socket.settimeout(3.0)
    # The alarm may clear when the allocator releases memory, and is raised again at the next check.
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            rude.publish(PIECE, "nowhere")
            time.sleep(0.005)
    polite.quiet()
    assert tight.memory() < WATERMARK * 1.6
    # Its socket is not read, but its end is noticed, and its unacked messages are requeued.
    rude.peer.reset()
    wait_until(lambda: tight.memory() <= WATERMARK, "the memory of a client that went away stays")
    polite.quiet()


@pytest.mark.rule("0-9-1", "heartbeats.throttled")
def test_missing_heartbeats_of_a_paused_connection_are_ignored(tight: LeveretProcess) -> None:
    watcher, filler = connect(tight).channel(), connect(tight).channel()
    watcher.queue("q", exclusive=False)
    fill(filler)
    held = connect(tight, interval=1)
    channel = held.channel()
    channel.publish(b"the first", "q")
    channel.publish(b"the second", "q")
    began = time.monotonic()
    while time.monotonic() - began < 3:
        number, value = held.read_frame()
        assert number == 0 or isinstance(value, ChannelClass.Flow)  # heartbeats of the broker, and its request
        held.send_bytes(b"\x08\x00\x00\x00\x00\x00\x00\xce")
    filler.peer.reset()
    wait_until(lambda: watcher.depth("q") == 2, "what was held never came")
    assert watcher.drain("q") == [b"the first", b"the second"]

"""Class channel."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.amqp09 import kinds
from tests.conformance.amqp09.conftest import CONFIG_AMQP09, Connect
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp09 import Channel, Peer
from tests.support.peers.framing import HEADER_FRAME, frame_bytes

# Far above what an idle broker needs, and soon reached by a transaction, whose content must stay in memory.
WATERMARK = 150_000_000
PIECE = b"m" * 500_000


def flow(channel: Channel, active: bool) -> None:
    assert channel.call("channel.flow", active=active).active is active


@pytest.mark.rule("0-9", "channel.open.state")
@pytest.mark.rule("0-9", "channel-error.constant")
@pytest.mark.rule("0-9", "channel.open.state.reply-code")
def test_opening_an_open_channel_is_an_error_of_the_connection(peer: Peer) -> None:
    channel = peer.open()
    channel.send("channel.open")
    peer.expect_end(504, "channel.open")


@pytest.mark.rule("0-9", "channel.open.state")
def test_a_closed_channel_may_be_opened_again(peer: Peer) -> None:
    seen = set()
    for _ in range(3):
        channel = peer.open()
        seen.add(channel.id)
        channel.quiet()
        channel.close()
    assert len(seen) == 3, "each opening has an identity of its own"


@pytest.mark.rule("0-9", "channel.flow.initial-state")
@pytest.mark.rule("0-9", "channel.flow.active.text.starts")
@pytest.mark.rule("0-9", "channel.flow.active.text.stops")
@pytest.mark.rule("0-9", "channel.flow-ok.active.text.repeats")
def test_a_new_channel_is_active_and_may_be_paused(peer: Peer, name: str) -> None:
    channel = peer.open()
    channel.queue(name)
    channel.consume(name)
    channel.publish(b"flows", name)
    assert channel.delivery().body == b"flows"
    second = peer.open(2)
    flow(second, False)
    second.queue(name + ".2")
    second.consume(name + ".2")
    second.publish(b"waits", name + ".2")
    second.quiet()
    flow(second, True)
    assert second.delivery().body == b"waits"


@pytest.mark.rule("0-9", "channel.flow.throttling")
def test_a_paused_channel_gets_no_content_but_can_publish(peer: Peer, name: str) -> None:
    paused, active = peer.open(1), peer.open(2)
    paused.queue(name)
    paused.consume(name, "p", no_ack=True)
    flow(paused, False)
    for number in range(5):
        paused.publish(b"%d" % number, name)
    paused.quiet()
    assert active.depth(name) == 5
    flow(paused, True)
    assert [content.body for content in paused.deliveries(5)] == [b"%d" % number for number in range(5)]


@pytest.mark.rule("0-9", "channel.flow.throttling")
def test_a_paused_channel_is_not_asked_to_stage(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.consume(name, "f", kind="file")
    flow(channel, False)
    channel.publish_file(b"waits", name, identifier=name)
    channel.quiet()
    flow(channel, True)
    assert channel.file().body == b"waits"


@pytest.mark.rule("0-9", "channel.flow.bidirectional")
@pytest.mark.rule("0-9", "channel.flow.text.pauses")
def test_flow_is_answered_in_the_middle_of_a_stream_of_content(connect: Connect, name: str) -> None:
    publisher = connect().open()
    publisher.queue(name)
    count, body = 300, b"x" * 100_000
    for _ in range(count):
        publisher.publish(body, name)
    publisher.quiet()
    peer = connect(receive_buffer=65536)
    channel = peer.open()
    channel.consume(name, "c", no_ack=True)
    for _ in range(5):
        channel.delivery()
    channel.send("channel.flow", active=False)
    seen = 5
    while (frame := channel.expect("basic.deliver", "channel.flow-ok")).name == "basic.deliver":
        peer.rest_of(1, frame)
        seen += 1
    assert seen < count, "the pause was answered after everything had been sent"
    channel.quiet()
    flow(channel, True)
    assert all(content.body == body for content in channel.deliveries(count - seen))
    publisher.call("queue.delete", queue=name)


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[LeveretProcess]:
    config = CONFIG_AMQP09 + f"\n[limits]\nmemory_high_watermark = {WATERMARK}\n"
    process = LeveretProcess(tmp_path / "tight", config=config).start()
    yield process
    process.kill()
    process.check_log()


def fill(channel: Channel) -> None:
    """Publish in a transaction until the broker asks to stop. Frames in flight may stay unread."""
    channel.call("tx.select")
    channel.peer.socket.settimeout(5.0)
    for number in range(1000):
        try:
            channel.publish(PIECE, "nowhere")
        except TimeoutError:
            break
        if number > 200 and select.select([channel.peer.socket], [], [], 0.05)[0]:
            break
    assert channel.expect("channel.flow").active is False


@pytest.mark.rule("0-9", "channel.flow.throttling")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("basic", marks=pytest.mark.rule("0-9", "basic.03")),
        pytest.param("message", marks=pytest.mark.rule("0-9", "message.03")),
    ],
)
def test_publishers_are_asked_to_stop_and_later_to_resume(tight: LeveretProcess, connect: Connect, kind: str) -> None:
    publisher, consumer, bystander = (connect(at=tight).open() for _ in range(3))
    bystander.queue("q")
    kinds.publish(bystander, kind, b"before", "q")
    fill(publisher)
    # All publishers are asked; a channel that only consumes is not, and continues.
    assert bystander.expect("channel.flow").active is False
    bystander.send("channel.flow-ok", active=False)
    kinds.consume(consumer, kind, "q", "c", no_ack=True)
    assert kinds.receive(consumer, kind).body == b"before"
    consumer.quiet()
    # The end of an unread socket is visible only as a reset.
    publisher.peer.reset()
    assert bystander.expect("channel.flow").active is True
    kinds.publish(bystander, kind, b"after", "q")
    assert kinds.receive(consumer, kind).body == b"after"


@pytest.mark.rule("0-9", "channel.flow.expected-behaviour")
def test_a_publisher_that_does_not_stop_is_no_longer_read(tight: LeveretProcess, connect: Connect) -> None:
    rude, polite = connect(at=tight).open(), connect(at=tight).open()
    fill(rude)
    rude.peer.socket.settimeout(1.0)
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            rude.publish(PIECE, "nowhere")
    polite.quiet()
    assert tight.memory() < WATERMARK * 1.6


@pytest.mark.rule("0-9", "channel.flow.expected-behaviour")
@pytest.mark.rule("0-9", "precondition-failed.constant")
@pytest.mark.rule("0-9", "channel.grammar.use-channel.server-flow")
@pytest.mark.rule("0-9", "channel.flow.chassis.client")
@pytest.mark.rule("0-9", "channel.flow-ok.chassis.server")
def test_publishing_files_after_agreeing_to_pause_is_refused(channel: Channel, name: str) -> None:
    channel.queue(name, arguments={"x-max-length": 1})
    for number in range(2):
        channel.publish_file(b"%d" % number, name, identifier=f"{name}.{number}")
    assert channel.expect("channel.flow").active is False
    channel.send("channel.flow-ok", active=False)
    channel.publish_file(b"2", name, identifier=f"{name}.2")
    channel = channel.refused(406, "file.publish")
    # The refused file is still staged.
    assert channel.call("file.open", identifier=f"{name}.2", content_size=1).staged_size == 1


@pytest.mark.rule("0-9", "channel.close.stability")
def test_after_its_close_the_server_accepts_only_close_and_close_ok(peer: Peer, name: str) -> None:
    channel = peer.open()
    channel.queue(name)
    channel.send("queue.declare", queue=name + ".none", passive=True)
    assert channel.expect("channel.close").reply_code == 404
    channel.publish(b"lost", name)
    channel.send("queue.delete", queue=name)
    channel.ack(77)
    channel.send("channel.close", reply_code=200)
    channel.expect("channel.close-ok")
    channel.send("channel.close-ok")
    again = peer.open()
    assert again.depth(name) == 0


@pytest.mark.rule("0-9", "channel.close.stability")
@pytest.mark.parametrize(("name_", "index"), [("basic.publish", 60), ("file.stage", 70)], ids=["basic", "file"])
def test_a_partial_content_on_a_closed_channel_is_ignored(peer: Peer, name: str, name_: str, index: int) -> None:
    channel = peer.open()
    channel.send("queue.declare", queue=name, passive=True)
    channel.expect("channel.close")
    channel.send(name_)
    peer.send_bytes(frame_bytes(HEADER_FRAME, 1, bytes((0, index, 0, 0)) + b"\x00" * 7 + b"\x05" + b"\x00\x00"))
    channel.send("channel.close-ok")
    peer.open().quiet()


@pytest.mark.rule("0-9", "channel.close-ok.reporting")
def test_a_socket_that_ends_without_channel_close_ok_is_logged(broker: LeveretProcess, connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.open()
    channel.send("queue.declare", queue=name + ".none", passive=True)
    channel.expect("channel.close")
    after = len(broker.log())
    peer.drop()
    broker.wait_for_log(f":{peer.local_port}", after)

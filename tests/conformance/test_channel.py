"""Class channel: open, flow, close."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect
from tests.support.peers.amqp091 import Basic, Channel, ChannelClass, Connection, Peer, Queue, method
from tests.support.peers.framing import HEADER_FRAME, METHOD_FRAME, frame_bytes


def flow(channel: Channel, active: bool) -> None:
    assert channel.call(ChannelClass.Flow, ChannelClass.FlowOk, active=active).active is active


@pytest.mark.rule("0-9-1", "channel.open.state")
def test_opening_an_open_channel_is_an_error_of_the_connection(peer: Peer) -> None:
    channel = peer.channel()
    channel.send(ChannelClass.Open)
    peer.expect_connection_close(504, ChannelClass.Open)


@pytest.mark.rule("0-9-1", "channel.open.state")
@pytest.mark.rule("0-9-1", "channels.reused")
def test_a_closed_channel_may_be_opened_again(peer: Peer) -> None:
    for _ in range(3):
        channel = peer.channel()
        channel.quiet()
        channel.close()


@pytest.mark.rule("0-9-1", "framing.not-open")
@pytest.mark.rule("0-9-1", "channel-error.constant")
def test_a_method_on_a_channel_that_is_not_open_is_an_error(peer: Peer) -> None:
    peer.send(5, method(Queue.Declare, queue=""))
    peer.expect_connection_close(504)


@pytest.mark.rule("0-9-1", "channel.flow.initial-state")
def test_a_new_channel_is_active(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.consume(name, "c")
    channel.publish(b"flows", name)
    assert channel.delivery().body == b"flows"


@pytest.mark.rule("0-9-1", "channel.flow.initial-state")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_a_channel_may_be_paused_right_after_its_opening(channel: Channel, name: str) -> None:
    flow(channel, False)
    channel.queue(name)
    channel.consume(name, "c")
    channel.publish(b"waits", name)
    channel.quiet()
    flow(channel, True)
    assert channel.delivery().body == b"waits"


@pytest.mark.rule("0-9-1", "channel.flow.throttling")
@pytest.mark.rule("0-9-1", "channel.flow.active.text.starts")
@pytest.mark.rule("0-9-1", "channel.flow.active.text.stops")
@pytest.mark.rule("0-9-1", "channel.flow-ok.active.text.repeats")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_a_paused_channel_gets_no_content_but_can_publish(peer: Peer, name: str) -> None:
    paused, active = peer.channel(1), peer.channel(2)
    paused.queue(name)
    paused.consume(name, "p", no_ack=True)
    flow(paused, False)
    flow(paused, False)  # asking twice changes nothing
    for number in range(10):
        paused.publish(b"%d" % number, name)
    paused.quiet()
    active.quiet()
    assert active.depth(name) == 10
    # Another consumer gets the messages that the paused one does not receive.
    active.consume(name, "a", no_ack=True)
    assert [content.body for content in active.deliveries(10)] == [b"%d" % number for number in range(10)]
    active.call(Basic.Cancel, Basic.CancelOk, consumer_tag="a")
    for number in range(10):
        active.publish(b"%d" % number, name)
    active.quiet()
    flow(paused, True)
    assert [content.body for content in paused.deliveries(10)] == [b"%d" % number for number in range(10)]


@pytest.mark.rule("0-9-1", "channel.flow.bidirectional")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_flow_is_answered_in_the_middle_of_a_stream_of_content(connect: Connect, name: str) -> None:
    publisher = connect().channel()
    publisher.queue(name, exclusive=False, auto_delete=False)
    count, body = 400, b"x" * 100_000
    for _ in range(count):
        publisher.publish(body, name)
    publisher.quiet()
    peer = connect(receive_buffer=65536)
    channel = peer.channel()
    channel.consume(name, "c", no_ack=True)
    seen = 0
    for _ in range(5):
        channel.delivery()
        seen += 1
    channel.send(ChannelClass.Flow, active=False)
    while not isinstance(frame := peer.read(1), ChannelClass.FlowOk):
        assert isinstance(frame, Basic.Deliver)
        peer.rest_of_content(1, frame)
        seen += 1
    assert seen < count, "the pause was answered after everything had been sent"
    channel.quiet()
    flow(channel, True)
    for _ in range(count - seen):
        assert channel.delivery().body == body
    publisher.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "channel.close.stability")
@pytest.mark.rule("0-9-1", "errors.discard")
def test_after_its_close_the_server_accepts_only_close_and_close_ok(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    channel.send(Queue.Declare, queue=name + ".none", passive=True)
    closed = channel.expect(ChannelClass.Close)
    assert closed.reply_code == 404
    channel.publish(b"lost", name)
    channel.send(Queue.Delete, queue=name)
    channel.send(Basic.Ack, delivery_tag=77)
    channel.send(ChannelClass.Close, reply_code=200, reply_text="", class_id=0, method_id=0)
    channel.expect(ChannelClass.CloseOk)
    channel.send(ChannelClass.CloseOk)
    again = peer.channel()
    assert again.depth(name) == 0
    assert again.exists(name)


@pytest.mark.rule("0-9-1", "channel.close.stability")
@pytest.mark.ahead_of_rabbitmq("505")
def test_a_partial_content_on_a_closed_channel_is_ignored(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.send(Queue.Declare, queue=name, passive=True)
    channel.expect(ChannelClass.Close)
    channel.send(Basic.Publish, exchange="", routing_key=name)
    peer.send_bytes(frame_bytes(HEADER_FRAME, 1, b"\x00\x3c\x00\x00" + b"\x00" * 7 + b"\x05" + b"\x00\x00"))
    channel.send(ChannelClass.CloseOk)
    peer.channel().quiet()


@pytest.mark.rule("0-9-1", "channel.close.stability")
def test_closing_a_channel_requeues_its_unacked_messages(peer: Peer, name: str) -> None:
    first, second = peer.channel(1), peer.channel(2)
    first.queue(name)
    for number in range(5):
        first.publish(b"%d" % number, name)
    first.consume(name, "c")
    first.deliveries(5)
    first.close()
    contents = [second.get(name) for _ in range(5)]
    assert [(content.body, content.redelivered) for content in contents if content] == [
        (b"%d" % number, True) for number in range(5)
    ]


@pytest.mark.rule("0-9-1", "errors.content-amid-close")
def test_a_channel_closes_in_the_middle_of_a_content(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    channel.send(Basic.Publish, exchange="", routing_key=name)
    peer.send_bytes(frame_bytes(HEADER_FRAME, 1, b"\x00\x3c\x00\x00" + b"\x00" * 7 + b"\x05" + b"\x00\x00"))
    channel.send(ChannelClass.Close, reply_code=200, reply_text="", class_id=0, method_id=0)
    # A method in the middle of a content is unexpected (4.2.6); some servers accept a close.
    answer = peer.read()
    if isinstance(answer, Connection.Close):
        assert answer.reply_code == 505
    else:
        assert isinstance(answer, ChannelClass.CloseOk)
        assert peer.channel().depth(name) == 0


@pytest.mark.rule("0-9-1", "framing.method-unknown")
@pytest.mark.rule("0-9-1", "framing.method-malformed")
@pytest.mark.rule("0-9-1", "syntax-error.constant")
@pytest.mark.rule("0-9-1", "not-implemented.constant")
@pytest.mark.ahead_of_rabbitmq("resets the connection for some of these")
@pytest.mark.parametrize(
    ("payload", "codes"),
    [
        (b"\x00\x14\x00\xff", (540, 503)),  # no such method
        (b"\x03\xe7\x00\x0a", (540, 503)),  # no such class
        (b"\x00\x14", (501, 502)),  # shorter than its identifiers
        (b"\x00\x32\x00\x0a\x00\x00\xff", (501, 502)),  # a name longer than the frame
        (b"\x00\x3c\x00\x47\x00", (501, 502, 503, 540)),  # a method that only servers send
    ],
)
def test_malformed_and_unknown_methods(peer: Peer, payload: bytes, codes: tuple[int, ...]) -> None:
    peer.channel()
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, payload))
    closed = peer.expect(0, Connection.Close)
    assert closed.reply_code in codes, closed.reply_code

"""Class connection after its opening, and the log of unclean ends (0-9-1 section 4.8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.conftest import Connect
from tests.support.broker import Broker, LeveretProcess
from tests.support.peers.amqp091 import Basic, Channel, ChannelClass, Connection, Exchange, Peer, Queue, method


@pytest.fixture
def leveret(broker: Broker) -> LeveretProcess:
    if not isinstance(broker, LeveretProcess):
        pytest.skip("reads Leveret's log")
    return broker


def send_close(peer: Peer) -> None:
    peer.send(0, method(Connection.Close, reply_code=200, reply_text="bye", class_id=0, method_id=0))


@pytest.mark.rule("0-9-1", "connection.close.stability")
@pytest.mark.rule("0-9-1", "errors.discard")
def test_after_its_close_the_server_accepts_only_close_and_close_ok(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.channel()
    channel.send(ChannelClass.Open)  # an error of connection scope
    # In one write, so that the broker may read it before it sends the close, and once more afterwards.
    channel.send(Queue.Declare, queue=name)
    peer.read_connection_close(504)
    channel.send(Queue.Declare, queue=name)
    channel.publish(b"lost", name)
    peer.send(2, ChannelClass.Open())
    send_close(peer)
    peer.expect(0, Connection.CloseOk)
    peer.send(0, Connection.CloseOk())
    peer.expect_eof()
    assert not connect().channel().exists(name)


@pytest.mark.rule("0-9-1", "connection.close.stability")
@pytest.mark.rule("0-9-1", "errors.close-ok")
@pytest.mark.rule("0-9-1", "reply-success.constant")
@pytest.mark.ahead_of_rabbitmq("waits for the client to close the socket")
def test_a_close_is_answered_and_the_socket_ends(connect: Connect) -> None:
    peer = connect()
    channel = peer.channel()
    queue = channel.queue()
    send_close(peer)
    channel.publish(b"after the close", queue)
    peer.expect(0, Connection.CloseOk)
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "connection.close-ok.reporting")
def test_a_socket_that_ends_without_close_ok_is_logged(leveret: LeveretProcess, connect: Connect) -> None:
    after = len(leveret.log())
    peer = connect()
    peer.channel().quiet()
    peer.drop()
    line = leveret.wait_for_log(f":{peer.local_port}", after)
    assert "clos" in line.lower()


@pytest.mark.rule("0-9-1", "connection.close-ok.reporting")
def test_a_socket_that_ends_after_close_but_without_close_ok_is_logged(leveret: LeveretProcess, connect: Connect) -> None:
    peer = connect()
    peer.channel().send(ChannelClass.Open)
    after = len(leveret.log())
    peer.read_connection_close(504)
    peer.drop()
    leveret.wait_for_log(f":{peer.local_port}", after)


@pytest.mark.rule("0-9-1", "channel.close-ok.reporting")
def test_a_socket_that_ends_without_channel_close_ok_is_logged(
    leveret: LeveretProcess, connect: Connect, name: str
) -> None:
    peer = connect()
    channel = peer.channel()
    channel.send(Queue.Declare, queue=name, passive=True)
    channel.expect(ChannelClass.Close)
    after = len(leveret.log())
    peer.drop()
    leveret.wait_for_log(f":{peer.local_port}", after)


@pytest.mark.rule("0-9-1", "errors.connection")
@pytest.mark.rule("0-9-1", "errors.others-unharmed")
@pytest.mark.rule("0-9-1", "command-invalid.constant")
def test_an_error_of_connection_scope_does_not_affect_other_connections(connect: Connect, name: str) -> None:
    bystander = connect().channel()
    bystander.queue(name)
    bystander.consume(name, "c")
    offender = connect()
    offender.channel().send(Exchange.Declare, exchange=name, exchange_type="x-none")
    offender.expect_connection_close(503, Exchange.Declare)
    bystander.publish(b"still here", name)
    assert bystander.delivery().body == b"still here"


@pytest.mark.rule("0-9-1", "errors.channel")
@pytest.mark.rule("0-9-1", "errors.others-unharmed")
def test_an_error_of_channel_scope_does_not_affect_other_channels(peer: Peer, name: str) -> None:
    first, second = peer.channel(1), peer.channel(2)
    second.queue(name)
    second.consume(name, "c")
    first.send(Queue.Declare, queue=name + ".none", passive=True)
    first.expect_close(404, Queue.Declare)
    second.publish(b"still here", name)
    assert second.delivery().body == b"still here"
    peer.channel(1).quiet()


@pytest.mark.rule("0-9-1", "channels.independent")
@pytest.mark.parametrize("number", [1, 2, 2047])
def test_channels_are_independent_streams(connect: Connect, number: int, name: str) -> None:
    peer = connect()
    channel = peer.channel(number)
    channel.queue(name)
    channel.publish(b"a", name)
    assert channel.drain(name) == [b"a"]
    channel.close()
    peer.channel(number).quiet()


@pytest.mark.rule("0-9-1", "content.channels-interleave")
def test_contents_of_two_channels_may_interleave(peer: Peer, unique: Callable[[], str]) -> None:
    channels = [peer.channel(1), peer.channel(2)]
    queues = [channel.queue(unique()) for channel in channels]
    frames = []
    for channel, queue in zip(channels, queues, strict=True):
        frames.append(
            [
                method(Basic.Publish, exchange="", routing_key=queue),
                *content_frames(b"first half, " if channel.number == 1 else b"1st half, ", b"second half"),
            ]
        )
    for pair in zip(*frames, strict=True):
        for channel, value in zip(channels, pair, strict=True):
            peer.send(channel.number, value)
    assert channels[0].drain(queues[0]) == [b"first half, second half"]
    assert channels[1].drain(queues[1]) == [b"1st half, second half"]


def content_frames(*pieces: bytes) -> list[object]:
    from pamqp.body import ContentBody

    from tests.support.peers.amqp091 import content_header

    return [content_header(sum(len(piece) for piece in pieces)), *(ContentBody(piece) for piece in pieces)]


@pytest.mark.rule("0-9-1", "ordering.one-path")
def test_contents_of_one_path_keep_their_order(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.exchange(name, "fanout", auto_delete=True)
    channel.bind(name, name)
    channel.consume(name, "c", no_ack=True)
    bodies = [b"%d" % number for number in range(500)]
    for number, text in enumerate(bodies):
        channel.publish(text, name if number % 2 else "", "" if number % 2 else name)
    assert [content.body for content in channel.deliveries(500)] == bodies

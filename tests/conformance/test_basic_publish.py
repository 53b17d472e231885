"""basic.publish and basic.return."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conformance.conftest import Connect
from tests.support.peers.amqp091 import Basic, Channel, ChannelClass, Exchange, Peer, content_header, method
from tests.support.peers.framing import BODY_FRAME, HEADER_FRAME, frame_bytes


@pytest.mark.rule("0-9-1", "basic.publish.exchange.must-exist")
@pytest.mark.rule("0-9-1", "basic.publish.exchange.text.unknown")
def test_publishing_to_an_exchange_that_does_not_exist(channel: Channel, name: str) -> None:
    channel.publish(b"lost", "k", name)
    channel.expect_close(404, Basic.Publish)
    channel.reopen().quiet()


@pytest.mark.rule("0-9-1", "basic.publish.exchange.must-exist")
def test_the_rest_of_a_large_content_is_skipped_after_a_refusal(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.publish(b"x" * 1_000_000, "k", name)
    channel.expect_close(404, Basic.Publish)
    channel = channel.reopen()
    channel.queue(name)
    channel.publish(b"next", name)
    assert channel.drain(name) == [b"next"]


@pytest.mark.rule("0-9-1", "basic.publish.exchange.default-exchange")
def test_a_blank_exchange_is_the_default_one(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name, "")
    content = channel.get(name)
    assert content is not None
    assert (content.method.exchange, content.method.routing_key, content.body) == ("", name, b"x")


@pytest.mark.rule("0-9-1", "basic.publish.exchange.02")
def test_an_internal_exchange_refuses_publishes(channel: Channel, name: str) -> None:
    channel.exchange(name, "fanout", internal=True)
    channel.queue(name)
    channel.bind(name, name)
    channel.publish(b"x", "", name)
    channel.expect_close(403, Basic.Publish)
    channel = channel.reopen()
    # But other exchanges may feed it.
    channel.exchange(name + ".public", "fanout", auto_delete=True)
    channel.call(Exchange.Bind, Exchange.BindOk, destination=name, source=name + ".public")
    channel.publish(b"y", "", name + ".public")
    assert channel.drain(name) == [b"y"]
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name)


@pytest.mark.rule("0-9-1", "basic.publish.mandatory.01")
@pytest.mark.rule("0-9-1", "basic.publish.mandatory.text.returned")
@pytest.mark.rule("0-9-1", "basic.publish.mandatory.text.dropped")
def test_mandatory_messages_without_a_route_are_returned(channel: Channel, name: str) -> None:
    channel.exchange(name, "direct", auto_delete=True)
    channel.publish(b"unroutable", "k", name, mandatory=True, message_id="m1", headers={"a": 1})
    returned = channel.expect_content(Basic.Return)
    assert returned.method.reply_code == 312
    assert (returned.method.exchange, returned.method.routing_key) == (name, "k")
    assert (returned.body, returned.properties.message_id, returned.properties.headers) == (b"unroutable", "m1", {"a": 1})
    channel.publish(b"silently dropped", "k", name)
    channel.queue(name)
    channel.bind(name, name, "k")
    channel.publish(b"routable", "k", name, mandatory=True)
    assert channel.drain(name) == [b"routable"]
    channel.publish(b"empty", name + ".none", mandatory=True)
    assert channel.expect_content(Basic.Return).method.exchange == ""


@pytest.mark.rule("0-9-1", "basic.publish.mandatory.01")
def test_a_return_precedes_its_confirm(channel: Channel, name: str) -> None:
    channel.confirm_select()
    channel.publish(b"x", name, mandatory=True)
    channel.expect_content(Basic.Return)
    assert channel.expect(Basic.Ack).delivery_tag == 1


@pytest.mark.rule("0-9-1", "basic.publish.mandatory.01")
def test_an_empty_body_is_returned_too(channel: Channel, name: str) -> None:
    channel.publish(b"", name, mandatory=True)
    assert channel.expect_content(Basic.Return).body == b""


@pytest.mark.rule("0-9-1", "basic.publish.immediate.01")
@pytest.mark.rule("0-9-1", "basic.publish.immediate.text.returned")
@pytest.mark.rule("0-9-1", "basic.publish.immediate.text.queued")
@pytest.mark.rule("0-9-1", "no-consumers.constant")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_immediate_messages_without_a_ready_consumer_are_returned(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    channel.publish(b"no consumer", name, immediate=True)
    returned = channel.expect_content(Basic.Return)
    assert (returned.method.reply_code, returned.body) == (313, b"no consumer")
    assert channel.depth(name) == 0
    consumer = peer.channel(2)
    consumer.qos(1)
    consumer.consume(name, "c")
    channel.publish(b"ready", name, immediate=True)
    content = consumer.delivery()
    assert content.body == b"ready"
    channel.publish(b"busy", name, immediate=True)
    assert channel.expect_content(Basic.Return).body == b"busy"
    consumer.ack(content.tag)
    consumer.quiet()
    channel.publish(b"again", name, immediate=True)
    assert consumer.delivery().body == b"again"


@pytest.mark.rule("0-9-1", "basic.publish.immediate.01")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_immediate_is_delivered_to_ready_consumers(channel: Channel, unique: Callable[[], str]) -> None:
    ready, idle = channel.queue(unique()), channel.queue(unique())
    exchange = channel.exchange(unique(), "fanout", auto_delete=True)
    channel.bind(ready, exchange)
    channel.bind(idle, exchange)
    channel.consume(ready, "c", no_ack=True)
    channel.publish(b"x", "", exchange, immediate=True)
    assert channel.delivery().body == b"x"
    assert channel.depth(idle) == 0
    channel.publish(b"nowhere", "none", "amq.direct", immediate=True)
    # 312 is only for the mandatory flag.
    assert channel.expect_content(Basic.Return).method.reply_code == 313


@pytest.mark.rule("0-9-1", "content.sequence")
@pytest.mark.rule("0-9-1", "content.split")
@pytest.mark.rule("0-9-1", "content.body-size")
@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 100_000])
def test_bodies_of_any_size(connect: Connect, name: str, size: int) -> None:
    channel = connect(frame_max=4096).channel()
    channel.queue(name)
    body = bytes(range(256)) * (size // 256 + 1)
    channel.publish(body[:size], name)
    assert channel.drain(name) == [body[:size]]


@pytest.mark.rule("0-9-1", "content.split")
def test_a_body_in_uneven_frames_is_the_same_body(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    pieces = [b"a", b"bc" * 1000, b"d" * 7, b"e"]
    peer.send(1, method(Basic.Publish, exchange="", routing_key=name), content_header(sum(map(len, pieces))))
    for piece in pieces:
        peer.send_bytes(frame_bytes(BODY_FRAME, 1, piece))
    assert channel.drain(name) == [b"".join(pieces)]


@pytest.mark.rule("0-9-1", "content.flags")
def test_every_property_arrives_as_it_was_sent(channel: Channel, name: str) -> None:
    channel.queue(name)
    properties: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "identity",
        "delivery_mode": 1,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": datetime(2020, 2, 29, 12, 0, tzinfo=UTC),
        "message_type": "t",
        "user_id": "guest",
        "app_id": "a",
        "headers": {"int": 1, "text": "ü", "flag": True, "table": {"x": [1, "two", None]}, "large": 1 << 40, "float": 1.5},
    }
    channel.publish(b"x", name, "", **properties)
    content = channel.get(name)
    assert content is not None
    for key, value in properties.items():
        assert getattr(content.properties, key) == value, key


@pytest.mark.rule("0-9-1", "content.flags")
def test_absent_properties_stay_absent(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    content = channel.get(name)
    assert content is not None
    assert all(value is None or value == "" for _, value in content.properties), dict(content.properties)


@pytest.mark.rule("0-9-1", "content.no-method")
@pytest.mark.rule("0-9-1", "content.no-header")
@pytest.mark.rule("0-9-1", "content.class")
@pytest.mark.rule("0-9-1", "content.header-short")
@pytest.mark.rule("0-9-1", "content.body-size")
@pytest.mark.rule("0-9-1", "unexpected-frame.constant")
@pytest.mark.parametrize(
    ("frames", "codes"),
    [
        ([(BODY_FRAME, b"x")], (505,)),  # a body without method and header
        ([(HEADER_FRAME, b"\x00\x3c\x00\x00" + b"\x00" * 8 + b"\x00\x00")], (505,)),  # a header without method
        (["publish", (BODY_FRAME, b"x")], (505,)),  # a body without header
        (["publish", "publish"], (505,)),  # another method in between
        (["publish", (HEADER_FRAME, b"\x00\x0a\x00\x00" + b"\x00" * 8 + b"\x00\x00")], (501, 505)),  # another class
        (["publish", (HEADER_FRAME, b"\x00\x3c\x00\x00" + b"\x00" * 7 + b"\x01\x00\x00"), (BODY_FRAME, b"xy")], (501, 505)),
        (["publish", (HEADER_FRAME, b"\x00\x3c\x00\x00")], (501, 502, 505)),  # a header that is too short
    ],
    ids=["body", "header", "no header", "no content", "other class", "longer", "short"],
)
@pytest.mark.ahead_of_rabbitmq("takes some of these")
def test_content_out_of_order_is_an_error_of_the_connection(peer: Peer, frames: list[Any], codes: tuple[int, ...]) -> None:
    peer.channel()
    for item in frames:
        if item == "publish":
            peer.send(1, method(Basic.Publish, exchange="", routing_key="none"))
        else:
            kind, payload = item
            peer.send_bytes(frame_bytes(kind, 1, payload))
    closed = peer.read(0)
    assert closed.reply_code in codes


@pytest.mark.rule("0-9-1", "content-too-large.constant")
@pytest.mark.ahead_of_rabbitmq("reads it all first")
def test_a_body_above_the_limit_of_the_server_is_311(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.channel()
    second = peer.channel(2)
    channel.send(Basic.Publish, exchange="", routing_key=name)
    peer.send(1, content_header(1 << 40))
    closed = channel.expect(ChannelClass.Close)
    assert closed.reply_code == 311
    peer.send_bytes(frame_bytes(BODY_FRAME, 1, b"x" * 1000))  # was in flight
    second.quiet()
    channel.send(ChannelClass.CloseOk)
    channel.reopen().quiet()

"""Publishing: rules that the content classes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.amqp09 import kinds
from tests.conformance.amqp09.test_consume import each
from tests.support.peers.amqp09 import Channel
from tests.support.peers.codec09 import INLINE, Body
from tests.support.peers.framing import BODY_FRAME, HEADER_FRAME, frame_bytes

Unique = Callable[[], str]
PLAIN = ("basic", "file", "stream")


def send(channel: Channel, kind: str, body: bytes, routing_key: str, exchange: str, **fields: Any) -> None:
    """Publish without reading a reply: the broker may refuse it."""
    if kind == "message":
        channel.send("message.transfer", destination=exchange, routing_key=routing_key, body=Body(INLINE, body), **fields)
    else:
        kinds.publish(channel, kind, body, routing_key, exchange, **fields)


def method_of(kind: str) -> str:
    return "message.transfer" if kind == "message" else f"{kind}.publish"


def field_rule(number: str) -> pytest.MarkDecorator:
    """`each` for the rules of the field exchange, which is called destination in class message."""
    return pytest.mark.parametrize(
        "kind",
        [
            pytest.param(
                kind,
                id=kind,
                marks=pytest.mark.rule(
                    "0-9",
                    (
                        f"message.transfer.destination.{number}"
                        if kind == "message"
                        else f"{kind}.publish.exchange.{number}"
                    ),
                ),
            )
            for kind in kinds.KINDS
        ],
    )


@field_rule("01")
def test_a_blank_exchange_is_the_default_one(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    kinds.publish(channel, kind, b"x", name, "")
    kinds.consume(channel, kind, name, "c", no_ack=True)
    assert kinds.receive(channel, kind).body == b"x"


@field_rule("02")
@pytest.mark.rule("0-9", "exchange.declare.internal.text.no-publishes")
def test_an_internal_exchange_refuses_publishes(channel: Channel, name: str, kind: str) -> None:
    channel.exchange(name, "fanout", internal=True)
    send(channel, kind, b"x", "", name)
    channel = channel.refused(403, method_of(kind))
    channel.call("exchange.delete", exchange=name)


@field_rule("03")
@pytest.mark.parametrize("exchange_type", ["direct", "fanout", "topic", "headers", "x-consistent-hash"])
def test_no_exchange_refuses_a_content_class(channel: Channel, name: str, kind: str, exchange_type: str) -> None:
    channel.exchange(name, exchange_type)
    channel.queue(name)
    hashed = exchange_type == "x-consistent-hash"
    channel.bind(name, name, "10" if hashed else "k", {"x-match": "all"} if exchange_type == "headers" else None)
    kinds.publish(channel, kind, b"x", "k", name)
    channel.quiet()
    assert channel.depth(name) == 1


@each("CLASS.publish.mandatory.01", PLAIN)
def test_mandatory_messages_without_a_route_are_returned(channel: Channel, name: str, kind: str) -> None:
    channel.exchange(name)
    kinds.publish(channel, kind, b"unroutable", "k", name, mandatory=True, content_type="text/plain")
    returned = channel.content(f"{kind}.return")
    assert (returned.method.reply_code, returned.method.exchange, returned.method.routing_key) == (312, name, "k")
    assert returned.method.reply_text
    assert (returned.body, returned.properties["content_type"]) == (b"unroutable", "text/plain")
    kinds.publish(channel, kind, b"silently dropped", "k", name)
    channel.quiet()
    channel.queue(name)
    channel.bind(name, name, "k")
    kinds.publish(channel, kind, b"routable", "k", name, mandatory=True)
    channel.quiet()
    assert channel.depth(name) == 1


@each("CLASS.publish.immediate.01", PLAIN)
def test_immediate_messages_without_a_ready_consumer_are_returned(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    kinds.publish(channel, kind, b"no consumer", name, immediate=True)
    returned = channel.content(f"{kind}.return")
    assert (returned.method.reply_code, returned.body) == (313, b"no consumer")
    assert channel.depth(name) == 0
    kinds.consume(channel, kind, name, "c", no_ack=True)
    kinds.publish(channel, kind, b"ready", name, immediate=True)
    assert kinds.receive(channel, kind).body == b"ready"


@pytest.mark.rule("0-9", "no-consumers.constant")
@each("CLASS.publish.immediate.01", PLAIN)
def test_a_consumer_of_another_class_does_not_get_an_immediate_message(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    kinds.consume(channel, PLAIN[PLAIN.index(kind) - 1], name, "c", no_ack=True)
    kinds.publish(channel, kind, b"no consumer", name, immediate=True)
    assert channel.content(f"{kind}.return").method.reply_code == 313
    assert channel.depth(name) == 0


@each("CLASS.publish.immediate.01", PLAIN)
def test_contents_of_another_class_do_not_block_an_immediate_message(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    for number in range(5):
        kinds.publish(channel, PLAIN[PLAIN.index(kind) - 1], b"%d" % number, name)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    kinds.publish(channel, kind, b"ready", name, immediate=True)
    assert kinds.receive(channel, kind).body == b"ready"
    channel.quiet()
    assert channel.depth(name) == 5


@pytest.mark.rule("0-9", "message.transfer.immediate.01")
def test_an_immediate_transfer_without_a_ready_consumer_is_rejected(channel: Channel, name: str) -> None:
    channel.queue(name)
    send(channel, "message", b"no consumer", name, "", immediate=True)
    rejected = channel.expect("message.reject")
    assert rejected.code == 1
    assert channel.depth(name) == 0
    kinds.consume(channel, "message", name, "c", no_ack=True)
    send(channel, "message", b"ready", name, "", immediate=True)
    seen = {channel.expect("message.ok", "message.transfer").name for _ in range(2)}
    assert seen == {"message.ok", "message.transfer"}


@pytest.mark.rule("0-9", "section.content")
@pytest.mark.parametrize("kind", ["basic", "file", "stream"])
@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 100_000])
def test_bodies_of_any_size(connect: Callable[..., Any], name: str, kind: str, size: int) -> None:
    channel = connect(frame_max=4096).open()
    channel.queue(name)
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    kinds.publish(channel, kind, body, name)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    assert kinds.receive(channel, kind).body == body


PROPERTIES: dict[str, dict[str, Any]] = {
    "basic": {
        "content_type": "text/plain",
        "content_encoding": "identity",
        "headers": {"int": 1, "text": "ü", "table": {"x": 1}},
        "delivery_mode": 1,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 1_500_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
    },
    "file": {
        "content_type": "text/plain",
        "content_encoding": "identity",
        "headers": {"int": 1},
        "priority": 3,
        "reply_to": "r",
        "message_id": "m",
        "filename": "f.txt",
        "timestamp": 1_500_000_000,
    },
    "stream": {
        "content_type": "text/plain",
        "content_encoding": "identity",
        "headers": {"int": 1},
        "priority": 3,
        "timestamp": 1_500_000_000,
    },
}


@pytest.mark.rule("0-9", "section.content")
@pytest.mark.parametrize("kind", ["basic", "file", "stream"])
def test_every_property_arrives_as_it_was_sent(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    kinds.publish(channel, kind, b"x", name, **PROPERTIES[kind])
    kinds.consume(channel, kind, name, "c", no_ack=True)
    assert kinds.receive(channel, kind).properties == PROPERTIES[kind]


def header(index: int, size: int, weight: int = 0) -> bytes:
    return bytes((0, index, 0, weight)) + size.to_bytes(8, "big") + b"\x00\x00"


@pytest.mark.rule("0-9", "section.content")
@pytest.mark.parametrize("kind", ["basic", "stream", "file"])
@pytest.mark.parametrize(
    ("frames", "codes"),
    [
        ([(BODY_FRAME, b"x")], (501,)),  # a body without method and header
        ([(HEADER_FRAME, "own")], (501,)),  # a header without method
        (["method", (BODY_FRAME, b"x")], (501,)),  # a body without header
        (["method", "method"], (501,)),  # another method in between
        (["method", (HEADER_FRAME, header(10, 0))], (501,)),  # a class without contents
        (["method", (HEADER_FRAME, header(110, 0))], (501,)),  # another class
        (["method", (HEADER_FRAME, "weight")], (501,)),
        (["method", (HEADER_FRAME, "one"), (BODY_FRAME, b"xy")], (501,)),  # more than was announced
        (["method", (HEADER_FRAME, b"\x00\x3c\x00\x00")], (501, 502)),  # a header that is too short
    ],
    ids=["body", "header", "no-header", "no-content", "no-content-class", "other-class", "weight", "longer", "short"],
)
def test_content_out_of_order_is_an_error_of_the_connection(
    channel: Channel, kind: str, frames: list[Any], codes: tuple[int, ...], name: str
) -> None:
    index = {"basic": 60, "file": 70, "stream": 80}[kind]
    if kind == "file":
        channel.call("file.open", identifier=name, content_size=1)
    named = {"own": header(index, 0), "one": header(index, 1), "weight": header(index, 0, 1)}
    for item in frames:
        if item == "method":
            channel.send("file.stage" if kind == "file" else f"{kind}.publish")
        else:
            type, payload = item
            channel.peer.send_bytes(frame_bytes(type, 1, named.get(payload, payload)))
    closed = channel.peer.expect_method(0, "connection.close")
    assert closed.reply_code in codes, closed


@pytest.mark.rule("0-9", "section.content")
@pytest.mark.parametrize("kind", ["basic", "stream"])
def test_a_body_above_the_limit_of_the_server_is_311(channel: Channel, kind: str) -> None:
    channel.send(f"{kind}.publish", routing_key="nowhere")
    channel.peer.send_bytes(frame_bytes(HEADER_FRAME, 1, header({"basic": 60, "stream": 80}[kind], 1 << 40)))
    assert channel.expect("channel.close").reply_code == 311
    channel.peer.send_bytes(frame_bytes(BODY_FRAME, 1, b"x" * 1000))  # was in flight
    channel.send("channel.close-ok")
    channel.peer.open().quiet()

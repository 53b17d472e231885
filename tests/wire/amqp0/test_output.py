"""The output of an engine, read by pamqp; and its accounting."""

from __future__ import annotations

import struct
from typing import Any

import pamqp.frame
import pytest

from leveret.wire.amqp0.commands import Body, Deliver
from leveret.wire.amqp0.properties import encode_header
from tests.wire.amqp0.peers import frame, joined, open_pair, open_server, shape


def frames_of(octets: bytes) -> list[tuple[int, Any]]:
    found = []
    while octets:
        used, channel, value = pamqp.frame.unmarshal(octets)
        found.append((channel, value))
        octets = octets[used:]
    return found


def deliver(
    engine: Any,
    body: Body,
    size: int,
    *,
    channel: int = 1,
    tag: bytes = b"tag",
    number: int = 1,
    redelivered: bool = False,
    address: bytes = b"\x01e\x01k",
    **properties: Any,
) -> None:
    engine.send_deliver(channel, tag, number, redelivered, address, encode_header(60, size, properties), body, size)


def test_a_delivery() -> None:
    engine = open_server(1)
    deliver(engine, b"hello", 5, number=2**40, redelivered=True, content_type="text/plain")
    assert engine.pending == len(engine.to_send() or b"") > 0
    deliver(engine, b"hello", 5, number=2**40, redelivered=True, content_type="text/plain")
    (channel, method), (_, header), (_, body) = frames_of(engine.to_send())
    assert channel == 1
    assert method.name == "Basic.Deliver"
    assert (method.consumer_tag, method.delivery_tag, method.redelivered, method.exchange, method.routing_key) == (
        "tag",
        2**40,
        True,
        "e",
        "k",
    )
    assert header.body_size == 5
    assert header.properties.content_type == "text/plain"
    assert body.value == b"hello"
    assert engine.pending == 0
    assert engine.to_send() == b""


def test_deliveries_that_differ_from_the_previous_one_in_one_property() -> None:
    base: dict[str, Any] = {
        "channel": 1,
        "tag": b"tag",
        "number": 1,
        "redelivered": False,
        "address": b"\x01e\x01k",
        "body": b"hello",
        "properties": {},
    }
    changes: list[dict[str, Any]] = [
        {},
        {"channel": 2},
        {"tag": b"gat"},
        {"tag": b""},
        {"tag": b"longer"},
        {"number": 2},
        {"redelivered": True},
        {"address": b"\x01e\x01j"},
        {"address": b"\0\x02kk"},
        {"address": b"\x01e\x02kk"},
        {"body": b"world"},
        {"body": b"hello world"},
        {"body": b""},
        {"body": [b"hel", b"lo"]},
        {"properties": {"priority": 1}},
        {"channel": 2, "tag": b"gat", "body": b"x"},
    ]
    pair = open_pair(1, 2)
    expected = []
    for first in changes:
        for second in changes:
            for change in (first, second, second):
                each = {**base, **change}
                size = len(joined(each["body"]))
                deliver(
                    pair.server,
                    each["body"],
                    size,
                    channel=each["channel"],
                    tag=each["tag"],
                    number=each["number"],
                    redelivered=each["redelivered"],
                    address=each["address"],
                    **each["properties"],
                )
                expected.append(
                    (
                        each["channel"],
                        each["tag"],
                        each["number"],
                        each["redelivered"],
                        each["address"],
                        encode_header(60, size, each["properties"]),
                        size,
                        joined(each["body"]),
                    )
                )
    pending = pair.server.pending
    octets = pair.server.to_send()
    assert len(octets) == pending
    got = [
        (
            command.channel,
            command.consumer_tag,
            command.delivery_tag,
            command.redelivered,
            command.address,
            command.header,
            command.size,
            joined(command.body),
        )
        for command in pair.client.receive(octets)
        if isinstance(command, Deliver)
    ]
    assert got == expected


@pytest.mark.parametrize(
    "body",
    [
        b"x" * 4088,
        b"x" * 4089,
        b"x" * 20000,
        [b"x" * 20000],
        [b"a" * 4088, b"b"],
        [b"a" * 5000, b"", b"b" * 5000],
        [b""],
        [],
        b"",
    ],
    ids=lambda body: f"{type(body).__name__} {len(joined(body))}",
)
def test_bodies_are_split_by_the_peers_frame_size(body: Body) -> None:
    engine = open_pair(1, frame_max=4096).server
    whole = joined(body)
    deliver(engine, body, len(whole))
    pending = engine.pending
    octets = engine.to_send()
    assert len(octets) == pending
    _, _, *bodies = frames_of(octets)
    assert b"".join(value.value for _, value in bodies) == whole
    assert all(0 < len(value.value) <= 4088 for _, value in bodies)
    publisher = open_pair(1, frame_max=4096).client
    publisher.send_publish(1, b"\0\x01q", 3, encode_header(60, len(whole), {}), body, len(whole))
    pending = publisher.pending
    octets = publisher.to_send()
    assert len(octets) == pending
    (_, method), _, *bodies = frames_of(octets)
    assert (method.exchange, method.routing_key, method.mandatory, method.immediate) == ("", "q", True, True)
    assert b"".join(value.value for _, value in bodies) == whole


def test_settlements_and_heartbeats() -> None:
    engine = open_server(1)
    engine.send_ack(1, 5, True)
    engine.send_ack(65535, 2**63 - 1, False)
    engine.send_nack(1, 6, True, True)
    engine.send_nack(1, 7, False, False)
    engine.send_reject(1, 8, True)
    engine.send_heartbeat()
    assert engine.pending == 5 * 21 + 8
    (_, ack), (last, other), (_, nack), (_, plain), (_, reject), (zero, beat) = frames_of(engine.to_send())
    assert (ack.name, ack.delivery_tag, ack.multiple) == ("Basic.Ack", 5, True)
    assert (last, other.delivery_tag, other.multiple) == (65535, 2**63 - 1, False)
    assert (nack.name, nack.delivery_tag, nack.multiple, nack.requeue) == ("Basic.Nack", 6, True, True)
    assert (plain.delivery_tag, plain.multiple, plain.requeue) == (7, False, False)
    assert (reject.name, reject.delivery_tag, reject.requeue) == ("Basic.Reject", 8, True)
    assert (zero, beat.name) == (0, "Heartbeat")


def test_oversized_methods_raise() -> None:
    client = open_pair(1, frame_max=4096).client
    with pytest.raises(ValueError, match="exceeds the maximum of a frame"):
        client.send(1, "queue.declare", {"arguments": {"x": "y" * 5000}})
    assert client.to_send() == b""
    client.send(1, "queue.declare", {"arguments": {"x": "y" * 4000}})
    assert client.pending > 4000


def test_frames_are_sent_in_the_order_of_the_calls() -> None:
    pair = open_pair(1)
    pair.server.send_ack(1, 1, False)
    pair.server.send(1, "basic.qos-ok")
    deliver(pair.server, b"x", 1)
    pair.server.send_heartbeat()
    pair.server.send_nack(1, 2, False, False)
    pair.server.send_content(1, "basic.return", {}, encode_header(60, 1, {}), b"y")
    pair.pump()
    kinds = [shape(command)[0] for command in pair.client_got]
    assert kinds == ["Ack", "Method", "Deliver", "Nack", "ContentMethod"]


def test_the_callers_body_is_not_modified() -> None:
    engine = open_server(1)
    parts = [b"a" * 10, b"b" * 10]
    deliver(engine, parts, 20)
    parts.clear()
    assert engine.to_send().endswith(frame(3, 1, b"a" * 10) + frame(3, 1, b"b" * 10))
    assert struct.calcsize(">BHI") == 7

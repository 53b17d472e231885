"""Channels: opening, closing from either side, and input discarded in between (0-9-1 class channel)."""

from __future__ import annotations

import pytest

from leveret.wire.amqp0.commands import CHANNEL_SCOPE, CONNECTION_SCOPE, Ack, Deliver, Method, Nack, Publish
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.wire.amqp0.peers import (
    content_header,
    frame,
    method,
    names,
    only_error,
    open_pair,
    open_server,
    publish_frames,
    publish_method,
)

CLOSE = method(1, 20, 40, b"\0\xc8\x02ok\0\x3c\0\x28")
CLOSE_OK = method(1, 20, 41)
OPEN = method(1, 20, 10, b"\0")
RECOVER = method(1, 60, 110, b"\x01")


def test_a_channel_from_open_to_close() -> None:
    pair = open_pair()
    assert not pair.server.is_open(1)
    pair.client.send(1, "channel.open")
    pair.pump()
    assert pair.server.is_open(1)
    assert pair.client.is_open(1)
    pair.server.send(1, "channel.open-ok")
    pair.client.send(1, "channel.flow", {"active": False})
    pair.pump()
    pair.server.send(1, "channel.flow-ok", {"active": False})
    pair.client.send(1, "channel.close", {"reply_code": 200, "reply_text": "bye"})
    assert not pair.client.is_open(1)
    pair.pump()
    assert not pair.server.is_open(1)
    pair.server.send(1, "channel.close-ok")
    pair.pump()
    assert names(pair.server_got) == ["channel.open", "channel.flow", "channel.close"]
    # The flow-ok was in flight when the client closed, and is discarded.
    assert names(pair.client_got) == ["channel.open-ok", "channel.close-ok"]
    close = pair.server_got[2]
    assert isinstance(close, Method)
    assert close.arguments == {"reply_code": 200, "reply_text": "bye", "class_id": 0, "method_id": 0}
    pair.open_channel(1)
    assert pair.server.is_open(1)
    assert pair.client.is_open(1)


def test_the_highest_channel() -> None:
    pair = open_pair(2047)
    assert pair.server.is_open(2047)
    with pytest.raises(ValueError, match="expected 1 to 2047"):
        pair.client.send(2048, "channel.open")
    with pytest.raises(ValueError, match="expected 1 to 2047"):
        pair.client.send(0, "channel.open")


def test_channel_max_counts_channels_whatever_their_numbers() -> None:
    engine = open_server(channel_max=2)
    assert names(engine.receive(method(65535, 20, 10, b"\0") + method(3, 20, 10, b"\0"))) == ["channel.open"] * 2
    engine.receive(method(3, 20, 40, b"\0\xc8\0\0\0\0\0"))
    assert names(engine.receive(method(4, 20, 10, b"\0"))) == ["channel.open"]
    error = only_error(engine.receive(method(1, 20, 10, b"\0")))
    assert (error.scope, error.code, error.class_id, error.method_id) == (CONNECTION_SCOPE, 530, 20, 10)
    assert "channel-max of 2" in error.text


def test_input_after_our_close_is_discarded_until_close_ok() -> None:
    engine = open_server(1, 2)
    engine.send(1, "channel.close", {"reply_code": 404})
    engine.to_send()
    discarded = (
        RECOVER
        + publish_frames(1, b"hello")
        + publish_method(1)
        + content_header(1, 9)
        + frame(3, 1, b"x")
        + method(1, 60, 80, b"\0" * 9)
        + method(1, 77, 1)
        + method(1, 60, 60)
        + OPEN
        + frame(3, 1, b"")
    )
    commands = engine.receive(discarded + method(2, 60, 110, b"\x01") + CLOSE_OK)
    assert names(commands) == ["basic.recover", "channel.close-ok"]
    assert commands[0].channel == 2
    assert engine.to_send() == b""
    # The channel can be used again.
    assert names(engine.receive(OPEN + publish_frames(1, b"hello"))) == ["channel.open", "Publish"]


def test_a_content_interrupted_by_our_close_is_dropped() -> None:
    engine = open_server(1)
    assert engine.receive(publish_method(1) + content_header(1, 10) + frame(3, 1, b"hello")) == []
    engine.send(1, "channel.close", {"reply_code": 404})
    assert engine.receive(frame(3, 1, b"world") + frame(3, 1, b"more")) == []
    assert names(engine.receive(CLOSE_OK + OPEN + publish_frames(1, b"new"))) == [
        "channel.close-ok",
        "channel.open",
        "Publish",
    ]


def test_when_both_close_at_once_each_answers_and_waits() -> None:
    pair = open_pair(1)
    pair.server.send(1, "channel.close", {"reply_code": 404})
    pair.client.send(1, "channel.close", {"reply_code": 200})
    pair.pump()
    assert names(pair.server_got) == ["channel.close", "channel.close-ok"]
    assert names(pair.client_got) == ["channel.close", "channel.close-ok"]
    pair.clear()
    pair.open_channel(1)
    assert names(pair.server_got) == ["channel.open"]


def test_a_close_received_before_ours_is_sent_is_answered_after_it() -> None:
    engine = open_server(1, max_body_size=10)
    commands = engine.receive(publish_method(1) + content_header(1, 11) + frame(3, 1, b"x" * 11) + CLOSE)
    assert names(commands) == ["Error", "channel.close"]
    assert engine.to_send() == b""
    engine.send(1, "channel.close", {"reply_code": 311})
    sent = engine.to_send()
    assert sent.startswith(b"\x01\0\x01")
    assert sent.endswith(CLOSE_OK)
    assert len(sent) > len(CLOSE_OK)
    assert names(engine.receive(CLOSE_OK)) == ["channel.close-ok"]
    assert names(engine.receive(OPEN)) == ["channel.open"]


def test_a_channel_may_be_opened_again_without_waiting() -> None:
    engine = open_server(1)
    assert names(engine.receive(CLOSE + OPEN + RECOVER)) == ["channel.close", "channel.open", "basic.recover"]
    engine.send(1, "channel.close-ok")
    engine.send(1, "channel.open-ok")
    assert engine.to_send() == CLOSE_OK + method(1, 20, 11, b"\0\0\0\0")


def test_output_on_a_channel_that_is_not_open_is_dropped() -> None:
    engine = open_server(1)
    engine.receive(CLOSE)
    engine.send(1, "basic.cancel", {"consumer_tag": "t"})
    engine.send(1, "channel.flow", {"active": True})
    engine.send(1, "channel.close", {"reply_code": 541})
    engine.send_content(1, "basic.return", {"reply_code": 312}, b"\0\x3c" + b"\0" * 12, b"")
    engine.send(7, "basic.qos-ok")
    assert engine.to_send() == b""
    assert engine.pending == 0


def test_our_close_is_sent_once() -> None:
    engine = open_server(1)
    engine.send(1, "channel.close", {"reply_code": 404})
    engine.to_send()
    engine.send(1, "channel.close", {"reply_code": 404})
    engine.send(1, "basic.qos-ok")
    assert engine.to_send() == b""


def test_channels_are_independent() -> None:
    engine = open_server(1, 2, 3)
    engine.send(2, "channel.close", {"reply_code": 404})
    octets = b"".join(method(number, 60, 110, b"\x01") + publish_frames(number, b"x") for number in (1, 2, 3))
    commands = engine.receive(octets)
    assert [(command.channel, type(command)) for command in commands] == [
        (1, Method),
        (1, Publish),
        (3, Method),
        (3, Publish),
    ]


def test_a_repeated_publish_on_a_closed_channel_is_not_accepted() -> None:
    engine = open_server(1)
    publish = publish_frames(1, b"x")
    assert names(engine.receive(publish * 3 + CLOSE)) == ["Publish"] * 3 + ["channel.close"]
    assert only_error(engine.receive(publish)).code == 504
    engine = open_server(1)
    engine.receive(publish * 3)
    engine.send(1, "channel.close")
    assert engine.receive(publish) == []
    assert names(engine.receive(CLOSE_OK + OPEN + publish * 2)) == [
        "channel.close-ok",
        "channel.open",
        "Publish",
        "Publish",
    ]
    engine = open_server(1)
    engine.receive(publish * 3)
    engine.send(0, "connection.close")
    assert engine.receive(publish) == []


def test_reopening_an_open_channel_raises() -> None:
    pair = open_pair(1)
    with pytest.raises(ValueError, match=r"channel\.open cannot be sent"):
        pair.client.send(1, "channel.open")
    with pytest.raises(ValueError, match=r"a server cannot send"):
        pair.server.send(2, "channel.open")


@pytest.mark.parametrize("version", [V0_9, V0_9_1], ids=lambda version: version.name)
def test_deliveries_and_settlements(version: object) -> None:
    pair = open_pair(1, version=version)  # type: ignore[arg-type]
    pair.server.send_deliver(1, b"tag", 7, True, b"\x01e\x01k", b"\0\x3c" + b"\0" * 12, b"", 0)
    pair.client.send_ack(1, 7, True)
    pair.client.send_reject(1, 8, True)
    pair.client.send_reject(1, 9, False)
    if version is V0_9_1:
        pair.client.send_nack(1, 10, True, False)
        pair.client.send_nack(1, 11, False, True)
        pair.server.send_ack(1, 1, False)
        pair.server.send_nack(1, 2**64 - 1, False, False)
    pair.pump()
    deliver, *confirms = pair.client_got
    assert isinstance(deliver, Deliver)
    assert (deliver.consumer_tag, deliver.delivery_tag, deliver.redelivered, deliver.address) == (
        b"tag",
        7,
        True,
        b"\x01e\x01k",
    )
    settled = []
    for command in pair.server_got:
        assert isinstance(command, (Ack, Nack))
        settled.append(
            (
                type(command).__name__,
                command.delivery_tag,
                command.multiple,
                getattr(command, "requeue", None),
                getattr(command, "is_reject", None),
            )
        )
    assert settled[:3] == [("Ack", 7, True, None, None), ("Nack", 8, False, True, True), ("Nack", 9, False, False, True)]
    if version is V0_9_1:
        assert settled[3:] == [("Nack", 10, True, False, False), ("Nack", 11, False, True, False)]
        assert names(confirms) == ["Ack", "Nack"]
        assert isinstance(confirms[0], Ack)


def test_methods_of_class_channel_in_0_9() -> None:
    pair = open_pair(1, version=V0_9)
    pair.client.send(1, "channel.ping")
    pair.pump()
    pair.server.send(1, "channel.ok")
    pair.client.send(5, "channel.resume", {"channel_id": "x"})
    pair.pump()
    assert names(pair.server_got) == ["channel.ping", "channel.resume"]
    assert names(pair.client_got) == ["channel.ok"]
    assert pair.server.is_open(5)


def test_a_body_that_is_too_large_closes_its_channel_only() -> None:
    engine = open_server(1, 2, max_body_size=1000, spool_threshold=100)
    octets = publish_method(1) + content_header(1, 1001) + frame(3, 1, b"x" * 500)
    commands = engine.receive(octets + publish_frames(2, b"fine") + frame(3, 1, b"x" * 501))
    assert names(commands) == ["Error", "Publish"]
    error = only_error(commands[:1])
    assert (error.scope, error.code, error.class_id, error.method_id) == (CHANNEL_SCOPE, 311, 60, 40)
    assert error.channel == 1
    assert not engine.is_open(1)
    assert engine.receive(RECOVER + publish_frames(1, b"y")) == []
    engine.send(1, "channel.close", {"reply_code": 311, "class_id": 60, "method_id": 40})
    assert engine.pending
    assert names(engine.receive(frame(3, 1, b"z" * 100) + CLOSE_OK + OPEN)) == ["channel.close-ok", "channel.open"]
    assert names(engine.receive(publish_frames(1, b"x" * 100))) == ["Publish"]


def test_every_close_is_answered_once() -> None:
    engine = open_server(1)
    engine.send(1, "channel.close-ok")  # without a request
    assert engine.to_send() == b""
    engine.send(1, "channel.close", {"reply_code": 404})
    engine.to_send()
    assert engine.is_closing(1)
    # Both closes crossed, and the reply to ours arrived with the peer's.
    assert names(engine.receive(CLOSE + CLOSE_OK)) == ["channel.close", "channel.close-ok"]
    assert not engine.is_closing(1)
    assert engine.to_send() == CLOSE_OK
    engine.send(1, "channel.close-ok")
    assert engine.to_send() == b""
    # Two closes before the first was answered.
    assert len(engine.receive(OPEN + CLOSE + OPEN + CLOSE)) == 4
    for answer in (CLOSE_OK, CLOSE_OK, b""):
        engine.send(1, "channel.close-ok")
        assert engine.to_send() == answer


def test_the_close_of_the_connection_is_answered_once() -> None:
    engine = open_server(1)
    engine.send(0, "connection.close", {"reply_code": 320})
    engine.to_send()
    assert names(engine.receive(method(0, 10, 50, b"\0\xc8\0\0\0\0\0"))) == ["connection.close"]
    assert engine.to_send() == method(0, 10, 51)
    engine.send(0, "connection.close-ok")
    assert engine.to_send() == b""

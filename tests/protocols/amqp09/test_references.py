"""References of class message of AMQP 0-9: large messages in pieces, in both directions, checkpoints and resumption."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.errors import StorageFailed
from leveret.broker.uploads import IN_MEMORY, MAX_CHECKPOINTS, SyncCallback, UploadSettings
from leveret.protocols.amqp09.contents.references import MAX_FIELD_BYTES, MAX_TRANSFERS
from leveret.protocols.amqp09.contents.transfers import CHECKPOINT_EVERY, MAX_RESUMING
from leveret.protocols.amqp091.channel.backlog import MAX_BACKLOG_SIZE
from leveret.storage.upload_files import UploadFile, UploadFiles
from leveret.wire.amqp0.commands import Method
from tests.broker.support import HeldLog
from tests.protocols.amqp09.support import Channel, connect
from tests.protocols.amqp09.test_message import answers, bodies, consume, count, got, put, take, unacked
from tests.protocols.amqp091.test_large_bodies import make_slow, read_on
from tests.protocols.support import Site, bytes_of

BODY = b"abcdefghij"


def refer(channel: Channel, reference: str = "r", key: str = "q", **arguments: Any) -> None:
    """Send a transfer by reference, which is not answered before the reference is closed."""
    channel.send("message.transfer", routing_key=key, body=(1, reference.encode()), **arguments)


def append(channel: Channel, *pieces: bytes, reference: str = "r") -> None:
    for piece in pieces:
        channel.call("message.append", "message.ok", reference=reference, bytes=piece)


def checkpoint(channel: Channel, identifier: str = "c", reference: str = "r") -> None:
    channel.call("message.checkpoint", "message.ok", reference=reference, identifier=identifier)


def resume(channel: Channel, identifier: str = "c", reference: str = "r") -> int:
    """Return the received size of a content."""
    offset: int = channel.call("message.resume", "message.offset", reference=reference, identifier=identifier)["value"]
    return offset


def send(channel: Channel, body: bytes = BODY, reference: str = "r", **arguments: Any) -> None:
    """Publish a complete message by reference."""
    channel.call("message.open", "message.ok", reference=reference)
    refer(channel, reference, **arguments)
    for at in range(0, len(body), 100_000):
        append(channel, body[at : at + 100_000], reference=reference)
    channel.send("message.close", reference=reference)
    assert answers(channel) == ["ok", "ok"]


def drop(channel: Channel) -> Channel:
    """Break the connection, and return a channel of another one."""
    channel.client.drop()
    return connect(channel.client.site).channel()


# From the client


def test_a_message_in_pieces(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    refer(channel, content_type="t", application_headers={"a": 1})
    append(channel, b"abc", b"", b"\xff\x00def")
    assert count(site) == 0 and answers(channel) == []
    channel.send("message.close", reference="r")
    assert answers(channel) == ["ok", "ok"]
    consume(channel)
    taken = got(channel)
    assert taken["body"] == (0, b"abc\xff\x00def") and taken["content_type"] == "t"
    assert taken["application_headers"] == {"a": 1} and not site.broker.uploads.by_key


def test_the_transfer_may_come_after_the_bytes(channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    refer(channel)
    channel.call("message.close", "message.ok", reference="r")
    consume(channel)
    assert bodies(channel) == [BODY]


def test_a_reference_may_be_the_body_of_many_messages(channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    refer(channel, message_id="1")
    append(channel, BODY)
    refer(channel, message_id="2")
    channel.send("message.close", reference="r")
    assert answers(channel) == ["ok", "ok", "ok"]
    consume(channel)
    assert [(taken["message_id"], taken["body"]) for taken in (got(channel), got(channel))] == [
        ("1", (0, BODY)),
        ("2", (0, BODY)),
    ]


def test_a_transfer_by_reference_delays_no_answer(channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    refer(channel)
    put(channel, b"first")
    append(channel, BODY)
    channel.call("message.close", "message.ok", reference="r")
    consume(channel)
    assert bodies(channel) == [b"first", BODY]


def test_a_persistent_message_by_reference_is_answered_when_it_is_on_disk() -> None:
    log = HeldLog()
    channel = connect(Site(log)).channel()
    channel.declare(durable=True)
    put(channel)
    channel.call("message.open", "message.ok", reference="r")
    refer(channel, delivery_mode=2)
    append(channel, BODY)
    log.held = True
    channel.send("message.close", reference="r")
    assert answers(channel) == ["ok"]
    log.release_all()
    assert answers(channel) == ["ok"]


def test_an_unused_reference(site: Site, channel: Channel) -> None:
    channel.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    channel.send("message.close", reference="r")
    assert answers(channel) == ["ok"] and not site.broker.uploads.by_key


def test_a_reference_can_be_opened_again_when_it_is_closed(channel: Channel) -> None:
    channel.declare()
    send(channel, b"1")
    send(channel, b"2")
    consume(channel)
    assert bodies(channel) == [b"1", b"2"]


def test_references_belong_to_their_channel(channel: Channel) -> None:
    channel.call("message.open", "message.ok", reference="r")
    other = channel.client.channel()
    other.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    append(other, BODY)


@pytest.mark.parametrize("method", ["append", "close", "checkpoint", "transfer"])
def test_a_reference_that_is_not_open(site: Site, channel: Channel, method: str) -> None:
    channel.declare()
    send(channel)
    if method == "transfer":
        refer(channel)
    else:
        channel.send(f"message.{method}", reference="r")
    assert channel.refused() == 503
    assert count(site) == 1


@pytest.mark.parametrize("method", ["open", "resume"])
def test_a_reference_that_is_open(site: Site, channel: Channel, method: str) -> None:
    channel.call("message.open", "message.ok", reference="r")
    channel.send(f"message.{method}", reference="r")
    assert channel.refused() == 503
    assert not site.broker.uploads.by_key


def test_names_that_are_too_long(channel: Channel) -> None:
    channel.send("message.open", reference="r" * 1025)
    assert channel.refused() == 406


def test_too_many_messages_of_one_reference(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    for _ in range(MAX_TRANSFERS + 1):
        refer(channel)
    assert channel.refused() == 406
    assert count(site) == 0 and not site.broker.uploads.by_key


def test_too_many_bytes_about_one_reference(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    for _ in range(MAX_FIELD_BYTES // 100_000 + 1):
        refer(channel, application_headers={"a": "x" * 100_000})
    assert channel.refused() == 406 and not site.broker.uploads.by_key


def test_an_invalid_kind_of_body(channel: Channel) -> None:
    channel.declare()
    channel.send("message.transfer", routing_key="q", body=(2, b"r"))
    assert channel.refused() == 502


@pytest.mark.rule("0-9", "resource-error.constant")
def test_the_limits(site: Site) -> None:
    site.broker.uploads.settings = UploadSettings(max_per_user=1, max_bytes=5)
    channel = connect(site).channel()
    channel.call("message.open", "message.ok", reference="r")
    append(channel, b"12345")
    channel.send("message.append", reference="r", bytes=b"6")
    assert channel.refused() == 311
    channel = connect(site).channel()
    channel.call("message.open", "message.ok", reference="r")
    channel.send("message.open", reference="s")
    assert channel.refused() == 506


def test_an_exchange_deleted_meanwhile(site: Site, channel: Channel) -> None:
    channel.call("exchange.declare", "exchange.declare-ok", exchange="x", type="fanout")
    channel.call("message.open", "message.ok", reference="r")
    refer(channel, destination="x")
    append(channel, BODY)
    channel.call("exchange.delete", "exchange.delete-ok", exchange="x")
    channel.send("message.close", reference="r")
    assert channel.refused() == 404 and not site.broker.uploads.by_key


def test_references_end_with_their_channel(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    refer(channel)
    append(channel, BODY)
    channel.close()
    assert not site.broker.uploads.by_key and count(site) == 0


def test_an_immediate_message_by_reference(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    refer(channel, immediate=True)
    append(channel, BODY)
    channel.send("message.close", reference="r")
    assert answers(channel) == ["ok", "reject"]
    assert count(site) == 0 and not site.broker.uploads.by_key


# Checkpoints


@pytest.mark.parametrize("lost", [False, True], ids=["channel", "connection"])
def test_a_checkpoint_outlives_its_channel(site: Site, channel: Channel, lost: bool) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    refer(channel, message_id="1")
    append(channel, b"abcdef")
    checkpoint(channel)
    append(channel, b"what is lost")
    if lost:
        channel = drop(channel)
    else:
        channel.close()
        channel = channel.client.channel()
    assert resume(channel, reference="s") == 6
    append(channel, b"ghij", reference="s")
    # Closing the channel has discarded its transfers.
    refer(channel, "s", message_id="2")
    channel.call("message.close", "message.ok", reference="s")
    consume(channel)
    taken = got(channel)
    assert taken["body"] == (0, BODY) and taken["message_id"] == "2" and take(channel) is None
    assert not site.broker.uploads.by_key and not site.broker.uploads.checkpoints


def test_an_unknown_checkpoint_resumes_at_0(channel: Channel) -> None:
    channel.declare()
    assert resume(channel) == 0
    refer(channel)
    append(channel, BODY)
    checkpoint(channel)
    channel.call("message.close", "message.ok", reference="r")
    consume(channel)
    assert bodies(channel) == [BODY]
    channel = drop(channel)
    assert resume(channel) == 0


def test_checkpoints_belong_to_their_user(site: Site, channel: Channel) -> None:
    site.allow("other", "/", site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    channel.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    checkpoint(channel)
    channel.client.drop()
    assert resume(connect(site, user="other").channel()) == 0
    assert resume(connect(site).channel()) == 10


def test_an_earlier_checkpoint_discards_the_later_ones(channel: Channel) -> None:
    channel.call("message.open", "message.ok", reference="r")
    append(channel, b"abc")
    checkpoint(channel, "early")
    append(channel, b"def")
    checkpoint(channel, "late")
    append(channel, b"ghi")
    checkpoint(channel, "early")
    channel = drop(channel)
    assert resume(channel, "late") == 6
    channel = drop(channel)
    assert resume(channel, "early") == 0
    channel = drop(channel)
    assert resume(channel, "late") == 6


def test_a_checkpoint_of_the_same_name_is_that_of_the_newest_content(site: Site, channel: Channel) -> None:
    for body in (b"abcdef", b"xyz"):
        channel.call("message.open", "message.ok", reference="r")
        append(channel, body)
        checkpoint(channel)
        channel = drop(channel)
    assert resume(channel) == 3 and len(site.broker.uploads.by_key) == 1


def test_a_checkpoint_that_is_open(channel: Channel) -> None:
    channel.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    checkpoint(channel)
    channel.send("message.resume", reference="s", identifier="c")
    assert channel.refused() == 405
    again = channel.client.channel()
    assert resume(again) == 10


def test_another_connection_resumes_and_the_first_one_is_notified(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    checkpoint(channel)
    other = connect(site).channel()
    assert resume(other) == 10
    channel.send("message.append", reference="r", bytes=b"x")
    assert channel.refused() == 405
    refer(other)
    other.call("message.close", "message.ok", reference="r")
    consume(other)
    assert bodies(other) == [BODY]


def test_a_checkpoint_is_answered_when_it_is_on_disk() -> None:
    log = HeldLog()
    site = Site(log)
    channel = connect(site).channel()
    channel.declare(durable=True)
    channel.call("message.open", "message.ok", reference="r")
    log.held = True
    channel.send("message.checkpoint", reference="r", identifier="c")
    channel.send("message.append", reference="r", bytes=BODY)
    assert answers(channel) == []
    log.release_all()
    assert answers(channel) == ["ok", "ok"]


def test_too_many_checkpoints(channel: Channel) -> None:
    channel.call("message.open", "message.ok", reference="r")
    for number in range(MAX_CHECKPOINTS):
        checkpoint(channel, str(number))
    checkpoint(channel, "0")
    channel.send("message.checkpoint", reference="r", identifier="another")
    assert channel.refused() == 406


def test_a_reference_above_the_limit_keeps_its_checkpoint(site: Site) -> None:
    site.broker.uploads.settings = UploadSettings(max_bytes=5)
    channel = connect(site).channel()
    channel.call("message.open", "message.ok", reference="r")
    append(channel, b"abc")
    checkpoint(channel)
    channel.send("message.append", reference="r", bytes=b"defghi")
    assert channel.refused() == 311
    assert resume(channel.client.channel()) == 3


# Transactions


@pytest.mark.parametrize("kept", [False, True], ids=["none", "checkpoint"])
def test_a_transaction(site: Site, channel: Channel, kept: bool) -> None:
    channel.declare()
    channel.call("tx.select", "tx.select-ok")
    channel.call("message.open", "message.ok", reference="r")
    refer(channel)
    append(channel, BODY)
    if kept:
        checkpoint(channel)
    channel.send("message.close", reference="r")
    assert answers(channel) == ["ok", "ok"]
    other = connect(site).channel()
    if kept:
        other.send("message.resume", reference="r", identifier="c")
        assert other.refused() == 405
    channel.call("tx.rollback", "tx.rollback-ok")
    assert len(site.broker.uploads.by_key) == kept
    there = resume(channel)
    assert there == 10 * kept
    refer(channel)
    append(channel, BODY[there:])
    channel.send("message.close", reference="r")
    assert answers(channel) == ["ok", "ok"] and count(site) == 0
    channel.call("tx.commit", "tx.commit-ok")
    assert count(site) == 1 and not site.broker.uploads.by_key
    channel.call("message.get", "message.ok", queue="q")
    assert got(channel)["body"] == (0, BODY)


# To the client


def receive(channel: Channel) -> tuple[dict[str, Any], bytes]:
    """Return the next message by reference: its transfer and its bytes."""
    channel.run()
    opened = channel.client.take("message.open", channel.number)
    transfer = take(channel)
    assert opened is not None and transfer is not None
    reference = opened.arguments["reference"]
    assert transfer["body"] == (1, reference.encode())
    pieces = []
    while (piece := channel.client.take("message.append", channel.number)) is not None:
        assert piece.arguments["reference"] == reference
        pieces.append(piece.arguments["bytes"])
    closed = channel.client.take("message.close", channel.number)
    assert closed is not None and closed.arguments == {"reference": reference}
    return transfer, b"".join(pieces)


@pytest.mark.parametrize("size", [131_072, 200_000, IN_MEMORY + 12_345])
def test_a_large_message_is_delivered_by_reference(site: Site, channel: Channel, size: int) -> None:
    channel.declare()
    body = bytes(range(256)) * (size // 256) + b"end"
    send(channel, body, content_type="t")
    put(channel, b"small")
    consume(channel)
    channel.run()
    names = [item.name for item in channel.client.received if isinstance(item, Method)]
    assert names[:3] == ["message.open", "message.transfer", "message.append"]
    assert names[-2:] == ["message.close", "message.transfer"] and set(names[2:-2]) == {"message.append"}
    transfer, received = receive(channel)
    assert received == body and transfer["content_type"] == "t" and transfer["destination"] == "here"
    assert got(channel)["body"] == (0, b"small")
    for expected in (1, 0):
        channel.send("message.ok")
        channel.run()
        assert unacked(site) == expected


def test_appends_fit_the_frames_of_the_client(site: Site, channel: Channel) -> None:
    channel.declare()
    body = bytes(range(256)) * 400
    put(channel, body)
    client = connect(site)
    client.session.engine.payload_max = 4088
    small = client.channel()
    consume(small)
    small.run()
    appends = [
        item.arguments["bytes"] for item in client.received if isinstance(item, Method) and item.name == "message.append"
    ]
    assert b"".join(appends) == body and max(map(len, appends)) == 4088 - 4 - 4 - 4 - len("1.1")


@pytest.mark.parametrize("size", [131_072, IN_MEMORY])
def test_a_get_by_reference(site: Site, channel: Channel, size: int) -> None:
    channel.declare()
    send(channel, b"x" * size)
    channel.call("message.get", "message.ok", queue="q", destination="d")
    transfer, received = receive(channel)
    assert len(received) == size and transfer["destination"] == "d" and unacked(site) == 1
    channel.send("message.ok")
    channel.run()
    assert unacked(site) == 0


LARGE = b"x" * (3 << 20)


def begin_to_receive(channel: Channel) -> None:
    """Consume a large message without reading it: the socket is full after the first bytes."""
    make_slow(channel, 300_000)
    channel.send("message.consume", queue="q", destination="here")
    channel.run()


def test_a_message_is_not_answered_before_its_reference_is_closed(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel, LARGE)
    begin_to_receive(channel)
    assert unacked(site) == 1
    channel.send("message.ok")
    channel.run()
    read_on(channel)
    assert channel.client.refusal()[0] == 503
    assert count(site) == 1 and unacked(site) == 0


def test_unsent_messages_are_requeued(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel, LARGE)
    begin_to_receive(channel)
    assert unacked(site) == 1
    again = drop(channel)
    assert count(site) == 1
    consume(again)
    transfer, received = receive(again)
    assert transfer["redelivered"] and received == LARGE


def test_a_reopened_channel_gets_no_data_of_the_old_one(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel, LARGE)
    begin_to_receive(channel)
    channel.send("channel.close", reply_code=200)
    channel.run()
    # channel.open, before the close is answered.
    channel.client.engine.send_encoded(struct.pack(">BHIHHBB", 1, 1, 5, 20, 10, 0, 0xCE))
    channel.run()
    channel.client.peer.written.clear()
    channel.client.session.resume_writing()
    site.run()
    octets = b"".join(channel.client.peer.written)
    assert struct.pack(">HH", 20, 11) in octets and struct.pack(">HH", 120, 80) not in octets
    assert count(site) == 1


@pytest.mark.parametrize("requeue", [False, True])
def test_recover_excludes_messages_being_sent(site: Site, channel: Channel, requeue: bool) -> None:
    channel.declare()
    put(channel, b"small")
    send(channel, LARGE)
    begin_to_receive(channel)
    channel.send("message.recover", requeue=requeue)
    channel.run()
    assert count(site) == requeue and unacked(site) == 2 - requeue
    read_on(channel)
    while channel.client.peer.written:
        read_on(channel)
    assert [taken["redelivered"] for taken in (got(channel), got(channel), got(channel))] == [False, False, True]
    # The large message, and the small one once more.
    for expected in (1, 0):
        channel.send("message.ok")
        channel.run()
        assert unacked(site) == expected


def test_the_prefetch_window_counts_messages_being_sent(site: Site, channel: Channel) -> None:
    channel.declare()
    for _ in range(2):
        send(channel, b"x" * (2 * IN_MEMORY))
    channel.call("message.qos", "message.ok", prefetch_count=1)
    consume(channel)
    assert count(site) == 1
    receive(channel)
    channel.send("message.ok")
    receive(channel)
    assert count(site) == 0


def test_a_large_message_of_another_class(site: Site, channel: Channel) -> None:
    channel.declare()
    old = site.channel()
    body = b"x" * 300_000
    old.publish(body=body, message_id="m")
    old.run()
    channel.call("message.get", "message.ok", queue="q", no_ack=True)
    transfer, received = receive(channel)
    assert received == body and transfer["message_id"] == "m"
    send(channel, body)
    (taken,) = [old.get()]
    assert taken is not None and bytes_of(taken.body) == body


# Checkpoints of the client


def consume_with_checkpoints(channel: Channel) -> None:
    consume(channel, filter={"x-resume": True})


def asked(channel: Channel) -> str:
    """Return the identifier that the client is asked to resume."""
    channel.run()
    method = channel.client.take("message.resume", channel.number)
    assert method is not None and take(channel) is None
    return str(method.arguments["identifier"])


def rest(channel: Channel, offset: int) -> bytes:
    """Report the received part of a message, and return the rest."""
    channel.send("message.offset", value=offset)
    channel.run()
    taken = got(channel)
    pieces = []
    while (piece := channel.client.take("message.append", channel.number)) is not None:
        pieces.append(piece.arguments["bytes"])
    closed = channel.client.take("message.close", channel.number)
    assert closed is not None and taken["body"] == (1, closed.arguments["reference"].encode())
    return b"".join(pieces)


BIG = bytes(range(256)) * 2000


@pytest.mark.rule("0-9", "message.grammar.server-resume")
@pytest.mark.rule("0-9", "message.resume.chassis.client")
@pytest.mark.rule("0-9", "message.offset.chassis.server")
def test_a_client_with_checkpoints_is_asked_for_them(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel, BIG)
    put(channel, b"small")
    consume_with_checkpoints(channel)
    assert got(channel)["body"] == (0, b"small")
    identifier = asked(channel)
    assert rest(channel, 0) == BIG and unacked(site) == 2
    again = drop(channel)
    consume_with_checkpoints(again)
    assert got(again)["body"] == (0, b"small")
    assert asked(again) == identifier
    assert rest(again, 123_456) == BIG[123_456:]
    for expected in (1, 0):
        again.send("message.ok")
        again.run()
        assert unacked(site) == expected


def test_a_client_may_have_the_complete_message(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel, BIG)
    consume_with_checkpoints(channel)
    asked(channel)
    assert rest(channel, len(BIG)) == b""
    channel.send("message.ok")
    channel.run()
    assert unacked(site) == 0


@pytest.mark.parametrize("value", [len(BIG) + 1, 0], ids=["too much", "not requested"])
def test_an_invalid_offset(site: Site, channel: Channel, value: int) -> None:
    channel.declare()
    send(channel, BIG)
    if value:
        consume_with_checkpoints(channel)
        asked(channel)
    channel.send("message.offset", value=value)
    assert channel.refused() == (530 if value else 503)
    assert count(site) == 1 and unacked(site) == 0


def test_an_offset_answers_once(channel: Channel) -> None:
    channel.declare()
    send(channel, BIG)
    consume_with_checkpoints(channel)
    asked(channel)
    rest(channel, 1000)
    channel.send("message.offset", value=0)
    assert channel.refused() == 503


def test_messages_being_resumed_are_requeued_with_their_channel(site: Site, channel: Channel) -> None:
    channel.declare()
    send(channel, BIG)
    consume_with_checkpoints(channel)
    asked(channel)
    channel.send("message.recover", requeue=True)
    channel.run()
    assert unacked(site) == 1
    channel.client.drop()
    assert count(site) == 1 and unacked(site) == 0


def test_the_prefetch_window_counts_messages_being_resumed(site: Site, channel: Channel) -> None:
    channel.declare()
    for _ in range(2):
        send(channel, BIG)
    channel.call("message.qos", "message.ok", prefetch_count=1)
    consume_with_checkpoints(channel)
    asked(channel)
    assert count(site) == 1
    rest(channel, 0)
    assert count(site) == 1
    channel.send("message.ok")
    asked(channel)


def test_resumption_requests_are_limited(site: Site, channel: Channel) -> None:
    channel.declare()
    for _ in range(MAX_RESUMING + 2):
        send(channel, BIG[:140_000])
    consume_with_checkpoints(channel)
    assert count(site) == 2
    for _ in range(MAX_RESUMING + 2):
        asked(channel)
        rest(channel, 139_000)
    assert count(site) == 0


@pytest.mark.rule("0-9", "message.grammar.server-checkpoint")
@pytest.mark.rule("0-9", "message.checkpoint.chassis.client")
def test_a_client_is_sent_checkpoints(channel: Channel) -> None:
    channel.declare()
    body = bytes(range(256)) * (CHECKPOINT_EVERY // 100)
    send(channel, body)
    consume_with_checkpoints(channel)
    identifier = asked(channel)
    channel.send("message.offset", value=0)
    channel.run()
    checkpoints: list[int] = []
    octets = 0
    for item in channel.client.received:
        if isinstance(item, Method) and item.name == "message.append":
            octets += len(item.arguments["bytes"])
        elif isinstance(item, Method) and item.name == "message.checkpoint":
            assert item.arguments["identifier"] == identifier
            checkpoints.append(octets)
    assert octets == len(body) and len(checkpoints) == 2
    assert checkpoints[0] >= CHECKPOINT_EVERY and checkpoints[1] - checkpoints[0] >= CHECKPOINT_EVERY


def test_checkpoints_need_acknowledgements(channel: Channel) -> None:
    channel.declare()
    channel.send("message.consume", queue="q", no_ack=True, filter={"x-resume": True})
    assert channel.refused() == 406


def test_input_after_a_checkpoint_waits_and_pauses_the_socket() -> None:
    log = HeldLog()
    channel = connect(Site(log)).channel()
    channel.declare(durable=True)
    channel.call("message.open", "message.ok", reference="r")
    log.held = True
    channel.send("message.checkpoint", reference="r", identifier="c")
    refer(channel)
    pieces = 5
    for _ in range(pieces):
        channel.send("message.append", reference="r", bytes=BIG[:100_000])
    channel.run()
    assert channel.client.peer.reading
    for _ in range(MAX_BACKLOG_SIZE // 100_000):
        channel.send("message.append", reference="r", bytes=BIG[:100_000])
        pieces += 1
    channel.run()
    assert not channel.client.peer.reading and answers(channel) == []
    log.release_all()
    channel.run()
    later = channel.client.site.later
    while later:  # bytes that were read but not parsed
        later.pop(0)[1]()
        channel.run()
    assert channel.client.peer.reading
    assert answers(channel) == ["ok"] * (pieces + 1)


def test_a_checkpoint_that_cannot_be_kept(site: Site, channel: Channel) -> None:
    channel.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    site.broker.uploads.sync = (  # type: ignore[method-assign]
        lambda body, synced: synced(StorageFailed("cannot sync the upload: Input/output error"))
    )
    channel.send("message.checkpoint", reference="r", identifier="c")
    assert channel.refused() == 541 and answers(channel) == []
    assert not site.broker.uploads.by_key


@pytest.mark.parametrize("kept", [False, True])
def test_an_upload_that_cannot_be_read_is_not_published(
    site: Site, channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    site.broker.uploads.place = UploadFiles(tmp_path, 0)
    channel.declare()
    channel.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    if kept:
        checkpoint(channel)
    refer(channel)

    def fail(body: UploadFile, at: int, length: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(UploadFile, "read", fail)
        channel.send("message.close", reference="r")
        assert channel.refused() == 541
    again = connect(site).channel()
    assert count(site) == 0
    assert resume(again) == (len(BODY) if kept else 0)


@pytest.mark.parametrize("how", ["resumed", "discarded"])
def test_a_pending_checkpoint_of_resumed_or_discarded_content(site: Site, channel: Channel, how: str) -> None:
    channel.call("message.open", "message.ok", reference="r")
    append(channel, BODY)
    checkpoint(channel)
    calls: list[SyncCallback] = []
    site.broker.uploads.sync = lambda body, synced: calls.append(synced)  # type: ignore[method-assign]
    channel.send("message.checkpoint", reference="r", identifier="d")
    channel.run()
    if how == "resumed":
        assert resume(connect(site).channel()) == 10
    else:
        (staged,) = site.broker.uploads.by_key.values()
        staged.turn += 1
        staged.discard()
    for call in calls:
        call(None)
    assert channel.refused() == 405 and answers(channel) == []
    assert len(site.broker.uploads.checkpoints) == (how == "resumed")

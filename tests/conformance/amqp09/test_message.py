"""Class message: replies, references, and the fields of a transfer. Rules shared with other classes are tested by
subject."""

from __future__ import annotations

import pytest

from tests.conformance.amqp09 import kinds
from tests.conformance.amqp09.conftest import Connect
from tests.support.peers.amqp09 import Channel
from tests.support.peers.codec09 import INLINE, REFERENCE, Body

STALE = 1_000_000_000


def held(channel: Channel, queue: str) -> None:
    """A message that requires a reply from the client."""
    channel.queue(queue)
    kinds.publish(channel, "message", b"x", queue)
    kinds.consume(channel, "message", queue, "c")
    kinds.receive(channel, "message")


@pytest.mark.rule("0-9", "reject-code.01")
@pytest.mark.parametrize("code", [0, 1])
def test_valid_reject_codes(channel: Channel, name: str, code: int) -> None:
    held(channel, name)
    channel.send("message.reject", code=code, text="cannot")
    channel.quiet()
    channel.close()
    assert channel.peer.open().depth(name) == 0


@pytest.mark.rule("0-9", "reject-code.01")
@pytest.mark.rule("0-9", "syntax-error.constant")
@pytest.mark.parametrize("code", [2, 65535])
def test_other_reject_codes_are_illegal_values(channel: Channel, other: Channel, name: str, code: int) -> None:
    held(channel, name)
    channel.send("message.reject", code=code, text="?")
    channel.peer.expect_end(502, "message.reject")
    assert other.depth(name) == 1


@pytest.mark.rule("0-9", "reject-code.01")
def test_the_broker_rejects_by_them_too(channel: Channel, name: str) -> None:
    channel.queue(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    kinds.publish(channel, "message", b"x", name)
    for immediate, code in ((False, 0), (True, 1)):
        channel.send("message.transfer", routing_key=name, body=Body(INLINE, b"y"), immediate=immediate)
        rejected = channel.expect("message.reject")
        assert (rejected.code, bool(rejected.text)) == (code, True)
    assert channel.depth(name) == 1


@pytest.mark.rule("0-9", "message.transfer.ttl.01")
def test_times_are_set_by_the_receiving_broker(channel: Channel, name: str) -> None:
    """A broker that passed the message on should have cleared them; if it did not, they are replaced."""
    channel.queue(name)
    kinds.publish(channel, "message", b"x", name, ttl=60_000, timestamp=STALE, expiration=STALE + 1)
    kinds.publish(channel, "message", b"y", name, timestamp=STALE, expiration=STALE + 1)
    kinds.consume(channel, "message", name, "c", no_ack=True)
    timed, untimed = (kinds.receive(channel, "message").properties for _ in range(2))
    assert timed["timestamp"] > STALE
    assert 60 <= timed["expiration"] - timed["timestamp"] <= 61
    assert (untimed["expiration"], untimed["ttl"]) == (0, 0)


@pytest.mark.rule("0-9", "message.transfer.ttl.01")
@pytest.mark.rule("0-9", "message.transfer.ttl.text.expires")
@pytest.mark.rule("0-9", "message.transfer.ttl.text.discarded")
def test_a_message_does_not_outlive_its_ttl(channel: Channel, name: str) -> None:
    dead = channel.queue(name + ".dead")
    channel.queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    kinds.publish(channel, "message", b"x", name, ttl=1)
    kinds.consume(channel, "message", dead, "c", no_ack=True)
    assert kinds.receive(channel, "message").body == b"x"
    assert channel.depth(name) == 0


# References

NAME = b"ref"
PIECES = [b"a" * 1000, b"b" * 1000, b"c"]
METHODS_OF_OPEN = [
    pytest.param("message.close", {}, id="close", marks=pytest.mark.rule("0-9", "message.close.reference.01")),
    pytest.param(
        "message.append", {"bytes": b"x"}, id="append", marks=pytest.mark.rule("0-9", "message.append.reference.01")
    ),
    pytest.param(
        "message.checkpoint",
        {"identifier": "i"},
        id="checkpoint",
        marks=pytest.mark.rule("0-9", "message.checkpoint.reference.01"),
    ),
]


def call(channel: Channel, method: str, **fields: object) -> None:
    channel.call(f"message.{method}", "message.ok", **fields)


def send_by_reference(channel: Channel, queue: str, **fields: object) -> None:
    """A complete message; the reply to it follows the one to the close."""
    call(channel, "open", reference=NAME)
    channel.send("message.transfer", routing_key=queue, body=Body(REFERENCE, NAME), **fields)
    for piece in PIECES:
        call(channel, "append", reference=NAME, bytes=piece)
    call(channel, "close", reference=NAME)
    channel.expect("message.ok")


@pytest.mark.rule("0-9", "message.open.reference.01")
@pytest.mark.rule("0-9", "message.resume.reference.01")
@pytest.mark.parametrize("first", ["open", "resume"])
@pytest.mark.parametrize("second", ["open", "resume"])
def test_a_reference_is_opened_once(channel: Channel, name: str, first: str, second: str) -> None:
    answers = {"open": "message.ok", "resume": "message.offset"}
    fields = {"open": {}, "resume": {"identifier": name}}
    channel.call(f"message.{first}", answers[first], reference=NAME, **fields[first])
    again = {"open": {}, "resume": {"identifier": name + ".2"}}
    channel.send(f"message.{second}", reference=NAME, **again[second])
    channel.peer.expect_end(503, f"message.{second}")


@pytest.mark.parametrize(("method", "fields"), METHODS_OF_OPEN)
@pytest.mark.parametrize("state", ["never-opened", "closed", "another-channel"])
def test_a_reference_that_is_not_open_ends_the_connection(
    channel: Channel, method: str, fields: dict[str, object], state: str
) -> None:
    opener = channel.peer.open(2) if state == "another-channel" else channel
    if state != "never-opened":
        call(opener, "open", reference=NAME)
        if state == "closed":
            call(opener, "close", reference=NAME)
    channel.send(method, reference=NAME, **fields)
    channel.peer.expect_end(503, method)


@pytest.mark.rule("0-9", "section.message.transfer.body")
def test_a_transfer_refers_to_a_reference_that_is_open(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.send("message.transfer", routing_key=name, body=Body(REFERENCE, NAME))
    channel.peer.expect_end(503, "message.transfer")


@pytest.mark.parametrize(
    ("first", "answer", "fields"), [("open", "message.ok", {}), ("resume", "message.offset", {"identifier": "i"})]
)
@pytest.mark.rule("0-9", "message.open.reference.01")
def test_a_reference_ends_with_its_channel(channel: Channel, first: str, answer: str, fields: dict[str, object]) -> None:
    channel.call(f"message.{first}", answer, reference=NAME, **fields)
    channel.close()
    channel.peer.open(channel.number).call("message.open", "message.ok", reference=NAME)


@pytest.mark.parametrize(("method", "fields"), METHODS_OF_OPEN)
def test_a_reference_that_is_open_is_found(channel: Channel, method: str, fields: dict[str, object]) -> None:
    call(channel, "open", reference=NAME)
    channel.call(method, "message.ok", reference=NAME, **fields)


@pytest.mark.rule("0-9", "message.close.01")
def test_the_broker_acknowledges_a_transfer_after_its_close(channel: Channel, name: str) -> None:
    channel.queue(name)
    call(channel, "open", reference=NAME)
    channel.send("message.transfer", routing_key=name, body=Body(REFERENCE, NAME))
    channel.quiet()
    call(channel, "append", reference=NAME, bytes=b"x")
    channel.quiet()
    assert channel.depth(name) == 0
    channel.send("message.close", reference=NAME)
    for _ in range(2):
        channel.expect("message.ok")
    channel.quiet()
    assert channel.depth(name) == 1


@pytest.mark.rule("0-9", "message.close.01")
def test_a_client_cannot_acknowledge_a_transfer_before_its_close(connect: Connect, other: Channel, name: str) -> None:
    other.queue(name)
    channel = connect(receive_buffer=65536).open()
    publish = connect().open()
    call(publish, "open", reference=NAME)
    publish.send("message.transfer", routing_key=name, body=Body(REFERENCE, NAME))
    for _ in range(300):  # much more than the socket buffers hold
        call(publish, "append", reference=NAME, bytes=b"x" * 100_000)
    call(publish, "close", reference=NAME)
    publish.expect("message.ok")
    kinds.consume(channel, "message", name, "c")
    channel.expect("message.open")
    assert channel.expect("message.transfer").body.kind == REFERENCE
    channel.send("message.ok")
    channel.peer.expect_end(503, "message.ok")
    assert other.depth(name) == 1


@pytest.mark.rule("0-9", "message.close.01")
@pytest.mark.rule("0-9", "message.grammar.server-open")
@pytest.mark.rule("0-9", "message.grammar.server-append")
@pytest.mark.rule("0-9", "message.grammar.server-close")
@pytest.mark.rule("0-9", "message.open.chassis.client")
@pytest.mark.rule("0-9", "message.append.chassis.client")
@pytest.mark.rule("0-9", "message.close.chassis.client")
def test_a_body_is_sent_by_reference_in_both_directions(connect: Connect, name: str) -> None:
    channel = connect(frame_max=4096).open()
    channel.queue(name)
    for _ in range(3):
        send_by_reference(channel, name, message_id="m")
    kinds.consume(channel, "message", name, "c")
    for _ in range(3):
        # A body that fits into a frame arrives inline, however it was sent.
        transfer = channel.expect("message.transfer")
        assert (transfer.body, transfer.message_id) == (Body(INLINE, b"".join(PIECES)), "m")
        channel.send("message.ok")
    large = b"d" * 3000
    call(channel, "open", reference=NAME)
    channel.send("message.transfer", routing_key=name, body=Body(REFERENCE, NAME))
    for _ in range(5):
        call(channel, "append", reference=NAME, bytes=large)
    channel.send("message.close", reference=NAME)
    reference = channel.peer.pick(1, "message.open").reference
    transfer = channel.peer.pick(1, "message.transfer")
    assert transfer.body == Body(REFERENCE, reference)
    data = b""
    while (method := channel.peer.pick(1, "message.append", "message.close")).name == "message.append":
        assert method.reference == reference
        data += method.bytes
    assert (method.reference, data) == (reference, large * 5)
    channel.send("message.ok")
    for _ in range(2):
        channel.expect("message.ok")
    channel.quiet()
    channel.close()
    assert channel.peer.open().depth(name) == 0


@pytest.mark.rule("0-9", "section.message.checkpoint")
def test_a_checkpoint_is_resumed(connect: Connect, name: str) -> None:
    channel = connect().open()
    call(channel, "open", reference=NAME)
    call(channel, "append", reference=NAME, bytes=PIECES[0])
    call(channel, "checkpoint", reference=NAME, identifier=name)
    channel.peer.drop()
    channel = connect().open()
    channel.queue(name)
    at = channel.call("message.resume", "message.offset", reference=b"other", identifier=name).value
    assert at >= len(PIECES[0])
    channel.send("message.transfer", routing_key=name, body=Body(REFERENCE, b"other"))
    call(channel, "append", reference=b"other", bytes=b"".join(PIECES)[at:])
    call(channel, "close", reference=b"other")
    channel.expect("message.ok")
    kinds.consume(channel, "message", name, "c", no_ack=True)
    assert kinds.receive(channel, "message").body == b"".join(PIECES)

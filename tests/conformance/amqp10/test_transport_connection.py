"""Connections: headers, frames, open, close, idle time-out (transport sections 2.1 to 2.4, 2.7.1, 2.7.9)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.transport import Begin, Close, Detach, End, Flow, Open
from tests.conformance.amqp10.conftest import Begin as BeginSession
from tests.conformance.amqp10.conftest import Connect
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp10 import AMQP, SASL, Peer, Session, composite, frame, message
from tests.support.peers.framing import HEADER_AMQP091


@pytest.mark.rule("1.0", "transport.2.1.ordered")
def test_frames_are_carried_out_in_their_order_however_they_are_cut(session: Session, name: str) -> None:
    sender = session.sender(name)
    peer = session.peer
    sent: list[bytes] = []
    original = peer.send_bytes
    peer.send_bytes = lambda data: sent.append(data)  # type: ignore[method-assign]
    for number in range(20):
        sender.send(message(b"%d" % number), settled=True)
    peer.send_bytes = original  # type: ignore[method-assign]
    data = b"".join(sent)
    for at in range(0, len(data), 7):
        peer.send_bytes(data[at : at + 7])
    receiver = session.receiver(name, 100)
    assert [receiver.get().body for _ in range(20)] == [b"%d" % number for number in range(20)]


# Headers


@pytest.mark.rule("1.0", "transport.2.2.header-first")
@pytest.mark.rule("1.0", "transport.2.2.supported-version")
@pytest.mark.parametrize("header", [AMQP, SASL], ids=["amqp", "sasl"])
def test_the_header_of_a_supported_version_is_answered_with_the_same(raw: Connect, header: bytes) -> None:
    peer = raw()
    peer.send_bytes(header)
    assert peer.read_bytes(8) == header
    if header == AMQP:
        peer.open()
        peer.close()


@pytest.mark.rule("1.0", "transport.2.2.header-first")
def test_a_frame_without_a_header_before_it_is_no_connection(raw: Connect) -> None:
    peer = raw()
    peer.send_bytes(frame(encode_composite(Open("c"))))
    assert peer.read_bytes(8)[:4] == b"AMQP"
    peer.expect_eof()


@pytest.mark.rule("1.0", "transport.2.2.header-holds")
def test_sasl_frames_after_the_amqp_header_are_refused(raw: Connect) -> None:
    peer = raw().header(AMQP)
    peer.send_bytes(frame(composite(0x41, b"\xa3\x09ANONYMOUS"), type=1))
    peer.take(Open)
    assert peer.closed_with() == "amqp:connection:framing-error"


@pytest.mark.rule("1.0", "transport.2.2.header-holds")
def test_data_after_the_header_belongs_to_its_protocol(raw: Connect) -> None:
    peer = raw().header(AMQP)
    peer.open()
    peer.close()
    assert [(item.type, type(item.body)) for item in peer.frames] == [(0, Open), (0, Close)]


@pytest.mark.rule("1.0", "transport.2.2.mismatch-closes")
@pytest.mark.rule("1.0", "transport.2.2.unsupported-version")
@pytest.mark.rule("1.0", "transport.2.2.highest-below")
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (b"AMQP\x00\x01\x00\x01", AMQP),
        (b"AMQP\x00\x01\x01\x00", AMQP),
        (b"AMQP\x00\x02\x00\x00", AMQP),
        (b"AMQP\x00\xff\xff\xff", AMQP),
        (b"AMQP\x03\x01\x01\x00", SASL),
        (b"AMQP\x00\x00\x0a\x00", HEADER_AMQP091),
        (b"AMQP\x00\x00\x09\x02", HEADER_AMQP091),
    ],
    ids=["1.0.1", "1.1.0", "2.0.0", "255", "sasl 1.1.0", "0.10.0", "0.9.2"],
)
def test_another_version_is_answered_with_the_highest_below_it_and_a_close(
    raw: Connect, asked: bytes, answer: bytes
) -> None:
    peer = raw()
    peer.send_bytes(asked)
    assert peer.read_bytes(8) == answer
    peer.expect_eof()


@pytest.mark.rule("1.0", "transport.2.2.highest-of-all")
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (b"AMQP\x00\x00\x00\x00", AMQP),
        (b"AMQP\x00\x00\x07\xff", AMQP),
        (b"AMQP\x00\x00\x08\x00", HEADER_AMQP091),
        (b"AMQP\x00\x00\x09\x00", HEADER_AMQP091),
    ],
    ids=["0.0.0", "0.7.255", "0.8.0", "0.9.0"],
)
def test_a_version_below_all_others_is_answered_with_the_highest(raw: Connect, asked: bytes, answer: bytes) -> None:
    """Except 0-8 and 0-9, to which 0-9-1 is closer."""
    peer = raw()
    peer.send_bytes(asked)
    assert peer.read_bytes(8) == answer
    peer.expect_eof()


@pytest.mark.rule("1.0", "transport.2.2.mismatch-reads-on")
def test_data_after_a_refused_header_is_read_and_ignored(raw: Connect) -> None:
    """Otherwise the socket would be reset, which may overtake the reply."""
    peer = raw()
    peer.send_bytes(b"AMQP\x00\x02\x00\x00" + bytes(100_000))
    assert peer.read_bytes(8) == AMQP
    peer.expect_eof()


@pytest.mark.rule("1.0", "transport.2.2.not-a-header")
@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(8), b"AMQX\x00\x01\x00\x00", b"\x00"],
    ids=["http", "zeros", "amqx", "one octet"],
)
def test_an_invalid_header_is_answered_with_a_header_and_a_close(raw: Connect, garbage: bytes) -> None:
    peer = raw()
    peer.send_bytes(garbage)
    assert peer.read_bytes(8) in (AMQP, SASL, HEADER_AMQP091)
    peer.expect_eof()


@pytest.mark.rule("1.0", "transport.2.2.protocol-id")
@pytest.mark.parametrize(
    "asked", [b"AMQP\x01\x01\x00\x00", b"AMQP\x04\x01\x00\x00", b"AMQP\xff\x01\x00\x00"], ids=["1", "4", "255"]
)
def test_an_unknown_protocol_id_is_answered_with_a_known_one_and_a_close(raw: Connect, asked: bytes) -> None:
    peer = raw()
    peer.send_bytes(asked)
    assert peer.read_bytes(8) in (AMQP, SASL, HEADER_AMQP091)
    peer.expect_eof()


# Frames


@pytest.mark.rule("1.0", "transport.2.3.1.size-is-whole")
def test_the_size_of_a_frame_counts_header_extension_and_body(raw: Connect) -> None:
    peer = raw().header()
    opening = encode_composite(Open("c"))
    peer.send_bytes(frame(opening, extended=b"extended", doff=4) + frame(encode_composite(Begin(0, 10, 10))) + frame())
    # The sizes of received frames are right, or the second frame would be read from the wrong position.
    peer.take(Open)
    peer.take(Begin)
    peer.close()


@pytest.mark.rule("1.0", "transport.2.3.1.size-is-whole")
@pytest.mark.rule("1.0", "transport.2.3.1.size-least")
@pytest.mark.rule("1.0", "transport.2.3.1.doff-least")
@pytest.mark.rule("1.0", "transport.connection-error.framing-error.choice")
@pytest.mark.parametrize(("size", "doff"), [(0, 2), (7, 2), (8, 1), (8, 0), (12, 4)])
def test_a_size_smaller_than_the_frame_header_is_malformed(peer: Peer, size: int, doff: int) -> None:
    peer.send_bytes(frame(bytes(4), size=size, doff=doff))
    assert peer.closed_with() == "amqp:connection:framing-error"


@pytest.mark.rule("1.0", "transport.2.3.2.known-performative")
@pytest.mark.rule("1.0", "transport.amqp-error.decode-error.choice")
@pytest.mark.parametrize(
    "body",
    [
        composite(0x19),
        composite(0x41, b"\xa3\x05PLAIN"),
        composite(0x24),
        b"\x40",
        b"\xa1\x02hi",
        b"\x00\xa3\x04amqp\x45",
    ],
    ids=["0x19", "a SASL frame's", "accepted", "null", "string", "unknown symbol"],
)
def test_a_body_that_is_no_performative_closes_the_connection(peer: Peer, body: bytes) -> None:
    peer.send_bytes(frame(body))
    assert peer.closed_with() == "amqp:decode-error"


@pytest.mark.rule("1.0", "transport.2.7.1.first-frame")
@pytest.mark.rule("1.0", "transport.2.4.1.open-before-all")
@pytest.mark.rule("1.0", "transport.amqp-error.illegal-state.choice")
@pytest.mark.parametrize(
    "body", [encode_composite(Begin(0, 10, 10)), encode_composite(Close()), composite(0x17)], ids=["begin", "close", "end"]
)
def test_the_first_frame_is_an_open_in_both_directions(raw: Connect, body: bytes) -> None:
    peer = raw().header()
    peer.send_bytes(frame(body))
    assert peer.closed_with() == "amqp:illegal-state"
    assert isinstance(peer.frames[0].body, Open)


# Close


@pytest.mark.rule("1.0", "transport.2.4.3.close-written")
@pytest.mark.rule("1.0", "transport.2.4.3.close-last")
@pytest.mark.rule("1.0", "transport.2.7.9.orderly")
@pytest.mark.rule("1.0", "transport.2.4.5.empty-before-close")
def test_a_close_is_answered_by_a_close_and_nothing_follows(session: Session, name: str) -> None:
    peer = session.peer
    receiver = session.receiver(name, 10)
    assert receiver.attached.source is not None
    peer.send(Close())
    assert peer.take(Close).error is None
    peer.expect_eof()


@pytest.mark.rule("1.0", "transport.2.4.3.close-written")
@pytest.mark.rule("1.0", "transport.2.7.9.orderly")
@pytest.mark.rule("1.0", "transport.connection-error.connection-forced.choice")
def test_a_stopping_broker_sends_close(own_broker: LeveretProcess, connect: Connect) -> None:
    peer = connect(at=own_broker)
    assert own_broker.process is not None
    own_broker.process.terminate()
    close = peer.take(Close)
    assert close.error is not None
    assert close.error.condition == "amqp:connection:forced"
    peer.send(Close())
    peer.expect_eof(reset=True)


@pytest.mark.rule("1.0", "transport.2.4.3.close-last")
def test_nothing_follows_a_close_with_an_error(session: Session, name: str) -> None:
    peer = session.peer
    session.receiver(name, 100)
    sender = session.sender(name)
    error = frame(composite(0x19))
    peer.send_bytes(error)
    assert peer.closed_with() == "amqp:decode-error"
    assert sender.attached is not None


@pytest.mark.rule("1.0", "transport.2.4.3.close-reads-on")
@pytest.mark.rule("1.0", "transport.2.4.6.discarding")
def test_frames_between_an_error_close_and_its_reply_are_discarded(peer: Peer, begin: BeginSession, name: str) -> None:
    session = peer.begin()
    sender = session.sender(name)
    peer.send(Open("again"))
    for _ in range(10):
        sender.send(settled=True)
    close = peer.take(Close)
    assert close.error is not None
    sender.send(settled=True)
    peer.send(Begin(0, 10, 10, channel=5))
    peer.send_bytes(frame(b"garbage"))
    peer.send(Close())
    peer.expect_eof(reset=True)
    assert not peer.kept(Begin)
    begin().receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "transport.2.4.3.close-timeout")
def test_a_peer_that_never_answers_a_close_is_disconnected(peer: Peer) -> None:
    peer.send(Open("again"))
    peer.take(Close)
    peer.expect_eof(reset=True)


@pytest.mark.rule("1.0", "transport.2.4.3.close-channel")
@pytest.mark.parametrize("channel", [0, 3])
def test_closes_are_sent_on_channel_0(peer: Peer, channel: int) -> None:
    peer.send(Close(channel=channel))
    peer.take(Close)
    assert peer.frames[-1].channel == 0
    peer.expect_eof()


@pytest.mark.rule("1.0", "transport.2.4.3.close-channel-pipelined")
def test_a_close_right_after_the_open_is_on_channel_0(raw: Connect) -> None:
    peer = raw().header()
    peer.send(Open("c", "vhost:there is none"))
    peer.take(Open)
    close = peer.take(Close)
    assert close.error is not None
    assert [item.channel for item in peer.frames] == [0, 0]


@pytest.mark.rule("1.0", "transport.2.4.3.socket-not-reused")
def test_after_a_close_the_socket_is_closed(peer: Peer) -> None:
    peer.close()


# Idle time-out


@pytest.fixture
def impatient(tmp_path: Path) -> LeveretProcess:
    """A broker with an idle time-out of one second."""
    leveret_only("it has settings of its own")
    return LeveretProcess(tmp_path / "impatient", config="[amqp10]\nidle_timeout = 1\n")


@pytest.mark.rule("1.0", "transport.2.4.5.overrun-closes")
def test_a_late_broker_continues_if_the_client_does(own_broker: LeveretProcess, connect: Connect) -> None:
    """The broker was delayed for longer than the client's time-out. The client may close; the broker does not."""
    peer = connect(at=own_broker, idle_time_out=200)
    session = peer.begin()
    os.kill(own_broker.pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(own_broker.pid, signal.SIGCONT)
    while peer.read() is not None:
        pass
    session.sync()
    assert not peer.kept(Close)


@pytest.mark.rule("1.0", "transport.2.4.5.half")
def test_a_silent_peer_gets_a_close_with_the_reason(impatient: LeveretProcess, connect: Connect) -> None:
    with impatient.start():
        peer = connect(at=impatient)
        assert peer.opened is not None
        assert peer.opened.idle_time_out is not None
        assert 0 < peer.opened.idle_time_out <= 1000
        close = peer.take(Close)
        assert close.error is not None
        assert "amqp10.idle_timeout" in (close.error.description or "")
        peer.send(Close())
        peer.expect_eof(reset=True)


@pytest.mark.rule("1.0", "transport.2.4.5.empty-frame-channel")
@pytest.mark.rule("1.0", "transport.2.4.5.empty-channel-ignored")
def test_signs_of_life_are_empty_frames_on_channel_0(connect: Connect) -> None:
    peer = connect(idle_time_out=300)
    session = peer.begin(4)
    for _ in range(3):
        peer.frames.clear()
        assert peer.read() is None
        assert peer.frames[0][:4] == (0, 2, 0, 8)
    # The broker ignores ours, on any channel.
    peer.send_bytes(frame(channel=0) + frame(channel=4) + frame(channel=9))
    session.sync()


@pytest.mark.rule("1.0", "transport.2.4.5.empty-frame-channel-early")
@pytest.mark.rule("1.0", "transport.2.4.5.empty-after-open")
def test_before_the_open_heartbeats_are_accepted_but_not_sent(raw: Connect) -> None:
    """There is no time-out yet, so the broker need not send any."""
    peer = raw().header()
    peer.send_bytes(frame())
    peer.open(idle_time_out=1000)
    assert [type(item.body) for item in peer.frames] == [Open]
    while peer.read() is not None:
        pass
    assert [(item.channel, item.body) for item in peer.frames[1:]] == [(0, None)]


# Limits


@pytest.mark.rule("1.0", "transport.2.7.1.frame-size-kept")
@pytest.mark.rule("1.0", "transport.2.4.1.limits-agreed")
@pytest.mark.parametrize("limit", [512, 1000, 65536])
def test_no_frame_exceeds_the_peers_maximum(connect: Connect, name: str, limit: int) -> None:
    peer = connect(max_frame_size=limit)
    session = peer.begin()
    body = bytes(range(256)) * 500
    session.sender(name).send(message(body), settled=True)
    delivery = session.receiver(name, 10).get()
    assert delivery.body == body
    assert max(item.size for item in peer.frames) <= limit
    # Frames that cannot be split are truncated.
    session.attach("n" * 200, True, source=None)
    session.take(Detach)
    peer.send(Open("again"))
    peer.take(Close)
    assert max(item.size for item in peer.frames) <= limit


@pytest.mark.rule("1.0", "transport.2.7.1.oversized-closes")
@pytest.mark.rule("1.0", "transport.2.7.9.close-says-why")
def test_a_frame_that_is_too_large_closes_the_connection(peer: Peer) -> None:
    assert peer.opened is not None
    peer.send_bytes(frame(size=peer.opened.max_frame_size + 1))
    assert peer.closed_with() == "amqp:connection:framing-error"


@pytest.mark.rule("1.0", "transport.2.7.1.oversized-closes")
@pytest.mark.rule("1.0", "transport.2.7.1.least-frame-size")
def test_frames_of_512_bytes_are_always_accepted(raw: Connect) -> None:
    peer = raw().header()
    opening = encode_composite(Open("c"))
    # The rest is a map that describes the client.
    padded = composite(0x10, "c", None, None, None, None, None, None, None, None, {})
    rest = 512 - 8 - len(padded)
    assert rest > 0 and opening
    peer.send_bytes(frame(padded, extended=bytes(rest // 4 * 4), doff=2 + rest // 4))
    answer = peer.take(Open)
    assert answer.max_frame_size >= 512
    session = peer.begin()
    peer.send_bytes(frame(encode_composite(Flow(10, 0, 10, 0, echo=True)), extended=bytes(400), doff=102))
    session.take(Flow)


@pytest.mark.rule("1.0", "transport.2.7.1.channel-max-kept")
@pytest.mark.rule("1.0", "transport.2.4.1.limits-agreed")
def test_a_peer_with_one_channel_gets_only_that(connect: Connect) -> None:
    peer = connect(channel_max=0)
    session = peer.begin(5)
    assert session.remote == 0
    peer.send(Begin(0, 10, 10, channel=6))
    close = peer.take(Close)
    assert close.error is not None
    assert all(item.channel == 0 for item in peer.frames)


@pytest.mark.rule("1.0", "transport.2.7.1.channel-max-closes")
def test_a_channel_above_channel_max_closes_the_connection(peer: Peer) -> None:
    assert peer.opened is not None
    highest = peer.opened.channel_max
    assert highest < 65535
    session = peer.begin(highest)
    session.end()
    peer.send(Begin(0, 10, 10, channel=highest + 1))
    assert peer.closed_with() == "amqp:connection:framing-error"


@pytest.mark.rule("1.0", "transport.2.7.1.english")
@pytest.mark.parametrize("locales", [(), ("de-DE",), ("fr-FR", "en-US")])
def test_texts_are_english_whatever_the_requested_locale(connect: Connect, locales: tuple[str, ...]) -> None:
    peer = connect(incoming_locales=locales, outgoing_locales=locales)
    assert peer.opened is not None
    assert set(peer.opened.outgoing_locales) <= {"en-US"}
    peer.send(End(channel=0))
    close = peer.take(Close)
    assert close.error is not None
    assert close.error.description == "channel 0 has no session"


@pytest.mark.rule("1.0", "transport.2.7.1.required-capability")
def test_the_broker_needs_no_capability_of_its_clients(connect: Connect) -> None:
    peer = connect(offered_capabilities=(), desired_capabilities=("no-such-capability",))
    assert peer.opened is not None
    assert "no-such-capability" not in peer.opened.offered_capabilities
    peer.begin().end()


@pytest.mark.rule("1.0", "transport.2.4.1.open-channel-0")
def test_an_open_on_another_channel_than_0_closes(raw: Connect) -> None:
    # Section 2.4.1: "the open frame can only be sent on channel 0".
    peer = raw().header()
    opening = Open("conformance")
    opening.channel = 1
    peer.send(opening)
    peer.take(Open)
    assert peer.closed_with() == "amqp:not-allowed"

"""Requirements of AMQP 1.0 without a MUST or SHOULD."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.messaging import Accepted, Header, Source, Target
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from leveret.wire.amqp10.transactions import Discharge
from leveret.wire.amqp10.transport import Attach, Begin, Close, End, Flow, Open
from leveret.wire.amqp10.values import Described, Symbol, ULong
from tests.conformance.amqp10.conftest import Begin as BeginSession
from tests.conformance.amqp10.conftest import Connect
from tests.support.peers.amqp10 import SASL, Peer, Session, composite, frame, message
from tests.support.polling import wait_until

SYMBOL_X = b"\xa3\x01x"


@pytest.mark.rule("1.0", "types.1.1.reserved-descriptors")
@pytest.mark.parametrize(
    "descriptor", [b"\xa1\x0famqp:begin:list", b"\x71\x00\x00\x00\x11", b"\x40"], ids=["string", "int", "null"]
)
def test_a_performative_has_a_symbol_or_a_number_for_a_descriptor(peer: Peer, descriptor: bytes) -> None:
    peer.send_bytes(frame(b"\x00" + descriptor + b"\xc0\x04\x04\x40\x43\x43\x43"))
    assert peer.closed_with() in ("amqp:decode-error", "amqp:connection:framing-error")


@pytest.mark.rule("1.0", "types.1.2.map-even")
@pytest.mark.rule("1.0", "types.1.2.map-unique")
@pytest.mark.parametrize(
    "properties",
    [
        b"\xc1\x04\x01" + SYMBOL_X,
        b"\xc1\x0a\x03" + SYMBOL_X + b"\x40" + SYMBOL_X,
        b"\xc1\x09\x04" + SYMBOL_X + b"\x40" + SYMBOL_X + b"\x41",
    ],
    ids=["one", "three", "twice"],
)
def test_an_invalid_map_closes_the_connection(raw: Connect, properties: bytes) -> None:
    peer = raw().header()
    peer.send_bytes(frame(composite(0x10, "c", *[b"\x40"] * 8, properties)))
    error = peer.take(Close).error
    assert error is not None
    assert error.condition in ("amqp:decode-error", "amqp:invalid-field")


@pytest.mark.rule("1.0", "types.1.3.null-is-empty")
@pytest.mark.parametrize(
    "capabilities",
    [b"\x40", b"\xe0\x02\x00\xa3", b"\xf0\x00\x00\x00\x05\x00\x00\x00\x00\xa3"],
    ids=["null", "array8", "array32"],
)
def test_no_values_are_null_or_an_empty_array(raw: Connect, capabilities: bytes) -> None:
    data = composite(0x10, "c", *[b"\x40"] * 6, capabilities, capabilities)
    decoded = decode_composite(data)[0]
    assert isinstance(decoded, Open)
    assert decoded.offered_capabilities == ()
    peer = raw().header()
    peer.send_bytes(frame(data))
    peer.take(Open)


@pytest.mark.rule("1.0", "transport.2.4.2.pipelined")
def test_pipelining_gives_the_same_result(raw: Connect, name: str) -> None:
    peer = raw()
    peer.send_bytes(b"AMQP\x00\x01\x00\x00")
    peer.send(
        Open(name),
        Begin(0, 10, 10),
        Attach(name, 0, True, source=Source(name), target=Target("here")),
        Flow(10, 0, 10, 0, handle=0, delivery_count=0, link_credit=1),
    )
    assert peer.read_bytes(8) == b"AMQP\x00\x01\x00\x00"
    peer.take(Open)
    assert peer.take(Begin).remote_channel == 0
    assert peer.take(Attach).source is not None


@pytest.mark.rule("1.0", "transport.2.4.5.empty-channel-ignored")
@pytest.mark.rule("1.0", "transport.2.4.5.empty-after-open")
def test_empty_frames_are_accepted_on_any_channel(session: Session) -> None:
    session.peer.send_bytes(frame(channel=9) + frame(channel=session.channel))
    session.sync()


@pytest.mark.rule("1.0", "transport.2.4.5.keep-alive")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux shows the timers of a socket")
def test_accepted_sockets_are_kept_alive_by_tcp(peer: Peer) -> None:
    peer.begin()
    ours, theirs = (name[1] for name in (peer.socket.getsockname(), peer.socket.getpeername()))

    def timer() -> str:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return next(row[5][:2] for row in rows if row[1].endswith(f":{theirs:04X}") and row[2].endswith(f":{ours:04X}"))

    # It is "01" while the last bytes are not acknowledged yet.
    assert wait_until(lambda: (running := timer()) != "01" and running) == "02", "no keep-alive timer"


@pytest.mark.rule("1.0", "transport.2.5.3.ends-crossing")
def test_ends_that_cross_end_the_session(peer: Peer) -> None:
    session = peer.begin()
    # The client sent an end before it received the broker's.
    session.send(Flow(10, 0, 10, 0, handle=9, link_credit=1), End())
    end = session.take(End)
    assert end.error is not None
    again = peer.begin(session.channel)
    again.sync()


@pytest.mark.rule("1.0", "transport.2.5.5.unmapped")
@pytest.mark.parametrize(
    "body", [composite(0x13, b"\x40", b"\x43", b"\x43", b"\x43"), composite(0x17)], ids=["flow", "end"]
)
def test_a_frame_of_no_session_closes_the_connection(peer: Peer, body: bytes) -> None:
    peer.send_bytes(frame(body, 3))
    assert peer.closed_with() != ""


@pytest.mark.rule("1.0", "transport.2.7.1.hostname-default")
def test_without_a_hostname_the_vhost_is_the_default(begin: BeginSession, name: str) -> None:
    begin().sender(name).deliver(message(b"1"))
    receiver = begin(hostname="vhost:/").receiver(name, 1)
    assert receiver.get().body == b"1"


@pytest.mark.rule("1.0", "transport.2.7.3.receivers-count-ignored")
def test_the_initial_count_of_a_receiver_is_ignored(session: Session, name: str) -> None:
    session.sender(name).deliver()
    receiver = session.receiver(name, initial_delivery_count=77)
    receiver.flow(1)
    receiver.accept(receiver.get())


@pytest.mark.rule("1.0", "transport.2.7.5.tag-omitted")
@pytest.mark.rule("1.0", "transport.2.7.5.format-omitted")
def test_a_continuation_omits_optional_fields(session: Session, name: str) -> None:
    sender = session.sender(name)
    whole = message(b"in two frames")
    number = sender.send(whole[:9], more=True)
    sender.transfer(whole[9:])
    assert isinstance(session.outcome(number).state, Accepted)
    assert session.receiver(name, 1).get().body == b"in two frames"


@pytest.mark.rule("1.0", "transport.2.7.5.id-differs")
def test_a_continuation_with_another_id_is_an_error(session: Session, name: str) -> None:
    sender = session.sender(name)
    number = sender.send(message()[:5], more=True)
    sender.transfer(message()[5:], delivery_id=number + 1)
    assert sender.detached_with() == "amqp:invalid-field"


@pytest.mark.rule("1.0", "transport.2.7.5.mode-of-settled-ignored")
def test_the_receivers_mode_of_a_settled_transfer_is_ignored(session: Session, name: str) -> None:
    session.sender(name).send(message(b"s"), settled=True, rcv_settle_mode=1)
    receiver = session.receiver(name, 1)
    assert receiver.get().body == b"s"


@pytest.mark.rule("1.0", "transport.2.7.5.mode-second-only-agreed")
def test_a_transfer_cannot_ask_for_more_than_its_link(session: Session, name: str) -> None:
    sender = session.sender(name, rcv_settle_mode=0)
    sender.send(rcv_settle_mode=1)
    assert sender.detached_with() == "amqp:invalid-field"


@pytest.mark.rule("1.0", "messaging.3.5.3.source-properties-dynamic")
@pytest.mark.rule("1.0", "messaging.3.5.4.target-properties-dynamic")
@pytest.mark.parametrize("role", [False, True], ids=["target", "source"])
def test_properties_of_a_node_that_is_not_dynamic_are_ignored(session: Session, name: str, role: bool) -> None:
    """The client breaks the rule; the specification names no consequence."""
    policy = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}
    if role:
        link: Any = session.receiver(source=Source(name, dynamic_node_properties=policy))
        assert not link.attached.source.dynamic
        assert link.attached.source.address == name
    else:
        link = session.sender(target=Target(name, dynamic_node_properties=policy))
        assert not link.attached.target.dynamic
    link.detach()
    session.receiver(name).nothing()


@pytest.mark.rule("1.0", "messaging.3.2.1.ttl-expires")
def test_a_message_lives_for_its_ttl(session: Session, name: str) -> None:
    sender = session.sender(name)
    sender.deliver(message(b"short", header=Header(ttl=1)))
    sender.deliver(message(b"long", header=Header(ttl=3_600_000)))
    receiver = session.receiver(name)
    time.sleep(0.01)
    receiver.flow(2)
    assert receiver.get().body == b"long"
    receiver.nothing()


@pytest.mark.rule("1.0", "transactions.4.2.not-resumed")
def test_a_control_link_has_no_state(session: Session, name: str) -> None:
    controller = session.controller(name=name)
    id = controller.declare()
    controller.link.detach(closed=False)
    again = session.controller(name=name)
    assert again.link.attached.unsettled is None
    rejected = again.discharge(id)
    assert rejected.error.condition == "amqp:transaction:unknown-id"


@pytest.mark.rule("1.0", "transactions.4.3.settled-discharge")
def test_a_settled_discharge_detaches(session: Session) -> None:
    controller = session.controller()
    controller.send(Discharge(controller.declare()), settled=True)
    assert controller.link.detached_with() == "amqp:not-allowed"


@pytest.mark.rule("1.0", "security.5.3.1.one-body")
@pytest.mark.parametrize("more", [composite(0x41, SYMBOL_X), b"\x00"], ids=["another", "a byte"])
def test_a_sasl_frame_has_one_performative(raw: Connect, more: bytes) -> None:
    peer = raw().header(SASL)
    peer.take(SaslMechanisms)
    peer.send_bytes(frame(composite(0x41, b"\xa3\x05PLAIN", b"\xa0\x0c\x00guest\x00guest") + more, type=1))
    peer.expect_eof(reset=True)


@pytest.mark.rule("1.0", "security.5.3.3.anonymous-alone")
def test_the_mechanisms_show_whether_a_login_is_needed(raw: Connect) -> None:
    peer = raw().header(SASL)
    offered = peer.take(SaslMechanisms).sasl_server_mechanisms
    assert "PLAIN" in offered
    peer.send(SaslInit("ANONYMOUS"))
    assert (peer.take(SaslOutcome).code == 0) == ("ANONYMOUS" in offered)

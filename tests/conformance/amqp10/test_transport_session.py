"""Sessions: begin, end, windows, handles, dispositions (transport sections 2.5, 2.7.2, 2.7.4, 2.7.6)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.messaging import Accepted, Released, Source, Target
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, Disposition, End, Flow, Transfer
from tests.conformance.amqp10.conftest import Begin as BeginSession
from tests.conformance.amqp10.conftest import Connect
from tests.support.peers.amqp10 import Peer, Session, frame, message


@pytest.mark.rule("1.0", "transport.2.5.1.answer-names-channel")
@pytest.mark.rule("1.0", "transport.2.7.2.answer-names-channel")
def test_the_answer_to_a_begin_names_its_channel(peer: Peer) -> None:
    for channel in (7, 3, 200):
        peer.send(Begin(0, 10, 10, channel=channel))
        assert peer.take(Begin).remote_channel == channel


@pytest.mark.rule("1.0", "transport.2.5.1.initiator-names-none")
@pytest.mark.rule("1.0", "transport.2.7.2.initiator-names-none")
@pytest.mark.rule("1.0", "transport.amqp-error.not-allowed.choice")
def test_an_unexpected_remote_channel_closes_the_connection(peer: Peer) -> None:
    """The broker begins no sessions, so there is no begin to reply to."""
    peer.send(Begin(0, 10, 10, remote_channel=0))
    assert peer.closed_with() == "amqp:not-allowed"
    assert not peer.kept(Begin)


ERRORS: dict[str, tuple[Any, str]] = {
    "unattached flow": (lambda: Flow(10, 0, 10, 0, handle=9, link_credit=1), "amqp:session:unattached-handle"),
    "unattached transfer": (lambda: Transfer(9, 0, b"t", 0, payload=b""), "amqp:session:unattached-handle"),
    "unattached detach": (lambda: Detach(9, True), "amqp:session:unattached-handle"),
    "backward disposition": (lambda: Disposition(True, 5, 4, True, Accepted()), "amqp:invalid-field"),
}


@pytest.mark.rule("1.0", "transport.2.5.4.error-ends")
@pytest.mark.rule("1.0", "transport.2.7.4.unattached-handle")
@pytest.mark.rule("1.0", "transport.2.7.8.end-says-why")
@pytest.mark.rule("1.0", "transport.session-error.unattached-handle.choice")
@pytest.mark.parametrize("error", ERRORS)
def test_an_invalid_frame_ends_the_session(peer: Peer, error: str) -> None:
    other = peer.begin()
    session = peer.begin()
    make, condition = ERRORS[error]
    session.send(make())
    end = session.take(End)
    assert end.error is not None
    assert (end.error.condition, bool(end.error.description)) == (condition, True)
    other.sync()


@pytest.mark.rule("1.0", "transport.2.5.4.error-discards")
@pytest.mark.rule("1.0", "transport.2.5.5.discarding")
@pytest.mark.rule("1.0", "transport.2.5.5.end-sent")
def test_after_an_end_with_an_error_all_but_end_is_discarded(peer: Peer, name: str) -> None:
    session = peer.begin()
    sender = session.sender(name)
    session.flow(handle=77, link_credit=1)
    assert session.take(End).error is not None
    sender.send(message(b"lost"))
    session.flow(handle=5, link_credit=1)
    session.attach("more", False, target=None, initial_delivery_count=0)
    session.send(End())
    # The channel is free now, and the discarded frames had no reply.
    again = peer.begin(session.channel)
    again.receiver(name, 10).nothing()
    assert not peer.kept(Attach) and not peer.kept(Disposition) and not peer.kept(Close)


@pytest.mark.rule("1.0", "transport.2.5.6.outgoing-counted")
def test_transfers_are_limited_by_the_window(begin: BeginSession, name: str) -> None:
    session = begin()
    sender = session.sender(name)
    for _ in range(10):
        sender.send(settled=True)
    small = session.peer.begin(incoming_window=3)
    receiver = small.receiver(name)
    receiver.flow(10, incoming_window=3)
    for _ in range(3):
        receiver.get()
    small.flow(incoming_window=0, echo=True)
    seen = small.take(Flow, lambda item: item.handle is None)
    assert (seen.next_outgoing_id - small.begun.next_outgoing_id) % 2**32 == 3
    assert not small.peer.kept(Transfer)
    small.flow(incoming_window=2)
    for _ in range(2):
        receiver.get()
    small.flow(incoming_window=0, echo=True)
    small.take(Flow, lambda item: item.handle is None)
    assert not small.peer.kept(Transfer)


@pytest.mark.rule("1.0", "transport.2.5.6.outgoing-counted")
def test_frames_of_a_large_message_count_each(connect: Connect, name: str) -> None:
    peer = connect(max_frame_size=1000)
    session = peer.begin()
    session.sender(name).send(message(bytes(5000)), settled=True)
    small = peer.begin(incoming_window=2)
    receiver = small.receiver(name)
    receiver.flow(10, incoming_window=2)
    first = [small.take(Transfer) for _ in range(2)]
    assert all(item.more for item in first)
    small.next_incoming += 2
    small.flow(incoming_window=0, echo=True)
    small.take(Flow, lambda item: item.handle is None)
    assert not peer.kept(Transfer)
    small.flow(incoming_window=100)
    while small.take(Transfer).more:
        pass


@pytest.mark.rule("1.0", "transport.2.5.6.flow-updates")
@pytest.mark.parametrize("start", [0, 500, 2**32 - 1])
def test_a_flow_has_the_next_transfer_id(peer: Peer, name: str, start: int) -> None:
    session = peer.begin(next_outgoing_id=start)
    sender = session.sender(name)
    assert sender.credited.next_incoming_id == start
    sender.send(settled=True)
    session.flow(next_outgoing_id=(start + 1) % 2**32, echo=True)
    assert session.take(Flow, lambda item: item.handle is None).next_incoming_id == (start + 1) % 2**32
    session.flow(next_outgoing_id=(start + 100) % 2**32, echo=True)
    assert session.take(Flow, lambda item: item.handle is None).next_incoming_id == (start + 100) % 2**32


# Handles


@pytest.mark.rule("1.0", "transport.2.7.2.handle-max-kept")
@pytest.mark.rule("1.0", "transport.amqp-error.resource-limit-exceeded.choice")
def test_a_peer_with_one_handle_gets_only_that(peer: Peer, name: str) -> None:
    session = peer.begin(handle_max=0)
    sender = session.sender(name)
    assert sender.attached.handle == 0
    session.attach("second", True, source=None)
    assert session.ended_with() == "amqp:resource-limit-exceeded"
    assert not peer.kept(Attach)


@pytest.mark.rule("1.0", "transport.2.7.2.handle-max-closes")
def test_a_handle_above_handle_max_closes_the_connection(peer: Peer) -> None:
    session = peer.begin()
    session.attach("high", True, source=None, handle=session.begun.handle_max + 1)
    assert peer.closed_with() == "amqp:connection:framing-error"


# Flows


@pytest.mark.rule("1.0", "transport.2.7.4.needs-handle-delivery-count")
@pytest.mark.rule("1.0", "transport.2.7.4.needs-handle-link-credit")
@pytest.mark.rule("1.0", "transport.2.7.4.needs-handle-available")
@pytest.mark.rule("1.0", "transport.2.7.4.needs-handle-drain")
def test_flows_of_a_session_have_no_link_fields(session: Session, name: str) -> None:
    session.receiver(name)
    session.flow(echo=True)
    flow = session.take(Flow, lambda item: item.handle is None)
    assert (flow.delivery_count, flow.link_credit, flow.available) == (None, None, None)
    assert not flow.drain


@pytest.mark.rule("1.0", "transport.2.7.4.needs-handle-delivery-count")
@pytest.mark.rule("1.0", "transport.2.7.4.needs-handle-link-credit")
@pytest.mark.rule("1.0", "transport.2.7.4.needs-handle-available")
@pytest.mark.rule("1.0", "transport.2.7.4.needs-handle-drain")
def test_link_fields_of_a_flow_without_a_handle_are_ignored(session: Session, name: str) -> None:
    sender = session.sender(name)
    for _ in range(3):
        sender.send(settled=True)
    receiver = session.receiver(name)
    session.flow(delivery_count=0, link_credit=10, available=5, drain=True)
    receiver.nothing()
    receiver.flow(1)
    receiver.get()
    receiver.nothing()


@pytest.mark.rule("1.0", "transport.2.7.4.sender-count")
def test_a_flow_of_the_brokers_sender_has_its_delivery_count(session: Session, name: str) -> None:
    sender = session.sender(name)
    for _ in range(3):
        sender.send(settled=True)
    receiver = session.receiver(name, 5)
    initial = receiver.attached.initial_delivery_count
    assert initial is not None
    for _ in range(3):
        receiver.get()
    session.flow(handle=receiver.handle, echo=True)
    flow = session.take(Flow, lambda item: item.handle == receiver.attached.handle)
    assert flow.delivery_count == (initial + 3) % 2**32


@pytest.mark.rule("1.0", "transport.2.7.4.receiver-count")
@pytest.mark.rule("1.0", "transport.2.7.4.unknown-count")
def test_a_flow_of_the_brokers_receiver_has_the_count_of_the_sender(session: Session, name: str) -> None:
    """It is always known: the broker's receivers send nothing before the sender's attach."""
    start = 2**32 - 2
    counted = session.attach("counted", False, source=Source("here"), target=Target(name), initial_delivery_count=start)
    attached = session.take(Attach)
    first = session.take(Flow, lambda item: item.handle == attached.handle)
    assert first.delivery_count == start
    for number in range(3):
        session.send(Transfer(counted.handle, number, b"%d" % number, 0, True, payload=message()))
    session.next_id = 3
    session.flow(handle=counted.handle, delivery_count=(start + 3) % 2**32, echo=True)
    assert session.take(Flow, lambda item: item.handle == attached.handle).delivery_count == 1
    # The sender's flow reveals skipped deliveries.
    session.flow(handle=counted.handle, delivery_count=5, echo=True)
    assert session.take(Flow, lambda item: item.handle == attached.handle).delivery_count == 5


# Dispositions


@pytest.mark.rule("1.0", "transport.2.7.6.one-direction")
def test_a_disposition_affects_one_direction_only(session: Session, name: str) -> None:
    """The first deliveries in both directions have the same id."""
    sender = session.sender(name, rcv_settle_mode=1)
    sent = sender.send(message(b"x"))
    answer = session.outcome(sent)
    assert (answer.role, answer.settled) == (True, False)
    receiver = session.receiver(name, 10)
    delivery = receiver.get()
    assert (delivery.id, sent) == (0, 0)
    # As the sender of id 0, the peer settles the delivery that it sent, not the one that it received.
    session.dispose(0, state=Released(), role=False)
    receiver.nothing()
    session.dispose(0, state=Released(), role=True)
    again = receiver.get()
    assert again.body == b"x"
    receiver.accept(again)
    receiver.nothing()


@pytest.mark.rule("1.0", "transport.2.5.4.error-ends")
def test_a_malformed_frame_closes_the_connection(peer: Peer) -> None:
    """A frame that cannot be decoded closes the connection."""
    session = peer.begin()
    data = encode_composite(Flow(10, 0, 10, 0))
    peer.send_bytes(frame(data + b"\x40", session.channel))
    assert peer.closed_with() == "amqp:decode-error"

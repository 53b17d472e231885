"""Outcomes of deliveries (messaging section 3.4), and final settlement (3.5.2)."""

from __future__ import annotations

import pytest

from leveret.wire.amqp10.messaging import Accepted, Modified, Received, Rejected, Released, Source, Target
from leveret.wire.amqp10.transport import Attach, Detach, Error
from leveret.wire.amqp10.values import Described, Symbol
from tests.conformance.amqp10.conftest import Begin
from tests.support.peers.amqp10 import Delivery, Peer, Receiver, Session, composite, frame, header_of, message
from tests.support.peers.amqp10 import name as name_of


@pytest.fixture
def receiver(session: Session, name: str) -> Receiver:
    """Return a receiver of a queue with one message."""
    session.sender(name).deliver(message(b"x"))
    return session.receiver(name, 1)


def again(receiver: Receiver, delivery: Delivery, state: object) -> Delivery:
    """Return the redelivery after this outcome."""
    receiver.session.dispose(delivery.id, state=state)
    receiver.flow(1)
    found = receiver.get()
    assert found.body == delivery.body
    return found


@pytest.mark.rule("1.0", "messaging.3.4.4.released-not-counted")
def test_released_does_not_count_as_a_failure(receiver: Receiver) -> None:
    delivery = receiver.get()
    for _ in range(3):
        delivery = again(receiver, delivery, Released())
        assert not header_of(delivery.payload).delivery_count


@pytest.mark.rule("1.0", "messaging.3.4.5.failed-counted")
def test_modified_with_delivery_failed_counts(receiver: Receiver) -> None:
    delivery = receiver.get()
    for count in (1, 2, 3):
        delivery = again(receiver, delivery, Modified(True))
        assert header_of(delivery.payload).delivery_count == count
    delivery = again(receiver, delivery, Modified(False))
    assert header_of(delivery.payload).delivery_count == 3


@pytest.mark.rule("1.0", "messaging.3.4.5.not-here-again")
@pytest.mark.parametrize("failed", [True, False])
def test_modified_with_undeliverable_here_is_redelivered_to_others_only(
    receiver: Receiver, begin: Begin, name: str, failed: bool
) -> None:
    session = receiver.session
    session.dispose(receiver.get().id, state=Modified(failed, True))
    receiver.flow(10)
    receiver.nothing()
    other = begin().receiver(name, 1)
    delivery = other.get()
    assert header_of(delivery.payload).delivery_count in ((1,) if failed else (None, 0))
    # After another receiver released it, it is still not delivered to the one that refused it.
    other.session.dispose(delivery.id, state=Released())
    other.session.sync()
    receiver.nothing()
    other.flow(1)
    other.accept(other.get())


@pytest.mark.rule("1.0", "messaging.3.4.3.not-spontaneous")
@pytest.mark.rule("1.0", "transport.amqp-error.internal-error.choice")
def test_only_the_receiver_rejects_messages(session: Session, name: str) -> None:
    """A delivery without an outcome is released, however the link ends."""
    session.sender(name).deliver(message(b"x"))
    receiver = session.receiver(name, 1)
    receiver.get()
    receiver.detach()
    receiver = session.receiver(name, 1)
    receiver.get()
    session.end()
    other = session.peer.begin()
    receiver = other.receiver(name, 1)
    delivery = receiver.get()
    assert delivery.body == b"x"
    other.dispose(delivery.id, state=Rejected(Error("amqp:internal-error")))
    receiver.flow(1)
    receiver.nothing()


@pytest.mark.rule("1.0", "messaging.3.5.2.no-second-time")
@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_accepted_messages_are_never_sent_again(session: Session, begin: Begin, name: str, second: bool) -> None:
    sender = session.sender(name)
    for _ in range(3):
        sender.deliver()
    receiver = session.receiver(name, 3, rcv_settle_mode=int(second))
    deliveries = [receiver.get() for _ in range(3)]
    for delivery in deliveries:
        session.dispose(delivery.id, state=Accepted(), settled=not second)
    if second:
        for delivery in deliveries:
            assert session.outcome(delivery.id, role=False).settled
    session.sync()
    receiver.detach()
    session.receiver(name, 10).nothing()
    session.peer.close()
    begin().receiver(name, 10).nothing()


# Default outcomes (3.5.3)


@pytest.mark.rule("1.0", "messaging.3.5.3.default-is-outcome")
@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (Accepted(), False),
        (Released(), True),
        (Modified(True), True),
        (Rejected(), False),
    ],
    ids=name_of,
)
def test_the_default_outcome_is_that_of_the_source(session: Session, name: str, outcome: object, kept: bool) -> None:
    session.sender(name).deliver(message(b"x"))
    receiver = session.receiver(source=Source(name, default_outcome=outcome), credit=1)
    assert type(receiver.attached.source.default_outcome) is type(outcome)
    delivery = receiver.get()
    session.dispose(delivery.id)  # settled, and no state
    session.sync()
    other = session.receiver(name, 1)
    if kept:
        assert header_of(other.get().payload).delivery_count == (1 if isinstance(outcome, Modified) else None)
    else:
        other.nothing()


@pytest.mark.rule("1.0", "messaging.3.5.3.default-is-outcome")
def test_a_delivery_state_that_is_no_outcome_is_no_default(peer: Peer, name: str) -> None:
    session = peer.begin()
    source = composite(0x28, name, *[None] * 7, Received(0, 0))
    peer.send_bytes(frame(composite(0x12, "l", b"\x43", True, None, None, source, Target("here")), session.channel))
    assert peer.closed_with() == "amqp:decode-error"


@pytest.mark.rule("1.0", "messaging.3.5.3.default-is-outcome")
def test_an_unknown_default_outcome_is_refused(session: Session, name: str) -> None:
    outcome = Described(Symbol("no:such:outcome"), [])
    session.attach("l", True, source=Source(name, default_outcome=outcome), target=Target("here"))
    assert session.take(Attach).source is None
    detach = session.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:invalid-field"


@pytest.mark.rule("1.0", "messaging.3.5.3.outcomes-are-outcomes")
def test_the_outcomes_of_the_brokers_sources_are_outcomes(session: Session, name: str) -> None:
    known = {"amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"}
    assert set(session.receiver(name).attached.source.outcomes) == known
    wished = session.receiver(source=Source(name, outcomes=("amqp:accepted:list", "amqp:released:list")))
    assert wished.attached.source.outcomes == ("amqp:accepted:list", "amqp:released:list")
    strange = session.receiver(source=Source(name, outcomes=("amqp:accepted:list", "no:such:outcome")))
    assert strange.attached.source.outcomes == ("amqp:accepted:list",)

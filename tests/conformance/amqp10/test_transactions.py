"""Transactions: declare, discharge, posting, retirement, acquisition (transactions part)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.messaging import Accepted, Header, Properties, Rejected, Released, Source, Target
from leveret.wire.amqp10.transactions import Declare, Declared, Discharge, TransactionalState
from leveret.wire.amqp10.transport import Disposition, Flow, Transfer
from leveret.wire.amqp10.values import Symbol
from tests.conformance.amqp10.conftest import Begin, Connect
from tests.support.peers.amqp091 import Channel
from tests.support.peers.amqp10 import Receiver, Session, body_of, describe, header_of, message, section, under

ONLY_ACCEPTED = Source("here", outcomes=("amqp:accepted:list",))


def rejected(state: Any) -> str:
    """The condition of a rejected state."""
    assert isinstance(state, Rejected) and state.error is not None, describe(state)
    return str(state.error.condition)


def filled(begin: Begin, name: str, *bodies: bytes) -> None:
    session = begin()
    sender = session.sender(name)
    for body in bodies:
        sender.deliver(message(body))


# The coordinator (4.2, 4.3)


@pytest.mark.rule("1.0", "transactions.4.2.only-the-body")
def test_only_the_body_of_a_declare_counts(session: Session) -> None:
    controller = session.controller()
    value = b"\x00\x53\x77" + encode_composite(Declare())
    number = controller.link.send(
        encode_composite(Header(True, 9, 1, True, 7))
        + section(0x71, {Symbol("x-opt-a"): 1})
        + section(0x72, {Symbol("x-opt-b"): 1})
        + encode_composite(Properties("id", b"other", "elsewhere", "subject"))
        + section(0x74, {"application": 1})
        + value
        + section(0x78, {Symbol("x-opt-c"): 1})
    )
    assert isinstance(session.outcome(number).state, Declared)


@pytest.mark.rule("1.0", "transactions.4.2.declare-unsettled")
@pytest.mark.rule("1.0", "transactions.4.2.settled-declare-detaches")
def test_a_declare_that_is_settled_detaches(session: Session) -> None:
    controller = session.controller()
    controller.send(Declare(), settled=True)
    assert controller.link.detached_with() == "amqp:not-allowed"


@pytest.mark.rule("1.0", "transactions.4.2.declare-error")
@pytest.mark.rule("1.0", "transactions.4.2.declare-rejected")
@pytest.mark.rule("1.0", "transactions.4.5.2.global-id-joins")
@pytest.mark.rule("1.0", "transactions.4.5.2.global-id-capability")
@pytest.mark.rule("1.0", "transactions.txn-capability.distributed-transactions.choice")
def test_a_declare_that_fails_is_rejected(session: Session) -> None:
    """The coordinator does not support global transactions, and offers no such capability."""
    controller = session.controller()
    assert "amqp:distributed-transactions" not in controller.link.attached.target.capabilities
    assert rejected(session.outcome(controller.send(Declare(b"global"))).state) == "amqp:not-implemented"
    controller.declare()


@pytest.mark.rule("1.0", "transactions.4.2.declare-error")
@pytest.mark.rule("1.0", "transactions.4.2.declare-detaches")
def test_a_declare_that_fails_and_cannot_be_rejected_detaches(session: Session) -> None:
    controller = session.controller(source=ONLY_ACCEPTED)
    controller.send(Declare(b"global"))
    assert controller.link.detached_with() == "amqp:not-implemented"


@pytest.mark.rule("1.0", "transactions.4.3.discharge-error")
@pytest.mark.rule("1.0", "transactions.4.3.discharge-rejected")
@pytest.mark.rule("1.0", "transactions.transaction-error.unknown-id.choice")
def test_a_discharge_that_fails_is_rejected(session: Session) -> None:
    controller = session.controller()
    assert rejected(controller.discharge(b"nothing")) == "amqp:transaction:unknown-id"
    id = controller.declare()
    assert isinstance(controller.discharge(id), Accepted)
    assert rejected(controller.discharge(id)) == "amqp:transaction:unknown-id"


@pytest.mark.rule("1.0", "transactions.4.3.discharge-error")
@pytest.mark.rule("1.0", "transactions.4.3.discharge-detaches")
def test_a_discharge_that_fails_and_cannot_be_rejected_detaches(session: Session) -> None:
    controller = session.controller(source=ONLY_ACCEPTED)
    controller.send(Discharge(b"nothing"))
    assert controller.link.detached_with() == "amqp:transaction:unknown-id"


@pytest.mark.rule("1.0", "transactions.4.3.rollback-succeeds")
def test_a_rollback_succeeds_even_if_a_commit_would_not(
    session: Session, channel0: Callable[..., Channel], name: str
) -> None:
    channel0().queue(name, exclusive=False, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    controller = session.controller()
    sender = session.sender(name)
    outcomes = []
    for fail in (False, True):
        id = controller.declare()
        for _ in range(3):
            session.outcome(sender.send(state=under(id)))
        outcomes.append(controller.discharge(id, fail))
    assert rejected(outcomes[0]) == "amqp:transaction:rollback"
    assert isinstance(outcomes[1], Accepted)
    session.receiver(name, 10).nothing()


# Work (4.4)


@pytest.mark.rule("1.0", "transactions.4.4.txn-id-right")
@pytest.mark.rule("1.0", "transactions.4.4.4.1.outcome-determined")
@pytest.mark.rule("1.0", "transactions.4.4.4.1.outcome-told")
@pytest.mark.rule("1.0", "transactions.4.4.4.1.outcome-under-transaction")
def test_the_outcome_of_a_posting_is_sent_under_its_transaction_before_the_discharge(session: Session, name: str) -> None:
    controller = session.controller()
    ids = [controller.declare() for _ in range(3)]
    assert len(set(ids)) == 3
    sender = session.sender(name)
    for id in [*ids, *reversed(ids)]:
        state = session.outcome(sender.send(message(durable=True), state=under(id))).state
        assert isinstance(state, TransactionalState)
        assert (state.txn_id, type(state.outcome)) == (id, Accepted)
    session.receiver(name, 10).nothing()
    # And for an unroutable message.
    nowhere = session.sender("/exchanges/amq.direct/nowhere")
    state = session.outcome(nowhere.send(state=under(ids[0]))).state
    assert (state.txn_id, type(state.outcome)) == (ids[0], Released)


@pytest.mark.rule("1.0", "transactions.4.4.1.every-frame")
@pytest.mark.rule("1.0", "transactions.4.4.txn-id-right")
def test_a_delivery_whose_frames_name_two_transactions_detaches(session: Session, name: str) -> None:
    controller = session.controller()
    first, second = controller.declare(), controller.declare()
    sender = session.sender(name)
    sender.transfer(
        b"\x00\x53\x75", delivery_id=session.next_id, delivery_tag=b"t", message_format=0, more=True, state=under(first)
    )
    sender.transfer(b"\xa0\x01x", state=under(second))
    assert sender.detached_with() == "amqp:invalid-field"


@pytest.mark.rule("1.0", "transactions.4.4.1.partial-ends-link")
@pytest.mark.rule("1.0", "transactions.transaction-error.transaction-rollback.choice")
def test_a_discharge_amid_a_delivery_ends_the_control_link(session: Session, name: str) -> None:
    controller = session.controller()
    id = controller.declare()
    sender = session.sender(name)
    sender.send(state=under(id), settled=True)
    sender.transfer(
        b"\x00\x53\x75", delivery_id=session.next_id, delivery_tag=b"t", message_format=0, more=True, state=under(id)
    )
    session.next_id += 1
    controller.send(Discharge(id))
    assert controller.link.detached_with() == "amqp:transaction:rollback"
    session.receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "transactions.4.4.2.one-transaction")
@pytest.mark.rule("1.0", "transactions.4.4.2.two-end-link")
def test_an_outcome_under_two_transactions_ends_the_control_link(session: Session, begin: Begin, name: str) -> None:
    filled(begin, name, b"x")
    controller = session.controller()
    first, second = controller.declare(), controller.declare()
    receiver = session.receiver(name, 1)
    delivery = receiver.get()
    session.dispose(delivery.id, state=under(first, Accepted()), settled=False)
    session.dispose(delivery.id, state=under(second, Released()), settled=False)
    assert controller.link.detached_with() == "amqp:transaction:rollback"


# Settlement (4.4.4)


@pytest.mark.rule("1.0", "transactions.4.4.4.1.settled-failure")
def test_a_settled_posting_that_cannot_be_done_fails_the_discharge(session: Session, name: str) -> None:
    controller = session.controller()
    id = controller.declare()
    session.sender(name).send(message(b"good"), state=under(id), settled=True)
    sender = session.sender(target=Target(None))
    sender.send(message(b"bad", properties=Properties(to="/queues/there.is.none")), state=under(id), settled=True)
    assert sender.detached_with() == "amqp:not-found"
    assert rejected(controller.discharge(id)) == "amqp:transaction:rollback"
    session.receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "transactions.4.4.4.1.outcome-lost")
def test_an_outcome_that_is_no_longer_possible_fails_the_discharge(
    session: Session, begin: Begin, channel0: Callable[..., Channel], name: str
) -> None:
    channel0().queue(name, exclusive=False, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    controller = session.controller()
    id = controller.declare()
    state = session.outcome(session.sender(name).send(state=under(id))).state
    assert isinstance(state.outcome, Accepted)
    filled(begin, name, b"first")  # the queue is full now
    assert rejected(controller.discharge(id)) == "amqp:transaction:rollback"
    receiver = session.receiver(name, 10)
    assert receiver.get().body == b"first"
    receiver.nothing()


@pytest.mark.rule("1.0", "transactions.4.4.4.1.outcome-afterwards")
def test_after_the_discharge_unsettled_postings_have_the_outcome_itself(session: Session, name: str) -> None:
    """With receiver settle mode second they are still unsettled then."""
    controller = session.controller()
    sender = session.sender(name, rcv_settle_mode=1)
    id = controller.declare()
    number = sender.send(state=under(id))
    before = session.outcome(number)
    assert (before.settled, type(before.state)) == (False, TransactionalState)
    assert isinstance(controller.discharge(id), Accepted)
    after = session.outcome(number)
    assert (after.settled, type(after.state)) == (False, Accepted)
    session.dispose(number, state=Accepted(), role=False)
    session.sync()
    session.receiver(name, 1).get()


@pytest.mark.rule("1.0", "transactions.4.4.4.1.outcome-afterwards")
@pytest.mark.rule("1.0", "transactions.4.4.4.1.failed-no-outcome")
def test_after_a_roll_back_postings_have_no_outcome(session: Session, name: str) -> None:
    controller = session.controller()
    sender = session.sender(name, rcv_settle_mode=1)
    id = controller.declare()
    number = sender.send(state=under(id))
    assert not session.outcome(number).settled
    assert isinstance(controller.discharge(id, True), Accepted)
    session.sync()
    said = [item for item in [*session.dispositions, *session.peer.kept(Disposition)] if item.first == number]
    assert not [item for item in said if isinstance(item.state, Accepted)]
    session.receiver(name, 1).nothing()


@pytest.mark.rule("1.0", "transactions.4.4.4.2.settled-default")
@pytest.mark.parametrize(
    ("default", "kept"), [(None, True), (Accepted(), False), (Released(), True)], ids=["none", "accepted", "released"]
)
def test_after_a_roll_back_settled_retirements_get_the_default_outcome(
    session: Session, begin: Begin, name: str, default: Any, kept: bool
) -> None:
    filled(begin, name, b"x")
    controller = session.controller()
    id = controller.declare()
    receiver = session.receiver(source=Source(name, default_outcome=default), credit=1)
    session.dispose(receiver.get().id, state=under(id, Rejected()), settled=True)
    assert isinstance(controller.discharge(id, True), Accepted)
    other = session.receiver(name, 1)
    if kept:
        assert header_of(other.get().payload).delivery_count == (1 if default is None else None)
    else:
        other.nothing()


@pytest.mark.rule("1.0", "section.transactions.4.4.4.2.settlement")
def test_the_broker_settles_retirements_that_the_controller_left(session: Session, begin: Begin, name: str) -> None:
    filled(begin, name, b"x", b"y")
    controller = session.controller()
    id = controller.declare()
    receiver = session.receiver(name, 2)
    first, second = receiver.get(), receiver.get()
    session.dispose(first.id, state=under(id, Accepted()), settled=False)
    session.dispose(second.id, state=under(id, Accepted()), settled=True)
    receiver.nothing()
    assert isinstance(controller.discharge(id), Accepted)
    answer = session.outcome(first.id, role=False)
    assert (answer.settled, type(answer.state)) == (True, Accepted)
    receiver.detach()
    session.receiver(name, 2).nothing()


# Acquisition (4.4.3, 4.4.4.3)


def credit(receiver: Receiver, id: bytes, count: int = 10, **options: Any) -> None:
    """Grant credit for deliveries that are acquired under a transaction."""
    receiver.flow(count, properties={Symbol("txn-id"): id}, **options)


@pytest.mark.rule("1.0", "transactions.4.4.txn-id-right")
def test_transactional_acquisitions_name_the_transaction(session: Session, begin: Begin, name: str) -> None:
    filled(begin, name, b"1", b"2", b"3")
    controller = session.controller()
    first, second = controller.declare(), controller.declare()
    receivers = [session.receiver(name), session.receiver(name), session.receiver(name)]
    credit(receivers[0], first, 1)
    credit(receivers[1], second, 1)
    receivers[2].flow(1)
    states = [receiver.get().transfers[0].state for receiver in receivers]
    assert [getattr(state, "txn_id", None) for state in states] == [first, second, None]
    # So does a flow say under which transaction the link will acquire.
    session.flow(handle=receivers[0].handle, echo=True, properties={Symbol("txn-id"): first})
    flow = session.take(Flow, lambda item: item.handle == receivers[0].attached.handle)
    assert flow.properties[Symbol("txn-id")] == first


@pytest.mark.rule("1.0", "transactions.4.4.3.acquisition-refused")
def test_a_link_that_cannot_acquire_under_a_transaction_detaches(session: Session, begin: Begin, name: str) -> None:
    """A browsing link acquires nothing at all."""
    filled(begin, name, b"1")
    controller = session.controller()
    receiver = session.receiver(source=Source(name, distribution_mode="copy"))
    credit(receiver, controller.declare())
    assert receiver.detached_with() == "amqp:not-implemented"
    assert not session.peer.kept(Transfer)


@pytest.mark.rule("1.0", "transactions.4.4.3.partial-acquisition")
@pytest.mark.rule("1.0", "transactions.4.4.3.partial-acquisition-ends")
@pytest.mark.rule("1.0", "transport.2.7.5.aborted-without-more")
@pytest.mark.parametrize("settled", [False, True])
def test_a_roll_back_amid_a_delivery_aborts_it_before_it_is_answered(
    connect: Connect, begin: Begin, name: str, settled: bool
) -> None:
    filled(begin, name, bytes(100_000))
    session = connect(max_frame_size=4096).begin(incoming_window=4)
    controller = session.controller()
    id = controller.declare()
    receiver = session.receiver(name, snd_settle_mode=int(settled))
    credit(receiver, id, 1, incoming_window=4)
    frames = [session.take(Transfer) for _ in range(4)]
    assert frames[-1].more
    session.next_incoming += 4
    number = controller.send(Discharge(id, True))
    session.flow(incoming_window=1000)
    last = session.take(Transfer)
    while last.more and not last.aborted:
        last = session.take(Transfer)
    assert last.aborted and not last.more
    assert isinstance(session.outcome(number).state, Accepted)
    bodies = [item.body for item in session.peer.frames]
    answers = [
        index for index, body in enumerate(bodies) if isinstance(body, Disposition) and body.role and body.first == number
    ]
    assert answers and min(answers) > bodies.index(last)
    assert not session.peer.kept(Transfer)
    # The discharge decided its outcome.
    assert session.peer.begin().receiver(name, 1).get().body == bytes(100_000)


@pytest.mark.rule("1.0", "transactions.4.4.3.partial-acquisition")
def test_a_commit_amid_a_delivery_acquires_it_for_good(connect: Connect, begin: Begin, name: str) -> None:
    filled(begin, name, bytes(100_000))
    session = connect(max_frame_size=4096).begin(incoming_window=4)
    controller = session.controller()
    id = controller.declare()
    receiver = session.receiver(name)
    credit(receiver, id, 1, incoming_window=4)
    frames = [session.take(Transfer) for _ in range(4)]
    session.next_incoming += 4
    number = frames[0].delivery_id
    assert number is not None
    session.dispose(number, state=under(id, Accepted()), settled=False)
    assert isinstance(controller.discharge(id), Accepted)
    session.flow(incoming_window=1000)
    while not frames or frames[-1].more:
        frames.append(session.take(Transfer))
    assert not any(item.aborted for item in frames)
    assert body_of(b"".join(item.payload for item in frames)) == bytes(100_000)
    receiver.detach()
    session.receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "transactions.4.4.4.3.outcome-same-transaction")
@pytest.mark.parametrize("which", ["none", "another"])
def test_an_outcome_outside_of_the_transaction_that_acquired_ends_the_control_link(
    session: Session, begin: Begin, name: str, which: str
) -> None:
    filled(begin, name, b"x")
    controller = session.controller()
    first, second = controller.declare(), controller.declare()
    receiver = session.receiver(name)
    credit(receiver, first, 1)
    delivery = receiver.get()
    session.dispose(delivery.id, state=Accepted() if which == "none" else under(second, Accepted()))
    assert controller.link.detached_with() == "amqp:transaction:rollback"
    # Its transactions are rolled back with the controller: the message is available.
    assert session.receiver(name, 1).get().body == b"x"


@pytest.mark.rule("1.0", "transactions.4.4.4.3.outcome-same-transaction")
@pytest.mark.parametrize("fail", [False, True])
def test_a_discharge_decides_about_acquisition_and_outcome_together(
    session: Session, begin: Begin, name: str, fail: bool
) -> None:
    filled(begin, name, b"x")
    controller = session.controller()
    id = controller.declare()
    receiver = session.receiver(name)
    credit(receiver, id, 1)
    session.dispose(receiver.get().id, state=under(id, Accepted()), settled=False)
    assert isinstance(controller.discharge(id, fail), Accepted)
    session.sync()
    receiver.detach()
    other = session.receiver(name, 10)
    if fail:
        assert other.get().body == b"x"
    other.nothing()

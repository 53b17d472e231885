"""Transactional acquisition (transactions sections 4.4.3 and 4.4.4.3)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queues.queue import Queue
from leveret.wire.amqp10.messaging import Accepted, Rejected, Released, Source
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Detach, Disposition, Flow, Transfer
from leveret.wire.amqp10.values import Symbol
from tests.protocols.amqp10.support import Receiver, Session, body_of, connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Site


@pytest.fixture
def site() -> Site:
    site = make_site()
    site.vhost.declare_queue("q", None, durable=True)
    return site


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def queue_of(session: Session) -> Queue:
    return session.client.site.vhost.queues["q"]


def fill(session: Session, count: int = 3, size: int = 0) -> None:
    sender = session.sender(name="filling")
    for number in range(count):
        sender.send(message(b"%d" % number + b"x" * size, durable=True), settled=True)
    sender.detach()


def acquire(receiver: Receiver, id: Any, credit: int = 10, **options: Any) -> list[Transfer]:
    """Grant credit under a transaction; return the deliveries."""
    receiver.flow(credit, properties={Symbol("txn-id"): id}, **options)
    return receiver.deliveries()


def numbers_of(deliveries: list[Transfer]) -> list[int]:
    return [frame.delivery_id for frame in deliveries if frame.delivery_id is not None]


def test_deliveries_name_their_transaction(session: Session) -> None:
    fill(session)
    id = Controller(session).declare()
    deliveries = acquire(session.receiver(), id)
    assert [body_of(frame.payload) for frame in deliveries] == [b"0", b"1", b"2"]
    for frame in deliveries:
        assert isinstance(frame.state, TransactionalState)
        assert frame.state.txn_id == id
        assert frame.state.outcome is None
        assert not frame.settled
    assert queue_of(session).unacked == 3


def test_a_commit_applies_the_outcomes(session: Session) -> None:
    fill(session)
    controller = Controller(session)
    id = controller.declare()
    numbers = numbers_of(acquire(session.receiver(), id))
    session.dispose(numbers[0], numbers[1], TransactionalState(id, Accepted()), settled=False)
    assert queue_of(session).unacked == 3
    assert isinstance(controller.discharge(id), Accepted)
    assert queue_of(session).unacked == 1
    # Deliveries without an outcome stay with the client, outside of any transaction.
    session.dispose(numbers[2], numbers[2], Accepted())
    assert (queue_of(session).unacked, queue_of(session).ready_count) == (0, 0)


@pytest.mark.parametrize("settled", [True, False])
def test_a_roll_back_undoes_both(session: Session, settled: bool) -> None:
    fill(session)
    controller = Controller(session)
    id = controller.declare()
    receiver = session.receiver()
    numbers = numbers_of(acquire(receiver, id, 3))
    session.dispose(numbers[0], numbers[1], TransactionalState(id, Accepted()), settled=settled)
    session.client.all(Disposition)
    assert isinstance(controller.discharge(id, True), Accepted)
    queue = queue_of(session)
    assert (queue.unacked, queue.ready_count) == (0, 3)
    # The client is notified of those that it still knows.
    told = [frame.first for frame in session.client.all(Disposition) if not frame.role and frame.settled]
    assert sorted(told) == (numbers[2:] if settled else numbers)
    again = session.receiver(credit=10).deliveries()
    assert [body_of(frame.payload) for frame in again] == [b"0", b"1", b"2"]
    assert [split(frame.payload).delivery_count for frame in again] == [0, 0, 0]


def test_a_discharge_that_fails_undoes_it_too(site: Site, session: Session) -> None:
    site.vhost.declare_queue("full", None, durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    fill(session)
    controller = Controller(session)
    id = controller.declare()
    acquire(session.receiver(), id, 3)
    session.sender("full").send(message(), state=TransactionalState(id), settled=True)
    assert isinstance(controller.discharge(id), Rejected)
    assert (queue_of(session).unacked, queue_of(session).ready_count) == (0, 3)


def test_a_discharge_ends_it_but_not_the_credit(session: Session) -> None:
    controller = Controller(session)
    id = controller.declare()
    receiver = session.receiver()
    acquire(receiver, id)
    controller.discharge(id)
    fill(session, 1)
    frame = receiver.deliveries()[0]
    assert frame.state is None


def test_flows_of_the_broker_name_the_transaction(session: Session) -> None:
    controller = Controller(session)
    id = controller.declare()
    receiver = session.receiver()
    acquire(receiver, id, echo=True)
    assert session.client.take(Flow).properties == {"txn-id": id}
    receiver.flow(10, properties={Symbol("txn-id"): None}, echo=True)
    assert session.client.take(Flow).properties is None
    fill(session, 1)
    assert receiver.deliveries()[0].state is None


def test_draining_under_a_transaction(session: Session) -> None:
    fill(session, 2)
    id = Controller(session).declare()
    receiver = session.receiver()
    assert len(acquire(receiver, id, 5, drain=True)) == 2
    flow = session.client.take(Flow)
    assert (flow.delivery_count, flow.link_credit, flow.properties) == (5, 0, {"txn-id": id})


@pytest.mark.parametrize("fail", [False, True], ids=["commit", "roll-back"])
def test_settled_deliveries(session: Session, fail: bool) -> None:
    """Their outcome takes effect if the transaction is committed; otherwise they are requeued."""
    fill(session)
    controller = Controller(session)
    id = controller.declare()
    receiver = session.receiver(snd_settle_mode=1)
    deliveries = acquire(receiver, id, 3)
    assert [frame.settled for frame in deliveries] == [True] * 3
    assert isinstance(deliveries[0].state, TransactionalState)
    assert queue_of(session).unacked == 3
    controller.discharge(id, fail)
    assert (queue_of(session).unacked, queue_of(session).ready_count) == (0, 3 if fail else 0)
    # From now on they are removed when they are sent.
    receiver.flow(10, delivery_count=3)
    fill(session, 1)
    receiver.deliveries()
    assert (queue_of(session).unacked, queue_of(session).ready_count) == (0, 0)


@pytest.mark.parametrize("id", [b"nothing", "text", 5], ids=["unknown", "text", "number"])
def test_an_unknown_transaction(session: Session, id: Any) -> None:
    acquire(session.receiver(), id)
    assert session.client.error(Detach)[0] == "amqp:transaction:unknown-id"


@pytest.mark.rule("1.0", "transactions.4.4.3.acquisition-refused")
def test_a_link_that_browses_acquires_nothing(session: Session) -> None:
    id = Controller(session).declare()
    receiver = session.receiver(source=Source("q", distribution_mode=Symbol("copy")))
    acquire(receiver, id)
    assert session.client.error(Detach)[0] == "amqp:not-implemented"


@pytest.mark.rule("1.0", "transactions.4.4.3.acquisition-refused")
def test_a_link_whose_unsettled_state_is_durable(session: Session) -> None:
    """Its deliveries would have to be removed from the log by a rollback; the broker refuses that."""
    id = Controller(session).declare()
    receiver = session.receiver(source=Source("q", durable=2, expiry_policy=Symbol("never")))
    assert receiver.attached.source.durable == 2
    acquire(receiver, id)
    assert session.client.error(Detach)[0] == "amqp:not-implemented"


@pytest.mark.rule("1.0", "transactions.4.4.4.3.outcome-same-transaction")
def test_an_outcome_outside_of_the_transaction(session: Session) -> None:
    """Transactions section 4.4.4.3: it must be associated with the same one. Neither can be committed then."""
    fill(session)
    controller = Controller(session)
    id = controller.declare()
    numbers = numbers_of(acquire(session.receiver(), id, 3))
    session.dispose(numbers[0], numbers[0], Accepted())
    assert session.client.error(Detach)[0] == "amqp:transaction:rollback"
    assert (queue_of(session).unacked, queue_of(session).ready_count) == (0, 3)


@pytest.mark.rule("1.0", "transactions.4.4.4.3.outcome-same-transaction")
def test_an_outcome_under_another_transaction(session: Session) -> None:
    fill(session)
    controller = Controller(session)
    id, other = controller.declare(), controller.declare()
    numbers = numbers_of(acquire(session.receiver(), id, 3))
    session.dispose(numbers[0], numbers[0], TransactionalState(other, Accepted()), settled=False)
    assert session.client.error(Detach)[0] == "amqp:transaction:rollback"
    assert (queue_of(session).unacked, queue_of(session).ready_count) == (0, 3)


def test_a_controller_that_vanishes(session: Session) -> None:
    fill(session)
    controller = Controller(session)
    numbers = numbers_of(acquire(session.receiver(), controller.declare(), 3))
    controller.link.detach()
    assert queue_of(session).ready_count == 3
    session.dispose(numbers[0], numbers[0], Accepted())
    assert queue_of(session).ready_count == 3


def test_a_closed_link_requeues_deliveries_without_an_outcome(session: Session) -> None:
    fill(session)
    controller = Controller(session)
    id = controller.declare()
    receiver = session.receiver()
    numbers = numbers_of(acquire(receiver, id, 3))
    session.dispose(numbers[0], numbers[0], TransactionalState(id, Accepted()), settled=False)
    receiver.detach()
    queue = queue_of(session)
    assert (queue.unacked, queue.ready_count) == (1, 2)
    assert isinstance(controller.discharge(id), Accepted)
    assert (queue.unacked, queue.ready_count) == (0, 2)


def test_a_session_that_ends_fails_the_transaction(session: Session) -> None:
    fill(session)
    controller = Controller(session)
    id = controller.declare()
    other = session.client.begin(1)
    numbers = numbers_of(acquire(other.receiver(), id, 3))
    other.dispose(numbers[0], numbers[0], TransactionalState(id, Accepted()), settled=False)
    other.end()
    queue = queue_of(session)
    assert (queue.unacked, queue.ready_count) == (0, 3)
    assert isinstance(controller.discharge(id), Rejected)
    assert (queue.unacked, queue.ready_count) == (0, 3)


def test_a_connection_that_breaks(site: Site, session: Session) -> None:
    fill(session)
    client = connect(site)
    other = client.begin()
    acquire(other.receiver(snd_settle_mode=1), Controller(other).declare(), 3)
    client.drop()
    assert (queue_of(session).unacked, queue_of(session).ready_count) == (0, 3)


def test_several_transactions_at_a_time(session: Session) -> None:
    fill(session, 4)
    controller = Controller(session)
    one, two = controller.declare(), controller.declare()
    first, second = session.receiver(), session.receiver()
    mine = numbers_of(acquire(first, one, 2))
    yours = numbers_of(acquire(second, two, 2))
    session.dispose(mine[0], mine[1], TransactionalState(one, Accepted()))
    session.dispose(yours[0], yours[1], TransactionalState(two, Accepted()))
    controller.discharge(two, True)
    assert isinstance(controller.discharge(one), Accepted)
    assert [body_of(frame.payload) for frame in session.receiver(credit=10).deliveries()] == [b"2", b"3"]


@pytest.mark.rule("1.0", "transactions.4.4.3.partial-acquisition-ends")
def test_a_roll_back_while_a_message_is_being_sent(site: Site) -> None:
    """Transactions section 4.4.3: the delivery is aborted before the discharge is completed."""
    client = connect(site)
    session = client.begin(incoming_window=2)
    fill(session, 1, 300_000)
    controller = Controller(session)
    id = controller.declare()
    receiver = session.receiver()
    receiver.flow(1, properties={Symbol("txn-id"): id}, window=2)
    begun = receiver.deliveries()
    assert len(begun) == 2
    assert begun[-1].more
    # There is no window for the abort, so there is no answer either.
    assert controller.discharge(id, True) is None
    assert queue_of(session).ready_count == 1
    receiver.flow(0, window=10, next_incoming_id=2)
    frames = [
        frame
        for frame in client.received
        if isinstance(frame, (Transfer, Disposition)) and not (isinstance(frame, Disposition) and not frame.role)
    ]
    assert isinstance(frames[0], Transfer)
    assert frames[0].aborted
    assert isinstance(frames[1], Disposition)
    assert isinstance(frames[1].state, Accepted)


@pytest.mark.rule("1.0", "transactions.4.4.3.partial-acquisition")
def test_a_commit_while_a_message_is_being_sent(site: Site) -> None:
    client = connect(site)
    session = client.begin(incoming_window=2)
    fill(session, 1, 300_000)
    controller = Controller(session)
    id = controller.declare()
    receiver = session.receiver()
    receiver.flow(1, properties={Symbol("txn-id"): id}, window=2)
    receiver.deliveries()
    assert isinstance(controller.discharge(id), Accepted)
    receiver.flow(0, window=10, next_incoming_id=2)
    rest = receiver.deliveries()
    assert not rest[-1].more
    assert not rest[-1].aborted
    session.dispose(0, 0, Released())
    assert queue_of(session).ready_count == 1

"""Transactions (transactions chapter): the work of one takes effect with its discharge, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker.values import FieldTable
from leveret.security.permissions import Permission
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.messaging import Accepted, Modified, Properties, Rejected, Released, Source, Target
from leveret.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from leveret.wire.amqp10.transport import Detach, Disposition, End, Flow
from tests.broker.support import HeldLog
from tests.protocols.amqp10.support import Receiver, Sender, Session, connect, make_site, message
from tests.protocols.support import Site


@pytest.fixture
def site() -> Site:
    site = make_site()
    site.vhost.declare_queue("q", None, durable=True)
    return site


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


class Controller:
    """A control link."""

    def __init__(self, session: Session, **options: Any) -> None:
        self.session = session
        self.link: Sender = session.sender(target=Coordinator(("amqp:local-transactions",)), **options)

    def send(self, body: Composite, **options: Any) -> Composite | None:
        """Return the outcome of a message to the coordinator, None if there is none (yet)."""
        number = self.link.send(b"\x00\x53\x77" + encode_composite(body), **options)
        for frame in self.session.client.all(Disposition):
            if frame.role and frame.first <= number <= (frame.first if frame.last is None else frame.last):
                state: Composite = frame.state
                return state
            self.session.client.received.append(frame)
        return None

    def declare(self) -> bytes:
        state = self.send(Declare())
        assert isinstance(state, Declared)
        id: bytes = state.txn_id
        return id

    def discharge(self, id: bytes, fail: bool | None = None) -> Composite | None:
        return self.send(Discharge(id, fail))


def ready(site: Site, name: str = "q") -> int:
    return site.vhost.queues[name].ready_count


def post(sender: Sender, id: bytes, body: bytes = b"m", **options: Any) -> Disposition | None:
    sender.send(message(body), state=TransactionalState(id), **options)
    return sender.client.find(Disposition)


@pytest.mark.rule("1.0", "transactions.txn-capability.local-transactions.choice")
def test_the_coordinator(session: Session) -> None:
    controller = Controller(session)
    target = controller.link.attached.target
    assert isinstance(target, Coordinator)
    assert set(target.capabilities) == {"amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"}
    assert controller.declare() != controller.declare()


def test_posting(site: Site, session: Session) -> None:
    controller = Controller(session)
    sender = session.sender()
    id = controller.declare()
    answer = post(sender, id)
    assert answer is not None
    assert answer.settled
    assert isinstance(answer.state, TransactionalState)
    assert answer.state.txn_id == id
    assert isinstance(answer.state.outcome, Accepted)
    assert ready(site) == 0
    assert isinstance(controller.discharge(id), Accepted)
    assert ready(site) == 1


def test_an_alarm_does_not_affect_the_coordinator(site: Site, session: Session) -> None:
    """A client that consumes in transactions may end the alarm."""
    sender = session.sender()
    for _ in range(2):
        sender.send(message())
    controller = Controller(session)
    receiver = session.receiver(credit=1)
    assert receiver.bodies() == [b"m"]
    site.services.set_alarm("memory")
    session.client.run()
    assert [(frame.handle, frame.link_credit) for frame in session.client.all(Flow)] == [(sender.handle, 0)]
    id = controller.declare()
    session.dispose(0, state=TransactionalState(id, Accepted()), settled=True)
    assert isinstance(controller.discharge(id), Accepted)
    # Flows and dispositions are read as ever.
    receiver.flow(1, delivery_count=1)
    assert receiver.bodies() == [b"m"]
    receiver.accept(1)
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (0, 0)
    # A control link that begins during the alarm has credit, too.
    assert isinstance(Controller(session).declare(), bytes)


@pytest.mark.parametrize("fail", [False, True], ids=["commit", "roll back"])
def test_a_discharge_makes_room_for_more_deliveries(site: Site, fail: bool) -> None:
    site.protocols.amqp10.settings.unsettled = 64
    session = connect(site).begin(incoming_window=1 << 31)
    sender = session.sender()
    for _ in range(100):
        sender.send(message())
    controller = Controller(session)
    receiver = session.receiver(credit=100)
    assert len(receiver.bodies()) == 64
    id = controller.declare()
    session.dispose(0, 63, state=TransactionalState(id, Accepted()), settled=True)
    assert receiver.bodies() == []
    assert isinstance(controller.discharge(id, fail), Accepted)
    assert len(receiver.bodies()) == 36, "what is left of the credit"


def test_roll_back_of_a_posting(site: Site, session: Session) -> None:
    controller = Controller(session)
    id = controller.declare()
    post(session.sender(), id)
    assert isinstance(controller.discharge(id, True), Accepted)
    assert ready(site) == 0


def test_settled_postings(site: Site, session: Session) -> None:
    controller = Controller(session)
    id = controller.declare()
    assert post(session.sender(), id, settled=True) is None
    assert ready(site) == 0
    assert isinstance(controller.discharge(id), Accepted)
    assert ready(site) == 1


def test_unroutable_postings_will_be_released(session: Session) -> None:
    controller = Controller(session)
    answer = post(session.sender("/exchanges/amq.direct/nowhere"), controller.declare())
    assert answer is not None
    assert isinstance(answer.state.outcome, Released)


def test_the_discharge_waits_for_the_commit() -> None:
    held = HeldLog()
    site = make_site(log=held)
    site.vhost.declare_queue("q", None, durable=True)
    session = connect(site).begin()
    controller = Controller(session)
    sender = session.sender()
    id = controller.declare()
    sender.send(message(durable=True), state=TransactionalState(id))
    session.client.all(Disposition)
    held.held = True
    assert controller.discharge(id) is None
    assert ready(site) == 0
    held.release()
    session.client.run()
    assert isinstance(session.client.take(Disposition).state, Accepted)
    assert ready(site) == 1


def filled(session: Session, count: int, credit: int = 10) -> Receiver:
    sender = session.sender(name="filling")
    for number in range(count):
        sender.send(message(b"%d" % number))
    sender.detach()
    session.client.all(Disposition)
    receiver = session.receiver(credit=credit)
    assert len(receiver.deliveries()) == min(count, credit)
    return receiver


def test_retirement(site: Site, session: Session) -> None:
    filled(session, 3)
    controller = Controller(session)
    id = controller.declare()
    session.dispose(0, 1, TransactionalState(id, Accepted()), settled=False)
    session.dispose(2, None, TransactionalState(id, Rejected()), settled=False)
    queue = site.vhost.queues["q"]
    assert queue.unacked == 3
    assert session.client.find(Disposition) is None
    assert isinstance(controller.discharge(id), Accepted)
    assert (queue.unacked, queue.ready_count) == (0, 0)
    # The broker settles deliveries that the controller did not (Proton never does).
    answers = session.client.all(Disposition)
    assert sorted(frame.first for frame in answers) == [0, 1, 2]
    assert all(not frame.role and frame.settled for frame in answers)


def test_a_link_detached_before_the_discharge(site: Site, session: Session) -> None:
    receiver = filled(session, 2)
    controller = Controller(session)
    id = controller.declare()
    session.dispose(0, None, TransactionalState(id, Accepted()), settled=True)
    receiver.detach()
    assert isinstance(controller.discharge(id), Accepted)
    queue = site.vhost.queues["q"]
    assert (queue.unacked, queue.ready_count) == (0, 1)


@pytest.mark.rule("1.0", "transactions.4.4.2.rolled-back-stays")
def test_roll_back_of_a_retirement(site: Site, session: Session) -> None:
    """Deliveries stay acquired and await another outcome, but for those that were settled."""
    receiver = filled(session, 3)
    controller = Controller(session)
    id = controller.declare()
    session.dispose(0, 1, TransactionalState(id, Accepted()), settled=False)
    session.dispose(2, None, TransactionalState(id, Accepted()), settled=True)
    controller.discharge(id, True)
    queue = site.vhost.queues["q"]
    assert receiver.bodies() == [b"2"]  # again: a failed attempt
    assert queue.unacked == 3
    again = controller.declare()
    session.dispose(0, None, TransactionalState(again, Accepted()), settled=False)
    controller.discharge(again)
    receiver.accept(1)
    assert queue.unacked == 1


@pytest.mark.rule("1.0", "transactions.txn-capability.multi-txns-per-ssn.choice")
def test_several_at_once(site: Site, session: Session) -> None:
    controller = Controller(session)
    sender = session.sender()
    one, two = controller.declare(), controller.declare()
    post(sender, one, b"1")
    post(sender, two, b"2")
    post(sender, one, b"3")
    controller.discharge(two, True)
    controller.discharge(one)
    assert session.receiver(credit=10).bodies() == [b"1", b"3"]


@pytest.mark.rule("1.0", "transactions.txn-capability.multi-ssns-per-txn.choice")
def test_in_another_session(site: Site, session: Session) -> None:
    controller = Controller(session)
    id = controller.declare()
    other = session.client.begin(1)
    post(other.sender(name="other"), id)
    assert isinstance(controller.discharge(id), Accepted)
    assert ready(site) == 1


@pytest.mark.parametrize("how", ["detach", "end", "drop"])
def test_controllers_that_vanish(site: Site, session: Session, how: str) -> None:
    filled(session, 2)
    controller = Controller(session)
    id = controller.declare()
    post(session.sender(), id)
    session.dispose(0, None, TransactionalState(id, Accepted()), settled=False)
    if how == "detach":
        controller.link.detach()
        session.dispose(0, 1, Accepted())
        assert ready(site) == 0
    elif how == "end":
        session.end()
        assert ready(site) == 2
    else:
        session.client.drop()
        assert ready(site) == 2
    assert site.vhost.queues["q"].unacked == 0
    assert not session.client.session.transactions


def test_unknown_transactions(session: Session) -> None:
    controller = Controller(session)
    state = controller.discharge(b"none")
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:transaction:unknown-id"
    session.sender().send(state=TransactionalState(b"none"))
    assert session.client.error(Detach)[0] == "amqp:transaction:unknown-id"
    filled(session, 1)
    session.dispose(0, None, TransactionalState(b"none", Accepted()))
    assert session.client.error(End)[0] == "amqp:transaction:unknown-id"


def test_a_queue_that_is_full(site: Site, session: Session) -> None:
    site.vhost.declare_queue("full", None, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    controller = Controller(session)
    sender = session.sender("full")
    id = controller.declare()
    for _ in range(3):
        post(sender, id)
    state = controller.discharge(id)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:transaction:rollback"
    assert ready(site, "full") == 0


def test_a_transaction_that_is_too_large() -> None:
    site = make_site(max_transaction=5000)
    session = connect(site).begin()
    controller = Controller(session)
    sender = session.sender()
    id = controller.declare()
    for _ in range(6):
        post(sender, id)
    assert isinstance(controller.discharge(id), Rejected)
    assert ready(site) == 0


def test_a_settled_declare(session: Session) -> None:
    controller = Controller(session)
    controller.send(Declare(), settled=True)
    assert session.client.error(Detach)[0] == "amqp:not-allowed"


def test_distributed_transactions(session: Session) -> None:
    state = Controller(session).send(Declare(b"global"))
    assert isinstance(state, Rejected)


def test_a_controller_without_the_outcome_rejected(session: Session) -> None:
    controller = Controller(session, source=Source(outcomes=("amqp:accepted:list",)))
    controller.discharge(b"none")
    assert session.client.error(Detach)[0] == "amqp:transaction:unknown-id"


def test_a_delivery_that_is_not_complete(session: Session) -> None:
    controller = Controller(session)
    sender = session.sender()
    id = controller.declare()
    sender.part(b"\x00", delivery_id=session.next_id, delivery_tag=b"t", state=TransactionalState(id), more=True)
    session.next_id += 1
    controller.discharge(id)
    assert session.client.error(Detach)[0] == "amqp:transaction:rollback"


def test_outcomes_of_two_transactions(site: Site, session: Session) -> None:
    filled(session, 1)
    controller = Controller(session)
    one, two = controller.declare(), controller.declare()
    session.dispose(0, None, TransactionalState(one, Accepted()), settled=False)
    session.dispose(0, None, TransactionalState(two, Accepted()), settled=False)
    assert session.client.error(Detach)[0] == "amqp:transaction:rollback"
    assert site.vhost.queues["q"].unacked == 1


def test_all_outcomes(site: Site, session: Session) -> None:
    receiver = filled(session, 4)
    controller = Controller(session)
    id = controller.declare()
    for number, outcome in enumerate((Accepted(), Released(), Modified(True), Rejected())):
        session.dispose(number, None, TransactionalState(id, outcome), settled=False)
    controller.discharge(id)
    assert sorted(receiver.bodies()) == [b"1", b"2"]


@pytest.mark.parametrize("outcome", [Rejected(), Modified(True, True)])
def test_a_rejection_waits_for_the_discharge_before_its_retry(site: Site, session: Session, outcome: Composite) -> None:
    site.vhost.remove_queue(site.vhost.queues["q"])
    arguments: FieldTable = {"x-retry-delays": "1h", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    queue = site.vhost.declare_queue("q", None, durable=True, arguments=arguments)
    filled(session, 2)
    controller = Controller(session)
    for number, fail in enumerate((True, False)):
        id = controller.declare()
        session.dispose(number, None, TransactionalState(id, outcome), settled=False)
        assert (queue.unacked, queue.retrying_count) == (2, 0)
        assert isinstance(controller.discharge(id, fail), Accepted)
    assert (queue.unacked, queue.retrying_count, queue.ready_count) == (1, 1, 0)


def test_receiver_settle_mode_second(session: Session) -> None:
    controller = Controller(session)
    sender = session.sender(rcv_settle_mode=1)
    id = controller.declare()
    answer = post(sender, id)
    assert answer is not None
    assert not answer.settled
    number = session.next_id
    controller.link.send(b"\x00\x53\x77" + encode_composite(Discharge(id)))
    found = {frame.first: frame for frame in session.client.all(Disposition)}
    assert isinstance(found[number].state, Accepted)
    applied = found[answer.first]
    assert isinstance(applied.state, Accepted)
    assert not applied.settled


def test_garbage_for_the_coordinator(session: Session) -> None:
    controller = Controller(session)
    controller.link.send(message(b"declare, please"))
    assert session.client.error(Detach)[0] == "amqp:invalid-field"


def test_a_settled_message_that_is_refused_fails_its_transaction(site: Site, session: Session) -> None:
    controller = Controller(session)
    sender = session.sender()
    id = controller.declare()
    post(sender, id, settled=True)
    sender.send(b"nonsense", state=TransactionalState(id), settled=True)
    assert session.client.error(Detach)[0] == "amqp:decode-error"
    answer = controller.discharge(id)
    assert isinstance(answer, Rejected)
    assert answer.error is not None and answer.error.condition == "amqp:transaction:rollback"
    assert ready(site) == 0


def test_a_message_that_its_deleted_queue_cuts_off_fails_its_transaction(site: Site, session: Session) -> None:
    site.vhost.declare_queue("to", None)
    controller = Controller(session)
    good, cut = session.sender(), session.sender("/queues/to")
    id = controller.declare()
    post(good, id, b"good", settled=True)
    cut.part(b"\x00", delivery_id=session.next_id, delivery_tag=b"t", state=TransactionalState(id), more=True)
    refused_by_absence(site)
    answer = controller.discharge(id)
    assert isinstance(answer, Rejected)
    assert answer.error is not None and answer.error.condition == "amqp:transaction:rollback"
    assert ready(site) == 0


def not_refused(site: Site) -> None:
    """Nothing prevents the commit."""


def refused_by_a_full_queue(site: Site) -> None:
    site.vhost.declare_queue("to", None, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})


def refused_by_the_user(site: Site) -> None:
    site.allow("user", "/", Permission(".*", "^q$", ".*"))


def refused_by_absence(site: Site) -> None:
    site.vhost.delete_queue("to", None)


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize(
    ("refuse", "condition"),
    [
        (not_refused, ""),
        (refused_by_a_full_queue, "amqp:transaction:rollback"),
        (refused_by_the_user, "amqp:transaction:rollback"),
        (refused_by_absence, "amqp:transaction:rollback"),
    ],
)
def test_a_settled_posting_that_fails_fails_everything_in_its_transaction(
    site: Site, session: Session, refuse: Callable[[Site], None], condition: str, anonymous: bool
) -> None:
    """Its sender gets no outcome, so the discharge fails (transactions section 4.4.4.1)."""
    if refuse is not refused_by_a_full_queue:
        site.vhost.declare_queue("to", None)
    filled(session, 1, credit=1)
    controller = Controller(session)
    good = session.sender()
    if refuse is refused_by_a_full_queue:
        refuse(site)
    bad = session.sender(target=Target(None)) if anonymous else session.sender("/queues/to")
    if refuse is not refused_by_a_full_queue:
        refuse(site)
    id = controller.declare()
    post(good, id, b"good", settled=True)
    session.dispose(0, None, TransactionalState(id, Accepted()), settled=True)
    bad.send(message(b"bad", properties=Properties(to="/queues/to")), state=TransactionalState(id), settled=True)
    answer = controller.discharge(id)
    if not condition:
        assert isinstance(answer, Accepted)
        assert (ready(site), ready(site, "to")) == (1, 1)
        return
    assert isinstance(answer, Rejected)
    assert answer.error is not None
    assert answer.error.condition == condition
    # Nothing of it took effect: acquired messages are still, or again, in their queue.
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (1, 0)
    assert "to" not in site.vhost.queues or ready(site, "to") == 0


def test_deleting_a_queue_before_the_discharge_fails_it(site: Site, session: Session) -> None:
    """The outcome that its sender received is no longer possible (transactions section 4.4.4.1)."""
    site.vhost.declare_queue("to", None)
    controller = Controller(session)
    id = controller.declare()
    for address in ("/queues/to", "/queues/q"):
        answer = post(session.sender(address), id)
        assert answer is not None
        assert isinstance(answer.state.outcome, Accepted)
    site.vhost.delete_queue("to", None)
    discharged = controller.discharge(id)
    assert isinstance(discharged, Rejected)
    assert discharged.error is not None
    assert discharged.error.condition == "amqp:transaction:rollback"
    assert ready(site) == 0


def test_postings_to_be_released_reach_no_later_queue(site: Site, session: Session) -> None:
    controller = Controller(session)
    id = controller.declare()
    answer = post(session.sender("/exchanges/amq.direct/key"), id)
    assert answer is not None
    assert isinstance(answer.state.outcome, Released)
    site.vhost.bind(site.vhost.queues["q"], "amq.direct", "key", {})
    assert isinstance(controller.discharge(id), Accepted)
    assert ready(site) == 0


def test_a_refused_message_outside_of_it_does_not_fail_a_transaction(site: Site, session: Session) -> None:
    controller = Controller(session)
    sender = session.sender()
    id = controller.declare()
    post(sender, id, settled=True)
    sender.part(message(), delivery_id=session.next_id, delivery_tag=b"t", message_format=5)
    assert session.client.error(Detach)[0] == "amqp:not-implemented"
    assert isinstance(controller.discharge(id), Accepted)
    assert ready(site) == 1


@pytest.mark.parametrize(("address", "outcome"), [("q", Accepted), ("/exchanges/amq.direct/nowhere", Released)])
def test_mode_second_is_notified_of_the_outcome(session: Session, address: str, outcome: type[Composite]) -> None:
    controller = Controller(session)
    sender = session.sender(address, rcv_settle_mode=1)
    id = controller.declare()
    number = sender.send(message(), state=TransactionalState(id))
    assert not session.client.take(Disposition).settled
    controller.discharge(id)
    applied = next(frame for frame in session.client.all(Disposition) if frame.first == number)
    assert isinstance(applied.state, outcome)
    assert not applied.settled


def test_mode_second_is_notified_of_a_rollback(session: Session) -> None:
    controller = Controller(session)
    sender = session.sender(rcv_settle_mode=1)
    id = controller.declare()
    number = sender.send(message(), state=TransactionalState(id))
    session.client.all(Disposition)
    controller.discharge(id, True)
    undone = next(frame for frame in session.client.all(Disposition) if frame.first == number)
    assert undone.state is None
    assert not undone.settled


@pytest.mark.rule("1.0", "transactions.transaction-error.transaction-timeout.choice")
def test_a_transaction_that_times_out() -> None:
    site = make_site(transaction_timeout=5)
    site.vhost.declare_queue("q", None, durable=True)
    session = connect(site).begin()
    filled(session, 1, 1)
    controller = Controller(session)
    first, second = controller.declare(), controller.declare()
    post(session.sender(), first)
    session.client.all(Disposition)
    session.dispose(0, 0, TransactionalState(first, Accepted()), settled=False)
    assert isinstance(controller.discharge(second), Accepted)
    site.broker.timers.run(site.broker.timers.now() + 6000)
    answer = controller.discharge(first)
    assert isinstance(answer, Rejected)
    assert answer.error is not None and answer.error.condition == "amqp:transaction:timeout"
    assert "amqp10.transaction_timeout" in str(answer.error.description)
    # The delivery is still the client's, which may dispose of it now.
    assert ready(site) == 0
    session.dispose(0, 0, Released())
    assert ready(site) == 1

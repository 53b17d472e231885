"""Distribution mode copy (messaging section 3.5.2): links that browse."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queues.queue import Queue
from leveret.security.permissions import Permission
from leveret.wire.amqp10.messaging import Accepted, Modified, Rejected, Released, Source
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Detach, Disposition, Flow
from leveret.wire.amqp10.values import Described, Symbol
from tests.protocols.amqp10.support import Receiver, Session, connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Site
from tests.support.queues import classic


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


def fill(session: Session, count: int = 3) -> None:
    sender = session.sender(name="filling")
    for number in range(count):
        sender.send(message(b"%d" % number, durable=True), settled=True)
    sender.detach()


def browse(
    session: Session, address: str = "q", *, credit: int = 10, source: dict[str, Any] | None = None, **options: Any
) -> Receiver:
    return session.receiver(
        source=Source(address, distribution_mode=Symbol("copy"), **(source or {})), credit=credit, **options
    )


def test_the_attach_reports_the_mode_in_place(session: Session) -> None:
    assert browse(session).attached.source.distribution_mode == "copy"
    assert session.receiver().attached.source.distribution_mode == "move"


def test_messages_stay(session: Session) -> None:
    fill(session)
    receiver = browse(session)
    deliveries = receiver.deliveries()
    assert [frame.settled for frame in deliveries] == [False] * 3
    assert queue_of(session).ready_count == 3
    assert queue_of(session).unacked == 0
    assert session.receiver(credit=10).bodies() == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "state",
    [Accepted(), Rejected(), Released(), Modified(True, True), None],
    ids=["accepted", "rejected", "released", "modified", "none"],
)
def test_outcomes_have_no_effect(session: Session, state: Any) -> None:
    fill(session)
    receiver = browse(session)
    first = receiver.deliveries()[0].delivery_id
    assert first is not None
    session.dispose(first, first + 2, state)
    assert session.client.find(Disposition) is None
    assert queue_of(session).ready_count == 3
    again = session.receiver(credit=10).deliveries()
    for frame in again:
        header = split(frame.payload)
        assert header.first_acquirer
        assert not header.delivery_count


def test_outcomes_are_settled(session: Session) -> None:
    """A client that settles second is notified that its outcome arrived."""
    fill(session)
    receiver = browse(session, rcv_settle_mode=1)
    first = receiver.deliveries()[0].delivery_id
    assert first is not None
    session.dispose(first, first + 2, Accepted(), settled=False)
    answer = session.client.take(Disposition)
    assert (answer.first, answer.last, answer.settled) == (first, first + 2, True)
    assert queue_of(session).ready_count == 3


def test_copies_in_a_transaction(session: Session) -> None:
    fill(session)
    controller = Controller(session)
    first = browse(session).deliveries()[0].delivery_id
    assert first is not None
    id = controller.declare()
    session.dispose(first, first + 2, TransactionalState(id, Accepted()), settled=False)
    assert session.client.take(Disposition).settled
    assert isinstance(controller.discharge(id), Accepted)
    assert queue_of(session).ready_count == 3


def test_new_messages_are_delivered_too(session: Session) -> None:
    receiver = browse(session)
    fill(session)
    assert receiver.bodies() == [b"0", b"1", b"2"]


def test_the_end_is_seen_by_draining(session: Session) -> None:
    """Qpid JMS detects the end of a queue like this."""
    fill(session)
    receiver = browse(session, credit=0)
    receiver.flow(10, drain=True)
    assert receiver.bodies() == [b"0", b"1", b"2"]
    flow = session.client.take(Flow)
    assert (flow.delivery_count, flow.link_credit) == (10, 0)


def test_settled_copies(session: Session) -> None:
    fill(session)
    receiver = browse(session, snd_settle_mode=1)
    assert [frame.settled for frame in receiver.deliveries()] == [True] * 3
    assert queue_of(session).ready_count == 3


def test_a_filter(session: Session) -> None:
    fill(session)
    wanted = {Symbol("f"): Described(Symbol("apache.org:selector-filter:string"), "JMSDeliveryMode = 'NON_PERSISTENT'")}
    session.sender().send(message(b"other"), settled=True)
    assert browse(session, source={"filter": wanted}).bodies() == [b"other"]


def test_closing_forgets_the_copies(session: Session) -> None:
    fill(session)
    receiver = browse(session)
    assert len(receiver.deliveries()) == 3
    endpoint = session.client.session.sessions.by_channel[0]
    assert len(endpoint.copies) == 3
    receiver.detach()
    assert not endpoint.copies
    assert not classic(queue_of(session)).browsing.browsers
    assert queue_of(session).ready_count == 3


def test_a_connection_that_breaks(site: Site, session: Session) -> None:
    fill(session)
    other = connect(site)
    assert len(browse(other.begin()).deliveries()) == 3
    other.drop()
    assert not classic(queue_of(session)).browsing.browsers
    again = session.receiver(credit=10).deliveries()
    assert [split(frame.payload).delivery_count for frame in again] == [0, 0, 0]


@pytest.mark.rule("1.0", "transport.amqp-error.unauthorized-access.choice")
def test_read_permission_is_needed(site: Site) -> None:
    site.allow("user", "/", Permission("", "q", ""))
    session = connect(site).begin()
    assert browse(session, credit=0).attached.source is None
    assert session.client.error(Detach)[0] == "amqp:unauthorized-access"
    site.allow("user", "/", Permission("", "", "q"))
    assert browse(connect(site).begin(), credit=0).attached.source is not None


def test_an_exclusive_consumer_is_not_in_the_way(site: Site, session: Session) -> None:
    channel = site.channel()
    channel.consume("q", exclusive=True)
    channel.publish("q", b"m")
    channel.run()
    assert browse(session).attached.source is not None
    assert session.receiver().attached.source is None


def test_subscriptions_know_no_difference(session: Session) -> None:
    receiver = browse(session, "/exchanges/amq.fanout")
    assert receiver.attached.source.distribution_mode == "copy"
    session.sender("/exchanges/amq.fanout").send(message(b"m"))
    frame = receiver.deliveries()[0]
    session.dispose(frame.delivery_id or 0, state=Accepted())
    assert not [queue for queue in session.client.site.vhost.queues.values() if queue.ready_count or queue.unacked]


def test_deletion_of_the_queue(site: Site, session: Session) -> None:
    browse(session)
    site.vhost.remove_queue(site.vhost.queues["q"])
    assert session.client.error(Detach)[0] == "amqp:resource-deleted"


def test_large_messages(site: Site, session: Session) -> None:
    session.sender().send(message(b"x" * 300_000), settled=True)
    client = connect(site)
    receiver = browse(client.begin())
    frames = receiver.deliveries()
    assert len(frames) > 1
    assert len(b"".join(frame.payload for frame in frames)) > 300_000
    assert queue_of(session).ready_count == 1


def test_unsettled_copies_count_for_the_limit(site: Site, session: Session) -> None:
    fill(session)
    site.services.settings.unacked_per_channel = 2
    receiver = browse(session)
    deliveries = receiver.deliveries()
    assert len(deliveries) == 2
    session.dispose(deliveries[0].delivery_id or 0, state=Accepted())
    assert len(receiver.deliveries()) == 1


def test_no_message_is_sent_again_to_a_terminus_that_outlives_its_link(session: Session) -> None:
    fill(session)
    source = {"expiry_policy": Symbol("session-end")}
    receiver = browse(session, credit=2, name="link", source=source)
    assert receiver.bodies() == [b"0", b"1"]
    receiver.detach(closed=False)
    assert browse(session, name="link", source=source).bodies() == [b"2"]
    assert browse(session, name="other", source=source).bodies() == [b"0", b"1", b"2"]

"""Dispositions of many deliveries at once, of several links and in several states (transport section 2.6.12 and 2.7.6)."""

from __future__ import annotations

import pytest

from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Accepted, Modified, Received, Rejected, Released, Source
from leveret.wire.amqp10.transport import Disposition, End, Transfer
from tests.protocols.amqp10.support import Receiver, Session, connect, make_site, message
from tests.protocols.support import Site

MODULUS = 1 << 32


@pytest.fixture
def site() -> Site:
    site = make_site()
    for name in ("q", "r"):
        site.vhost.declare_queue(name, None)
    return site


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def fill(site: Site, name: str, count: int) -> None:
    sender = connect(site, container="filler").begin().sender(name)
    for number in range(count):
        sender.send(message(b"%s%d" % (name.encode(), number)))


def both(site: Site, session: Session) -> tuple[Receiver, Receiver]:
    """Deliveries 0 to 2 on one link and 3 to 5 on another."""
    fill(site, "q", 3)
    fill(site, "r", 3)
    links = session.receiver("q", 3), session.receiver("r", 3)
    assert [frame.delivery_id for frame in session.client.all(Transfer)] == list(range(6))
    return links


def state(site: Site, name: str) -> tuple[int, int]:
    """Return the numbers of ready and unacked messages of a queue."""
    queue = site.vhost.queues[name]
    return queue.ready_count, queue.unacked


def test_one_range_settles_deliveries_of_several_links(site: Site, session: Session) -> None:
    both(site, session)
    session.dispose(1, 4, Accepted())
    assert (state(site, "q"), state(site, "r")) == ((0, 1), (0, 1))
    session.dispose(0, 5, Accepted())
    assert (state(site, "q"), state(site, "r")) == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("outcome", "ready"),
    [(Accepted(), 0), (Rejected(), 0), (Released(), 2), (Modified(True), 2), (Modified(True, True), 2)],
)
def test_every_outcome_applies_to_the_complete_range(site: Site, session: Session, outcome: Composite, ready: int) -> None:
    both(site, session)
    session.dispose(1, 4, outcome)
    # There is no credit for redeliveries.
    assert (state(site, "q"), state(site, "r")) == ((ready, 1), (ready, 1))


def test_settled_and_unsent_deliveries_are_skipped(site: Site, session: Session) -> None:
    both(site, session)
    session.dispose(1, 1, Accepted())
    session.dispose(4, None, Accepted())
    session.dispose(0, 100, Accepted())
    assert (state(site, "q"), state(site, "r")) == ((0, 0), (0, 0))
    session.dispose(50, 60, Accepted())
    session.dispose(0, 5, Released())  # settled already: no redelivery
    assert (state(site, "q"), state(site, "r")) == ((0, 0), (0, 0))


def test_a_range_that_ends_before_it_begins_is_refused(site: Site, session: Session) -> None:
    both(site, session)
    session.dispose(4, 2, Accepted())
    assert session.client.error(End)[0] == "amqp:invalid-field"
    assert (state(site, "q"), state(site, "r")) == ((3, 0), (3, 0))


def test_a_non_terminal_state_settles_nothing(site: Site, session: Session) -> None:
    both(site, session)
    session.dispose(0, 5, Received(0, 0), settled=False)
    session.dispose(0, 5, None, settled=False)
    assert (state(site, "q"), state(site, "r")) == ((0, 3), (0, 3))


def test_the_default_outcome_applies_to_a_range_without_one(site: Site, session: Session) -> None:
    fill(site, "q", 3)
    session.receiver(credit=3, source=Source("q", default_outcome=Released()))
    session.client.all(Transfer)
    session.dispose(0, 2, None)
    assert sum(state(site, "q")) == 3
    fill(site, "r", 3)
    other = connect(site).begin()
    other.receiver(credit=3, source=Source("r", default_outcome=Accepted()))
    other.client.all(Transfer)
    other.dispose(0, 2, None)
    assert state(site, "r") == (0, 0)


def test_outcomes_first_and_settled_later(site: Site, session: Session) -> None:
    """A receiver of mode second: the broker settles deliveries after their outcome."""
    fill(site, "q", 4)
    session.receiver("q", 4, rcv_settle_mode=1)
    session.client.all(Transfer)
    session.dispose(0, 1, Accepted(), settled=False)
    session.dispose(2, 3, Rejected(), settled=False)
    answers = session.client.all(Disposition)
    assert all(frame.settled and not frame.role for frame in answers)
    told = {
        number: type(frame.state)
        for frame in answers
        for number in range(frame.first, (frame.first if frame.last is None else frame.last) + 1)
    }
    assert told == {0: Accepted, 1: Accepted, 2: Rejected, 3: Rejected}
    session.dispose(0, 3, None)
    assert state(site, "q") == (0, 0)


def wrapped(site: Site, **options: object) -> tuple[Session, list[int]]:
    """A session of a sender whose delivery-ids begin shortly before they wrap."""
    client = connect(site)
    session = client.begin(next_outgoing_id=MODULUS - 2)
    session.next_id = MODULUS - 2
    sender = session.sender("q", **options)  # type: ignore[arg-type]
    ids = []
    for _ in range(4):
        session.next_id %= MODULUS
        ids.append(sender.send(message()))
    assert ids == [MODULUS - 2, MODULUS - 1, 0, 1]
    return session, ids


def test_the_broker_answers_across_the_wrap(site: Site) -> None:
    session, ids = wrapped(site)
    told = []
    for frame in session.client.all(Disposition):
        last = frame.first if frame.last is None else frame.last
        told += [(frame.first + step) % MODULUS for step in range((last - frame.first) % MODULUS + 1)]
    assert told == ids


def test_a_sender_settles_across_the_wrap(site: Site) -> None:
    session, ids = wrapped(site, rcv_settle_mode=1)
    endpoint = next(iter(session.client.session.sessions.by_channel.values()))
    assert len(endpoint.unsettled) == 4
    session.dispose(ids[0], ids[2], Accepted(), role=False)
    assert list(endpoint.unsettled) == [ids[3]]
    session.dispose(ids[3], None, Accepted(), role=False)
    assert not endpoint.unsettled


def test_half_of_all_numbers_is_no_range(site: Site, session: Session) -> None:
    both(site, session)
    session.dispose(0, MODULUS // 2 - 1, Accepted())
    assert (state(site, "q"), state(site, "r")) == ((0, 0), (0, 0))
    session.dispose(0, MODULUS // 2, Accepted())
    assert session.client.error(End)[0] == "amqp:invalid-field"


def test_sessions_number_deliveries_separately(site: Site, session: Session) -> None:
    both(site, session)
    other = session.client.begin(1)
    fill(site, "q", 1)
    other.receiver("q", 1, name="another")
    session.client.all(Transfer)
    assert state(site, "q") == (0, 4)
    other.dispose(0, 5, Accepted())
    assert (state(site, "q"), state(site, "r")) == ((0, 3), (0, 3))

"""Delayed delivery: the annotations `x-opt-delivery-time` and `x-opt-delivery-delay`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Accepted, Header, Properties, Rejected, Source
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Detach, Disposition
from leveret.wire.amqp10.values import Symbol, Timestamp, UInt
from tests.broker.support import Clock, HeldLog
from tests.protocols.amqp10.support import Client, Session, connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Site

TIME = "x-opt-delivery-time"
DELAY = "x-opt-delivery-delay"


def make(log: HeldLog | None = None, **arguments: Any) -> Site:
    site = make_site(log=log)
    site.broker.timers = Clock()
    site.vhost.declare_queue("q", None, durable=True, arguments=arguments)
    return site


@pytest.fixture
def site() -> Site:
    return make()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def later(annotations: dict[str, Any], body: bytes = b"m", **options: Any) -> bytes:
    section = b"\x00\x53\x72" + encode_pairs([(Symbol(name), value) for name, value in annotations.items()])
    return message(body, before=section, **options)


def sleep(session: Session, milliseconds: int) -> None:
    clock = session.client.site.broker.timers
    assert isinstance(clock, Clock)
    clock.time += milliseconds
    clock.run(clock.time)
    session.client.site.broker.end_turn()
    session.client.run()


def now(site: Site) -> int:
    return site.broker.timers.now()


def test_the_capability_is_offered(site: Site) -> None:
    assert "DELAYED_DELIVERY" in Client(site).open().offered_capabilities


@pytest.mark.parametrize("kind", [int, Timestamp])
def test_a_time(site: Site, session: Session, kind: Any) -> None:
    receiver = session.receiver(credit=10)
    session.sender().send(later({TIME: kind(now(site) + 1000)}))
    assert isinstance(session.client.take(Disposition).state, Accepted)
    assert receiver.bodies() == []
    sleep(session, 999)
    assert receiver.bodies() == []
    sleep(session, 1)
    assert receiver.bodies() == [b"m"]


def test_a_delay(session: Session) -> None:
    receiver = session.receiver(credit=10)
    sender = session.sender()
    sender.send(later({DELAY: UInt(2000)}, b"two"))
    sender.send(later({DELAY: UInt(1000)}, b"one"))
    sleep(session, 1000)
    assert receiver.bodies() == [b"one"]
    sleep(session, 1000)
    assert receiver.bodies() == [b"two"]


def test_the_time_wins(site: Site, session: Session) -> None:
    session.sender().send(later({DELAY: UInt(5000), TIME: now(site) + 1000}))
    receiver = session.receiver(credit=10)
    sleep(session, 1000)
    assert receiver.bodies() == [b"m"]


@pytest.mark.parametrize("annotations", [{TIME: 5}, {DELAY: UInt(0)}, {DELAY: -5}, {TIME: None}, {"x-opt-delivery-x": 5}])
def test_due_messages_are_delivered(session: Session, annotations: dict[str, Any]) -> None:
    session.sender().send(later(annotations))
    assert session.receiver(credit=10).bodies() == [b"m"]


@pytest.mark.parametrize(
    "annotations",
    [{TIME: "soon"}, {DELAY: True}, {DELAY: 1.5}, {TIME: 1 << 62}],
    ids=["text", "boolean", "float", "too far"],
)
def test_invalid_times(session: Session, annotations: dict[str, Any]) -> None:
    session.sender().send(later(annotations))
    condition, text = session.client.error(Detach)
    assert condition == "amqp:invalid-field"
    assert next(iter(annotations)) in text
    assert session.client.site.vhost.queues["q"].delayed_count == 0


def test_it_is_accepted_once_it_is_on_disk() -> None:
    held = HeldLog()
    site = make(held)
    session = connect(site).begin()
    held.held = True
    session.sender().send(later({DELAY: UInt(1000)}, durable=True))
    assert session.client.find(Disposition) is None
    held.release()
    session.client.run()
    assert isinstance(session.client.take(Disposition).state, Accepted)


def test_a_transaction(session: Session) -> None:
    queue = session.client.site.vhost.queues["q"]
    controller = Controller(session)
    sender = session.sender()
    for fail in (True, False):
        id = controller.declare()
        sender.send(later({DELAY: UInt(1000)}), state=TransactionalState(id))
        assert queue.delayed_count == 0
        controller.discharge(id, fail)
    assert (queue.delayed_count, queue.ready_count) == (1, 0)
    sleep(session, 1000)
    assert (queue.delayed_count, queue.ready_count) == (0, 1)


def test_a_full_queue() -> None:
    arguments: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    site = make(**arguments)
    session = connect(site).begin()
    sender = session.sender()
    sender.send(later({DELAY: UInt(1000)}))
    sender.send(message())
    states = [frame.state for frame in session.client.all(Disposition)]
    assert [type(state) for state in states] == [Accepted, Rejected]


def test_browsers_do_not_see_it(session: Session) -> None:
    session.sender().send(later({DELAY: UInt(1000)}))
    receiver = session.receiver(source=Source("q", distribution_mode=Symbol("copy")), credit=10)
    assert receiver.bodies() == []
    sleep(session, 1000)
    assert receiver.bodies() == [b"m"]


def test_a_consumer_of_0_9_1_gets_it(site: Site, session: Session) -> None:
    channel = site.channel()
    session.sender().send(later({DELAY: UInt(1000)}))
    assert channel.get("q") is None
    sleep(session, 1000)
    got = channel.get("q")
    assert got is not None


def step(site: Site, milliseconds: int) -> None:
    """The system's clock is set."""
    site.broker.timers.step = milliseconds


@pytest.mark.parametrize("milliseconds", [-120_000, 120_000])
def test_times_are_those_of_the_clock_that_was_set(site: Site, session: Session, milliseconds: int) -> None:
    step(site, milliseconds)
    receiver = session.receiver(credit=10)
    sender = session.sender()
    sender.send(later({TIME: site.broker.timers.unix() + 1000}, b"at"))
    sender.send(later({DELAY: UInt(1000)}, b"after"))
    sleep(session, 999)
    assert receiver.bodies() == []
    sleep(session, 1)
    assert sorted(receiver.bodies()) == [b"after", b"at"]


@pytest.mark.parametrize("milliseconds", [-120_000, 120_000])
def test_expiry_by_the_clock_that_was_set(site: Site, session: Session, milliseconds: int) -> None:
    step(site, milliseconds)
    sender = session.sender()
    expiry = Properties(absolute_expiry_time=Timestamp(site.broker.timers.unix() + 1000))
    sender.send(message(b"absolute", properties=expiry))
    sender.send(message(b"relative", header=Header(ttl=UInt(2000))))
    sender.send(message(b"never"))
    queue = site.vhost.queues["q"]
    counts = []
    for milliseconds in (0, 999, 1, 999, 1):
        sleep(session, milliseconds)
        counts.append(queue.ready_count)
    assert counts == [3, 3, 2, 2, 1]
    assert session.receiver(credit=10).bodies() == [b"never"]

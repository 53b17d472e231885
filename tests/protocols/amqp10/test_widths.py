"""Conversions between 64 and 32 bits, and seconds and milliseconds: times and counts at the limits of their fields."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leveret.broker.streams.offsets import starting_point
from leveret.protocols.amqp10.message_times import MAX_DELAY
from leveret.wire.amqp10.messaging import Accepted, Header, Properties
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transactions import TransactionalState
from tests.broker.support import Clock
from tests.protocols.amqp10.support import Client, connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Site
from tests.support.queues import classic

MAX_UINT = (1 << 32) - 1
MAX_LONG = (1 << 63) - 1
SIXTY_DAYS = 60 * 24 * 3600 * 1000


def make(**options: Any) -> Site:
    site = make_site(**options)
    site.broker.timers = Clock()
    return site


@pytest.mark.parametrize(
    ("ahead", "ttl"),
    [
        (1000, 1000),
        (MAX_UINT, MAX_UINT),
        (MAX_UINT + 1, -1),
        (SIXTY_DAYS, -1),
        (MAX_LONG, -1),
    ],
)
def test_a_time_to_live_above_the_maximum_of_the_header_is_omitted(ahead: int, ttl: int) -> None:
    site = make()
    session = connect(site).begin()
    receiver = session.receiver(credit=10)
    due = min(site.broker.timers.now() + ahead, MAX_LONG)
    session.sender().send(message(b"x", properties=Properties(absolute_expiry_time=due)))
    [delivery] = receiver.deliveries()
    sections = split(delivery.payload)
    assert sections.ttl == ttl
    assert sections.absolute_expiry_time == due


@pytest.mark.parametrize(("queue_ttl", "ttl"), [(MAX_UINT, MAX_UINT), (SIXTY_DAYS, -1)])
def test_the_time_to_live_of_a_queue_is_no_different(queue_ttl: int, ttl: int) -> None:
    site = make()
    site.vhost.declare_queue("q", None, durable=True, arguments={"x-message-ttl": queue_ttl})
    session = connect(site).begin()
    receiver = session.receiver(credit=10)
    session.sender().send(message(b"x"))
    assert [split(delivery.payload).ttl for delivery in receiver.deliveries()] == [ttl]


def test_a_remaining_ttl_is_sent_once_it_fits() -> None:
    site = make()
    session = connect(site).begin()
    session.sender().send(message(b"x", properties=Properties(absolute_expiry_time=site.broker.timers.now() + SIXTY_DAYS)))
    clock = site.broker.timers
    assert isinstance(clock, Clock)
    clock.time += SIXTY_DAYS - MAX_UINT
    assert [split(delivery.payload).ttl for delivery in session.receiver(credit=10).deliveries()] == [MAX_UINT]


def test_the_largest_expiry_time_goes_through_a_transaction() -> None:
    site = make()
    session = connect(site).begin()
    controller = Controller(session)
    transaction = controller.declare()
    session.sender().send(
        message(b"x", header=Header(True, ttl=MAX_UINT), properties=Properties(absolute_expiry_time=MAX_LONG)),
        state=TransactionalState(transaction),
    )
    session.sender().send(
        message(b"y", properties=Properties(absolute_expiry_time=MAX_LONG)), state=TransactionalState(transaction)
    )
    clock = site.broker.timers
    assert isinstance(clock, Clock)
    clock.time += 1000
    assert isinstance(controller.discharge(transaction), Accepted)
    backlog = [entry for level in classic(site.vhost.queues["q"]).ready.all_levels() for entry in level.head]
    assert [entry.message.expires_at - clock.time for entry in backlog] == [MAX_UINT, MAX_DELAY]


def test_an_idle_timeout_above_49_days_is_capped() -> None:
    assert Client(make(idle_timeout=1e7)).open().idle_time_out == MAX_UINT


@pytest.mark.parametrize("credit", [(1 << 31) - 1, 1 << 31, MAX_UINT])
def test_credit_may_be_as_large_as_its_field(credit: int) -> None:
    session = connect(make()).begin()
    receiver = session.receiver()
    sender = session.sender()
    for _ in range(3):
        sender.send(message(b"x"))
    receiver.flow(credit)
    assert len(receiver.deliveries()) == 3
    # The same again, before the client has counted deliveries in flight.
    sender.send(message(b"y"))
    receiver.flow(credit)
    assert receiver.bodies() == [b"y"]
    receiver.flow(2)
    sender.send(message(b"z"))
    assert receiver.bodies() == []


def test_the_milliseconds_of_a_time_are_kept() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = [1_700_000_000_000 + 7 * number for number in range(1000)]
    assert [starting_point(epoch + timedelta(milliseconds=time), 0).time for time in times] == times

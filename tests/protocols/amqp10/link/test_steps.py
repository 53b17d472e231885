"""Many messages are requeued in steps, and yet in order."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.jobs import MAX_AT_ONCE, STEP_WORK
from leveret.broker.queues.queue import Queue
from leveret.broker.vhost import QUEUE_WORK
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Modified, Released, Source
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Detach, Disposition, End, Transfer
from tests.protocols.amqp10.support import Client, Session, body_of, connect, make_site, message
from tests.protocols.support import Site
from tests.support.queues import classic

MANY = 5000


@pytest.fixture
def site() -> Site:
    site = make_site()
    site.vhost.declare_queue("q", None)
    return site


def queue_of(site: Site) -> Queue:
    return site.vhost.queues["q"]


def holding(site: Site) -> Session:
    """A session with all messages of a queue unsettled."""
    sender = connect(site, container="filler").begin().sender("q")
    for number in range(MANY):
        sender.send(message(b"%d" % number), settled=True, run=number % 500 == 499)
    session = connect(site).begin(incoming_window=1 << 31)
    session.receiver("q").flow(MANY, window=1 << 30)
    session.client.run()
    assert queue_of(site).unacked == MANY
    session.client.received.clear()
    return session


def one_turn(client: Client, *frames: Any) -> None:
    """Do what one read of the socket makes the broker do at once."""
    output = Output(1 << 20)
    for frame in frames:
        output.send(frame)
    client.session.data_received(output.to_send())


def in_order(site: Site) -> None:
    """All messages are requeued, and a consumer gets them in order."""
    site.run()
    queue = queue_of(site)
    assert (classic(queue).frozen, queue.ready_count, queue.unacked) == (0, MANY, 0)
    session = connect(site, container="after").begin(incoming_window=1 << 31)
    session.receiver("q").flow(MANY, window=1 << 30)
    session.client.run()
    assert [body_of(frame.payload) for frame in session.client.all(Transfer)] == [b"%d" % number for number in range(MANY)]


@pytest.mark.parametrize("outcome", [Released(), Modified(True)])
def test_released_messages_are_requeued_in_steps(site: Site, outcome: Composite) -> None:
    session = holding(site)
    one_turn(session.client, Disposition(True, 0, MANY - 1, True, outcome))
    queue = queue_of(site)
    assert classic(queue).frozen and 0 < queue.ready_count <= STEP_WORK // 2
    assert not session.client.session.sessions[0].unacked
    in_order(site)


@pytest.mark.parametrize("how", ["detach", "end", "drop"])
def test_unsettled_messages_of_a_link_or_session_are_requeued_in_steps(site: Site, how: str) -> None:
    session = holding(site)
    if how == "detach":
        one_turn(session.client, Detach(0, True))
    elif how == "end":
        one_turn(session.client, End())
    else:
        session.client.session.connection_lost()
    queue = queue_of(site)
    assert classic(queue).frozen and 0 < queue.ready_count <= STEP_WORK
    in_order(site)


def test_a_queue_deleted_meanwhile_keeps_no_messages(site: Site) -> None:
    session = holding(site)
    one_turn(session.client, End())
    queue = queue_of(site)
    site.vhost.delete_queue("q", None)
    site.run()
    assert (queue.ready_count, queue.unacked) == (0, 0)


def test_dynamic_nodes_are_deleted_in_steps(site: Site) -> None:
    many = MAX_AT_ONCE // QUEUE_WORK * 2
    session = connect(site).begin()
    for number in range(many):
        session.receiver(None, name=f"r{number}", source=Source(dynamic=True))
    assert len(site.vhost.queues) == many + 1
    one_turn(session.client, End())
    assert 1 < len(site.vhost.queues) < many
    site.run()
    assert len(site.vhost.queues) == 1

"""Many messages are requeued in steps, and yet in order."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.jobs import MAX_AT_ONCE, STEP_WORK
from leveret.broker.queues.queue import Queue
from leveret.broker.vhost import QUEUE_WORK
from leveret.protocols.amqp10.terminus.source import SourceTerminus
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Accepted, Modified, Released, Source
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Attach, Begin, Detach, Disposition, End, Transfer
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


def fill(site: Site) -> None:
    sender = connect(site, container="filler").begin().sender("q")
    for number in range(MANY):
        sender.send(message(b"%d" % number), settled=True, run=number % 500 == 499)


def holding(site: Site) -> Session:
    """A session with all messages of a queue unsettled."""
    fill(site)
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
    assert (classic(queue).dispatcher.frozen, queue.ready_count, queue.unacked) == (0, MANY, 0)
    session = connect(site, container="after").begin(incoming_window=1 << 31)
    session.receiver("q").flow(MANY, window=1 << 30)
    session.client.run()
    assert [body_of(frame.payload) for frame in session.client.all(Transfer)] == [b"%d" % number for number in range(MANY)]


@pytest.mark.parametrize("outcome", [Released(), Modified(True)])
def test_released_messages_are_requeued_in_steps(site: Site, outcome: Composite) -> None:
    session = holding(site)
    one_turn(session.client, Disposition(True, 0, MANY - 1, True, outcome))
    queue = queue_of(site)
    assert classic(queue).dispatcher.frozen and 0 < queue.ready_count <= STEP_WORK // 2
    assert not session.client.session.sessions.by_channel[0].unacked
    in_order(site)


def test_messages_that_are_released_one_by_one_need_no_steps(site: Site) -> None:
    session = holding(site)
    site.broker.work = MAX_AT_ONCE  # the turn has no time left for jobs
    one_turn(session.client, *(Disposition(True, number, None, True, Released()) for number in range(0, MANY, 2)))
    assert queue_of(site).ready_count > STEP_WORK // 4 and not site.broker.jobs.waiting
    one_turn(session.client, Disposition(True, 0, MANY - 1, True, Released()))
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
    assert classic(queue).dispatcher.frozen and 0 < queue.ready_count <= STEP_WORK
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


# Deliveries of links that outlive their session


LINKS = 5


def surviving(site: Site, policy: str = "never", **options: Any) -> Session:
    """A session whose links, which outlive it, have received all messages of a queue."""
    fill(site)
    session = connect(site).begin(incoming_window=1 << 31)
    for number in range(LINKS):
        receiver = session.receiver(name=f"r{number}", source=Source("q", expiry_policy=policy, **options))
        receiver.flow(MANY // LINKS, window=1 << 30)
        session.client.run()
    assert queue_of(site).unacked == MANY
    session.client.received.clear()
    return session


def leave(session: Session, how: str) -> None:
    if how == "end":
        one_turn(session.client, End())
    else:
        session.client.session.connection_lost()


def termini(site: Site) -> list[SourceTerminus]:
    return [found for found in site.protocols.amqp10.termini.by_key.values() if isinstance(found, SourceTerminus)]


def moved(site: Site) -> int:
    """The number of deliveries that their termini have."""
    return sum(len(terminus.unsettled) for terminus in termini(site))


@pytest.mark.parametrize("how", ["end", "drop"])
def test_deliveries_of_surviving_links_are_kept_in_steps(site: Site, how: str) -> None:
    session = surviving(site)
    endpoint = session.client.session.sessions.by_channel[0]
    leave(session, how)
    assert 0 < moved(site) <= STEP_WORK + 100
    assert sum(terminus.unsettled_count() for terminus in termini(site)) == MANY
    site.run()
    assert moved(site) == MANY == queue_of(site).unacked
    assert not any(terminus.moving or terminus.is_attached() for terminus in termini(site))
    assert endpoint not in site.broker.holders and not endpoint.unacked


@pytest.mark.parametrize("same", [True, False])
def test_a_link_waits_for_its_deliveries(site: Site, same: bool) -> None:
    session = surviving(site)
    name = f"r{LINKS - 1}"
    other = session.client if same else connect(site)
    if not same:
        other.begin(incoming_window=1 << 31)
    leave(session, "end")
    if same:
        one_turn(other, Begin(0, 1 << 31, 1 << 31, channel=0))
    one_turn(other, Attach(name, 9, True, source=Source("q", expiry_policy="never"), unsettled={}))
    [waiting] = [terminus for terminus in termini(site) if terminus.key[3] == name]
    assert waiting.moving and waiting.link is None
    site.run()
    other.run()
    assert not waiting.moving and waiting.link is not None
    answer = [frame for frame in other.received if isinstance(frame, Attach)][-1]
    assert len(answer.unsettled) == MANY // LINKS


def test_a_queue_deleted_while_deliveries_are_kept(site: Site) -> None:
    session = surviving(site)
    queue = queue_of(site)
    leave(session, "end")
    site.vhost.delete_queue("q", None)
    site.run()
    for terminus in termini(site):
        terminus.destroy()
    site.run()
    assert (queue.ready_count, queue.unacked) == (0, 0)


def test_a_link_that_is_destroyed_while_its_deliveries_are_kept(site: Site) -> None:
    session = surviving(site)
    leave(session, "end")
    for terminus in termini(site):
        terminus.destroy()
    site.run()
    assert not termini(site)
    in_order(site)


@pytest.mark.parametrize("how", ["end", "drop"])
def test_links_that_end_with_the_connection(site: Site, how: str) -> None:
    session = surviving(site, "connection-close")
    leave(session, how)
    site.run()
    if how == "end":
        assert moved(site) == MANY
        session.client.session.connection_lost()
    site.run()
    assert not termini(site)
    in_order(site)


@pytest.mark.parametrize("policy", ["session-end", "link-detach"])
@pytest.mark.parametrize("durable", [0, 2])
def test_durable_links_that_end_with_the_session(site: Site, policy: str, durable: int) -> None:
    site.vhost.delete_queue("q", None)
    site.vhost.declare_queue("q", None, durable=True)
    session = surviving(site, policy, durable=durable)
    leave(session, "end")
    site.run()
    assert not termini(site)
    in_order(site)


def test_links_that_survive_and_others(site: Site) -> None:
    fill(site)
    session = connect(site).begin(incoming_window=1 << 31)
    for number in range(LINKS):
        receiver = session.receiver(
            name=f"r{number}", source=Source("q", expiry_policy="never" if number % 2 else "session-end")
        )
        receiver.flow(MANY // LINKS, window=1 << 30)
        session.client.run()
    leave(session, "end")
    site.run()
    kept = MANY // LINKS * (LINKS // 2)
    assert (moved(site), queue_of(site).unacked, queue_of(site).ready_count) == (kept, kept, MANY - kept)
    for terminus in termini(site):
        terminus.destroy()
    in_order(site)


def test_a_link_that_is_attached_elsewhere_takes_its_deliveries_in_steps(site: Site) -> None:
    fill(site)
    session = connect(site).begin(incoming_window=1 << 31)
    session.receiver(name="r0", source=Source("q", expiry_policy="never")).flow(MANY, window=1 << 30)
    session.client.run()
    other = connect(site)
    other.begin(incoming_window=1 << 31)
    one_turn(other, Attach("r0", 0, True, source=Source("q", expiry_policy="never"), unsettled={}))
    [terminus] = termini(site)
    assert terminus.moving and 0 < len(terminus.unsettled) <= STEP_WORK + 100
    # The client may settle those that its session still has.
    last = max(session.client.session.sessions.by_channel[0].unacked)
    one_turn(session.client, Disposition(True, last, last, True, Accepted()))
    site.run()
    other.run()
    assert not terminus.moving and terminus.link is not None
    assert queue_of(site).unacked + queue_of(site).ready_count == MANY - 1

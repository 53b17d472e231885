"""Links: attach, detach, errors, flow control (transport sections 2.6.1 to 2.6.7, 2.7.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.wire.amqp10.messaging import Source, Target
from leveret.wire.amqp10.transport import Attach, Detach, Disposition, End, Flow, Transfer
from leveret.wire.amqp10.values import Described, Symbol, ULong
from tests.conformance.amqp10.conftest import Begin, Connect
from tests.support.peers.amqp091 import Channel, Queue
from tests.support.peers.amqp10 import Peer, Session, composite, frame, message


@pytest.mark.rule("1.0", "transport.2.6.1.name-unique")
@pytest.mark.rule("1.0", "transport.2.6.1.stolen")
@pytest.mark.rule("1.0", "transport.link-error.stolen.choice")
def test_a_link_is_in_one_place_at_a_time(connect: Connect, name: str) -> None:
    first = connect(container_id=f"{name}.c").begin()
    second = connect(container_id=f"{name}.c").begin()
    before = first.receiver(name, 10, "link")
    after = second.receiver(name, 10, "link")
    assert before.detached_with() == "amqp:link:stolen"
    second.sender(name, "other").send(message(b"x"), settled=True)
    assert after.get().body == b"x"


@pytest.mark.rule("1.0", "transport.2.6.1.name-unique")
def test_links_of_one_name_in_both_directions_are_separate(session: Session, name: str) -> None:
    sender = session.sender(name, "link")
    receiver = session.receiver(name, 10, "link")
    assert sender.attached.handle != receiver.attached.handle
    sender.send(message(b"x"), settled=True)
    assert receiver.get().body == b"x"


@pytest.mark.rule("1.0", "transport.2.6.1.name-unique")
def test_links_of_one_name_of_two_containers_are_separate(begin: Begin, name: str) -> None:
    first = begin().receiver(name, 1, "link")
    second_session = begin()
    second = second_session.receiver(name, 1, "link")
    sender = second_session.sender(name)
    sender.send(settled=True)
    sender.send(settled=True)
    first.get()
    second.get()


# Attach


@pytest.mark.rule("1.0", "transport.2.6.3.refusal-detaches")
@pytest.mark.rule("1.0", "transport.amqp-error.not-found.choice")
@pytest.mark.parametrize("role", [True, False], ids=["receiver", "sender"])
def test_a_refused_link_is_attached_without_a_terminus_and_detached(session: Session, name: str, role: bool) -> None:
    address = f"/queues/{name}"
    more: Any = {} if role else {"initial_delivery_count": 0}
    link = session.attach(
        "l", role, source=Source(address if role else "here"), target=Target("here" if role else address), **more
    )
    attached = session.take(Attach)
    assert (attached.name, attached.role) == ("l", not role)
    assert (attached.source if role else attached.target) is None
    detach = session.take(Detach)
    assert (detach.handle, detach.closed) == (attached.handle, True)
    assert detach.error is not None
    assert (detach.error.condition, name in (detach.error.description or "")) == ("amqp:not-found", True)
    session.send(Detach(link.handle, True))
    session.sync()


@pytest.mark.rule("1.0", "transport.2.6.3.actual-terminus")
def test_the_attach_describes_the_actual_source(session: Session, name: str) -> None:
    filters = {
        Symbol("known"): Described(ULong(0x0000468C00000004), "a = 1"),
        Symbol("unknown"): Described(Symbol("no:such:filter"), "x"),
    }
    receiver = session.receiver(source=Source(name, filter=filters, capabilities=("queue", "no-such-capability")))
    source = receiver.attached.source
    assert source.address == name
    assert list(source.filter) == ["known"]
    assert source.capabilities == ("queue",)
    assert source.distribution_mode == "move"
    assert set(source.outcomes) >= {"amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"}


@pytest.mark.rule("1.0", "transport.2.6.3.actual-terminus")
def test_the_attach_describes_the_actual_target(session: Session, name: str) -> None:
    sender = session.sender(target=Target(name, capabilities=("queue", "no-such-capability")))
    assert (sender.attached.target.address, sender.attached.target.capabilities) == (name, ("queue",))


@pytest.mark.rule("1.0", "transport.2.6.3.no-guessing")
def test_unsupported_properties_do_not_prevent_an_attach(session: Session, name: str) -> None:
    """The peer sees the actual properties, and may detach."""
    receiver = session.receiver(
        source=Source(
            name, capabilities=("no-such-capability",), filter={Symbol("f"): Described(Symbol("no:such:filter"), 1)}
        ),
        target=Target(None, capabilities=("strange",)),
        desired_capabilities=("strange",),
        properties={"strange": 1},
    )
    assert not receiver.attached.source.filter
    session.sender(name).send(message(b"x"), settled=True)
    receiver.flow(1)
    assert receiver.get().body == b"x"


# Detach


@pytest.mark.rule("1.0", "transport.2.6.4.unmapped-detaches")
@pytest.mark.rule("1.0", "transport.amqp-error.resource-deleted.choice")
def test_a_link_that_the_broker_ends_is_detached(session: Session, channel0: Callable[..., Channel], name: str) -> None:
    channel = channel0()
    channel.queue(name, exclusive=False, durable=True)
    receiver = session.receiver(name, 10)
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)
    assert receiver.detached_with() == "amqp:resource-deleted"
    session.send(Detach(receiver.handle, True))
    again = session.receiver(name, handle=receiver.handle)
    assert again.attached.handle == receiver.attached.handle


@pytest.mark.rule("1.0", "transport.2.6.4.unmapped-detaches")
@pytest.mark.parametrize("closed", [False, True])
def test_a_detach_is_answered_and_its_handles_are_free(session: Session, name: str, closed: bool) -> None:
    first = session.receiver(name, name="first")
    first.detach(closed)
    second = session.receiver(name, name="second", handle=first.handle)
    assert second.attached.handle == first.attached.handle


# Errors


def broken(session: Session, name: str) -> Any:
    """A link that the broker has just detached with an error; the peer has not replied."""
    sender = session.sender(name)
    sender.transfer(message(), delivery_id=0, delivery_tag=b"x" * 33, message_format=0)
    return sender


@pytest.mark.rule("1.0", "transport.2.6.5.error-detaches")
@pytest.mark.rule("1.0", "transport.2.7.7.detach-says-why")
def test_an_error_at_a_link_detaches_it(session: Session, name: str) -> None:
    sender = broken(session, name)
    detach = session.take(Detach)
    assert (detach.handle, detach.closed) == (sender.attached.handle, True)
    assert detach.error is not None
    assert (detach.error.condition, detach.error.description) == (
        "amqp:invalid-field",
        "a delivery-tag of 33 bytes; expected at most 32",
    )
    session.sync()


@pytest.mark.rule("1.0", "transport.2.6.5.error-destroys")
def test_a_failed_link_is_detached(session: Session, name: str) -> None:
    sender = broken(session, name)
    session.take(Detach)
    session.send(Detach(sender.handle, True))
    again = session.sender(name, sender.name)
    assert again.credited.delivery_count == 0
    again.deliver()


@pytest.mark.rule("1.0", "transport.2.6.5.errant-input")
@pytest.mark.mode("rabbitmq")
def test_transfers_in_flight_to_a_failed_link_are_discarded(session: Session, name: str) -> None:
    sender = broken(session, name)
    sender.send(message(b"lost"))
    sender.flow(echo=True)
    session.take(Detach)
    session.send(Detach(sender.handle, True))
    session.sync()
    assert not session.peer.kept(Disposition)
    session.receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "transport.2.6.5.errant-input")
@pytest.mark.mode("strict")
@pytest.mark.parametrize("what", ["transfer", "flow"])
def test_transfers_in_flight_to_a_failed_link_end_the_session(connect: Connect, name: str, what: str) -> None:
    session = connect(hostname="vhost:strict").begin()
    sender = broken(session, name)
    if what == "transfer":
        sender.send(message(b"lost"))
    else:
        sender.flow(echo=True)
    session.take(Detach)
    assert session.ended_with() == "amqp:session:errant-link"


def reattached(session: Session, name: str, **options: Any) -> Any:
    """The peer detaches and reattaches before it learns that the link has failed."""
    sender = broken(session, name)
    session.send(Detach(sender.handle, False))
    link = session.attach(
        sender.name,
        False,
        source=Source("here"),
        target=Target(name),
        initial_delivery_count=0,
        handle=sender.handle,
        **options,
    )
    assert session.take(Detach).error is not None
    return link


@pytest.mark.rule("1.0", "transport.2.6.5.errant-reattach")
@pytest.mark.mode("strict")
def test_a_reattach_in_flight_ends_the_session(connect: Connect, name: str) -> None:
    session = connect(hostname="vhost:strict").begin()
    reattached(session, name)
    assert session.ended_with() == "amqp:session:errant-link"
    # With an unsettled map, it would have resumed the link.
    session = session.peer.begin()
    reattached(session, name, unsettled={})
    assert session.take(Attach).target is not None


@pytest.mark.rule("1.0", "transport.2.6.5.errant-reattach")
@pytest.mark.mode("rabbitmq")
def test_a_reattach_in_flight_creates_a_new_link(session: Session, name: str) -> None:
    """A peer that wants to close the link must do the same."""
    link = reattached(session, name)
    attached = session.take(Attach)
    assert attached.target is not None
    session.send(Detach(link.handle, True))
    detach = session.take(Detach)
    assert (detach.handle, detach.closed, detach.error) == (attached.handle, True, None)
    session.sync()
    assert not session.peer.kept(End)


def kept(session: Session, name: str) -> Any:
    """A link whose target outlives its errors, on which there has just been one; a delivery is unsettled."""
    sender = session.sender(target=Target(name, expiry_policy="never"), name="kept", rcv_settle_mode=1)
    session.outcome(sender.send(delivery_tag=b"t"))
    sender.transfer(message(), delivery_id=9, delivery_tag=b"x" * 33, message_format=0)
    return sender


@pytest.mark.rule("1.0", "transport.2.6.6.crossed-detach")
@pytest.mark.mode("strict")
def test_a_closing_detach_that_crosses_a_plain_one_is_answered_by_another_attach(connect: Connect, name: str) -> None:
    session = connect(hostname="vhost:strict").begin()
    sender = kept(session, name)
    session.send(Detach(sender.handle, True))
    detach = session.take(Detach)
    assert detach.error is not None
    assert not detach.closed
    attached = session.take(Attach)
    assert (attached.name, attached.role, attached.target) == ("kept", True, None)
    detach = session.take(Detach)
    assert (detach.handle, detach.closed, detach.error) == (attached.handle, True, None)
    # The peer does the same, which ends the exchange.
    session.attach("kept", False, source=Source("here"), target=None, initial_delivery_count=0, handle=sender.handle)
    session.send(Detach(sender.handle, True))
    session.sync()
    assert not session.peer.kept(Attach) and not session.peer.kept(Detach) and not session.peer.kept(End)
    again = session.sender(target=Target(name, expiry_policy="never"), name="kept", unsettled={b"t": None})
    assert again.attached.unsettled == {}


@pytest.mark.rule("1.0", "transport.2.6.6.crossed-detach")
@pytest.mark.mode("rabbitmq")
def test_a_closing_detach_that_crosses_a_plain_one_counts_as_its_reply(session: Session, name: str) -> None:
    sender = kept(session, name)
    session.send(Detach(sender.handle, True))
    assert session.take(Detach).error is not None
    session.sync()
    assert not session.peer.kept(Attach)
    again = session.sender(target=Target(name, expiry_policy="never"), name="kept", unsettled={b"t": None})
    assert list(again.attached.unsettled) == [b"t"]


# Flow control, the broker as sender


def filled(begin: Begin, name: str, count: int) -> Session:
    """A session, and a queue with messages numbered from 0."""
    session = begin()
    sender = session.sender(name)
    for number in range(count):
        sender.send(message(b"%d" % number), settled=True)
    session.sync()
    return session


@pytest.mark.rule("1.0", "transport.2.6.7.limit-kept")
@pytest.mark.rule("1.0", "transport.2.6.7.credit-formula")
def test_credit_counts_from_the_receivers_delivery_count(begin: Begin, name: str) -> None:
    session = filled(begin, name, 20)
    receiver = session.receiver(name, 5)
    for _ in range(5):
        receiver.get()
    receiver.nothing()
    # 2 + 5 are allowed in total, of which 5 have arrived.
    receiver.flow(5, delivery_count=2)
    receiver.get()
    receiver.get()
    receiver.nothing()
    # Fewer than have already arrived: no credit, but never negative credit.
    receiver.flow(1, delivery_count=2)
    receiver.nothing()
    receiver.flow(1)
    receiver.get()
    receiver.nothing()


@pytest.mark.rule("1.0", "transport.2.6.7.limit-kept")
def test_credit_is_withdrawn(begin: Begin, name: str) -> None:
    session = begin()
    receiver = session.receiver(name, 10)
    receiver.flow(0)
    session.sync()
    session.sender(name).send(settled=True)
    receiver.nothing()


@pytest.mark.rule("1.0", "transport.2.6.7.count-unknown")
@pytest.mark.rule("1.0", "transport.2.7.4.unknown-count")
def test_without_a_delivery_count_credit_counts_from_the_first(begin: Begin, name: str) -> None:
    """A flow that was sent before the sender's attach arrived."""
    session = filled(begin, name, 9)
    link = session.attach("early", True, source=Source(name), target=Target("here"))
    session.flow(handle=link.handle, link_credit=3)
    attached = session.take(Attach)
    assert attached.initial_delivery_count is not None
    for _ in range(3):
        session.take(Transfer)
    session.sync()
    assert not session.peer.kept(Transfer)
    session.flow(handle=link.handle, link_credit=4)
    session.take(Transfer)
    session.sync()
    assert not session.peer.kept(Transfer)


@pytest.mark.rule("1.0", "transport.2.6.7.credit-counts-down")
@pytest.mark.rule("1.0", "transport.2.6.7.no-credit-no-transfer")
def test_every_delivery_uses_up_credit(begin: Begin, name: str) -> None:
    session = filled(begin, name, 2)
    receiver = session.receiver(name, 5)
    receiver.get()
    receiver.get()
    session.flow(handle=receiver.handle, echo=True)
    flow = session.take(Flow, lambda item: item.handle == receiver.attached.handle)
    assert (flow.delivery_count, flow.link_credit) == (2, 3)


@pytest.mark.rule("1.0", "transport.2.6.7.drain-uses-up")
@pytest.mark.parametrize("there", [0, 2])
def test_drain_without_messages_uses_up_the_credit(begin: Begin, name: str, there: int) -> None:
    session = filled(begin, name, there)
    receiver = session.receiver(name)
    receiver.flow(10, drain=True)
    flow = session.take(Flow, lambda item: item.handle == receiver.attached.handle)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)
    assert len(session.peer.kept(Transfer)) == there
    session.sender(name).send(settled=True)
    receiver.nothing()


@pytest.mark.rule("1.0", "transport.2.6.7.drain-uses-up")
def test_drain_while_there_are_messages_sends_them(begin: Begin, name: str) -> None:
    session = filled(begin, name, 5)
    receiver = session.receiver(name)
    receiver.flow(3, drain=True)
    for _ in range(3):
        receiver.get()
    flow = session.take(Flow, lambda item: item.handle == receiver.attached.handle)
    assert (flow.delivery_count, flow.link_credit, flow.available) == (3, 0, 2)


# Flow control, the broker as receiver


@pytest.mark.rule("1.0", "transport.2.6.7.limit-kept")
def test_skipped_deliveries_are_not_credited_again(session: Session, name: str) -> None:
    sender = session.sender(name)
    credit = sender.credited.link_credit
    assert credit is not None and credit > 20
    sender.flow(delivery_count=10, echo=True)
    flow = session.take(Flow, lambda item: item.handle == sender.attached.handle)
    assert (flow.delivery_count, flow.link_credit) == (10, credit - 10)


@pytest.mark.rule("1.0", "transport.2.6.7.credit-counts-down")
def test_the_brokers_credit_decreases_with_each_delivery(session: Session, name: str) -> None:
    sender = session.sender(name)
    credit = sender.credited.link_credit
    assert credit is not None and credit > 20
    for _ in range(10):
        sender.send(settled=True)
    sender.flow(echo=True)
    flow = session.take(Flow, lambda item: item.handle == sender.attached.handle)
    assert (flow.delivery_count, flow.link_credit) == (10, credit - 10)


@pytest.mark.rule("1.0", "transport.2.6.7.available-floor")
def test_a_sender_without_available_messages_may_send(session: Session, name: str) -> None:
    sender = session.sender(name)
    sender.flow(available=0, link_credit=10)
    for _ in range(3):
        sender.deliver()
    sender.flow(echo=True)
    flow = session.take(Flow, lambda item: item.handle == sender.attached.handle)
    assert flow.available in (None, 0)


# Handles


@pytest.mark.rule("1.0", "transport.2.7.3.handle-unused")
def test_the_brokers_links_have_separate_handles(session: Session, name: str) -> None:
    links: list[Any] = []
    for number in range(5):
        links += [session.sender(name, f"l{number}"), session.receiver(name, 0, f"l{number}")]
    assert len({link.attached.handle for link in links}) == 10
    links[3].detach()
    again = session.receiver(name)
    assert again.attached.handle not in {link.attached.handle for link in links if link is not links[3]}


@pytest.mark.rule("1.0", "transport.2.7.3.handle-unused")
@pytest.mark.rule("1.0", "transport.2.7.3.handle-in-use")
@pytest.mark.rule("1.0", "transport.session-error.handle-in-use.choice")
def test_a_handle_that_is_in_use_ends_the_session(session: Session, name: str) -> None:
    receiver = session.receiver(name)
    session.attach("another", True, source=Source(name), target=Target("here"), handle=receiver.handle)
    assert session.ended_with() == "amqp:session:handle-in-use"


@pytest.mark.rule("1.0", "transport.2.7.3.initial-count")
def test_the_brokers_senders_announce_their_initial_delivery_count(session: Session, name: str) -> None:
    assert session.receiver(name).attached.initial_delivery_count is not None
    session.attach("refused", True, source=Source(f"/queues/{name}.none"), target=Target("here"))
    attached = session.take(Attach)
    assert (attached.source, attached.role) == (None, False)
    assert attached.initial_delivery_count is not None


@pytest.mark.rule("1.0", "transport.2.7.3.no-null-keys")
def test_an_unsettled_map_with_a_null_key_is_malformed(peer: Peer, name: str) -> None:
    session = peer.begin()
    unsettled = b"\xc1\x03\x02\x40\x40"
    peer.send_bytes(
        frame(composite(0x12, "l", b"\x43", True, None, None, Source(name), Target("here"), unsettled), session.channel)
    )
    assert peer.closed_with() == "amqp:decode-error"

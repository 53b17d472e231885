"""Deliveries: tags, frames, settlement, aborts (transport sections 2.6.12, 2.6.14, 2.7.5, 2.7.6)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp10.messaging import Accepted, Released
from leveret.wire.amqp10.transport import Detach, Disposition, Flow, Transfer
from tests.conformance.amqp10.conftest import Begin, Connect
from tests.support.peers.amqp10 import Session, message

LARGE = bytes(range(256)) * 40  # bytes of a body that needs many frames


def small(connect: Connect) -> Session:
    """A session on a connection whose frames are small."""
    return connect(max_frame_size=512).begin(incoming_window=10_000)


# The broker as sender


@pytest.mark.rule("1.0", "transport.2.6.12.tagged")
@pytest.mark.rule("1.0", "transport.2.6.12.tag-unique")
def test_unsettled_deliveries_of_the_broker_have_tags_that_differ(begin: Begin, connect: Connect, name: str) -> None:
    session = begin()
    sender = session.sender(name)
    for _ in range(600):
        sender.send(settled=True)
    receiver = session.receiver(name, 600)
    deliveries = [receiver.get() for _ in range(600)]
    assert all(0 < len(item.tag) <= 32 for item in deliveries)
    assert len({item.tag for item in deliveries}) == 600
    # Tags of a redelivery count, too, as long as others are unsettled.
    session.dispose(deliveries[0].id, state=Released())
    receiver.flow(1)
    again = receiver.get()
    assert again.tag not in {item.tag for item in deliveries[1:]}


@pytest.mark.rule("1.0", "transport.2.7.5.first-has-id")
@pytest.mark.rule("1.0", "transport.2.7.5.first-has-tag")
@pytest.mark.rule("1.0", "transport.2.7.5.first-has-format")
def test_the_first_transfer_identifies_the_delivery(connect: Connect, name: str) -> None:
    session = small(connect)
    session.sender(name).send(message(LARGE), settled=True)
    session.sender(name).send(message(b"x"), settled=True)
    receiver = session.receiver(name, 10)
    for expected in (LARGE, b"x"):
        delivery = receiver.get()
        assert delivery.body == expected
        first = delivery.transfers[0]
        assert first.delivery_id is not None and first.delivery_tag and first.message_format == 0
        assert all(item.delivery_id in (None, first.delivery_id) for item in delivery.transfers)
        assert [item.more for item in delivery.transfers] == [True] * (len(delivery.transfers) - 1) + [False]


@pytest.mark.rule("1.0", "transport.2.6.14.not-interleaved")
def test_large_messages_of_a_link_are_sent_one_after_the_other(connect: Connect, name: str) -> None:
    session = small(connect)
    sender = session.sender(name)
    for number in range(4):
        sender.send(message(LARGE + b"%d" % number), settled=True)
    # The window opens in small steps, during which the broker might begin another delivery.
    other = session.peer.begin(incoming_window=3)
    receivers = [other.receiver(name), other.receiver(name)]
    for receiver in receivers:
        receiver.flow(2, incoming_window=3)
    open_deliveries: dict[int, int] = {}
    payloads: dict[int, bytes] = {}
    done = 0
    came = 0
    while done < 4:
        frame = other.take(Transfer)
        came += 1
        other.next_incoming += 1
        number = frame.delivery_id if frame.delivery_id is not None else open_deliveries[frame.handle]
        assert open_deliveries.get(frame.handle, number) == number
        open_deliveries[frame.handle] = number
        payloads[number] = payloads.get(number, b"") + frame.payload
        if not frame.more:
            del open_deliveries[frame.handle]
            done += 1
        if came % 3 == 0:
            other.flow(incoming_window=3)
    assert {value[-1:] for value in payloads.values()} == {b"0", b"1", b"2", b"3"}
    assert all(LARGE in value for value in payloads.values())


@pytest.mark.rule("1.0", "transport.2.7.5.mode-settled")
def test_a_source_of_mode_settled_settles_every_delivery(connect: Connect, name: str) -> None:
    session = small(connect)
    session.sender(name).send(message(LARGE), settled=True)
    session.sender(name).send(message(b"x"), settled=True)
    receiver = session.receiver(name, 10, snd_settle_mode=1)
    assert receiver.attached.snd_settle_mode == 1
    assert [receiver.get().settled for _ in range(2)] == [True, True]
    receiver.detach()
    session.receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "transport.2.7.5.mode-unsettled")
@pytest.mark.parametrize("settle", [0, 2], ids=["unsettled", "mixed"])
def test_a_source_of_another_mode_settles_none(connect: Connect, name: str, settle: int) -> None:
    session = small(connect)
    session.sender(name).send(message(LARGE), settled=True)
    session.sender(name).send(message(b"x"), settled=True)
    receiver = session.receiver(name, 10, snd_settle_mode=settle)
    deliveries = [receiver.get() for _ in range(2)]
    assert [item.settled for item in deliveries] == [False, False]
    for item in deliveries:
        receiver.accept(item)


@pytest.mark.rule("1.0", "transport.2.7.5.mode-second")
@pytest.mark.rule("1.0", "transport.2.6.12.second-disposition")
@pytest.mark.rule("1.0", "transport.receiver-settle-mode.second.choice")
def test_the_brokers_sender_settles_once_a_receiver_of_mode_second_has_an_outcome(session: Session, name: str) -> None:
    session.sender(name).send(message(b"x"), settled=True)
    receiver = session.receiver(name, 10, rcv_settle_mode=1)
    assert receiver.attached.rcv_settle_mode == 1
    delivery = receiver.get()
    session.dispose(delivery.id, state=Accepted(), settled=False)
    answer = session.outcome(delivery.id, role=False)
    assert (answer.settled, type(answer.state)) == (True, Accepted)
    session.dispose(delivery.id, state=Accepted())
    receiver.detach()
    session.receiver(name, 10).nothing()


# The broker as receiver


@pytest.mark.rule("1.0", "transport.2.7.5.mode-first")
@pytest.mark.parametrize("asked", [None, 0], ids=["by the link", "by the transfer"])
def test_the_brokers_receiver_settles_at_once_in_mode_first(session: Session, name: str, asked: int | None) -> None:
    sender = session.sender(name, rcv_settle_mode=0 if asked is None else 1)
    number = sender.send(message(durable=True), rcv_settle_mode=asked)
    answer = session.outcome(number)
    assert (answer.settled, type(answer.state)) == (True, Accepted)


@pytest.mark.rule("1.0", "transport.2.7.5.mode-second")
def test_the_brokers_receiver_does_not_settle_before_the_sender_in_mode_second(session: Session, name: str) -> None:
    sender = session.sender(name, rcv_settle_mode=1)
    number = sender.send(message(durable=True))
    answer = session.outcome(number)
    assert (answer.settled, type(answer.state)) == (False, Accepted)
    session.sync()
    assert not session.peer.kept(Disposition)
    session.dispose(number, state=Accepted(), role=False)
    session.sync()
    # The message exists once.
    receiver = session.receiver(name, 10)
    receiver.get()
    receiver.nothing()


@pytest.mark.rule("1.0", "transport.2.7.5.first-has-id")
@pytest.mark.rule("1.0", "transport.2.7.5.first-has-tag")
@pytest.mark.parametrize(
    "fields",
    [
        {"delivery_tag": b"t"},
        {"delivery_id": 0},
        {},
    ],
    ids=["no id", "no tag", "neither"],
)
def test_a_first_transfer_without_id_or_tag_detaches(session: Session, name: str, fields: dict[str, Any]) -> None:
    sender = session.sender(name)
    sender.transfer(message(), message_format=0, **fields)
    assert sender.detached_with() == "amqp:invalid-field"


@pytest.mark.rule("1.0", "transport.2.7.5.id-differs")
@pytest.mark.parametrize(
    "fields",
    [
        {"delivery_id": 1},
        {"delivery_tag": b"u"},
        {"message_format": 256},
        {"rcv_settle_mode": 1},
    ],
    ids=["delivery-id", "delivery-tag", "message-format", "rcv-settle-mode"],
)
def test_a_contradictory_continuation_detaches(session: Session, name: str, fields: dict[str, Any]) -> None:
    # Section 2.7.5: "it is an error if the delivery-id (delivery-tag) on a continuation transfer differs".
    sender = session.sender(name)
    sender.transfer(b"\x00\x53\x75\xa0", delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    sender.transfer(b"\x01x", more=False, **fields)
    assert sender.detached_with() == "amqp:invalid-field"
    session.receiver(name, 1).nothing()


@pytest.mark.rule("1.0", "transport.2.7.5.tag-omitted")
def test_a_continuation_may_repeat_fields_of_the_first_transfer(session: Session, name: str) -> None:
    sender = session.sender(name)
    sender.transfer(b"\x00\x53\x75\xa0", delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    sender.transfer(b"\x01x", more=False, delivery_id=0, delivery_tag=b"t", message_format=0, rcv_settle_mode=0)
    assert isinstance(session.outcome(0).state, Accepted)


@pytest.mark.rule("1.0", "transport.2.6.12.tag-unique")
def test_the_tag_of_an_unsettled_delivery_cannot_be_reused(session: Session, name: str) -> None:
    sender = session.sender(name, rcv_settle_mode=1)
    number = sender.send(delivery_tag=b"same")
    assert not session.outcome(number).settled
    sender.send(delivery_tag=b"same")
    assert sender.detached_with() == "amqp:not-allowed"
    receiver = session.receiver(name, 10)
    receiver.get()
    receiver.nothing()


@pytest.mark.rule("1.0", "transport.2.6.12.tag-unique")
def test_a_tag_is_free_again_once_its_delivery_is_settled(session: Session, name: str) -> None:
    sender = session.sender(name, rcv_settle_mode=1)
    for _ in range(2):
        number = sender.send(delivery_tag=b"same")
        assert isinstance(session.outcome(number).state, Accepted)
        session.dispose(number, state=Accepted(), role=False)
    sender.send(delivery_tag=b"other", settled=True)
    sender.send(delivery_tag=b"other", settled=True)
    session.sync()


@pytest.mark.rule("1.0", "transport.2.7.5.first-has-id")
def test_a_delivery_id_of_an_unsettled_delivery_ends_the_session(session: Session, name: str) -> None:
    sender = session.sender(name, rcv_settle_mode=1)
    assert isinstance(session.outcome(sender.send()).state, Accepted)
    sender.send(delivery_id=0)
    assert session.ended_with() == "amqp:not-allowed"


@pytest.mark.rule("1.0", "transport.2.6.4.unmapped-detaches")
@pytest.mark.parametrize("durable", [False, True])
def test_no_disposition_follows_the_detach_of_a_link(session: Session, name: str, durable: bool) -> None:
    sender = session.sender(name)
    payload = message(durable=durable)
    session.send(
        *(Transfer(sender.handle, number, b"t%d" % number, 0, payload=payload) for number in range(50)),
        Detach(sender.handle, True),
    )
    session.take(Detach)
    session.sync()
    bodies = [item.body for item in session.peer.frames]
    at = next(index for index, body in enumerate(bodies) if isinstance(body, Detach))
    assert not [body for body in bodies[at:] if isinstance(body, Disposition)]
    # Confirmed or not, the messages are in the queue.
    receiver = session.receiver(name, 50)
    assert len([receiver.get() for _ in range(50)]) == 50


@pytest.mark.rule("1.0", "transport.2.7.5.settled-default")
def test_a_delivery_is_unsettled_by_default(session: Session, name: str) -> None:
    sender = session.sender(name)
    number = sender.send(settled=None)
    assert session.outcome(number).settled
    number = session.next_id
    session.next_id += 1
    sender.transfer(b"\x00\x53\x75\xa0", delivery_id=number, delivery_tag=b"parts", message_format=0, more=True)
    sender.transfer(b"\x01x", more=False)
    assert session.outcome(number).settled


@pytest.mark.rule("1.0", "transport.2.7.5.settled-sticks")
@pytest.mark.parametrize("frames", [(True, None, None), (None, True, None), (None, None, True), (True, True, None)])
def test_a_delivery_is_settled_once_a_transfer_is(session: Session, name: str, frames: tuple[bool | None, ...]) -> None:
    sender = session.sender(name)
    pieces = [b"\x00\x53\x75", b"\xa0\x02", b"ab"]
    for index, (piece, settled) in enumerate(zip(pieces, frames, strict=True)):
        first = {"delivery_id": 0, "delivery_tag": b"t", "message_format": 0} if index == 0 else {}
        sender.transfer(piece, settled=settled, more=index < 2, **first)
    session.next_id = 1
    sender.deliver(message(b"after"))
    # Only the second delivery has a disposition.
    assert not session.dispositions and not session.peer.kept(Disposition)
    receiver = session.receiver(name, 2)
    assert [receiver.get().body for _ in range(2)] == [b"ab", b"after"]


@pytest.mark.rule("1.0", "transport.2.7.5.settled-stays-false")
@pytest.mark.parametrize("frames", [(None, None, None), (False, None, None), (False, False, None)])
def test_an_unsettled_delivery_gets_a_disposition(session: Session, name: str, frames: tuple[bool | None, ...]) -> None:
    sender = session.sender(name)
    pieces = [b"\x00\x53\x75", b"\xa0\x02", b"ab"]
    for index, (piece, settled) in enumerate(zip(pieces, frames, strict=True)):
        first = {"delivery_id": 0, "delivery_tag": b"t", "message_format": 0} if index == 0 else {}
        sender.transfer(piece, settled=settled, more=index < 2, **first)
    assert isinstance(session.outcome(0).state, Accepted)


@pytest.mark.rule("1.0", "transport.2.7.5.mode-settled")
@pytest.mark.rule("1.0", "transport.2.7.5.mode-unsettled")
@pytest.mark.parametrize(("settle", "settled"), [(1, False), (0, True)], ids=["settled", "unsettled"])
def test_a_sender_that_breaks_its_settle_mode_is_detached(session: Session, name: str, settle: int, settled: bool) -> None:
    sender = session.sender(name, snd_settle_mode=settle)
    sender.send(settled=settled)
    assert sender.detached_with() == "amqp:not-allowed"
    session.receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "transport.2.7.5.mode-settled")
@pytest.mark.rule("1.0", "transport.2.7.5.mode-unsettled")
@pytest.mark.parametrize(("settle", "settled"), [(1, True), (0, False), (2, True), (2, False)])
def test_a_sender_that_keeps_its_settle_mode_is_served(session: Session, name: str, settle: int, settled: bool) -> None:
    sender = session.sender(name, snd_settle_mode=settle)
    assert sender.attached.snd_settle_mode == settle
    number = sender.send(settled=settled)
    if not settled:
        assert isinstance(session.outcome(number).state, Accepted)
    session.receiver(name, 1).get()


@pytest.mark.rule("1.0", "transport.2.7.5.mode-unsettled")
def test_an_aborted_delivery_may_be_settled_in_any_mode(session: Session, name: str) -> None:
    sender = session.sender(name, snd_settle_mode=0)
    sender.transfer(b"\x00\x53\x75", delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    sender.transfer(b"", settled=True, aborted=True)
    session.next_id = 1
    sender.deliver()


# Aborts and interleaving


@pytest.mark.rule("1.0", "transport.2.6.14.abort-discards")
@pytest.mark.rule("1.0", "transport.2.7.5.abort-payload-ignored")
@pytest.mark.rule("1.0", "transport.2.7.5.aborted-without-more")
@pytest.mark.rule("1.0", "transport.2.7.5.aborted-more-ignored")
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("frames", [1, 3])
def test_an_aborted_delivery_is_discarded(session: Session, name: str, frames: int, more: bool) -> None:
    """Even if the sender wrongly sets `more`."""
    sender = session.sender(name)
    whole = message(LARGE)
    for index in range(frames):
        first = {"delivery_id": 0, "delivery_tag": b"t", "message_format": 0} if index == 0 else {}
        last = index == frames - 1
        sender.transfer(whole if last else whole[:100], more=more or not last, aborted=last, **first)
    session.next_id = 1
    sender.count = 1
    sender.deliver(message(b"after"))
    assert not session.dispositions
    receiver = session.receiver(name, 10)
    assert receiver.get().body == b"after"
    receiver.nothing()
    sender.flow(echo=True)
    flow = session.take(Flow, lambda item: item.handle == sender.attached.handle)
    assert flow.delivery_count == 2


@pytest.mark.rule("1.0", "transport.2.6.14.not-interleaved")
def test_another_delivery_within_one_detaches_the_link(session: Session, name: str) -> None:
    sender = session.sender(name)
    sender.transfer(b"\x00\x53\x75", delivery_id=0, delivery_tag=b"a", message_format=0, more=True)
    sender.transfer(message(), delivery_id=1, delivery_tag=b"b", message_format=0)
    assert sender.detached_with() == "amqp:invalid-field"
    session.receiver(name, 10).nothing()


@pytest.mark.rule("1.0", "transport.2.6.14.not-interleaved")
def test_deliveries_on_several_links_may_be_interleaved(session: Session, name: str) -> None:
    senders = [session.sender(name, f"s{number}") for number in range(3)]
    pieces = [b"\x00\x53\x75", b"\xa0\x02", b"a"]
    for index, piece in enumerate(pieces):
        for number, sender in enumerate(senders):
            first = {"delivery_id": number, "delivery_tag": b"t", "message_format": 0} if index == 0 else {}
            sender.transfer(piece, more=True, **first)
    for number, sender in reversed(list(enumerate(senders))):
        sender.transfer(b"%d" % number)
    for number in range(3):
        assert isinstance(session.outcome(number).state, Accepted)
    receiver = session.receiver(name, 3)
    assert [receiver.get().body for _ in range(3)] == [b"a2", b"a1", b"a0"]


# Unknown resumed deliveries


@pytest.mark.rule("1.0", "transport.2.6.13.sender-only-ignored")
@pytest.mark.rule("1.0", "transport.2.7.5.unknown-resume-ignored")
@pytest.mark.parametrize("frames", [1, 3])
def test_a_resumed_delivery_that_the_broker_does_not_know_is_ignored(session: Session, name: str, frames: int) -> None:
    sender = session.sender(name)
    for index in range(frames):
        first = {"delivery_id": 0, "delivery_tag": b"t", "message_format": 0, "resume": True} if index == 0 else {}
        sender.transfer(message(), more=index < frames - 1, **first)
    session.next_id = 1
    sender.deliver(message(b"after"))
    assert not session.dispositions
    receiver = session.receiver(name, 10)
    assert receiver.get().body == b"after"
    receiver.nothing()

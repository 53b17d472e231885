"""Links that are resumed, with the unsettled maps of both ends (transport sections 2.6.3, 2.6.13, 2.7.3; messaging 3.4.6).

The worked example of the specification, tag by tag, is in `tests/protocols/amqp10/link/test_resuming.py`: it needs
states that a broker process reaches only by chance.
"""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp10.messaging import Accepted, Properties, Received, Rejected, Released, Source, Target
from leveret.wire.amqp10.sections import section_ranges
from leveret.wire.amqp10.transport import Detach, Disposition, Transfer
from tests.conformance.amqp10.conftest import Connect
from tests.support.broker import Broker, LeveretProcess
from tests.support.peers.amqp10 import Delivery, Peer, Receiver, Sender, Session, body_of, message

LARGE = bytes(range(256)) * 400


class Side:
    """One container, whose links outlive their connections."""

    def __init__(self, connect: Connect, name: str, at: Broker | None = None) -> None:
        self.connect = connect
        self.name = name
        self.at = at
        self.peer: Peer | None = None

    def begin(self, **options: Any) -> Session:
        """Return a session on a new connection, after cutting the previous one."""
        if self.peer is not None:
            self.peer.drop()
        window = options.pop("incoming_window", 1000)
        more: Any = {} if self.at is None else {"at": self.at}
        self.peer = self.connect(container_id=f"{self.name}.container", **more, **options)
        return self.peer.begin(incoming_window=window)

    def receiver(self, session: Session, *, credit: int = 0, durable: int = 0, **options: Any) -> Receiver:
        return session.receiver(source=Source(self.name, durable, "never"), name="r", credit=credit, **options)

    def sender(self, session: Session, *, durable: int = 0, **options: Any) -> Sender:
        return session.sender(target=Target(self.name, durable, "never"), name="s", rcv_settle_mode=1, **options)


@pytest.fixture
def side(connect: Connect, name: str) -> Side:
    return Side(connect, name)


def fill(connect: Connect, name: str, *bodies: bytes, **options: Any) -> None:
    session = connect(**options).begin()
    sender = session.sender(name)
    for body in bodies:
        sender.deliver(message(body, durable=True))
    session.peer.close()


def transfers(session: Session, count: int) -> dict[bytes, Transfer]:
    """Return deliveries of one frame each, by tag."""
    found = [session.take(Transfer) for _ in range(count)]
    session.next_incoming += count
    return {bytes(item.delivery_tag or b""): item for item in found}


# The broker has sent


@pytest.mark.rule("1.0", "transport.2.6.3.resume-tells-unsettled")
@pytest.mark.rule("1.0", "transport.2.7.3.states-compared")
@pytest.mark.rule("1.0", "transport.2.6.13.both-resumed")
@pytest.mark.rule("1.0", "transport.2.6.13.resume-flag")
@pytest.mark.rule("1.0", "transport.2.6.13.receiver-only-ignored")
@pytest.mark.rule("1.0", "transport.2.7.5.only-known-resumed")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-1-resent")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-1-not-resumed")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-3-resumed")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-3-state")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-4-resent")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-4-resumed")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-10-to-14-sure")
@pytest.mark.parametrize("kill", [False, True], ids=["connection lost", "broker killed"])
def test_deliveries_of_the_broker_are_resumed(own_broker: LeveretProcess, connect: Connect, kill: bool) -> None:
    side = Side(connect, "q", own_broker)
    fill(connect, "q", b"known", b"accepted", b"never seen", at=own_broker)
    session = side.begin()
    link = side.receiver(session, credit=3, durable=2)
    known, accepted, unseen = (link.get() for _ in range(3))
    if kill:
        own_broker.kill()
        own_broker.start()
    session = side.begin()
    link = side.receiver(
        session,
        durable=2,
        unsettled={known.tag: None, accepted.tag: Accepted(), b"unknown": Released(), b"nor this": None},
    )
    told = link.attached.unsettled
    assert told is not None
    # No outcome has reached the source yet: it could still send all of them again.
    assert {tag: type(state) for tag, state in told.items()} == dict.fromkeys(
        (known.tag, accepted.tag, unseen.tag), type(None)
    )
    session.flow(handle=link.handle, link_credit=10)
    came = transfers(session, 3)
    assert came[known.tag].resume and not came[known.tag].settled
    assert body_of(came[known.tag].payload) == b"known"
    answer = came[accepted.tag]
    assert (answer.resume, answer.settled, type(answer.state)) == (True, True, Accepted)
    assert b"unknown" not in came and b"nor this" not in came and unseen.tag not in came
    anew = next(item for item in came.values() if not item.resume)
    assert body_of(anew.payload) == b"never seen"
    session.dispose(came[known.tag].delivery_id or 0, state=Accepted())
    session.dispose(anew.delivery_id or 0, state=Accepted())
    session.sync()
    link.detach()
    session.receiver("q", 10).nothing()


def interrupted(side: Side, connect: Connect, name: str) -> tuple[Delivery, bytes]:
    """Return the first transfers of an interrupted large message, and the complete message as another receiver sees
    it."""
    fill(connect, name, LARGE)
    session = side.begin(max_frame_size=4096, incoming_window=5)
    link = side.receiver(session)
    link.flow(1, incoming_window=5)
    frames = [session.take(Transfer) for _ in range(5)]
    assert frames[-1].more
    seen = b"".join(item.payload for item in frames)
    assert frames[0].delivery_id is not None and frames[0].delivery_tag is not None
    return Delivery(frames[0].delivery_id, frames[0].delivery_tag, False, frames, seen), seen


@pytest.mark.rule("1.0", "messaging.3.4.1.received-first-only")
@pytest.mark.rule("1.0", "transport.2.7.5.first-has-resume")
@pytest.mark.rule("1.0", "transport.2.6.13.resume-flag")
def test_a_large_message_is_resumed_at_the_receivers_position(side: Side, connect: Connect, name: str) -> None:
    delivery, seen = interrupted(side, connect, name)
    session = side.begin(max_frame_size=4096)
    ranges = section_ranges(seen)
    wanted = Received(len(ranges) - 1, len(seen) - ranges[-1][1])
    link = side.receiver(session, unsettled={delivery.tag: wanted})
    session.flow(handle=link.handle, link_credit=1)
    rest = link.get()
    first = rest.transfers[0]
    assert (rest.tag, first.resume) == (delivery.tag, True)
    assert isinstance(first.state, Received)
    assert (first.state.section_number, first.state.section_offset) == (wanted.section_number, wanted.section_offset)
    assert len(rest.transfers) > 2
    assert all(item.state is None for item in rest.transfers[1:])
    assert body_of(seen + rest.payload) == LARGE
    session.dispose(rest.id, state=Accepted())
    session.sync()
    # The state is not sent in any other way either.
    assert not any(isinstance(item.state, Received) for item in session.peer.kept(Disposition))


@pytest.mark.rule("1.0", "messaging.3.4.6.tag-5-resent")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-5-not-resumed")
def test_a_large_message_unknown_to_the_receiver_is_sent_again(side: Side, connect: Connect, name: str) -> None:
    interrupted(side, connect, name)
    session = side.begin(max_frame_size=4096)
    link = side.receiver(session, unsettled={}, credit=1)
    delivery = link.get()
    assert not any(item.resume for item in delivery.transfers)
    assert delivery.body == LARGE


@pytest.mark.rule("1.0", "transport.2.6.3.resume-tells-unsettled")
@pytest.mark.rule("1.0", "transport.2.7.6.after-detach")
def test_outcomes_of_a_detached_link_are_applied(side: Side, connect: Connect, name: str) -> None:
    fill(connect, name, b"1", b"2", b"3")
    session = side.begin()
    link = side.receiver(session, credit=3)
    first, second, third = (link.get() for _ in range(3))
    assert not link.detach(closed=False).closed
    session.dispose(first.id, state=Accepted())
    session.dispose(second.id, state=Rejected())
    session.sync()
    session = side.begin()
    link = side.receiver(session, unsettled={third.tag: None})
    assert set(link.attached.unsettled) == {third.tag}
    link.detach()
    last = session.receiver(name, 10)
    assert last.get().body == b"3"
    last.nothing()


@pytest.mark.rule("1.0", "transport.2.7.3.incomplete-no-new")
@pytest.mark.rule("1.0", "transport.2.6.13.incomplete-reduced")
@pytest.mark.rule("1.0", "transport.2.6.13.incomplete-again")
@pytest.mark.rule("1.0", "transport.2.7.3.absence-means-nothing")
def test_new_deliveries_wait_while_the_receivers_map_is_incomplete(side: Side, connect: Connect, name: str) -> None:
    fill(connect, name, b"1", b"2", b"3")
    session = side.begin()
    link = side.receiver(session, credit=2)
    first, second = link.get(), link.get()
    session = side.begin()
    link = side.receiver(session, unsettled={first.tag: Accepted()}, incomplete_unsettled=True)
    session.flow(handle=link.handle, link_credit=10)
    answer = transfers(session, 1)[first.tag]
    assert answer.resume and answer.settled
    session.sync()
    assert not session.peer.kept(Transfer)
    # Reattached, with the rest.
    assert link.detach(closed=False) is not None
    link = side.receiver(session, unsettled={second.tag: Accepted()})
    session.flow(handle=link.handle, link_credit=10)
    came = transfers(session, 2)
    assert came.pop(second.tag).settled
    assert body_of(came.popitem()[1].payload) == b"3"


@pytest.mark.rule("1.0", "transport.2.7.3.incomplete-rather-than-error")
@pytest.mark.rule("1.0", "transport.2.6.13.incomplete-reduced")
def test_a_map_that_does_not_fit_is_sent_in_part(side: Side, connect: Connect, name: str) -> None:
    fill(connect, name, *(b"%d" % number for number in range(100)))
    session = side.begin()
    link = side.receiver(session, credit=100)
    tags = [link.get().tag for _ in range(100)]
    session = side.begin(max_frame_size=512)
    link = side.receiver(session, unsettled={tags[99]: None})
    assert link.attached.incomplete_unsettled
    assert tags[99] in link.attached.unsettled
    assert 1 < len(link.attached.unsettled) < 100
    session.sync()


# The broker has received


def resume(sender: Sender, tag: bytes, payload: bytes = b"", **options: Any) -> int:
    session = sender.session
    number = session.next_id
    session.next_id += 1
    sender.transfer(payload, delivery_id=number, delivery_tag=tag, message_format=0, resume=True, **options)
    return number


@pytest.mark.rule("1.0", "transport.2.6.3.resume-tells-unsettled")
@pytest.mark.rule("1.0", "transport.2.7.3.states-compared")
@pytest.mark.rule("1.0", "transport.2.6.13.receiver-only-settled")
@pytest.mark.rule("1.0", "transport.2.6.13.both-resumed")
@pytest.mark.parametrize("kill", [False, True], ids=["connection lost", "broker killed"])
def test_resumed_deliveries_to_the_broker_are_not_stored_twice(
    own_broker: LeveretProcess, connect: Connect, kill: bool
) -> None:
    side = Side(connect, "q", own_broker)
    session = side.begin()
    link = side.sender(session, durable=2)
    for tag in (b"settled", b"unsettled"):
        number = link.send(message(tag, durable=True), delivery_tag=tag)
        assert not session.outcome(number).settled
    if kill:
        own_broker.kill()
        own_broker.start()
    session = side.begin()
    link = side.sender(session, durable=2, unsettled={b"unsettled": None, b"new to you": None})
    # Deliveries that the sender has forgotten are settled here, too.
    assert {tag: type(state) for tag, state in link.attached.unsettled.items()} == {b"unsettled": Accepted}
    number = resume(link, b"unsettled", message(b"unsettled", durable=True))
    answer = session.outcome(number)
    assert (answer.settled, type(answer.state)) == (False, Accepted)
    session.dispose(number, state=Accepted(), role=False)
    session.sync()
    link.detach()
    last = session.receiver("q", 10)
    assert [last.get().body, last.get().body] == [b"settled", b"unsettled"]
    last.nothing()


def begun(side: Side, payload: bytes) -> Session:
    """A session; on the previous connection the broker received the beginning of a delivery with the tag t."""
    session = side.begin()
    link = side.sender(session)
    link.transfer(payload, delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    session.sync()
    return side.begin()


@pytest.mark.rule("1.0", "messaging.3.4.6.tag-2-from-start")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-2-from-position")
@pytest.mark.rule("1.0", "messaging.3.4.6.tag-6-skips")
@pytest.mark.parametrize(
    "begin", [None, (0, 0), (0, 3), (1, 10), "there"], ids=["no state", "start", "first section", "second section", "there"]
)
def test_the_received_part_of_a_resumed_delivery_is_skipped(side: Side, connect: Connect, name: str, begin: Any) -> None:
    whole = message(b"first" * 20, properties=Properties("id" * 30)) + message(b"second" * 20) + message(b"third" * 20)
    ranges = [(start, end) for _, start, end in section_ranges(whole)]
    cut = ranges[2][0] + 25
    session = begun(side, whole[:cut])
    link = side.sender(session, unsettled={b"t": None})
    told = link.attached.unsettled[b"t"]
    assert isinstance(told, Received)
    at = ranges[told.section_number][0] + told.section_offset
    assert 0 < at <= cut
    state = Received(told.section_number, told.section_offset) if begin == "there" else begin and Received(*begin)
    start = 0 if state is None else ranges[state.section_number][0] + state.section_offset
    number = resume(link, b"t", whole[start : start + 100], state=state, more=True)
    link.transfer(whole[start + 100 :])
    answer = session.outcome(number)
    assert (answer.settled, type(answer.state)) == (False, Accepted)
    session.dispose(number, state=Accepted(), role=False)
    last = session.receiver(name, 10)
    payload = last.get().payload
    assert payload.endswith(whole)
    last.nothing()


@pytest.mark.rule("1.0", "messaging.3.4.6.tag-4-no-null")
@pytest.mark.rule("1.0", "transport.2.7.3.no-null-keys")
def test_a_delivery_without_received_data_has_a_position(side: Side) -> None:
    session = begun(side, b"")
    told = side.sender(session, unsettled={b"t": None}).attached.unsettled
    assert set(told) <= {b"t"}
    for state in told.values():
        assert isinstance(state, Received)
        assert (state.section_number, state.section_offset) == (0, 0)


@pytest.mark.rule("1.0", "transport.2.7.3.incomplete-new-detaches")
def test_a_new_delivery_on_a_link_with_an_incomplete_map_detaches(side: Side) -> None:
    session = side.begin()
    link = side.sender(session)
    tags = [b"%032d" % number for number in range(50)]
    for tag in tags:
        session.outcome(link.send(delivery_tag=tag))
    session = side.begin(max_frame_size=512)
    link = side.sender(session, unsettled=dict.fromkeys(tags))
    assert link.attached.incomplete_unsettled
    known = next(iter(link.attached.unsettled))
    assert isinstance(session.outcome(resume(link, known)).state, Accepted)
    link.send(delivery_tag=b"new")
    detach = session.take(Detach)
    assert detach.error is not None

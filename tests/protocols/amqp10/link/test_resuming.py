"""Resumed deliveries (transport section 2.6.13), with the worked example of messaging section 3.4.6 tag by tag.

The example's sender is the broker in the first part, and its receiver in the second. States that the broker never has by
itself, a source that can send only from the middle or that has ended a delivery without settling it, are put into its
terminus.
"""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocols.amqp10.link.resume_actions import ABORT, FORGET, RESTATE, RESUME, SEND_AGAIN, SETTLE, WAIT, decide
from leveret.protocols.amqp10.terminus.source import SourceTerminus, Unsettled
from leveret.protocols.amqp10.terminus.target import TargetTerminus
from leveret.wire.amqp10.messaging import Accepted, Modified, Properties, Received, Rejected, Released, Source, Target
from leveret.wire.amqp10.sections import section_ranges
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Attach, Close, Detach, Disposition, Flow, Transfer
from leveret.wire.amqp10.values import Described, Map, Symbol, UInt
from tests.broker.support import HeldLog
from tests.protocols.amqp10.support import Client, Receiver, Sender, Session, body_of, connect, make_site, message
from tests.protocols.amqp10.terminus.test_termini import fill, receiver, terminus
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Site

# The unsettled maps of the example: the sender's, and the receiver's.
SENDER: dict[int, Any] = {
    1: None,
    2: None,
    3: None,
    4: None,
    5: Received(0, 200),
    6: Received(1, 150),
    7: Received(0, 500),
    8: Received(3, 5),
    9: Received(2, 0),
    10: Accepted(),
    11: Accepted(),
    12: Accepted(),
    13: Accepted(),
    14: Accepted(),
}
RECEIVER: dict[int, Any] = {
    2: Received(3, 0),
    3: Accepted(),
    4: None,
    6: Received(2, 0),
    7: Received(0, 100),
    8: Accepted(),
    9: None,
    11: Received(1, 2000),
    12: Accepted(),
    13: Released(),
    14: None,
}


def long_message(number: int) -> bytes:
    """Four sections, properties and data, long enough for the positions of the example."""
    return (
        message(b"%02d" % number, properties=Properties(message_id="x" * 200)) + message(b"b" * 300) + message(b"c" * 400)
    )


def sections_of(payload: bytes) -> list[bytes]:
    return [payload[begin:end] for _, begin, end in section_ranges(payload)]


# An empty section before the others.
ANNOTATIONS = b"\0\x53\x72\xc1\x01\0"


def state_of(value: Any) -> Any:
    """A state that can be compared."""
    if isinstance(value, Received):
        return ("Received", value.section_number, value.section_offset)
    return None if value is None else type(value).__name__


def states_of(values: dict[Any, Any]) -> dict[Any, Any]:
    return {key: state_of(value) for key, value in values.items()}


@pytest.fixture
def site() -> Site:
    return make_site()


class TestTheDecision:
    """Each tag by itself."""

    EXPECTED = {
        1: SEND_AGAIN,
        2: RESUME,
        3: SETTLE,
        4: RESUME,
        5: SEND_AGAIN,
        6: RESUME,
        7: ABORT,
        8: SETTLE,
        9: ABORT,
        10: FORGET,
        11: ABORT,
        12: SETTLE,
        13: RESTATE,
        14: ABORT,
    }

    @pytest.mark.parametrize("tag", range(1, 15))
    def test_tag(self, tag: int) -> None:
        assert decide(SENDER[tag], tag in RECEIVER, RECEIVER.get(tag)) == self.EXPECTED[tag]

    @pytest.mark.parametrize("tag", [1, 5, 10])
    def test_deliveries_missing_from_an_incomplete_map(self, tag: int) -> None:
        assert decide(SENDER[tag], False, None, True) == WAIT


class TestTheBrokerSends:
    """Every delivery of the example in one attach."""

    @pytest.fixture
    def client(self, site: Site) -> Client:
        client = connect(site)
        sender = client.begin().sender()
        for number in range(1, 15):
            sender.send(long_message(number))
        client.drop()
        client = connect(site)
        link = receiver(client.begin(), credit=14, expiry_policy="never")
        self.payloads = [frame.payload for frame in link.deliveries()]
        client.drop()
        source = terminus(site)
        assert isinstance(source, SourceTerminus)
        source.collect()
        unsettled = source.unsettled
        source.unsettled = {}
        for number, item in zip(range(1, 15), unsettled.values(), strict=True):
            state = SENDER[number]
            entry = item.entry
            assert entry is not None
            if isinstance(state, Accepted):
                entry.queue.settle(entry)
            source.unsettled[bytes((number,))] = Unsettled(None if isinstance(state, Accepted) else entry, state)
        return connect(site)

    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-1-resent")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-1-not-resumed")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-3-resumed")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-3-state")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-4-resent")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-4-resumed")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-5-resent")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-5-not-resumed")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-13-sender-wins")
    def test_all(self, site: Site, client: Client) -> None:
        session = client.begin()
        link = receiver(
            session, expiry_policy="never", unsettled={bytes((number,)): state for number, state in RECEIVER.items()}
        )
        assert states_of(link.attached.unsettled) == {bytes((number,)): state_of(state) for number, state in SENDER.items()}
        # States without payload are sent without credit.
        told = {frame.delivery_tag[0]: frame for frame in client.all(Transfer) if frame.delivery_tag}
        assert {tag: (frame.settled, frame.aborted, state_of(frame.state)) for tag, frame in told.items()} == {
            3: (True, False, "Accepted"),
            8: (True, False, "Accepted"),
            12: (True, False, "Accepted"),
            13: (False, False, "Accepted"),
            7: (False, True, None),
            9: (False, True, None),
            11: (False, True, None),
            14: (False, True, None),
        }
        assert all(frame.resume and not frame.payload and not frame.more for frame in told.values())
        count = client.all(Flow)[-1].delivery_count
        assert count == 8
        link.flow(20, delivery_count=count)
        frames = client.all(Transfer)
        resumed = {frame.delivery_tag[0]: frame for frame in frames if frame.resume and frame.delivery_tag}
        assert {tag: state_of(frame.state) for tag, frame in resumed.items()} == {
            2: ("Received", 3, 0),
            4: None,
            6: ("Received", 2, 0),
        }
        assert resumed[2].payload == b"".join(sections_of(self.payloads[1])[3:])
        assert resumed[4].payload == self.payloads[3]
        assert resumed[6].payload == b"".join(sections_of(self.payloads[5])[2:])
        # 1 and 5 are sent again; so are 7 and 9, whose messages still exist.
        anew = [body_of(sections_of(frame.payload)[3]) for frame in frames if not frame.resume]
        assert anew == [b"01", b"05", b"07", b"09"]
        assert not {frame.delivery_tag for frame in frames if not frame.resume} & {bytes((number,)) for number in SENDER}
        # 13: the client adopts our state and settles.
        session.dispose(told[13].delivery_id, state=Accepted())
        queue = site.vhost.queues["q"]
        # 3 and 8 are retired now, as 10 to 14 were before.
        assert (queue.counters.settled, queue.unacked, queue.ready_count) == (7, 7, 0)
        for frame in frames:
            session.dispose(frame.delivery_id, state=Accepted())
        assert (queue.counters.settled, queue.unacked) == (14, 0)


class TestTheBrokerReceives:
    @pytest.fixture
    def client(self, site: Site) -> Client:
        client = connect(site)
        link = client.begin().sender(name="s", target=Target("q", expiry_policy="never"), rcv_settle_mode=1)
        for number in (3, 8, 12):
            link.send(self.payload(number), delivery_tag=bytes((number,)))
        assert [state for _, _, _, state in link.outcomes()] == ["Accepted"] * 3
        client.drop()
        target = terminus(site, "s", receives=True)
        assert isinstance(target, TargetTerminus)
        for number, state in RECEIVER.items():
            tag = bytes((number,))
            if number == 2:
                target.interrupt(tag, b"".join(self.sent(number)[:3]), 0)
            elif number == 6:
                target.interrupt(tag, b"".join(self.sent(number)[:2]), 0)
            elif number == 7:
                target.interrupt(tag, message(b"x" * 3000)[:100], 0)
            elif number == 11:
                target.interrupt(tag, ANNOTATIONS + message(b"x" * 3000)[:2000], 0)
            elif state is None:
                target.interrupt(tag, b"", 0)
            elif number == 13:
                delivery = target.begin(connect(site, container="x").begin().client.session.sessions.by_channel[0], 99, tag)
                delivery.resolve(Released().kind, None, 0)
        return connect(site)

    def sent(self, number: int) -> list[bytes]:
        return sections_of(self.payload(number))

    def payload(self, number: int) -> bytes:
        return ANNOTATIONS + long_message(number)

    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-2-from-position")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-4-no-null")
    @pytest.mark.rule("1.0", "messaging.3.4.6.tag-6-skips")
    def test_all(self, site: Site, client: Client) -> None:
        session = client.begin()
        link = session.sender(
            name="s",
            target=Target("q", expiry_policy="never"),
            rcv_settle_mode=1,
            unsettled={bytes((number,)): state for number, state in SENDER.items()},
        )
        # An unknown delivery is the same as one without data.
        expected = {
            bytes((number,)): ("Received", 0, 0) if state is None else state_of(state) for number, state in RECEIVER.items()
        }
        expected[b"\x02"] = ("Received", 2, len(self.sent(2)[2]))
        expected[b"\x06"] = ("Received", 1, len(self.sent(6)[1]))
        assert states_of(link.attached.unsettled) == expected

        def resume(number: int, payload: bytes = b"", state: Any = None, **options: Any) -> int:
            delivery_id = session.next_id
            session.next_id += 1
            link.part(
                payload,
                delivery_id=delivery_id,
                delivery_tag=bytes((number,)),
                message_format=0,
                state=state,
                resume=True,
                **options,
            )
            client.run()
            return delivery_id

        queue = site.vhost.queues["q"]
        assert queue.ready_count == 3
        link.send(self.payload(1), delivery_tag=b"\x01")
        assert [outcome[3] for outcome in link.outcomes()] == ["Accepted"]
        resume(2, b"".join(self.sent(2)[3:]), Received(3, 0))
        assert [outcome[3] for outcome in link.outcomes()] == ["Accepted"]
        resume(3, state=Accepted(), settled=True)
        resume(4, self.payload(4))
        assert [outcome[3] for outcome in link.outcomes()] == ["Accepted"]
        link.send(self.payload(5), delivery_tag=b"\x05")
        assert [outcome[3] for outcome in link.outcomes()] == ["Accepted"]
        # From the earliest position that the sender has: known data is skipped.
        resume(6, b"".join(self.sent(6)[1:])[150:], Received(1, 150))
        assert [outcome[3] for outcome in link.outcomes()] == ["Accepted"]
        resume(7, aborted=True)
        resume(8, state=Accepted(), settled=True)
        resume(9, aborted=True)
        resume(11, aborted=True)
        resume(12, settled=True)
        assert link.outcomes() == []
        number = resume(13, state=Accepted())
        assert link.outcomes() == [(number, number, True, "Accepted")]
        resume(14, aborted=True)
        assert client.find(Detach) is None
        target = terminus(site, "s", receives=True)
        assert isinstance(target, TargetTerminus)
        assert sorted(tag[0] for tag in target.deliveries) == [1, 2, 4, 5, 6]
        session.dispose(0, 99, role=False)
        assert not target.deliveries
        delivered = receiver(connect(site).begin(), "r", credit=20).deliveries()
        got = [sections_of(frame.payload)[2:] for frame in delivered]
        assert got == [self.sent(number)[1:] for number in (3, 8, 12, 1, 2, 4, 5, 6)]
        assert site.protocols.amqp10.termini.partial == 0


# More about receiving


def sender(client: Client, name: str = "s", *, address: str = "q", mode: int = 1, **options: Any) -> Sender:
    target = Target(address, expiry_policy="never", durable=options.pop("durable", 0))
    return client.begin().sender(name=name, target=target, rcv_settle_mode=mode, **options)


def resume(link: Sender, tag: bytes, payload: bytes = b"", **options: Any) -> int:
    number = link.session.next_id
    link.session.next_id += 1
    link.part(payload, delivery_id=number, delivery_tag=tag, message_format=0, resume=True, **options)
    link.client.run()
    return number


def test_resumed_deliveries_are_not_stored_twice(site: Site) -> None:
    client = connect(site)
    sender(client).send(message(b"1"), delivery_tag=b"t")
    client.drop()
    link = sender(connect(site), unsettled={b"t": None})
    assert states_of(link.attached.unsettled) == {b"t": "Accepted"}
    number = resume(link, b"t", message(b"1"))
    assert link.outcomes() == [(number, number, False, "Accepted")]
    assert site.vhost.queues["q"].ready_count == 1
    link.session.dispose(number, role=False)
    # It is settled at both ends: now the tag is unknown, and the delivery is ignored.
    resume(link, b"t", message(b"1"))
    assert link.outcomes() == []
    assert site.vhost.queues["q"].ready_count == 1


def test_deliveries_settled_by_the_client_are_forgotten(site: Site) -> None:
    client = connect(site)
    link = sender(client)
    for tag in (b"1", b"2"):
        link.send(delivery_tag=tag)
    client.drop()
    client = connect(site)
    link = sender(client, unsettled={b"2": None})
    assert states_of(link.attached.unsettled) == {b"2": "Accepted"}
    client.drop()
    assert sender(connect(site)).attached.unsettled == {}


def test_the_outcome_of_a_transaction_is_remembered(site: Site) -> None:
    client = connect(site)
    routed = sender(client)
    controller = Controller(routed.session)
    target = Target("/exchanges/amq.direct/unbound", expiry_policy="never")
    unrouted = routed.session.sender(name="u", target=target, rcv_settle_mode=1)
    work = controller.declare()
    routed.send(delivery_tag=b"r", state=TransactionalState(work))
    unrouted.send(delivery_tag=b"u", state=TransactionalState(work))
    assert [type(frame.state.outcome) for frame in client.all(Disposition)] == [Accepted, Released]
    assert isinstance(controller.discharge(work), Accepted)
    client.drop()
    client = connect(site)
    again = sender(client, unsettled={b"r": None})
    assert states_of(again.attached.unsettled) == {b"r": "Accepted"}
    other = again.session.sender(name="u", target=target, rcv_settle_mode=1, unsettled={b"u": None})
    assert states_of(other.attached.unsettled) == {b"u": "Released"}


def test_with_mode_first_no_state_is_remembered(site: Site) -> None:
    client = connect(site)
    sender(client, mode=0).send(delivery_tag=b"t")
    client.drop()
    link = sender(connect(site), mode=0, unsettled={b"t": None})
    assert link.attached.unsettled == {}
    resume(link, b"t", message(b"again"))
    assert link.outcomes() == []
    assert site.vhost.queues["q"].ready_count == 1


@pytest.mark.parametrize("mode", [0, 1])
def test_a_delivery_resumed_in_the_middle(site: Site, mode: int) -> None:
    whole = message(b"x" * 5000)
    client = connect(site)
    link = sender(client, mode=mode)
    link.part(whole[:3000], delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    client.run()
    client.drop()
    assert site.protocols.amqp10.termini.partial == 3000
    link = sender(connect(site), mode=mode, unsettled={b"t": None})
    assert states_of(link.attached.unsettled) == {b"t": ("Received", 0, 3000)}
    number = resume(link, b"t", whole[3000:4000], state=Received(0, 3000), more=True)
    link.part(whole[4000:])
    link.client.run()
    assert link.outcomes() == [(number, number, not mode, "Accepted")]
    assert receiver(connect(site).begin(), credit=1).bodies() == [b"x" * 5000]
    assert link.client.session.partial == 0
    assert site.protocols.amqp10.termini.partial == 0


def test_a_delivery_that_is_interrupted_twice(site: Site) -> None:
    whole = message(b"y" * 5000)
    for begin, end in ((0, 1000), (1000, 4000)):
        client = connect(site)
        link = sender(client, unsettled={b"t": None} if begin else None)
        resume(link, b"t", whole[begin:end], state=Received(0, begin), more=True) if begin else link.part(
            whole[:end], delivery_id=0, delivery_tag=b"t", message_format=0, more=True
        )
        client.run()
        client.drop()
    link = sender(connect(site), unsettled={b"t": None})
    # The sender starts from the beginning: received data is skipped.
    resume(link, b"t", whole)
    assert len(link.outcomes()) == 1
    assert receiver(connect(site).begin(), credit=1).bodies() == [b"y" * 5000]


def test_a_gap(site: Site) -> None:
    client = connect(site)
    link = sender(client)
    link.part(message(b"x" * 500)[:300], delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    client.run()
    client.drop()
    link = sender(connect(site), unsettled={b"t": None})
    resume(link, b"t", b"...", state=Received(0, 301))
    assert link.client.error(Detach)[0] == "amqp:invalid-field"
    assert terminus(site, "s", receives=True) is not None


def test_interrupted_deliveries_have_a_limit(site: Site) -> None:
    site.services.settings.max_message_size = 1 << 20
    for name in ("1", "2"):
        client = connect(site)
        sender(client, name).part(
            message(b"x" * 700_000)[:-1], delivery_id=0, delivery_tag=b"t", message_format=0, more=True
        )
        client.run()
        client.drop()
    assert site.protocols.amqp10.termini.partial < 1 << 20
    assert not sender(connect(site), "2", unsettled={b"t": None}).attached.unsettled


def test_resumed_deliveries_need_no_credit(site: Site) -> None:
    site.protocols.amqp10.settings.link_credit = 2
    client = connect(site)
    link = sender(client)
    for tag in (b"1", b"2"):
        link.send(delivery_tag=tag)
    link.outcomes()
    client.drop()
    link = sender(connect(site), unsettled={b"1": None, b"2": None})
    for tag in (b"1", b"2", b"1", b"2", b"1"):
        resume(link, tag)
    assert len(link.outcomes()) == 5
    assert link.client.find(Detach) is None


def test_an_outcome_that_is_not_on_disk_is_not_reported() -> None:
    held = HeldLog()
    site = make_site(log=held)
    site.vhost.declare_queue("q", None, durable=True)
    client = connect(site)
    link = sender(client)
    site.run()
    held.held = True
    link.send(message(b"1", durable=True), delivery_tag=b"t")
    assert link.outcomes() == []
    client.drop()
    link = sender(connect(site), unsettled={b"t": None})
    assert link.attached.unsettled == {b"t": None}
    # It is known, however, and not stored again; its outcome follows the commit.
    number = resume(link, b"t", message(b"1", durable=True))
    assert link.outcomes() == []
    for _ in range(2):
        held.release()
        site.run()
    assert link.outcomes() == [(number, number, False, "Accepted")]
    assert site.vhost.queues["q"].ready_count == 1


# More about sending


def test_new_deliveries_wait_for_resumed_ones(site: Site) -> None:
    fill(site, b"1", b"2", b"3", b"4")
    client = connect(site)
    tags = [frame.delivery_tag for frame in receiver(client.begin(), credit=2, expiry_policy="never").deliveries()]
    client.drop()
    link = receiver(connect(site).begin(), expiry_policy="never", unsettled=dict.fromkeys(tags))
    assert link.deliveries() == []
    link.flow(1)
    link.flow(2, delivery_count=1)
    link.flow(1, delivery_count=3)
    frames = link.deliveries()
    assert [(body_of(frame.payload), frame.resume) for frame in frames] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
        (b"4", False),
    ]
    link.accept(0, 3)
    assert site.vhost.queues["q"].counters.settled == 4


@pytest.mark.parametrize("state", [Rejected(), Released(), Modified(delivery_failed=True)])
def test_outcomes_in_the_map_take_place(site: Site, state: Any) -> None:
    fill(site, b"1")
    client = connect(site)
    receiver(client.begin(), credit=1, expiry_policy="never", rcv_settle_mode=1)
    client.drop()
    link = receiver(connect(site).begin(), expiry_policy="never", unsettled={bytes(4): state})
    frame = link.deliveries()[0]
    assert (frame.settled, frame.resume, type(frame.state)) == (True, True, type(state))
    queue = site.vhost.queues["q"]
    assert (queue.unacked, queue.ready_count) == (0, 0 if isinstance(state, Rejected) else 1)


def large(site: Site) -> tuple[Client, Receiver, bytes]:
    """A message of 300,000 bytes being sent in small frames, of which the client has seen some."""
    fill(site, b"z" * 300_000)
    client = Client(site)
    client.open(max_frame_size=4096)
    link = receiver(client.begin(), expiry_policy="never")
    link.flow(1, window=10)
    return client, link, b"".join(frame.payload for frame in link.deliveries())


def test_a_large_message_is_resumed_in_the_middle(site: Site) -> None:
    client, _, seen = large(site)
    assert 30_000 < len(seen) < 300_000
    client.drop()
    head = section_ranges(seen)[1][2]  # header and annotations
    link = receiver(connect(site).begin(), expiry_policy="never", unsettled={bytes(4): Received(2, len(seen) - head)})
    link.flow(1)
    frames = link.deliveries()
    assert state_of(frames[0].state) == ("Received", 2, len(seen) - head)
    assert all(frame.state is None for frame in frames[1:])
    assert body_of(seen + b"".join(frame.payload for frame in frames)) == b"z" * 300_000


def test_the_head_stays_as_it_was_sent(site: Site) -> None:
    """So that a position in it means the same bytes: the time to live has decreased meanwhile."""
    from leveret.wire.amqp10.messaging import Header

    client = connect(site)
    client.begin().sender().send(message(b"z" * 300_000, header=Header(ttl=1_000_000)))
    client.drop()
    client = connect(site)
    link = receiver(client.begin(), expiry_policy="never")
    link.flow(1, window=3)
    seen = b"".join(frame.payload for frame in link.deliveries())
    client.drop()
    source = terminus(site)
    assert isinstance(source, SourceTerminus)
    entry = next(iter(source.unsettled.values())).entry
    assert entry is not None
    entry.message.expires_at -= 999_000
    link = receiver(connect(site).begin(), expiry_policy="never", unsettled={bytes(4): Received(0, 5)})
    link.flow(1)
    again = b"".join(frame.payload for frame in link.deliveries())
    assert again.startswith(seen[5:])


def test_settling_while_a_large_message_is_resumed(site: Site) -> None:
    large(site)[0].drop()
    session = connect(site).begin()
    link = receiver(session, expiry_policy="never", unsettled={bytes(4): None})
    link.flow(1, window=2)
    frames = link.deliveries()
    assert frames[0].resume and frames[-1].more
    session.dispose(frames[0].delivery_id, state=Accepted())
    assert site.vhost.queues["q"].counters.settled == 1


def test_our_map_does_not_fit(site: Site) -> None:
    """The client's deliveries are resumed; then both attach again (transport section 2.6.13)."""
    fill(site, *[b"%d" % number for number in range(100)])
    client = connect(site)
    tags = [frame.delivery_tag for frame in receiver(client.begin(), credit=100, expiry_policy="never").deliveries()]
    client.drop()
    client = Client(site)
    client.open(max_frame_size=512)
    session = client.begin()
    link = receiver(session, credit=50, expiry_policy="never", unsettled={tags[98]: Accepted(), tags[99]: None})
    assert link.attached.incomplete_unsettled
    assert 2 < len(link.attached.unsettled) < 100
    # No new delivery is sent, and no delivery missing from the map is dropped.
    assert [(frame.delivery_tag, frame.settled) for frame in link.deliveries()] == [(tags[98], True), (tags[99], False)]
    left = terminus(site).unsettled_count()  # type: ignore[union-attr]
    assert left == 99 - (len(link.attached.unsettled) - 2)
    fill(site, b"new")
    assert link.deliveries() == []


def test_the_map_of_the_client_is_not_complete(site: Site) -> None:
    fill(site, b"1", b"2", b"3")
    client = connect(site)
    receiver(client.begin(), credit=2, expiry_policy="never")
    client.drop()
    session = connect(site).begin()
    link = receiver(session, credit=5, expiry_policy="never", unsettled={bytes(4): Accepted()}, incomplete_unsettled=True)
    assert [frame.settled for frame in link.deliveries()] == [True]
    assert site.vhost.queues["q"].unacked == 1
    link.detach(closed=False)
    link = receiver(session, credit=5, expiry_policy="never", unsettled={})
    assert sorted(link.bodies()) == [b"2", b"3"]


def test_new_deliveries_while_our_map_was_not_complete(site: Site) -> None:
    client = connect(site)
    link = sender(client)
    tags = [b"%032d" % number for number in range(50)]
    for tag in tags:
        link.send(delivery_tag=tag)
    client.drop()
    client = Client(site)
    client.open(max_frame_size=512)
    client.output.max_frame_size = 1 << 20
    link = sender(client, unsettled=dict.fromkeys(tags))
    assert link.attached.incomplete_unsettled
    number = resume(link, next(iter(link.attached.unsettled)), settled=True)
    assert number == 0
    link.send(delivery_tag=b"new")
    assert client.error(Detach)[0] == "amqp:not-allowed"


def test_maps_with_anything_in_them(site: Site) -> None:
    fill(site, b"1")
    client = connect(site)
    receiver(client.begin(), credit=1, expiry_policy="never")
    client.drop()
    strange = Map([(b"other", Described(Symbol("strange"), 1)), (bytes(4), UInt(1))])
    link = receiver(connect(site).begin(), credit=1, expiry_policy="never", unsettled=strange)
    assert link.deliveries()[0].resume
    assert isinstance(link.attached, Attach)
    assert link.client.find(Disposition) is None


@pytest.mark.parametrize("key", [UInt(3), "text", Symbol("symbol"), None])
def test_maps_with_other_keys_than_tags(site: Site, key: Any) -> None:
    client = connect(site)
    session = client.begin()
    client.send(Attach("link", 0, True, source=Source("q"), target=Target("here"), unsettled={key: None}))
    condition, text = client.error(Close)
    assert (condition, "attach: unsettled: expected a delivery-tag as key" in text) == ("amqp:decode-error", True)
    assert session.channel == 0


def test_a_position_after_the_end(site: Site) -> None:
    fill(site, b"1")
    client = connect(site)
    receiver(client.begin(), credit=1, expiry_policy="never")
    client.drop()
    link = receiver(connect(site).begin(), credit=1, expiry_policy="never", unsettled={bytes(4): Received(9, 9)})
    frame = link.deliveries()[0]
    assert (frame.resume, frame.payload, frame.more) == (True, b"", False)


def test_sources_without_a_terminus_answer_with_an_empty_map(site: Site) -> None:
    session: Session = connect(site).begin()
    assert session.receiver(source=Source("q"), unsettled={b"x": None}).attached.unsettled == {}
    assert session.sender(unsettled={b"x": None}).attached.unsettled == {}

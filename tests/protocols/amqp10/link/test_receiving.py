"""Transfers to a client, and the effects of its outcomes (transport section 2.6, messaging sections 3.3 to 3.5)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queues.classic.dispatcher import MAX_DELIVERED
from leveret.security.permissions import Permission
from leveret.wire.amqp10.messaging import (
    Accepted,
    Modified,
    Properties,
    Rejected,
    Released,
    Source,
    Target,
)
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transport import Close, Detach, Disposition, End, Flow, Open, Transfer
from leveret.wire.amqp10.values import Described, Symbol, ULong
from tests.protocols.amqp10.support import Client, Session, body_of, connect, make_site, message
from tests.protocols.support import Site
from tests.support.queues import classic


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


def fill(session: Session, *bodies: bytes, address: str = "q", **options: Any) -> None:
    sender = session.sender(address, name="filling")
    for body in bodies:
        sender.send(message(body, **options))
    sender.detach()
    session.client.all(Disposition)


def test_credit(session: Session) -> None:
    fill(session, b"1", b"2", b"3", b"4")
    receiver = session.receiver()
    assert receiver.bodies() == []
    receiver.flow(1)
    assert receiver.bodies() == [b"1"]
    receiver.flow(2, delivery_count=1)
    assert receiver.bodies() == [b"2", b"3"]
    # The limit is absolute: credit granted before the client had seen the last two is used up.
    receiver.flow(2, delivery_count=1)
    assert receiver.bodies() == []
    receiver.flow(5, delivery_count=3)
    assert receiver.bodies() == [b"4"]


def test_deliveries(session: Session) -> None:
    fill(session, b"1", b"2")
    transfers = session.receiver(credit=5).deliveries()
    assert [transfer.delivery_id for transfer in transfers] == [0, 1]
    assert len({transfer.delivery_tag for transfer in transfers}) == 2
    assert not transfers[0].settled
    assert transfers[0].message_format == 0


def test_the_bare_message_is_unchanged(session: Session) -> None:
    bare = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x73\xd0\x00\x00\x00\x0a\x00\x00\x00\x01\xb1\x00\x00\x00\x01i"
    bare += b"\x00\x53\x75\xa0\x01a\x00\x53\x75\xb0\x00\x00\x00\x01b\x00\x53\x78\xc1\x01\x00"
    sender = session.sender()
    hop = b"\x00\x53\x71\xc1\x0a\x02\xa3\x05x-hop\x54\x01"
    sender.send(b"\x00\x53\x70\xc0\x02\x01\x41" + hop + bare)
    payload = session.receiver(credit=1).deliveries()[0].payload
    assert payload.endswith(bare)
    assert hop not in payload
    assert split(payload).durable


def test_the_header_of_deliveries(session: Session) -> None:
    fill(session, b"1")
    receiver = session.receiver(credit=10)
    first = split(receiver.deliveries()[0].payload)
    assert first.first_acquirer
    assert first.delivery_count == 0
    session.dispose(0, state=Modified(delivery_failed=True))
    second = split(receiver.deliveries()[0].payload)
    assert not second.first_acquirer
    assert second.delivery_count == 1
    session.dispose(1, state=Released())
    assert split(receiver.deliveries()[0].payload).delivery_count == 1


@pytest.mark.rule("1.0", "messaging.3.2.1.ttl-reduced")
def test_ttl_is_the_remaining_time(site: Site, session: Session) -> None:
    from leveret.wire.amqp10.messaging import Header

    session.sender().send(message(header=Header(ttl=60000)))
    entry = classic(site.vhost.queues["q"]).ready.backlog.head[0]
    entry.message.expires_at -= 40000
    assert 19000 < split(session.receiver(credit=1).deliveries()[0].payload).ttl <= 20000


def test_accepted_messages_are_removed(site: Site, session: Session) -> None:
    fill(session, b"1", b"2", b"3")
    receiver = session.receiver(credit=10)
    assert len(receiver.deliveries()) == 3
    receiver.accept(0, 2)
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (0, 0)
    assert session.client.find(Disposition) is None


def test_settling_second(site: Site, session: Session) -> None:
    """The client states outcomes, the broker settles (transport section 2.6.12)."""
    fill(session, b"1", b"2", b"3")
    receiver = session.receiver(credit=10, rcv_settle_mode=1)
    receiver.deliveries()
    session.dispose(0, 2, Accepted(), settled=False)
    answer = session.client.take(Disposition)
    assert (answer.role, answer.first, answer.last, answer.settled) == (False, 0, 2, True)
    assert isinstance(answer.state, Accepted)
    assert site.vhost.queues["q"].unacked == 0


def test_settled_deliveries(site: Site, session: Session) -> None:
    fill(session, b"1")
    receiver = session.receiver(credit=10, snd_settle_mode=1)
    assert receiver.attached.snd_settle_mode == 1
    assert receiver.deliveries()[0].settled
    assert site.vhost.queues["q"].unacked == 0


def dead_lettering(site: Site) -> None:
    site.vhost.declare_queue("dead", None)
    site.vhost.declare_queue("dl", None, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})


@pytest.mark.rule("1.0", "messaging.3.4.3.rejected-acted-on")
def test_rejected_is_dropped(site: Site, session: Session) -> None:
    fill(session, b"1")
    session.receiver(credit=10)
    session.dispose(0, state=Rejected())
    assert site.vhost.queues["q"].ready_count == 0
    assert site.vhost.queues["q"].unacked == 0


@pytest.mark.rule("1.0", "messaging.3.4.3.rejected-acted-on")
@pytest.mark.parametrize("state", [Rejected(), Modified(undeliverable_here=True)])
def test_dead_letters(site: Site, session: Session, state: Rejected | Modified) -> None:
    dead_lettering(site)
    fill(session, b"1", address="dl")
    session.receiver("dl", credit=10)
    session.dispose(0, state=state)
    session.client.all(Transfer)
    payload = session.receiver("dead", credit=1).deliveries()[0].payload
    sections = split(payload)
    assert b"x-opt-deaths" in payload[sections.message_annotations : sections.message_annotations_end]
    assert body_of(payload) == b"1"


def test_released_messages_return_to_their_place(session: Session) -> None:
    fill(session, b"1", b"2", b"3")
    receiver = session.receiver(credit=2)
    receiver.deliveries()
    session.dispose(0, 1, Released())
    receiver.flow(10, delivery_count=2)
    assert receiver.bodies() == [b"1", b"2", b"3"]


def test_undeliverable_here(session: Session) -> None:
    fill(session, b"1")
    receiver = session.receiver(credit=10)
    receiver.deliveries()
    session.dispose(0, state=Modified(undeliverable_here=True))
    assert receiver.deliveries() == []
    assert session.receiver(credit=1).bodies() == [b"1"]


@pytest.mark.rule("1.0", "messaging.3.4.5.modified-applied")
def test_modified_annotations(session: Session) -> None:
    annotations = b"\x00\x53\x72\xc1\x14\x04\xa3\x06x-opt-\x54\x01\xa3\x05x-opt\x54\x02"
    sender = session.sender()
    sender.send(message(before=annotations))
    receiver = session.receiver(credit=10)
    receiver.deliveries()
    session.dispose(0, state=Modified(message_annotations={Symbol("x-opt-"): 5, Symbol("x-opt-b"): "text"}))
    payload = receiver.deliveries()[0].payload
    sections = split(payload)
    from leveret.wire.amqp10.decode import section_pairs

    found = section_pairs(payload, sections.message_annotations, sections.message_annotations_end)
    assert dict(found) == {"x-opt": 2, "x-opt-": 5, "x-opt-b": "text", "x-exchange": "", "x-routing-key": "q"}


@pytest.mark.parametrize(("default", "ready"), [(Accepted(), 0), (Released(), 1), (Rejected(), 0), (None, 1)])
def test_the_default_outcome(site: Site, session: Session, default: object, ready: int) -> None:
    fill(session, b"1")
    receiver = session.receiver(source=Source("q", default_outcome=default), credit=1)
    receiver.deliveries()
    session.dispose(0)
    assert site.vhost.queues["q"].ready_count == ready
    assert site.vhost.queues["q"].unacked == 0


def test_a_detach_gives_back(site: Site, session: Session) -> None:
    fill(session, b"1", b"2")
    receiver = session.receiver(credit=10)
    receiver.deliveries()
    assert receiver.detach().closed
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked, len(queue.consumers)) == (2, 0, 0)
    assert session.receiver(credit=10).bodies() == [b"1", b"2"]


@pytest.mark.parametrize("how", ["end", "close", "drop"])
def test_the_end_gives_back(site: Site, how: str) -> None:
    session = connect(site).begin()
    fill(session, b"1", b"2", b"3")
    session.receiver(credit=2).deliveries()
    if how == "end":
        session.end()
    elif how == "close":
        session.client.send(Close())
        session.client.run()
    else:
        session.client.drop()
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked, len(queue.consumers)) == (3, 0, 0)
    assert connect(site).begin().receiver(credit=10).bodies() == [b"1", b"2", b"3"]


def test_a_session_can_begin_again_on_its_channel(session: Session) -> None:
    session.end()
    assert session.client.begin().receiver(credit=1).attached.source is not None


def test_drain(session: Session) -> None:
    fill(session, b"1", b"2")
    receiver = session.receiver()
    receiver.flow(10, drain=True)
    assert receiver.bodies() == [b"1", b"2"]
    state = session.client.take(Flow)
    assert (state.delivery_count, state.link_credit, state.drain, state.available) == (10, 0, True, 0)
    fill(session, b"3")
    assert receiver.bodies() == []
    receiver.flow(1, delivery_count=10)
    assert receiver.bodies() == [b"3"]


def test_drain_of_an_empty_queue(session: Session) -> None:
    receiver = session.receiver(credit=7)
    receiver.flow(7, drain=True)
    assert session.client.take(Flow).delivery_count == 7


SELECTOR = Described(Symbol("apache.org:selector-filter:string"), "JMSDeliveryMode = 'NON_PERSISTENT'")


@pytest.mark.parametrize(
    "source",
    [Source("q"), Source("q", distribution_mode="copy"), Source("q", filter={Symbol("f"): SELECTOR})],
    ids=["queue", "browser", "filter"],
)
def test_a_drain_takes_all_messages_of_a_deep_queue(session: Session, source: Source) -> None:
    """More than a queue delivers in one turn."""
    bodies = [b"%d" % number for number in range(4 * MAX_DELIVERED)]
    sender = session.sender(name="filling")
    for body in bodies:
        sender.send(message(body), settled=True)
    receiver = session.receiver(source=source)
    receiver.flow(2 * len(bodies), window=2 * len(bodies), drain=True)
    assert receiver.bodies() == bodies
    assert session.client.all(Flow)[-1].link_credit == 0


def test_echo_and_available(session: Session) -> None:
    fill(session, b"1", b"2", b"3")
    receiver = session.receiver()
    receiver.flow(0, echo=True)
    state = session.client.take(Flow)
    assert (state.handle, state.available, state.link_credit, state.delivery_count) == (0, 3, 0, 0)
    session.client.send(Flow(10, 0, 10, 0, echo=True))
    session.client.run()
    assert session.client.take(Flow).handle is None


def test_credit_can_be_withdrawn(session: Session) -> None:
    receiver = session.receiver(credit=10)
    receiver.flow(0)
    fill(session, b"1")
    assert receiver.bodies() == []


def test_the_session_window(session: Session) -> None:
    fill(session, b"1", b"2", b"3", b"4")
    receiver = session.receiver()
    receiver.flow(10, window=2)
    assert receiver.bodies() == [b"1", b"2"]
    session.client.send(Flow(1, 0, 10, 2))
    session.client.run()
    assert receiver.bodies() == [b"3"]
    session.client.send(Flow(10, 0, 10, 3))
    session.client.run()
    assert receiver.bodies() == [b"4"]


def test_a_large_message_is_sent_in_frames_within_the_window(site: Site) -> None:
    client = Client(site)
    client.open(max_frame_size=1000)
    session = client.begin()
    content = bytes(range(256)) * 20
    fill(session, content, b"small")
    receiver = session.receiver()
    receiver.flow(10, window=3)
    frames = receiver.deliveries()
    assert len(frames) == 3
    assert frames[0].delivery_id == 0
    assert frames[0].more
    session.client.send(Flow(100, 0, 10, 3))
    frames += receiver.deliveries()
    last = frames.pop()
    assert body_of(last.payload) == b"small"
    assert not frames[-1].more
    assert all(len(frame.payload) < 1000 for frame in frames)
    assert body_of(b"".join(frame.payload for frame in frames)) == content


def test_headers_larger_than_a_frame_are_split(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    channel.publish(headers={"long": "x" * 20_000})
    channel.run()
    client = Client(site)
    client.open(max_frame_size=512)
    receiver = client.begin().receiver()
    receiver.flow(10)
    frames = receiver.deliveries()
    assert all(len(frame.payload) < 512 for frame in frames)
    assert b"x" * 20_000 in b"".join(frame.payload for frame in frames)


def test_errors_fit_the_smallest_frame_in_any_script(site: Site) -> None:
    client = Client(site)
    client.open(max_frame_size=512)
    session = client.begin()
    attach = session.attach("r", True, source=Source("/exchanges/" + "%E2%82%AC" * 160), target=Target("here"))
    assert attach is not None
    detach = client.take(Detach)
    assert detach.error is not None and detach.error.description is not None
    assert len(detach.error.description.encode()) <= 300 and detach.error.description.endswith("...")


def test_a_body_out_of_memory(site: Site) -> None:
    pytest.importorskip("leveret.storage.spool")
    client = connect(site)
    session = client.begin()
    site.services.settings.spool_threshold = 100
    fill(session, b"x" * 5000, durable=True)
    assert session.receiver(credit=1).bodies() == [b"x" * 5000]


def test_drain_waits_for_a_full_socket(session: Session) -> None:
    fill(session, b"1")
    client = session.client
    client.session.pause_writing()
    receiver = session.receiver()
    receiver.flow(5, drain=True)
    assert receiver.bodies() == []
    assert client.find(Flow) is None
    client.session.resume_writing()
    client.run()
    assert receiver.bodies() == [b"1"]
    assert client.take(Flow).delivery_count == 5


def test_a_later_flow_ends_a_drain_that_waits(session: Session) -> None:
    fill(session, b"1")
    receiver = session.receiver()
    receiver.flow(5, window=0, drain=True)
    assert receiver.bodies() == []
    receiver.flow(5, drain=False)
    assert receiver.bodies() == [b"1"]
    fill(session, b"2")
    assert receiver.bodies() == [b"2"]


def refused(session: Session) -> str:
    return session.client.error(Detach)[0]


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        (None, "amqp:not-found"),
        (Source(), "amqp:invalid-field"),
        (Source("/queues/none"), "amqp:not-found"),
        (Source("/exchanges/none/k"), "amqp:not-found"),
        (Source("/queues/"), "amqp:invalid-field"),
        (Source("/queues/a/b"), "amqp:invalid-field"),
        (Source(""), "amqp:invalid-field"),
        (Source("q", dynamic=True), "amqp:invalid-field"),
        (Source("/queues/%ff"), "amqp:invalid-field"),
    ],
)
def test_refused_sources(session: Session, source: Source | None, condition: str) -> None:
    receiver = session.receiver(source=source)
    assert receiver.attached.source is None
    assert refused(session) == condition
    # The session continues, and the handle is free once the client has detached.
    session.client.send(Detach(receiver.handle, True))
    assert session.receiver(handle=receiver.handle).attached.source is not None


def test_a_queue_that_is_deleted(site: Site, session: Session) -> None:
    fill(session, b"1")
    session.receiver(credit=10).deliveries()
    site.vhost.delete_queue("q", None)
    assert refused(session) == "amqp:resource-deleted"
    session.dispose(0, state=Accepted())
    assert session.client.find(End) is None


def test_read_permission(site: Site) -> None:
    site.vhost.declare_queue("theirs", None)
    site.allow("user", "/", Permission("", "", "^mine$"))
    session = connect(site).begin()
    session.receiver("theirs")
    assert refused(session) == "amqp:unauthorized-access"


@pytest.mark.rule("1.0", "transport.amqp-error.resource-locked.choice")
def test_an_exclusive_queue(site: Site, session: Session) -> None:
    site.vhost.declare_queue("theirs", object(), exclusive=True)
    session.receiver("theirs")
    assert refused(session) == "amqp:resource-locked"


@pytest.mark.parametrize("capability", ["temporary-queue", "temporary-topic"])
def test_temporary_nodes_cannot_have_a_client_name(site: Site, session: Session, capability: str) -> None:
    session.receiver(source=Source("gone", capabilities=(capability,)))
    assert refused(session) == "amqp:not-found"
    assert "gone" not in site.vhost.queues


def test_auto_create(site: Site, session: Session) -> None:
    assert session.receiver("new").attached.source.address == "new"
    assert site.vhost.queues["new"].durable
    site.protocols.amqp10.settings.auto_create = False
    session.receiver("newer")
    assert refused(session) == "amqp:not-found"
    assert "newer" not in site.vhost.queues


def test_subscriptions(site: Site, session: Session) -> None:
    one = session.receiver("topic://a.*", credit=10)
    two = session.receiver("/exchanges/amq.topic", credit=10)
    third = session.receiver(source=Source("amq.fanout"), credit=10)
    before = set(site.vhost.queues)
    fill(session, b"1", address="/topic/a.b")
    assert len(session.client.all(Transfer)) == 2
    fill(session, b"2", address="amq.fanout")
    assert [frame.handle for frame in session.client.all(Transfer)] == [third.handle]
    for receiver in (one, two, third):
        receiver.detach()
    assert len(before) == 3
    assert not set(site.vhost.queues)


@pytest.mark.rule("1.0", "messaging.3.5.9.lifetime-least")
def test_dynamic_nodes(site: Site, session: Session) -> None:
    policy = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}
    receiver = session.receiver(source=Source(dynamic=True, dynamic_node_properties=policy), credit=5, name="replies")
    address = receiver.attached.source.address
    assert receiver.attached.source.dynamic
    assert address.startswith("test/replies/")
    assert receiver.attached.source.dynamic_node_properties
    other = connect(site, container="other").begin()
    fill(other, b"answer", address=address)
    assert receiver.bodies() == [b"answer"]
    receiver.detach()
    assert address not in site.vhost.queues


@pytest.mark.parametrize(
    ("permission", "made"),
    [
        (Permission(), False),
        (Permission("^shop-", ".*", ".*"), False),
        (Permission("^(amq\\.gen.*|amq\\.default)$"), True),
        (Permission("^test/mine/"), True),
    ],
)
def test_dynamic_nodes_need_a_permission(site: Site, permission: Permission, made: bool) -> None:
    site.allow("user", "/", permission)
    before = set(site.vhost.queues)
    for role in ("source", "target"):
        session = connect(site).begin()
        if role == "source":
            session.receiver(source=Source(dynamic=True), name="mine")
        else:
            session.sender(target=Target(dynamic=True), name="mine")
        assert (len(site.vhost.queues) > len(before)) is made
        if not made:
            assert refused(session) == "amqp:unauthorized-access"
        session.client.drop()


def test_a_dynamic_target(site: Site, session: Session) -> None:
    sender = session.sender(target=Target(dynamic=True))
    address = sender.attached.target.address
    sender.send(message(b"1"))
    assert session.receiver(address, credit=1).bodies() == [b"1"]
    session.client.drop()
    assert address not in site.vhost.queues


@pytest.mark.rule("1.0", "messaging.3.5.9.lifetime-policy")
def test_a_dynamic_node_that_outlives_its_link(site: Site, session: Session) -> None:
    policy = {Symbol("lifetime-policy"): Described(ULong(0x2C), [])}
    creator = session.receiver(source=Source(dynamic=True, dynamic_node_properties=policy))
    address = creator.attached.source.address
    other = session.receiver(address)
    creator.detach()
    assert address in site.vhost.queues
    other.detach()
    assert address not in site.vhost.queues


def test_links_are_stolen(site: Site, session: Session) -> None:
    receiver = session.receiver(name="mine", credit=10)
    again = connect(site).begin()
    assert again.receiver(name="mine", credit=10).attached.source is not None
    session.client.run()
    detach = session.client.take(Detach)
    assert detach.handle == receiver.handle
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:stolen"


def test_links_of_other_containers_are_not(site: Site, session: Session) -> None:
    session.receiver(name="mine")
    other = connect(site, container="other").begin()
    other.receiver(name="mine")
    session.sender(name="mine")
    session.client.run()
    assert session.client.find(Detach) is None


def test_a_range_of_dispositions_as_large_as_it_can_be(session: Session) -> None:
    fill(session, b"1")
    session.receiver(credit=1).deliveries()
    session.dispose(0, 0x7FFFFFFE, Accepted())
    assert session.client.find(End) is None
    session.dispose(5, 4, Accepted())
    assert session.client.error(End)[0] == "amqp:invalid-field"


def test_consumers_alternate(site: Site, session: Session) -> None:
    one = session.receiver(credit=10)
    two = session.receiver(credit=10)
    fill(session, b"1", b"2", b"3", b"4")
    handles = [frame.handle for frame in session.client.all(Transfer)]
    assert sorted(handles) == [one.handle] * 2 + [two.handle] * 2


def test_properties_are_kept(session: Session) -> None:
    session.sender().send(message(b"1", properties=Properties(b"\x01id", correlation_id=ULong(7), subject="s")))
    payload = session.receiver(credit=1).deliveries()[0].payload
    assert split(payload).subject == b"s"


def test_open_twice(session: Session) -> None:
    session.client.send(Open("again"))
    assert session.client.error(Close)[0] == "amqp:illegal-state"


class TestTemporaryTopics:
    def test_all_subscribers_get_every_message(self, site: Site, session: Session) -> None:
        sender = session.sender(target=Target(None, dynamic=True, capabilities=("temporary-topic",)))
        address = sender.attached.target.address
        assert sender.attached.target.dynamic
        sender.send(message(b"unclaimed"))
        other = connect(site).begin()
        one = session.receiver(source=Source(address, capabilities=("temporary-topic",)), credit=10)
        two = other.receiver(address, credit=10)
        sender.send(message(b"both"))
        fill(other, b"a third party's", address=address)
        assert one.bodies() == [b"both", b"a third party's"]
        assert two.bodies() == [b"both", b"a third party's"]
        assert {outcome[3] for outcome in sender.outcomes()} == {"Accepted"}

    def test_that_of_a_receiver(self, site: Site, session: Session) -> None:
        receiver = session.receiver(source=Source(None, dynamic=True, capabilities=("temporary-topic",)), credit=10)
        address = receiver.attached.source.address
        fill(connect(site, container="*.#").begin(), b"m", address=address)
        assert receiver.bodies() == [b"m"]
        before = set(site.vhost.queues)
        receiver.detach()
        assert len(before) - len(site.vhost.queues) == 1

    def test_keys_are_no_patterns(self, site: Site) -> None:
        session = connect(site, container="#").begin()
        sender = session.sender(name="*", target=Target(None, dynamic=True, capabilities=("temporary-topic",)))
        assert "#" not in sender.attached.target.address
        assert "*" not in sender.attached.target.address

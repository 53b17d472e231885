"""Durable termini after a crash (messaging section 3.5.5): committed state is restored, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.broker import VhostSettings
from leveret.protocols.amqp10.terminus.source import SourceTerminus
from leveret.wire.amqp10.messaging import Accepted, Properties, Received, Released, Source, Target
from leveret.wire.amqp10.messaging import Header as MessageHeader
from leveret.wire.amqp10.sections import section_ranges, split
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Disposition, Transfer
from leveret.wire.amqp10.values import Described, Symbol, ULong
from tests.broker.support import HeldLog
from tests.protocols.amqp10.link.test_resuming import resume, states_of
from tests.protocols.amqp10.support import Client, Receiver, Sender, Session, body_of, connect, make_site, message
from tests.protocols.amqp10.terminus.test_termini import fill, pass_time, receiver, terminus
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Site

KEPT: dict[str, Any] = {"durable": 2, "expiry_policy": "never"}


def start(log: HeldLog | None = None) -> Site:
    site = make_site(log=log or HeldLog())
    return site


def crash(site: Site) -> Site:
    """The world after a kill of the broker now, and a start."""
    held = site.log
    assert isinstance(held, HeldLog)
    log, recovery = held.recovery()
    after = make_site(log=log)
    after.protocols.amqp10.termini.recover(recovery)
    after.broker.recover(recovery)
    after.vhost = after.broker.add_vhost("/", VhostSettings())
    after.broker.start()
    after.protocols.amqp10.termini.start()
    after.run()
    assert after.protocols.amqp10.termini.is_ready()
    return after


@pytest.fixture
def site() -> Site:
    site = start()
    site.vhost.declare_queue("q", None, durable=True)
    return site


def kept(site: Site, kind: str) -> dict[str, bytes]:
    assert isinstance(site.log, HeldLog)
    return {key: value for (other, key), value in site.log.metadata.items() if other == kind}


def sender(client: Client, *, mode: int = 1, **options: Any) -> Sender:
    return client.begin().sender(name="s", target=Target("q", **KEPT), rcv_settle_mode=mode, **options)


def taker(client: Client, **options: Any) -> Receiver:
    return receiver(client.begin(), **{**KEPT, **options})


@pytest.mark.parametrize("durable", [0, 1, 2])
def test_the_restored_properties_of_a_terminus(site: Site, durable: int) -> None:
    fill(site, b"1", b"2", durable=True)
    client = connect(site)
    link = receiver(client.begin(), credit=1, durable=durable, expiry_policy="never", timeout=5)
    assert link.attached.source.durable == durable
    tag = link.deliveries()[0].delivery_tag
    site = crash(site)
    found = terminus(site)
    assert (found is not None) == (durable > 0)
    queue = site.vhost.queues["q"]
    assert (queue.unacked, queue.ready_count) == ((1, 1) if durable == 2 else (0, 2))
    if found is not None:
        assert (found.durable, found.expiry_policy, found.timeout) == (durable, "never", 5)
        answer = receiver(connect(site).begin(), durable=durable, expiry_policy="never", unsettled={tag: None}).attached
        assert answer.unsettled == ({tag: None} if durable == 2 else {})


def test_unsettled_messages_are_not_delivered_to_others(site: Site) -> None:
    fill(site, b"1", b"2", b"3", durable=True)
    link = taker(connect(site), credit=2)
    first, second = link.deliveries()
    site = crash(site)
    other = connect(site, container="other").begin().receiver("q", credit=10)
    assert other.bodies() == [b"3"]
    link = taker(connect(site), credit=2, unsettled={first.delivery_tag: Accepted(), second.delivery_tag: None})
    frames = link.deliveries()
    assert [(frame.delivery_tag, frame.settled, frame.resume) for frame in frames] == [
        (first.delivery_tag, True, True),
        (second.delivery_tag, False, True),
    ]
    # Byte for byte as sent before, including first-acquirer.
    assert frames[1].payload == second.payload
    link.accept(frames[1].delivery_id)
    assert site.vhost.queues["q"].counters.settled == 2
    site = crash(site)
    assert (site.vhost.queues["q"].unacked, site.vhost.queues["q"].ready_count) == (0, 1)
    assert not kept(site, metadata.LINK_STATE)


def test_unsettled_messages_hold_their_group(site: Site) -> None:
    queue = site.vhost.declare_queue("groups", None, durable=True, arguments={"x-group-key": "group-id"})
    sender = connect(site).begin().sender("groups")
    for body, group in ((b"a1", "a"), (b"b1", "b"), (b"a2", "a"), (b"b2", "b")):
        sender.send(message(body, durable=True, properties=Properties(group_id=group)))
    link = taker(connect(site), address="groups", credit=1)
    tag = link.deliveries()[0].delivery_tag
    for _ in range(2):
        site = crash(site)
        queue = site.vhost.queues["groups"]
        assert queue.unacked == 1
    other = connect(site, container="other").begin().receiver("groups", credit=10)
    assert other.bodies() == [b"b1", b"b2"]
    link = taker(connect(site), address="groups", credit=0, unsettled={tag: Accepted()})
    site.run()
    assert (other.bodies(), queue.unacked) == ([b"a2"], 3)


def test_messages_unknown_to_the_client_are_sent_as_new(site: Site) -> None:
    fill(site, b"1", durable=True)
    link = taker(connect(site), credit=1)
    tag = link.deliveries()[0].delivery_tag
    site = crash(site)
    frame = taker(connect(site), credit=1, unsettled={}).deliveries()[0]
    assert not frame.resume
    assert frame.delivery_tag != tag
    assert body_of(frame.payload) == b"1"


def test_a_transfer_leaves_after_its_link_state(site: Site) -> None:
    log = site.log
    assert isinstance(log, HeldLog)
    fill(site, b"1", b"2", durable=True)
    link = taker(connect(site))
    log.held = True
    link.flow(2)
    assert link.deliveries() == []
    assert not kept(site, metadata.LINK_STATE)
    assert site.vhost.queues["q"].unacked == 2
    # If the broker is killed now, no client has seen them.
    assert crash(site).vhost.queues["q"].ready_count == 2
    log.release_all()
    site.run()
    assert link.bodies() == [b"1", b"2"]
    assert len(kept(site, metadata.LINK_STATE)) == 2


def test_a_link_detached_before_its_transfers_are_sent(site: Site) -> None:
    log = site.log
    assert isinstance(log, HeldLog)
    fill(site, b"1", durable=True)
    client = connect(site)
    link = taker(client)
    log.held = True
    link.flow(1)
    client.drop()
    log.held = False
    log.release_all()
    site.run()
    frame = taker(connect(site), credit=1, unsettled={}).deliveries()[0]
    assert body_of(frame.payload) == b"1"


def test_transient_messages_keep_their_order(site: Site) -> None:
    fill(site, b"1", durable=True)
    fill(site, b"2")
    fill(site, b"3", durable=True)
    link = taker(connect(site), credit=3)
    assert link.bodies() == [b"1", b"2", b"3"]
    assert len(kept(site, metadata.LINK_STATE)) == 2
    link.accept(0, 2)
    site.run()
    assert not kept(site, metadata.LINK_STATE)


def test_more_than_may_wait_for_the_disk(site: Site) -> None:
    fill(site, *[b"%d" % number for number in range(2500)], durable=True)
    link = taker(connect(site))
    link.flow(2500, window=5000)
    assert link.bodies() == [b"%d" % number for number in range(2500)]


@pytest.mark.parametrize("how", ["accept", "release", "close", "operator", "expiry"])
def test_link_states_are_removed_with_the_end_of_the_delivery(site: Site, how: str) -> None:
    fill(site, b"1", durable=True)
    client = connect(site)
    options = {"expiry_policy": "session-end", "timeout": 60} if how == "expiry" else {}
    link = taker(client, credit=1, **options)
    site.run()
    assert len(kept(site, metadata.LINK_STATE)) == 1
    if how == "accept":
        link.accept(0)
    elif how == "release":
        link.flow(0, delivery_count=1)
        link.session.dispose(0, state=Released())
    elif how == "close":
        link.detach()
    else:
        client.drop()
        if how == "operator":
            site.protocols.amqp10.termini.release("/", "user", "test", "r", "sender")
        else:
            pass_time(site, 61)
    site.run()
    assert not kept(site, metadata.LINK_STATE)
    assert crash(site).vhost.queues["q"].ready_count == (0 if how == "accept" else 1)


def test_a_large_message_is_resumed_after_a_crash(site: Site) -> None:
    """With the same bytes, so that the client's position is valid: the header has a time to live."""
    client = connect(site)
    client.begin().sender().send(message(b"z" * 300_000, header=MessageHeader(True, ttl=1_000_000)))
    client.drop()
    client = Client(site)
    client.open(max_frame_size=4096)
    link = taker(client)
    link.flow(1, window=10)
    seen = b"".join(frame.payload for frame in link.deliveries())
    offset = len(seen) - section_ranges(seen)[1][2]  # header and annotations
    site = crash(site)
    link = taker(connect(site), unsettled={bytes(4): Received(2, offset)})
    link.flow(1)
    again = b"".join(frame.payload for frame in link.deliveries())
    assert body_of(seen + again) == b"z" * 300_000


def test_a_converted_message_is_the_same_after_a_crash(site: Site) -> None:
    channel = site.channel()
    channel.publish(body=b"x" * 200_000, delivery_mode=2, headers={"a": 1, "b": "text"}, expiration="100000")
    channel.run()
    client = Client(site)
    client.open(max_frame_size=4096)
    link = taker(client)
    link.flow(1, window=10)
    seen = b"".join(frame.payload for frame in link.deliveries())
    number = len(section_ranges(seen)) - 1
    offset = len(seen) - section_ranges(seen)[number][1]
    site = crash(site)
    link = taker(connect(site), unsettled={bytes(4): Received(number, offset)})
    link.flow(1)
    again = b"".join(frame.payload for frame in link.deliveries())
    assert body_of(seen + again) == b"x" * 200_000


def test_tags_are_not_reused_after_a_crash(site: Site) -> None:
    fill(site, b"1", b"2", durable=True)
    first = taker(connect(site), credit=1).deliveries()[0].delivery_tag
    site = crash(site)
    frames = taker(connect(site), credit=2, unsettled={first: None}).deliveries()
    assert [frame.resume for frame in frames] == [True, False]
    assert frames[1].delivery_tag != first


def test_expiry_starts_in_full(site: Site) -> None:
    fill(site, b"1", durable=True)
    client = connect(site)
    taker(client, credit=1, expiry_policy="session-end", timeout=60)
    client.drop()
    pass_time(site, 59)
    site = crash(site)
    pass_time(site, 59)
    assert site.vhost.queues["q"].unacked == 1
    pass_time(site, 61)
    assert site.vhost.queues["q"].ready_count == 1
    assert terminus(site) is None
    site.run()
    assert not kept(site, metadata.TERMINUS)


def test_without_a_timeout_a_stop_ends_it(site: Site) -> None:
    fill(site, b"1", durable=True)
    taker(connect(site), credit=1, expiry_policy="connection-close")
    site = crash(site)
    assert terminus(site) is None
    assert site.vhost.queues["q"].ready_count == 1
    assert not kept(site, metadata.LINK_STATE)


def test_close_leaves_no_state(site: Site) -> None:
    link = taker(connect(site))
    site.run()
    assert kept(site, metadata.TERMINUS)
    link.detach()
    site.run()
    assert not kept(site, metadata.TERMINUS)
    assert terminus(crash(site)) is None


def test_durability_that_is_reduced(site: Site) -> None:
    fill(site, b"1", durable=True)
    client = connect(site)
    tag = taker(client, credit=1).deliveries()[0].delivery_tag
    client.drop()
    receiver(connect(site).begin(), expiry_policy="never", unsettled={tag: None})
    site.run()
    assert not kept(site, metadata.TERMINUS)
    assert not kept(site, metadata.LINK_STATE)
    assert crash(site).vhost.queues["q"].ready_count == 1


def test_durability_that_is_added_later(site: Site) -> None:
    fill(site, b"1", durable=True)
    client = connect(site)
    tag = receiver(client.begin(), credit=1, expiry_policy="never").deliveries()[0].delivery_tag
    client.drop()
    taker(connect(site), unsettled={tag: None})
    site = crash(site)
    assert site.vhost.queues["q"].unacked == 1
    assert taker(connect(site), credit=1, unsettled={tag: None}).bodies() == [b"1"]


def test_a_transient_queue_has_no_durable_links(site: Site) -> None:
    site.vhost.declare_queue("t", None)
    assert taker(connect(site), address="t").attached.source.durable == 0


def test_the_queue_was_deleted(site: Site) -> None:
    fill(site, b"1", durable=True)
    taker(connect(site), credit=1)
    site.run()
    site.vhost.remove_queue(site.vhost.queues["q"])
    site.run()
    site = crash(site)
    found = terminus(site)
    assert isinstance(found, SourceTerminus)
    assert not found.unsettled
    assert not kept(site, metadata.LINK_STATE)


def test_under_a_transaction(site: Site) -> None:
    fill(site, b"1", durable=True)
    client = connect(site)
    session = client.begin()
    link = receiver(session, credit=1, **KEPT)
    controller = Controller(session)
    work = controller.declare()
    session.dispose(link.deliveries()[0].delivery_id, state=TransactionalState(work, Accepted()), settled=False)
    site.run()
    assert len(kept(site, metadata.LINK_STATE)) == 1
    assert crash(site).vhost.queues["q"].unacked == 1
    controller.discharge(work)
    site.run()
    assert not kept(site, metadata.LINK_STATE)


def test_settlements_are_reported_once_they_are_on_disk(site: Site) -> None:
    """With settle mode second the client then forgets a delivery, so it must not be redelivered after a crash."""
    log = site.log
    assert isinstance(log, HeldLog)
    fill(site, b"1", b"2", b"3", durable=True)
    client = connect(site)
    session = client.begin()
    link = receiver(session, credit=3, rcv_settle_mode=1, **KEPT)
    frames = link.deliveries()
    numbers, tags = [frame.delivery_id for frame in frames], [frame.delivery_tag for frame in frames]
    controller = Controller(session)
    work = controller.declare()
    log.held = True
    session.dispose(numbers[0], state=Accepted(), settled=False)
    session.dispose(numbers[1], state=TransactionalState(work, Accepted()), settled=False)
    assert controller.discharge(work) is None
    assert client.all(Disposition) == []
    log.held = False
    log.release_all()
    site.run()
    told = {frame.first: frame.settled for frame in client.all(Disposition) if not frame.role}
    assert told == {numbers[0]: True, numbers[1]: True}
    # Outcomes in the map of an attach, too.
    tag = tags[2]
    client.drop()
    log.held = True
    link = taker(connect(site), unsettled={tag: Accepted()})
    assert link.deliveries() == []
    log.held = False
    log.release_all()
    site.run()
    assert [frame.settled for frame in link.deliveries()] == [True]


# Targets


def test_resumed_messages_are_not_stored_twice(site: Site) -> None:
    client = connect(site)
    link = sender(client)
    link.send(message(b"1", durable=True), delivery_tag=b"t")
    assert len(link.outcomes()) == 1
    site = crash(site)
    link = sender(connect(site), unsettled={b"t": None})
    assert states_of(link.attached.unsettled) == {b"t": "Accepted"}
    number = resume(link, b"t", message(b"1", durable=True))
    assert link.outcomes() == [(number, number, False, "Accepted")]
    link.session.dispose(number, role=False)
    assert site.vhost.queues["q"].ready_count == 1
    site.run()
    assert not kept(site, metadata.LINK_STATE)


@pytest.mark.parametrize("commits", [0, 1])
def test_outcome_and_message_share_a_commit(site: Site, commits: int) -> None:
    log = site.log
    assert isinstance(log, HeldLog)
    client = connect(site)
    link = sender(client)
    site.run()
    log.held = True
    link.send(message(b"1", durable=True), delivery_tag=b"t")
    for _ in range(commits):
        log.release()
    site = crash(site)
    assert len(kept(site, metadata.LINK_STATE)) == commits
    assert site.vhost.queues["q"].ready_count == commits
    link = sender(connect(site), unsettled={b"t": None})
    assert states_of(link.attached.unsettled) == ({b"t": "Accepted"} if commits else {})


def test_transient_messages_have_no_stored_state(site: Site) -> None:
    sender(connect(site)).send(message(b"1"), delivery_tag=b"t")
    site.run()
    assert not kept(site, metadata.LINK_STATE)


def test_mode_first_has_no_stored_state(site: Site) -> None:
    sender(connect(site), mode=0).send(message(b"1", durable=True), delivery_tag=b"t")
    site.run()
    assert not kept(site, metadata.LINK_STATE)


def test_an_interrupted_delivery_is_resumed_after_a_crash(site: Site) -> None:
    whole = message(b"x" * 5000, durable=True)
    client = connect(site)
    link = sender(client)
    link.part(whole[:3000], delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    client.run()
    # If the broker is killed now, it reports nothing as received.
    assert sender(connect(crash(site)), unsettled={b"t": None}).attached.unsettled == {}
    client.drop()
    site = crash(site)
    link = sender(connect(site), unsettled={b"t": None})
    section, offset = 1, 3000 - section_ranges(whole)[0][2]
    assert states_of(link.attached.unsettled) == {b"t": ("Received", section, offset)}
    number = resume(link, b"t", whole[3000:4000], state=Received(section, offset), more=True)
    # The reported part stays reported until the message is complete.
    again = sender(connect(crash(site)), unsettled={b"t": Received(section, offset)})
    assert states_of(again.attached.unsettled) == {b"t": ("Received", section, offset)}
    link.part(whole[4000:])
    assert link.outcomes() == [(number, number, False, "Accepted")]
    assert not kept(site, metadata.LINK_PART)
    link.session.dispose(number, role=False)
    site.run()
    assert not kept(site, metadata.LINK_STATE)
    assert connect(site, container="c").begin().receiver("q", credit=1).bodies() == [b"x" * 5000]


def test_parts_that_are_not_on_disk_are_not_reported(site: Site) -> None:
    log = site.log
    assert isinstance(log, HeldLog)
    client = connect(site)
    link = sender(client)
    site.run()
    log.held = True
    link.part(message(b"x" * 500)[:300], delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    client.run()
    client.drop()
    assert sender(connect(site), unsettled={b"t": None}).attached.unsettled == {b"t": None}


def test_a_posting_that_was_committed(site: Site) -> None:
    """Its outcome is reported again after the crash, and it is not stored twice."""
    client = connect(site)
    session = client.begin()
    link = session.sender(name="s", target=Target("q", **KEPT), rcv_settle_mode=1)
    controller = Controller(session)
    work = controller.declare()
    link.send(message(b"1", durable=True), delivery_tag=b"t", state=TransactionalState(work))
    other = controller.declare()
    link.send(message(b"2", durable=True), delivery_tag=b"u", state=TransactionalState(other))
    controller.discharge(work)
    site = crash(site)
    assert site.vhost.queues["q"].ready_count == 1
    link = sender(connect(site), unsettled={b"t": None, b"u": None})
    assert states_of(link.attached.unsettled) == {b"t": "Accepted"}


# Nodes


def test_a_durable_subscription(site: Site) -> None:
    client = connect(site)
    link = receiver(client.begin(), address="topic://news", **KEPT)
    site.run()
    name = next(name for name in site.vhost.queues if name.startswith("test/"))
    assert site.vhost.queues[name].durable
    client.drop()
    fill(site, b"1", address="topic://news", durable=True)
    site = crash(site)
    fill(site, b"2", address="topic://news", durable=True)
    link = receiver(connect(site).begin(), address="topic://news", credit=5, **KEPT)
    assert link.bodies() == [b"1", b"2"]
    link.detach()
    assert name not in site.vhost.queues
    assert name not in crash(site).vhost.queues


def test_a_durable_dynamic_node(site: Site) -> None:
    policy = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}
    link = receiver(connect(site).begin(), address=None, dynamic=True, dynamic_node_properties=policy, **KEPT)
    address = link.attached.source.address
    site = crash(site)
    assert address in site.vhost.queues
    session: Session = connect(site).begin()
    again = session.receiver(source=Source(None, dynamic=True, **KEPT), name="r")
    assert again.attached.source.address == address
    again.detach()
    assert address not in site.vhost.queues


def test_headers_of_requeued_messages(site: Site) -> None:
    """After a crash, no consumer is the first acquirer any more."""
    fill(site, b"1", durable=True)
    taker(connect(site), credit=1)
    site = crash(site)
    site.protocols.amqp10.termini.release("/", "user", "test", "r", "sender")
    frames = connect(site, container="other").begin().receiver("q", credit=1).client.all(Transfer)
    assert not split(frames[0].payload).first_acquirer

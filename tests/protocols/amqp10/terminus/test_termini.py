"""Termini that outlive their links: expiry, identity, unsettled deliveries (transport 2.6, messaging 3.5)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from leveret.broker.jobs import STEP_WORK
from leveret.protocols.amqp10.terminus.source import SourceTerminus
from leveret.protocols.amqp10.terminus.terminus import Terminus
from leveret.security.permissions import Permission
from leveret.wire.amqp10.messaging import Accepted, Released, Source, Target
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.transport import Attach, Detach, End
from leveret.wire.amqp10.values import Described, Symbol, ULong
from tests.protocols.amqp10.support import Receiver, Session, body_of, connect, make_site, message
from tests.protocols.support import Site
from tests.support.queues import classic

POLICIES = ("link-detach", "session-end", "connection-close", "never")


@pytest.fixture
def site() -> Site:
    return make_site()


def fill(site: Site, *bodies: bytes, address: str = "q", durable: bool = False) -> None:
    client = connect(site, container="filling")
    sender = client.begin().sender(address)
    for body in bodies:
        sender.send(message(body, durable=durable))
    client.drop()


def receiver(session: Session, name: str = "r", *, credit: int = 0, address: str | None = "q", **options: Any) -> Receiver:
    source = Source(
        address,
        **{
            key: options.pop(key)
            for key in list(options)
            if key
            in (
                "durable",
                "expiry_policy",
                "timeout",
                "default_outcome",
                "dynamic",
                "dynamic_node_properties",
                "filter",
                "capabilities",
            )
        },
    )
    return session.receiver(source=source, name=name, credit=credit, **options)


def terminus(site: Site, name: str = "r", *, receives: bool = False) -> Terminus | None:
    return site.protocols.amqp10.termini.by_key.get(("/", "user", "test", name, receives))


def pass_time(site: Site, seconds: float) -> None:
    site.broker.timers.run(site.broker.timers.now() + int(seconds * 1000))
    site.broker.end_turn()
    site.run()


@pytest.mark.rule("1.0", "messaging.3.5.6.never-expires")
@pytest.mark.parametrize("policy", POLICIES)
def test_expiry_policies(site: Site, policy: str) -> None:
    """A terminus without timeout ends with the event of its policy, not before: its messages are requeued."""
    fill(site, b"1")
    queue = site.vhost.queues["q"]
    client = connect(site)
    client.begin(1)
    session = client.begin()
    link = receiver(session, credit=1, expiry_policy=policy)
    assert link.attached.source.expiry_policy == policy
    held = []
    for event in (lambda: link.detach(closed=False), session.end, client.drop):
        event()
        held.append((queue.unacked, queue.ready_count, terminus(site) is not None))
    reached = POLICIES.index(policy)
    assert held == [(1, 0, True) if index < reached else (0, 1, False) for index in range(3)]


@pytest.mark.parametrize("policy", POLICIES)
def test_timeouts(site: Site, policy: str) -> None:
    fill(site, b"1")
    queue = site.vhost.queues["q"]
    client = connect(site)
    link = receiver(client.begin(), credit=1, expiry_policy=policy, timeout=60)
    assert link.attached.source.timeout == 60
    client.drop()
    pass_time(site, 59)
    assert queue.unacked == 1
    pass_time(site, 61)
    assert queue.unacked == (1 if policy == "never" else 0)
    assert (terminus(site) is None) == (policy != "never")


def test_an_attach_stops_the_timer(site: Site) -> None:
    fill(site, b"1")
    client = connect(site)
    receiver(client.begin(), credit=1, timeout=60)
    client.drop()
    again = connect(site)
    receiver(again.begin(), timeout=60, unsettled={bytes(4): None})
    pass_time(site, 100)
    assert site.vhost.queues["q"].unacked == 1
    again.drop()
    # It starts again in full.
    pass_time(site, 59)
    assert site.vhost.queues["q"].unacked == 1
    pass_time(site, 61)
    assert site.vhost.queues["q"].ready_count == 1


def test_close_destroys(site: Site) -> None:
    fill(site, b"1")
    session = connect(site).begin()
    link = receiver(session, credit=1, expiry_policy="never", durable=1)
    assert link.detach(closed=True).closed
    assert terminus(site) is None
    assert site.vhost.queues["q"].ready_count == 1


def test_the_default_outcome_at_expiry(site: Site) -> None:
    fill(site, b"1", b"2")
    client = connect(site)
    receiver(client.begin(), credit=2, timeout=60, default_outcome=Released())
    client.drop()
    pass_time(site, 61)
    delivered = receiver(connect(site, container="other").begin(), credit=2).deliveries()
    assert [body_of(frame.payload) for frame in delivered] == [b"1", b"2"]
    assert split(delivered[0].payload).delivery_count == 0


def test_whose_it_is(site: Site) -> None:
    """Vhost, user, container, name and direction identify a terminus."""
    site.allow("other", "/", Permission(".*", ".*", ".*"))
    fill(site, b"1")
    client = connect(site)
    receiver(client.begin(), credit=1, expiry_policy="never")
    client.drop()
    site.protocols.amqp10.settings.anonymous_user = "other"
    session = connect(site).begin()
    assert receiver(session, unsettled={}).attached.unsettled == {}
    session.sender(name="r")
    site.protocols.amqp10.settings.anonymous_user = "user"
    session = connect(site, container="another").begin()
    assert receiver(session, unsettled={}).attached.unsettled == {}
    assert site.vhost.queues["q"].unacked == 1
    assert receiver(connect(site).begin(), unsettled={bytes(4): None}).attached.unsettled == {bytes(4): None}


def test_deliveries_of_a_detached_link_are_alive(site: Site) -> None:
    """Their outcomes are applied while the session exists (transport section 2.7.6)."""
    fill(site, b"1", b"2", b"3")
    queue = site.vhost.queues["q"]
    session = connect(site).begin()
    link = receiver(session, credit=3)
    assert len(link.deliveries()) == 3
    link.detach(closed=False)
    session.dispose(0, state=Accepted())
    assert (queue.unacked, queue.counters.settled) == (2, 1)
    # Attached again without a map, they continue unchanged.
    again = receiver(session)
    assert again.attached.unsettled is None
    assert again.deliveries() == []
    session.dispose(1, 2, Accepted())
    assert (queue.unacked, queue.counters.settled) == (0, 3)
    again.detach()
    assert queue.ready_count == 0


def test_deliveries_of_a_reattached_link_belong_to_it(site: Site) -> None:
    fill(site, b"1")
    session = connect(site).begin()
    receiver(session, credit=1).detach(closed=False)
    receiver(session).detach(closed=True)
    assert site.vhost.queues["q"].ready_count == 1


def test_tags_are_unique_for_the_life_of_a_terminus(site: Site) -> None:
    fill(site, b"1", b"2", b"3")
    tags: list[bytes | None] = []
    for _ in range(3):
        client = connect(site)
        unsettled = dict.fromkeys(tags) if tags else None
        link = receiver(client.begin(), credit=len(tags) + 1, expiry_policy="never", unsettled=unsettled)
        tags += [frame.delivery_tag for frame in link.deliveries() if not frame.resume]
        client.drop()
    assert len(set(tags)) == 3


def test_an_error_does_not_destroy_a_long_lived_terminus(site: Site) -> None:
    fill(site, b"1")
    session = connect(site).begin()
    link = receiver(session, credit=1, expiry_policy="never")
    site.protocols.amqp10.termini.delete("/", "user", "test", "r", "sender")
    site.run()
    session.client.run()
    assert terminus(site) is None
    assert site.vhost.queues["q"].ready_count == 1
    kept = session.sender("q", name="s", target=Target("q", expiry_policy="never"))
    kept.send(b"\xff")
    detach = session.client.all(Detach)[-1]
    assert detach.error is not None and not detach.closed
    assert terminus(site, "s", receives=True) is not None
    plain = session.sender("q", name="plain")
    plain.send(b"\xff")
    detach = session.client.all(Detach)[-1]
    assert detach.error is not None and detach.closed
    assert terminus(site, "plain", receives=True) is None
    assert link.client.find(End) is None


@pytest.mark.rule("1.0", "messaging.3.5.9.lifetime-least")
def test_dynamic_nodes_live_with_their_terminus(site: Site) -> None:
    policy = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}
    client = connect(site)
    link = receiver(client.begin(), address=None, dynamic=True, dynamic_node_properties=policy, expiry_policy="never")
    address = link.attached.source.address
    client.drop()
    assert address in site.vhost.queues
    fill(site, b"1", address=address)
    again = receiver(connect(site).begin(), address=None, dynamic=True, expiry_policy="never", credit=1)
    assert again.attached.source.address == address
    assert again.bodies() == [b"1"]
    assert again.detach().closed
    assert address not in site.vhost.queues


def test_a_subscription_lives_with_its_terminus(site: Site) -> None:
    client = connect(site)
    receiver(client.begin(), address="topic://news", expiry_policy="never")
    client.drop()
    fill(site, b"1", b"2", address="topic://news")
    session = connect(site).begin()
    again = receiver(session, address="topic://news", expiry_policy="never", credit=5)
    assert again.bodies() == [b"1", b"2"]
    again.detach()
    assert not any(name.startswith("test/") for name in site.vhost.queues)


def test_stealing_takes_over_unsettled_deliveries(site: Site) -> None:
    fill(site, b"1")
    first = connect(site)
    receiver(first.begin(), credit=1)
    second = receiver(connect(site).begin(), unsettled={bytes(4): None})
    assert second.attached.unsettled == {bytes(4): None}
    assert first.error(Detach)[0] == "amqp:link:stolen"
    assert site.vhost.queues["q"].unacked == 1
    first.drop()
    assert site.vhost.queues["q"].unacked == 1


def test_a_client_that_remembers_nothing(site: Site) -> None:
    """An attach without a map on another session: the results are unknown, so the deliveries count as failed once."""
    fill(site, b"1", b"2")
    client = connect(site)
    receiver(client.begin(), credit=2, expiry_policy="never")
    client.drop()
    delivered = receiver(connect(site).begin(), credit=2, expiry_policy="never").deliveries()
    assert [body_of(frame.payload) for frame in delivered] == [b"1", b"2"]
    assert not any(frame.resume for frame in delivered)
    assert [split(frame.payload).delivery_count for frame in delivered] == [1, 1]


def test_another_address_replaces_it(site: Site) -> None:
    fill(site, b"1")
    client = connect(site)
    receiver(client.begin(), credit=1, expiry_policy="never")
    client.drop()
    again = receiver(connect(site).begin(), address="p", expiry_policy="never", unsettled={bytes(4): None})
    assert not again.attached.unsettled
    assert site.vhost.queues["q"].ready_count == 1


REFUSED = {
    "no exchange": {"address": "/exchanges/missing/k"},
    "no queue": {"address": "/queues/missing"},
    "a filter that cannot be read": {
        "address": "topic://other",
        "filter": {Symbol("f"): Described(Symbol("apache.org:selector-filter:string"), "a =")},
    },
}


@pytest.mark.parametrize("wanted", REFUSED.values(), ids=REFUSED)
def test_a_refused_attach_replaces_nothing(site: Site, wanted: dict[str, Any]) -> None:
    """A subscription is destroyed only when its replacement exists."""
    client = connect(site)
    receiver(client.begin(), address="topic://news", expiry_policy="never")
    client.drop()
    fill(site, b"1", address="topic://news")
    known = terminus(site)
    session = connect(site).begin()
    assert receiver(session, expiry_policy="never", **wanted).attached.source is None
    assert session.client.find(Detach) is not None
    assert terminus(site) is known and known is not None
    again = receiver(connect(site).begin(), address="topic://news", expiry_policy="never", credit=5)
    assert again.bodies() == [b"1"]
    assert sum(name.startswith("test/") for name in site.vhost.queues) == 1


@pytest.mark.parametrize("address", ["/exchanges/missing/k", "/queues/missing", "/exchanges/amq.leveret.events"])
def test_a_target_that_is_refused_replaces_nothing(site: Site, address: str) -> None:
    client = connect(site)
    client.begin().sender("q", name="s", target=Target("q", expiry_policy="never"))
    client.drop()
    known = terminus(site, "s", receives=True)
    assert known is not None
    session = connect(site).begin()
    assert session.sender(name="s", target=Target(address, expiry_policy="never")).attached.target is None
    assert terminus(site, "s", receives=True) is known


def test_a_terminus_may_be_replaced_at_the_limit(site: Site) -> None:
    site.protocols.amqp10.settings.kept_links = 1
    session = connect(site).begin()
    receiver(session, "1", expiry_policy="never").detach(closed=False)
    assert receiver(session, "1", address="topic://news", expiry_policy="never").attached.source is not None
    assert terminus(site, "1").address() == "topic://news"  # type: ignore[union-attr]
    assert receiver(session, "2", expiry_policy="never").attached.source is None


def test_a_deleted_queue(site: Site) -> None:
    fill(site, b"1", durable=True)
    site.vhost.remove_queue(site.vhost.queues["q"])
    fill(site, b"1", b"2", durable=True)
    client = connect(site)
    receiver(client.begin(), credit=2, expiry_policy="never")
    client.drop()
    site.vhost.remove_queue(site.vhost.queues["q"])
    session = connect(site).begin()
    link = receiver(session, credit=5, expiry_policy="never", unsettled={bytes(4): None, b"\0\0\0\1": Accepted()})
    frames = link.deliveries()
    assert [(frame.aborted, frame.settled) for frame in frames] == [(False, True), (True, False)]
    assert terminus(site).unsettled_count() == 0  # type: ignore[union-attr]


def test_the_limit_of_a_user(site: Site) -> None:
    site.protocols.amqp10.settings.kept_links = 2
    session = connect(site).begin()
    for name in ("1", "2"):
        receiver(session, name, expiry_policy="never")
    receiver(session, "ordinary")
    assert receiver(session, "3", expiry_policy="never").attached.source is None
    assert session.client.error(Detach)[0] == "amqp:resource-limit-exceeded"
    session.next_handle += 1
    receiver(session, "4", timeout=5)
    assert "kept_links" in session.client.error(Detach)[1]
    site.protocols.amqp10.termini.delete("/", "user", "test", "1", "sender")
    assert receiver(session, "5", expiry_policy="never").attached.source is not None


@pytest.mark.rule("1.0", "transport.link-error.detach-forced.choice")
def test_deletion_by_an_operator(site: Site) -> None:
    client = connect(site)
    receiver(client.begin(), expiry_policy="never")
    site.protocols.amqp10.termini.delete("/", "user", "test", "r", "sender")
    condition, text = client.error(Detach)
    assert condition == "amqp:link:detach-forced"
    assert "deleted by an operator" in text


def test_release_by_an_operator(site: Site) -> None:
    fill(site, b"1", b"2")
    client = connect(site)
    receiver(client.begin(), credit=2, expiry_policy="never")
    client.drop()
    assert next(site.protocols.amqp10.termini.describe()).unsettled == 2
    assert site.protocols.amqp10.termini.release("/", "user", "test", "r", "sender") == 2
    assert site.vhost.queues["q"].ready_count == 2
    assert isinstance(terminus(site), SourceTerminus)


def test_a_suspended_link_under_purge_and_statistics(site: Site) -> None:
    fill(site, b"1", b"2", durable=True)
    site.vhost.queues["q"]
    client = connect(site)
    receiver(client.begin(), credit=1, expiry_policy="never")
    client.drop()
    queue = site.vhost.queues["q"]
    assert [entry.seq for holder in site.broker.holders for entry in holder.all_unacked() if entry.queue is queue] == [1]
    queue.purge()
    assert (queue.unacked, queue.ready_count) == (1, 0)
    again = receiver(connect(site).begin(), credit=1, expiry_policy="never", unsettled={bytes(4): None})
    assert again.bodies() == [b"1"]


def test_links_are_described_one_by_one(site: Site) -> None:
    """The list for operators is created over several turns."""
    fill(site)
    session = connect(site).begin()
    for number in range(3):
        receiver(session, f"r{number}")
    described = site.protocols.amqp10.termini.describe()
    assert next(described).state == "attached"
    session.client.drop()
    site.run()
    assert list(described) == []


@pytest.mark.parametrize("how", ["expired", "released"])
def test_many_unsettled_deliveries_go_back_in_steps(site: Site, how: str) -> None:
    many = STEP_WORK
    fill(site, *[b"%d" % number for number in range(many)])
    client = connect(site)
    session = client.begin(incoming_window=2 * many)
    receiver(session, timeout=60).flow(many, window=2 * many)
    client.run()
    queue = site.vhost.queues["q"]
    assert queue.unacked == many
    client.drop()
    before = 0
    if how == "expired":
        site.broker.timers.run(site.broker.timers.now() + 61_000)
    else:
        assert site.protocols.amqp10.termini.release("/", "user", "test", "r", "sender") == many
    steps = 0
    while queue.unacked:
        assert classic(queue).dispatcher.frozen and queue.ready_count - before <= STEP_WORK // 2
        before = queue.ready_count
        site.broker.end_turn()
        site.posted.pop(0)()
        steps += 1
    assert steps > 1 and queue.ready_count == many
    site.run()
    assert not classic(queue).dispatcher.frozen and [entry.seq for entry in classic(queue).ready.backlog.head] == sorted(
        entry.seq for entry in classic(queue).ready.backlog.head
    )


@pytest.mark.parametrize("how", ["expired", "replaced", "deleted", "session ended", "settled"])
def test_deliveries_of_a_detached_link_in_a_session_go_back_in_steps(site: Site, how: str) -> None:
    many = STEP_WORK
    fill(site, *[b"%d" % number for number in range(many)])
    session = connect(site).begin(incoming_window=2 * many)
    link = receiver(session, expiry_policy="link-detach", timeout=60)
    link.flow(many, window=2 * many)
    session.client.run()
    queue = site.vhost.queues["q"]
    assert queue.unacked == many
    session.client.send(Detach(0, channel=session.channel))
    session.client.run()
    if how == "replaced":
        fill(site, address="other")
        attach = Attach("r", 0, True, source=Source("other"), target=Target("here"), channel=session.channel)
        session.client.send(attach)
        session.client.session.data_received(session.client.output.to_send())
    elif how == "deleted":
        site.protocols.amqp10.termini.delete("/", "user", "test", "r", "sender")
    else:
        site.broker.timers.run(site.broker.timers.now() + 61_000)
    assert 0 < queue.ready_count <= STEP_WORK // 2
    if how == "session ended":
        session.client.drop()
    elif how == "settled":
        session.dispose(0, many - 1, state=Accepted())
    site.run()
    assert queue.unacked == 0 and not classic(queue).dispatcher.frozen
    found = [entry.seq for entry in classic(queue).ready.backlog.head]
    assert found == sorted(set(found)) and (how == "settled" or len(found) == many)


@pytest.mark.parametrize("unsettled", [None, {}])
def test_deliveries_that_the_client_lost_go_back_in_steps(site: Site, unsettled: dict[bytes, None] | None) -> None:
    many = STEP_WORK
    fill(site, *[b"%d" % number for number in range(many)])
    client = connect(site)
    session = client.begin(incoming_window=2 * many)
    receiver(session, timeout=60).flow(many, window=2 * many)
    client.run()
    queue = site.vhost.queues["q"]
    assert queue.unacked == many
    client.drop()
    client = connect(site)
    session = client.begin()
    client.send(
        Attach(
            "r",
            0,
            True,
            source=Source("q", timeout=60),
            target=Target("here"),
            unsettled=unsettled,
            channel=session.channel,
        )
    )
    client.session.data_received(client.output.to_send())
    counts = [queue.ready_count]
    while site.posted and queue.ready_count < many:
        site.broker.end_turn()
        site.posted.pop(0)()
        counts.append(queue.ready_count)
    assert counts[-1] == many
    assert max(after - before for before, after in itertools.pairwise([0, *counts])) <= STEP_WORK // 2

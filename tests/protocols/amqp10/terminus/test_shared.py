"""Subscriptions as in JMS: durable and shared ones, and unsubscribing by an attach without a source."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker import metadata
from leveret.wire.amqp10.messaging import Accepted, Source, Target
from leveret.wire.amqp10.transport import Detach
from leveret.wire.amqp10.values import Described, Symbol, ULong
from tests.protocols.amqp10.support import Client, Receiver, Session, connect, make_site
from tests.protocols.amqp10.terminus.test_durable_termini import KEPT, crash, kept, start
from tests.protocols.amqp10.terminus.test_termini import fill, receiver, terminus
from tests.protocols.support import Site

TOPIC = "topic://news"


@pytest.fixture
def site() -> Site:
    return start()


def subscribe(
    client: Client,
    name: str = "sub",
    *,
    everywhere: bool = False,
    address: str = TOPIC,
    credit: int = 0,
    selector: str = "",
    session: Session | None = None,
    **options: Any,
) -> Receiver:
    """A shared subscriber; durable by default."""
    capabilities = ("topic", "shared", "global") if everywhere else ("topic", "shared")
    filters = {Symbol("jms-selector"): Described(ULong(0x0000468C00000004), selector)} if selector else None
    source = Source(address, **{**KEPT, **options}, capabilities=capabilities, filter=filters)
    return (session or client.begin()).receiver(source=source, name=name, credit=credit)


def unsubscribe(client: Client, name: str = "sub", *, everywhere: bool = False) -> Receiver:
    """Unsubscribe like Qpid JMS: attach without a source, then close."""
    desired = ("shared", "global") if everywhere else ()
    session = client.begin()
    handle, attached = session.attach(name, True, source=None, target=Target("here"), desired_capabilities=desired)
    link = Receiver(session, handle)
    link.attached = attached
    return link


def queues(site: Site) -> list[str]:
    return [name for name in site.vhost.queues if name.startswith(("test/", "c"))]


def test_it_is_offered(site: Site) -> None:
    client = Client(site)
    assert "SHARED-SUBS" in client.open().offered_capabilities


# Of one link


def test_looking_a_subscription_up(site: Site) -> None:
    client = connect(site)
    receiver(client.begin(), "sub", address=TOPIC, **KEPT)
    client.drop()
    client = connect(site)
    link = unsubscribe(client)
    source = link.attached.source
    assert (source.address, source.durable, source.expiry_policy) == (TOPIC, 2, "never")
    assert link.detach().closed
    assert not queues(site)
    site.run()
    assert not kept(site, metadata.TERMINUS)
    client = connect(site)
    assert unsubscribe(client).attached.source is None
    assert client.error(Detach)[0] == "amqp:not-found"


def test_only_its_own_container_finds_it(site: Site) -> None:
    receiver(connect(site).begin(), "sub", address=TOPIC, **KEPT)
    client = connect(site, container="other")
    assert unsubscribe(client).attached.source is None
    assert client.error(Detach)[0] == "amqp:not-found"


def test_a_target_is_found_too(site: Site) -> None:
    client = connect(site)
    client.begin().sender("q", name="s", target=Target("q", expiry_policy="never"))
    client.drop()
    session = connect(site).begin()
    assert session.sender(name="s", target=None).attached.target.address == "q"


@pytest.mark.parametrize("change", ["address", "filter"])
def test_a_changed_subscription_is_another(site: Site, change: str) -> None:
    selector = {Symbol("s"): Described(ULong(0x0000468C00000004), "a = 1")}
    client = connect(site)
    receiver(client.begin(), "sub", address=TOPIC, filter=selector, **KEPT)
    client.drop()
    before = queues(site)
    # The same again keeps the messages.
    fill(site, b"1", address=TOPIC)
    client = connect(site)
    receiver(client.begin(), "sub", address=TOPIC, filter=dict(selector), **KEPT)
    client.drop()
    assert queues(site) == before
    assert site.vhost.queues[before[0]].ready_count == 1
    other = {Symbol("s"): Described(ULong(0x0000468C00000004), "a = 2")}
    receiver(
        connect(site).begin(),
        "sub",
        address="topic://olds" if change == "address" else TOPIC,
        filter=selector if change == "address" else other,
        **KEPT,
    )
    assert len(queues(site)) == 1
    assert queues(site) != before
    assert site.vhost.queues[queues(site)[0]].ready_count == 0


def test_a_subscription_made_durable(site: Site) -> None:
    client = connect(site)
    receiver(client.begin(), "sub", address=TOPIC, expiry_policy="never")
    client.drop()
    link = receiver(connect(site).begin(), "sub", address=TOPIC, **KEPT)
    assert link.attached.source.durable == 2
    assert site.vhost.queues[queues(site)[0]].durable


# Shared


@pytest.mark.parametrize("everywhere", [False, True], ids=["container", "global"])
def test_links_share_a_subscription(site: Site, everywhere: bool) -> None:
    one = subscribe(connect(site), "sub|1", credit=10, everywhere=everywhere)
    container = "other" if everywhere else "test"
    two = subscribe(connect(site, container=container), "sub|2", credit=10, everywhere=everywhere)
    assert one.attached.source.capabilities == (("topic", "shared", "global") if everywhere else ("topic", "shared"))
    fill(site, *[b"%d" % number for number in range(10)], address=TOPIC)
    got = [one.bodies(), two.bodies()]
    assert sorted(got[0] + got[1]) == [b"%d" % number for number in range(10)]
    assert got[0] and got[1]
    assert len(site.vhost.queues) == 1


def test_separate_subscriptions(site: Site) -> None:
    """Other containers, and durable and volatile subscriptions of one name."""
    subscribe(connect(site))
    subscribe(connect(site, container="other"))
    subscribe(connect(site, container="another"), everywhere=True)
    subscribe(connect(site), "sub|v", durable=0, expiry_policy="link-detach")
    assert len(site.vhost.queues) == 4


def test_a_durable_one_stays_without_links(site: Site) -> None:
    client = connect(site)
    subscribe(client, "sub|global", everywhere=True, credit=1)
    fill(site, b"1", b"2", address=TOPIC, durable=True)
    client.drop()
    # The link's messages were requeued: it cannot be resumed.
    assert site.vhost.queues[queues(site)[0]].ready_count == 2
    assert terminus(site, "sub|global") is None
    client = connect(site, container="c2")
    link = subscribe(client, "sub|global2", everywhere=True, credit=10)
    assert link.bodies() == [b"1", b"2"]


def test_a_durable_one_survives_a_crash(site: Site) -> None:
    subscribe(connect(site), "sub|global", everywhere=True)
    fill(site, b"1", address=TOPIC, durable=True)
    site = crash(site)
    assert subscribe(connect(site, container="c2"), "sub|global", everywhere=True, credit=10).bodies() == [b"1"]
    assert len(site.vhost.queues) == 1
    assert list(site.protocols.amqp10.termini.describe())[-1].role == "shared-durable"


def test_a_volatile_one_ends_with_its_last_link(site: Site) -> None:
    session = connect(site).begin()
    links = [
        subscribe(session.client, f"sub|volatile{number}", session=session, durable=0, expiry_policy="link-detach")
        for number in (1, 2)
    ]
    links[0].detach()
    assert len(queues(site)) == 1
    links[1].detach()
    assert not site.vhost.queues
    assert not site.protocols.amqp10.termini.shared


def test_a_volatile_one_ends_with_its_last_connection(site: Site) -> None:
    clients = [connect(site), connect(site)]
    for number, client in enumerate(clients):
        subscribe(client, f"sub|{number}", durable=0, expiry_policy="link-detach")
    clients[0].drop()
    assert len(queues(site)) == 1
    clients[1].drop()
    assert not site.vhost.queues


def test_a_time_without_links(site: Site) -> None:
    from tests.protocols.amqp10.terminus.test_termini import pass_time

    client = connect(site)
    subscribe(client, expiry_policy="connection-close", timeout=60)
    client.drop()
    pass_time(site, 59)
    client = connect(site)
    subscribe(client, expiry_policy="connection-close", timeout=60)
    pass_time(site, 100)
    assert len(queues(site)) == 1
    client.drop()
    pass_time(site, 61)
    assert not queues(site)


def test_the_end_of_the_connection_counts(site: Site) -> None:
    client = connect(site)
    session = client.begin()
    client.begin(1)
    subscribe(client, session=session, expiry_policy="connection-close")
    session.end()
    assert len(queues(site)) == 1
    client.drop()
    assert not queues(site)


@pytest.mark.parametrize("everywhere", [False, True], ids=["container", "global"])
def test_unsubscribing(site: Site, everywhere: bool) -> None:
    client = connect(site)
    first = subscribe(client, "sub|1", everywhere=everywhere)
    first.detach(closed=False)
    client.drop()
    client = connect(site, container="other" if everywhere else "test")
    link = unsubscribe(client, "sub|global" if everywhere else "sub", everywhere=everywhere)
    assert link.attached.source.address == TOPIC
    link.detach()
    assert not site.vhost.queues
    site.run()
    assert not kept(site, metadata.TERMINUS)


def test_closing_one_of_several(site: Site) -> None:
    subscribe(connect(site), "sub|1")
    subscribe(connect(site), "sub|2").detach()
    assert len(queues(site)) == 1


def test_another_filter_while_links_are_attached(site: Site) -> None:
    first = connect(site)
    subscribe(first, "sub|1", selector="a = 1")
    client = connect(site)
    assert subscribe(client, "sub|2", selector="a = 2").attached.source is None
    assert client.error(Detach)[0] == "amqp:not-allowed"
    first.drop()
    assert subscribe(client, "sub|2", selector="a = 2", session=client.begin(1)).attached.source is not None
    assert len(queues(site)) == 1


def test_a_link_attached_again_in_its_session(site: Site) -> None:
    session = connect(site).begin()
    link = subscribe(session.client, session=session, credit=1)
    fill(site, b"1", address=TOPIC)
    number = link.deliveries()[0].delivery_id
    link.detach(closed=False)
    subscribe(session.client, session=session)
    session.dispose(number, state=Accepted())
    assert site.vhost.queues[queues(site)[0]].counters.settled == 1


def test_no_state_is_left(site: Site) -> None:
    client = connect(site)
    subscribe(client, durable=0, expiry_policy="link-detach", credit=5)
    client.drop()
    termini = site.protocols.amqp10.termini
    assert not termini.by_key and not termini.shared and not termini.kept
    assert not site.broker.holders


def test_shared_needs_no_more_than_a_name() -> None:
    site = make_site()
    link = subscribe(connect(site), "", address="topic://x")
    assert link.attached.source is not None

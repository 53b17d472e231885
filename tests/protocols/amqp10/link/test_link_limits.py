"""Limits on the state and the work per turn that one client can cause with links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leveret.wire.amqp10.messaging import Received, Source, Target
from leveret.wire.amqp10.transactions import Declared
from leveret.wire.amqp10.transport import Attach, Detach, Disposition, Transfer
from leveret.wire.amqp10.values import Described, Symbol
from tests.protocols.amqp10.support import Sender, Session, connect, make_site, message
from tests.protocols.amqp10.terminus.test_termini import fill
from tests.protocols.support import Site
from tests.support.broker import LeveretProcess, basic_config
from tests.support.peers.amqp10 import Peer


@pytest.fixture
def site() -> Site:
    site = make_site(links=8)
    site.vhost.declare_queue("q", None, durable=True)
    return site


REFUSED: dict[str, dict[str, Any]] = {
    "dynamic": {"dynamic": True, "durable": 1, "expiry_policy": "never"},
    "subscription": {"address": "topic://t", "durable": 1, "expiry_policy": "never"},
    "shared": {"address": "topic://t", "capabilities": ("shared",), "durable": 1, "expiry_policy": "never"},
}


@pytest.mark.parametrize("kind", list(REFUSED))
@pytest.mark.parametrize("wrong", ["priority", "outcome"])
def test_a_refused_link_leaves_no_queue(site: Site, kind: str, wrong: str) -> None:
    """Objects created for a link that is finally refused are removed."""
    session = connect(site).begin()
    fields = dict(REFUSED[kind])
    properties = None
    if wrong == "priority":
        properties = {Symbol("rabbitmq:priority"): "high"}
    else:
        fields["default_outcome"] = Declared(b"id")  # an outcome, but none of a message
    session.attach("link", True, source=Source(**fields), target=Target("here"), properties=properties)
    assert session.client.error(Detach)[0] == "amqp:invalid-field"
    assert list(site.vhost.queues) == ["q"]
    assert not site.protocols.amqp10.termini.all()


def test_a_refused_link_of_a_known_name_changes_nothing(site: Site) -> None:
    session = connect(site).begin()
    source = Source("topic://t", durable=1, expiry_policy="never")
    link = session.receiver(name="link", source=source)
    link.detach(closed=False)
    before = list(site.vhost.queues)
    session.attach("link", True, source=source, target=Target("here"), properties={Symbol("rabbitmq:priority"): "high"})
    assert session.client.error(Detach)[0] == "amqp:invalid-field"
    assert list(site.vhost.queues) == before
    assert len(site.protocols.amqp10.termini.all()) == 1


def test_suspended_links_of_a_session_are_few(site: Site) -> None:
    """Links with default lifetime are remembered by their session up to the limit: the oldest are dropped."""
    fill(site, b"1")
    client = connect(site)
    session = client.begin()
    queue = site.vhost.queues["q"]
    session.receiver(name="first", credit=1, handle=0).detach(closed=False)
    assert queue.unacked == 1
    for number in range(7):
        session.sender(name=f"sender {number}", handle=0).detach(closed=False)
    assert queue.unacked == 1
    for number in range(7, 50):
        session.sender(name=f"sender {number}", handle=0).detach(closed=False)
    assert [terminus.key[3] for terminus in site.protocols.amqp10.termini.all()] == [f"sender {n}" for n in range(42, 50)]
    assert (queue.unacked, queue.ready_count) == (0, 1)
    # Those with a longer lifetime have another limit.
    for number in range(20):
        session.sender(name=f"kept {number}", target=Target("q", expiry_policy="never"), handle=0).detach(closed=False)
    assert len(site.protocols.amqp10.termini.all()) == 28
    session.end()
    assert len(site.protocols.amqp10.termini.all()) == 20


def test_names_of_links_are_short(site: Site) -> None:
    session = connect(site).begin()
    session.attach("n" * 1025, False, source=Source("here"), target=Target("q"), initial_delivery_count=0)
    condition, text = session.client.error(Detach)
    assert condition == "amqp:invalid-field"
    assert "1024" in text
    session.sender(name="n" * 1024)


def test_the_stored_state_of_a_link_is_small(site: Site) -> None:
    """The description of a terminus that outlives its session has a limit."""
    session = connect(site).begin()
    many = {Symbol("lifetime-policy"): None, Symbol("x"): "y" * 10_000}
    target = Target(None, dynamic=True, dynamic_node_properties=many)
    session.sender(name="not kept", target=target)
    address = "a" * 20_000
    session.attach(
        "kept", False, source=Source("here"), target=Target(address, expiry_policy="never"), initial_delivery_count=0
    )
    assert session.client.error(Detach)[0] == "amqp:resource-limit-exceeded"
    assert [terminus.key[3] for terminus in site.protocols.amqp10.termini.all()] == ["not kept"]


def test_sharing_a_queue_is_limited_too(site: Site) -> None:
    """The capability has no meaning on a queue, so the limit is that of other links."""
    site.protocols.amqp10.settings.kept_links = 3
    session = connect(site).begin()
    source = Source("q", capabilities=("shared",), expiry_policy="never")
    for number in range(3):
        session.receiver(name=f"link {number}", source=source)
    session.attach("one more", True, source=source, target=Target("here"))
    assert session.client.error(Detach)[0] == "amqp:resource-limit-exceeded"
    assert len(site.protocols.amqp10.termini.all()) == 3


def test_detaches_are_work(site: Site) -> None:
    """A detach scans all unsettled deliveries of its session, so detaches are spread over turns."""
    fill(site, *[b"m"] * 20_000)
    client = connect(site)
    session = client.begin(incoming_window=1 << 30)
    session.receiver("q").flow(20_000, window=1 << 30)
    client.received.clear()
    assert site.vhost.queues["q"].unacked == 20_000
    for _ in range(200):
        client.send(
            Attach("other", 5, True, source=Source("empty"), target=Target("here"), channel=0), Detach(5, True, channel=0)
        )
    client.session.data_received(client.output.to_send())
    assert client.session.rest
    client.run()
    assert len(client.all(Detach)) == 200


# Deliveries that are resumed


def resumable(session: Session, unsettled: Any = None, **options: Any) -> Sender:
    return session.sender(
        name="sender", target=Target("q", expiry_policy="never"), rcv_settle_mode=1, unsettled=unsettled, **options
    )


def test_resumed_again_and_again(site: Site) -> None:
    """A delivery has one delivery-id in a session: the last one with which it was resumed."""
    client = connect(site)
    session = client.begin()
    sender = resumable(session)
    sender.send(message(durable=True), delivery_tag=b"tag")
    sender.detach(closed=False)
    sender = resumable(session, {b"tag": None})
    endpoint = client.session.sessions.by_channel[0]
    for _ in range(50):
        sender.send(b"", delivery_tag=b"tag", resume=True)
    assert len(client.all(Disposition)) >= 1
    assert len(endpoint.unsettled) == 1
    session.dispose(0, 1000, settled=True, role=False)
    assert not endpoint.unsettled
    assert site.vhost.queues["q"].ready_count == 1


def test_unknown_deliveries_make_no_room(site: Site) -> None:
    """Deliveries that are resumed may not count for the credit, but only those that are known."""
    client = connect(site)
    session = client.begin()
    sender = session.sender("q")
    site.services.set_alarm("disk")
    most = site.protocols.amqp10.settings.link_credit
    for _ in range(most):
        sender.send(b"", delivery_tag=b"unknown", resume=True, run=False)
    client.run()
    sender.send(message())
    assert client.error(Detach)[0] == "amqp:link:transfer-limit-exceeded"


def test_an_interrupted_delivery_of_many_sections(site: Site) -> None:
    """Positions in it are not counted: it is resumed from its beginning, and complete all the same."""
    section = b"\x00\x53\x75\xa0\x01x"
    client = connect(site)
    session = client.begin()
    sender = resumable(session)
    sender.part(section * 1500, delivery_id=0, delivery_tag=b"tag", more=True)
    client.run()
    sender.detach(closed=False)
    sender = resumable(session, {b"tag": None})
    attached = sender.attached
    assert isinstance(attached.unsettled, dict)
    state = attached.unsettled[b"tag"]
    assert isinstance(state, Received)
    assert (state.section_number, state.section_offset) == (0, 0)
    sender.part(section * 2000, delivery_id=1, delivery_tag=b"tag", resume=True, state=Received(0, 0))
    client.run()
    assert [item.state.kind for item in client.all(Disposition) if item.state is not None] == [0x24]
    queue = site.vhost.queues["q"]
    assert queue.ready_count == 1
    assert queue.ready_bytes == len(section) * 2000


def test_a_large_interrupted_delivery_of_many_sections(tmp_path: Path) -> None:
    """It is not kept at all: it is sent again as a new delivery."""
    with LeveretProcess(tmp_path, config=basic_config() + "[storage]\nbody_spool_threshold = 4096\n").start() as broker:
        peer = Peer(broker.host, broker.port)
        peer.login()
        peer.open()
        session = peer.begin()
        target = Target("/queue/q", expiry_policy="never")
        link = session.sender(name="link", target=target, rcv_settle_mode=1)
        few = b"\x00\x53\x75\xb0\x00\x00\x20\x00" + bytes(8192)
        many = b"\x00\x53\x75\xa0\x01x" * 2000
        link.transfer(few, delivery_id=0, delivery_tag=b"few", more=True)
        link.detach(closed=False)
        link = session.sender(name="link", target=target, rcv_settle_mode=1, unsettled={b"few": None})
        assert list(link.attached.unsettled or ()) == [b"few"]
        link.transfer(b"", delivery_id=1, delivery_tag=b"few", resume=True, aborted=True)
        link.transfer(many, delivery_id=2, delivery_tag=b"many", more=True)
        link.detach(closed=False)
        link = session.sender(name="link", target=target, rcv_settle_mode=1, unsettled={b"many": None})
        assert not link.attached.unsettled
        link.transfer(many, delivery_id=3, delivery_tag=b"many")
        assert session.outcome(3).state is not None
        peer.close()
        broker.check_log()


# Unsent deliveries


def test_attached_again_before_everything_was_sent(site: Site) -> None:
    """A link that is attached again in its session also gets the unsent deliveries."""
    fill(site, b"a" * 300_000, b"b")
    client = connect(site)
    session = client.begin()
    receiver = session.receiver("q", name="link")
    receiver.flow(10, window=1)
    assert len(client.all(Transfer)) == 1  # the start of the first one
    receiver.detach(closed=False)
    again = session.receiver("q", name="link")
    again.flow(10, window=1000, next_incoming_id=1)
    got: dict[bytes, int] = {}
    tag = b""
    for frame in client.all(Transfer):
        if frame.aborted:
            continue
        tag = frame.delivery_tag or tag
        got[tag] = got.get(tag, 0) + len(frame.payload)
    assert len(got) == 2
    assert max(got.values()) > 300_000


@pytest.mark.parametrize(
    "description",
    [
        Source("q", filter={Symbol("f"): Described(Symbol("unknown"), "x" * 16_384)}),
        Target("q", dynamic_node_properties={Symbol("p"): "x" * 16_384}),
    ],
    ids=["filter", "properties"],
)
def test_filters_and_properties_of_a_link_are_not_large(site: Site, description: Any) -> None:
    session = connect(site).begin()
    receives = isinstance(description, Source)
    session.attach(
        "link",
        receives,
        source=description if receives else Source("here"),
        target=Target("here") if receives else description,
    )
    condition, text = session.client.error(Detach)
    assert (condition, "at most 16384 bytes" in text) == ("amqp:resource-limit-exceeded", True)
    assert not site.protocols.amqp10.termini.all()

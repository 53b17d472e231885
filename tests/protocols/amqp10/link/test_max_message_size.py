"""The max-message-size of a receiver (transport section 2.7.3): the broker never sends a larger message on its link."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.consumer import Scope
from leveret.wire.amqp10.messaging import Source
from leveret.wire.amqp10.transport import Detach, Flow, Transfer
from leveret.wire.amqp10.values import Described, Symbol
from tests.protocols.amqp10.link.test_direct_reply import address_of
from tests.protocols.amqp10.management.test_management_node import answers, request, requests
from tests.protocols.amqp10.support import Receiver, Session, body_of, connect, make_site, message
from tests.protocols.amqp10.transaction.test_acquisition import acquire
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Channel, Site, bytes_of, properties_of
from tests.support.queues import classic

LIMIT = 1000
BIG = b"b" * LIMIT
SETTLED = 1
EXCEEDED = "amqp:link:message-size-exceeded"
DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def site() -> Site:
    return make_site()


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


@pytest.fixture
def publisher(site: Site) -> Channel:
    return site.channel()


def fill(site: Site, *bodies: bytes, address: str = "/queues/q") -> None:
    client = connect(site, container="filling")
    sender = client.begin().sender(address)
    for body in bodies:
        sender.send(message(body, durable=True))
    client.drop()


def small(
    session: Session, source: Source | None = None, *, limit: int = LIMIT, credit: int = 10, **options: Any
) -> Receiver:
    return session.receiver(source=source or Source("/queues/q"), max_message_size=limit, credit=credit, **options)


def received(session: Session) -> list[tuple[int | None, int]]:
    """Return the delivery-ids and the sizes of the received messages."""
    found: dict[int | None, int] = {}
    last: int | None = None
    for frame in session.client.all(Transfer):
        last = last if frame.delivery_id is None else frame.delivery_id
        found[last] = found.get(last, 0) + len(frame.payload)
    return list(found.items())


class TestTheSize:
    """That of all that the client receives: the sections of the broker count."""

    @pytest.mark.parametrize("settled", [False, True])
    @pytest.mark.parametrize("size", [10, 300, 70_000, 2_000_000], ids=["short", "medium", "large", "huge"])
    @pytest.mark.parametrize("kind", ["bare", "footer", "0-9-1", "encoded"])
    def test_a_message_at_the_limit_is_sent(
        self, site: Site, publisher: Channel, size: int, kind: str, settled: bool
    ) -> None:
        publisher.declare()
        if kind in ("bare", "footer"):
            after = b"\x00\x53\x78\xc1\x01\x00" if kind == "footer" else b""
            connect(site).begin().sender("/queues/q").send(message(b"x" * size, after=after, durable=True))
        else:
            properties = {"type": "amqp-1.0"} if kind == "encoded" else {"headers": {"a": "b"}}
            publisher.publish(body=message(b"x" * size) if kind == "encoded" else b"x" * size, **properties)
            publisher.run()
        mode = SETTLED if settled else 0
        browser = connect(site).begin(incoming_window=10_000)
        copy = Source("/queues/q", distribution_mode=Symbol("copy"))
        browser.receiver(source=copy, credit=1, snd_settle_mode=mode)
        [(_, total)] = received(browser)
        assert total > size
        for limit, expected in ((total - 1, []), (0, [total]), (total, [total]), (2**64 - 1, [total])):
            client = connect(site).begin(incoming_window=10_000)
            client.receiver(source=copy, credit=1, name=f"{limit}", snd_settle_mode=mode, max_message_size=limit)
            assert [size for _, size in received(client)] == expected
            assert bool(client.client.all(Detach)) != bool(expected)

    def test_the_link_shows_its_limit(self, session: Session) -> None:
        session.client.site.vhost.declare_queue("q", None)
        small(session)
        session.receiver("/queues/q")
        links = session.client.session.sessions.by_channel[0].links.values()
        assert [link.describe().max_message_size for link in links] == [LIMIT, 0]


@pytest.mark.parametrize("settled", [False, True])
class TestQueues:
    def test_it_stays_for_other_consumers(self, site: Site, session: Session, settled: bool) -> None:
        site.vhost.declare_queue("q", None, durable=True)
        fill(site, BIG, b"1", BIG, b"2")
        receiver = small(session, snd_settle_mode=SETTLED if settled else 0)
        deliveries = receiver.deliveries()
        assert [body_of(frame.payload) for frame in deliveries] == [b"1", b"2"]
        assert [frame.delivery_id for frame in deliveries] == [0, 1]
        queue = classic(site.vhost.queues["q"])
        assert (queue.ready_count, queue.unacked) == (2, 0 if settled else 2)
        fill(site, b"3")
        assert receiver.bodies() == [b"3"]
        other = connect(site, container="other").begin().receiver("/queues/q", credit=10)
        assert other.bodies() == [BIG, BIG]
        assert session.client.find(Detach) is None

    def test_it_is_dead_lettered_once(self, site: Site, session: Session, publisher: Channel, settled: bool) -> None:
        publisher.declare(arguments=DEAD_LETTERS)
        publisher.declare("dead", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
        fill(site, BIG, b"1")
        mode = SETTLED if settled else 0
        assert small(session, snd_settle_mode=mode).bodies() == [b"1"]
        dead = publisher.get("dead", no_ack=False)
        assert dead is not None and bytes_of(dead.body) == BIG
        assert properties_of(dead)["headers"]["x-death"][0]["reason"] == "rejected"
        publisher.reject(1, requeue=False)
        publisher.run()
        # It has returned, and cannot be dead-lettered for ever.
        assert session.client.all(Transfer) == []
        assert site.vhost.queues["q"].ready_count == 1
        assert publisher.get("dead") is None

    @pytest.mark.parametrize(
        "arguments", [{"x-max-priority": 3}, {"x-single-active-consumer": True}, {"x-queue-type": "quorum"}]
    )
    def test_drain_and_other_queues(self, site: Site, session: Session, settled: bool, arguments: dict[str, Any]) -> None:
        site.vhost.declare_queue("q", None, durable=True, arguments=arguments)
        fill(site, BIG, b"1", BIG)
        receiver = small(session, credit=0, snd_settle_mode=SETTLED if settled else 0)
        session.client.all(Flow)
        receiver.flow(5, drain=True)
        assert receiver.bodies() == [b"1"]
        flow = session.client.all(Flow)[-1]
        assert (flow.delivery_count, flow.link_credit, flow.drain) == (5, 0, True)


def test_a_transaction_does_not_acquire_it(site: Site, session: Session) -> None:
    site.vhost.declare_queue("q", None, durable=True)
    fill(site, BIG, b"1")
    controller = Controller(session)
    id = controller.declare()
    receiver = small(session, credit=0)
    assert [body_of(frame.payload) for frame in acquire(receiver, id, 1)] == [b"1"]
    controller.discharge(id, fail=True)
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (2, 0)


@pytest.mark.parametrize("durable", [0, 1, 2])
def test_a_resumed_link_with_a_smaller_limit(site: Site, durable: int) -> None:
    site.vhost.declare_queue("q", None, durable=True)
    fill(site, BIG, b"1")
    source = Source("/queues/q", durable=durable, expiry_policy="never")
    client = connect(site)
    [big, one] = client.begin().receiver(source=source, credit=10, name="r").deliveries()
    client.drop()
    client = connect(site)
    session = client.begin()
    unsettled = {big.delivery_tag: None, one.delivery_tag: None}
    receiver = small(session, source, name="r", unsettled=unsettled)
    sent = {frame.delivery_tag: (frame.aborted, frame.resume, frame.payload) for frame in receiver.deliveries()}
    assert sent[big.delivery_tag] == (True, True, b"")
    assert sent[one.delivery_tag][:2] == (False, True) and body_of(sent[one.delivery_tag][2]) == b"1"
    assert len(sent) == 2
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (1, 1)
    client.drop()
    assert connect(site, container="other").begin().receiver("/queues/q", credit=10).bodies() == [BIG]


class TestReadersOfCopies:
    """They must not miss a message unnoticed: their links are detached."""

    def test_streams(self, site: Site, session: Session) -> None:
        site.vhost.declare_queue("q", None, durable=True, arguments={"x-queue-type": "stream"})
        fill(site, b"1", BIG, b"2")
        first = {Symbol("o"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")}
        source = Source("/queues/q", filter=first)
        assert small(session, source).bodies() == [b"1"]
        condition, text = session.client.error(Detach)
        assert condition == EXCEEDED
        assert "queue 'q'" in text and f", {LIMIT}" in text
        assert site.vhost.queues["q"].unacked == 0
        assert session.receiver(source=source, credit=10, name="other").bodies() == [b"1", BIG, b"2"]

    def test_record_batches(self, site: Site, session: Session) -> None:
        site.vhost.declare_queue("q", None, durable=True, arguments={"x-queue-type": "stream"})
        fill(site, BIG)
        packed = {Symbol("packed"): Described(Symbol("leveret:packed"), True)}
        assert small(session, Source("/queues/q", filter=packed, distribution_mode=Symbol("copy"))).deliveries() == []
        assert session.client.error(Detach)[0] == EXCEEDED
        assert site.vhost.queues["q"].unacked == 0

    def test_browsers(self, site: Site, session: Session) -> None:
        site.vhost.declare_queue("q", None, durable=True)
        fill(site, b"1", BIG, b"2")
        copy = Source("/queues/q", distribution_mode=Symbol("copy"))
        assert small(session, copy).bodies() == [b"1"]
        assert session.client.error(Detach)[0] == EXCEEDED
        assert site.vhost.queues["q"].ready_count == 3
        assert session.receiver(source=copy, credit=10, name="other").bodies() == [b"1", BIG, b"2"]

    @pytest.mark.parametrize("durable", [0, 1, 2])
    @pytest.mark.parametrize("settled", [False, True])
    def test_subscriptions(self, site: Site, session: Session, durable: int, settled: bool) -> None:
        """A durable one keeps the message for a link that accepts it."""
        source = Source("/exchanges/amq.topic/k", durable=durable, expiry_policy="never" if durable else "session-end")
        mode = SETTLED if settled else 0
        receiver = small(session, source, name="s", snd_settle_mode=mode)
        fill(site, b"1", BIG, address="/exchanges/amq.topic/k")
        [one] = receiver.deliveries()
        assert body_of(one.payload) == b"1"
        if not settled:
            receiver.accept(one.delivery_id)
        assert session.client.error(Detach)[0] == EXCEEDED
        assert sum(queue.ready_count for queue in site.vhost.queues.values()) == bool(durable)
        again = connect(site).begin()
        assert small(again, source, name="s", limit=0, snd_settle_mode=mode).bodies() == [BIG] * bool(durable)

    def test_repeated_links_of_a_subscription_leave_nothing_behind(self, site: Site) -> None:
        source = Source("/exchanges/amq.topic/k", durable=1, expiry_policy="never")
        small(connect(site).begin(), source, name="s")
        fill(site, BIG, address="/exchanges/amq.topic/k")
        for _ in range(5):
            session = connect(site).begin()
            small(session, source, name="s")
            assert session.client.error(Detach)[0] == EXCEEDED
            session.client.drop()
        [queue] = [queue for queue in site.vhost.queues.values() if queue.ready_count]
        [entry] = classic(queue).ready.backlog.head
        assert entry.overlay is not None
        assert len([scope for scope in entry.overlay.refused if isinstance(scope, Scope)]) == 1

    def test_shared_subscriptions_leave_it_to_their_other_links(self, site: Site, session: Session) -> None:
        source = Source("/exchanges/amq.topic/k", capabilities=("shared",))
        one = small(session, source, name="s|1")
        fill(site, BIG, b"1", address="/exchanges/amq.topic/k")
        assert one.bodies() == [b"1"]
        assert session.client.find(Detach) is None
        assert session.receiver(source=source, credit=10, name="s|2").bodies() == [BIG]

    def test_replies(self, site: Site, session: Session) -> None:
        source = Source(dynamic=True, expiry_policy="link-detach", capabilities=("rabbitmq:volatile-queue",))
        receiver = small(session, source, snd_settle_mode=SETTLED)
        fill(site, b"1", BIG, address=address_of(receiver))
        assert receiver.bodies() == [b"1"]
        assert session.client.error(Detach)[0] == EXCEEDED

    def test_responses_of_the_management_node(self, session: Session) -> None:
        sender = requests(session)
        answers(session, max_message_size=10)
        sender.send(request("GET", "/queues/missing"), settled=True)
        assert session.client.all(Transfer) == []
        assert session.client.error(Detach)[0] == EXCEEDED

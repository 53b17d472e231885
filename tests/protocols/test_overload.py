"""Publishers are slowed down while messages wait for the broker, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.message import make_address
from leveret.protocols.ingress_throttle import (
    ALARM,
    BEHIND,
    FEW,
    FIRST_READ,
    MAX_COMMANDS,
    MAX_READ,
    MIN_READ,
    SHARED_READ,
    SLOWED_FOR,
)
from leveret.protocols.vhost_session import LARGE_QUANTUM
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.transport import Flow
from leveret.wire.record_batches import EXCHANGE, encode
from tests.protocols.amqp09.support import Client as Client09
from tests.protocols.amqp10.support import Sender, connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller
from tests.protocols.support import Channel, Site

# More than a connection gets in one turn, in messages that are encoded as a whole.
BODY = bytes(LARGE_QUANTUM // 4)
MESSAGES = 10


@pytest.fixture
def site() -> Site:
    return make_site(link_credit=8)


@pytest.fixture(params=["0-9-1", "0-9"])
def publisher(request: pytest.FixtureRequest, site: Site) -> Channel:
    if request.param == "0-9-1":
        return site.channel()
    client = Client09(site)
    client.open()
    return client.channel()


def consume(site: Site, queue: str = "q", *, no_ack: bool = True, prefetch: int = 0) -> Channel:
    """Consume from a new queue on a connection of its own."""
    channel = site.channel()
    channel.declare(queue)
    if prefetch:
        channel.qos(prefetch)
    channel.consume(queue, no_ack=no_ack)
    return channel


def bind(channel: Channel, queue: str, exchange: str, **arguments: str) -> None:
    channel.call("queue.bind", "queue.bind-ok", queue=queue, exchange=exchange, routing_key="", arguments=arguments)


def flood(channel: Channel, key: str = "q", *, exchange: str = "", **properties: Any) -> None:
    """Publish more than the broker delivers in this turn, without letting it take another one."""
    for _ in range(MESSAGES):
        channel.publish(key, BODY, exchange=exchange, **properties)
    channel.client.flush()


def is_slowed(channel: Channel, key: str = "q", *, exchange: str = "", **properties: Any) -> bool:
    """Publish once more, and return whether the broker slows the publisher down."""
    channel.publish(key, exchange=exchange, **properties)
    channel.client.flush()
    return channel.client.peer.slowed


def read_size(channel: Channel, count: int, body: bytes = b"") -> int:
    """Publish some messages in one piece, and return the bytes that the broker reads from the publisher next."""
    for _ in range(count):
        channel.publish("q", body)
    channel.client.flush()
    return channel.client.peer.limit


class TestReads:
    def test_the_publisher_is_read_less_while_the_queue_is_behind(self, site: Site, publisher: Channel) -> None:
        consumer = consume(site)
        flood(site.channel())
        assert read_size(publisher, 1) == FIRST_READ // 2
        assert read_size(publisher, 1) == FIRST_READ // 4
        assert publisher.client.peer.slowed
        site.run()
        assert len(consumer.deliveries()) == MESSAGES + 2
        assert not is_slowed(publisher)

    def test_a_publisher_of_record_batches_is_read_less_while_their_queue_is_behind(
        self, site: Site, publisher: Channel
    ) -> None:
        consume(site)
        batch = encode([make_address("", "q")], [b"\0\0"], [b""])
        publisher.publish("", batch, exchange=EXCHANGE)
        publisher.run()
        assert not publisher.client.peer.slowed
        flood(site.channel())
        publisher.publish("", batch, exchange=EXCHANGE)
        publisher.client.flush()
        assert publisher.client.peer.slowed

    def test_a_publisher_is_read_less_within_a_record_batch(self, site: Site, publisher: Channel) -> None:
        consume(site)
        batch = encode([make_address("", "q")], [b"\0\0"], [b""])
        publisher.publish("", batch, exchange=EXCHANGE)
        publisher.run()
        flood(site.channel())
        publisher.publish("", batch, exchange=EXCHANGE)
        sent = publisher.client.engine.to_send()
        publisher.client.session.data_received(sent[:-1])
        assert publisher.client.peer.slowed
        site.run()
        publisher.client.session.data_received(sent[-1:])
        assert not publisher.client.peer.slowed

    def test_the_publisher_is_always_read(self, site: Site, publisher: Channel) -> None:
        consume(site)
        flood(publisher)
        for _ in range(20):
            assert read_size(publisher, 1) >= MIN_READ
        assert read_size(publisher, 1) == MIN_READ
        assert publisher.client.peer.reading

    def test_large_messages_are_read_in_large_pieces(self, site: Site, publisher: Channel) -> None:
        publisher.declare()
        assert read_size(publisher, 1, bytes(FIRST_READ)) == 2 * FIRST_READ
        for _ in range(8):
            read_size(publisher, MESSAGES, BODY)
        assert publisher.client.peer.limit == MAX_READ

    def test_large_messages_to_many_queues_are_read_in_smaller_pieces(self, site: Site, publisher: Channel) -> None:
        for number in range(FEW + 1):
            site.channel().declare(f"q{number}")
            bind(site.channel(), f"q{number}", "amq.fanout")
        for _ in range(8):
            flood(publisher, exchange="amq.fanout")
        assert publisher.client.peer.limit == SHARED_READ

    def test_parts_of_a_large_body_are_read_in_large_pieces(self, site: Site, publisher: Channel) -> None:
        publisher.declare()
        read_size(publisher, 1, bytes(8 << 20))
        assert publisher.client.peer.limit > FIRST_READ

    def test_small_messages_are_read_in_small_pieces(self, site: Site, publisher: Channel) -> None:
        publisher.declare()
        assert read_size(publisher, MAX_COMMANDS) == FIRST_READ
        assert read_size(publisher, MAX_COMMANDS + 1) == FIRST_READ // 2
        assert not publisher.client.peer.slowed

    def test_messages_that_fill_no_read_keep_the_size(self, site: Site, publisher: Channel) -> None:
        publisher.declare()
        for _ in range(5):
            assert read_size(publisher, 3) == FIRST_READ

    def test_other_commands_end_the_slow_down(self, site: Site, publisher: Channel) -> None:
        consume(site)
        flood(publisher)
        assert is_slowed(publisher)
        publisher.declare("another")
        assert not publisher.client.peer.slowed

    def test_a_queue_that_its_consumers_delay_does_not_limit(self, site: Site, publisher: Channel) -> None:
        consume(site, no_ack=False, prefetch=1)
        flood(publisher)
        assert site.vhost.queues["q"].ready_count == MESSAGES - 1
        assert not is_slowed(publisher)

    def test_a_consumer_without_credit_on_a_busy_connection_does_not_limit(self, site: Site, publisher: Channel) -> None:
        """The connection of the consumer is at its limit for the turn, but the consumer has no credit anyway."""
        consumer = consume(site, no_ack=False, prefetch=1)
        consumer.declare("other")
        consumer.qos(0)
        consumer.consume("other", no_ack=True)
        publisher.publish("q", BODY)
        flood(publisher, "other")
        assert not is_slowed(publisher)
        assert is_slowed(publisher, "other")

    @pytest.mark.parametrize("full", ["buffer", "socket"])
    def test_a_consumer_that_does_not_read_does_not_limit(self, site: Site, publisher: Channel, full: str) -> None:
        consumer = consume(site)
        if full == "buffer":
            consumer.client.session.pause_writing()
        else:
            consumer.client.peer.writable = False
        flood(publisher)
        assert site.vhost.queues["q"].ready_count > 0
        assert not is_slowed(publisher)

    def test_the_limit_ends_when_the_socket_of_the_consumer_fills(self, site: Site, publisher: Channel) -> None:
        consumer = consume(site)
        flood(publisher)
        assert is_slowed(publisher)
        consumer.client.peer.writable = False
        assert not is_slowed(publisher)

    def test_the_limit_ends_with_the_consumer(self, site: Site, publisher: Channel) -> None:
        consumer = consume(site)
        flood(publisher)
        assert is_slowed(publisher)
        consumer.client.peer.closed = True
        consumer.client.session.connection_lost()
        assert not is_slowed(publisher)

    def test_a_queue_without_consumers_does_not_limit(self, site: Site, publisher: Channel) -> None:
        publisher.declare()
        flood(publisher)
        assert not is_slowed(publisher)

    def test_a_publisher_of_another_queue_is_not_limited(self, site: Site, publisher: Channel) -> None:
        consume(site)
        consume(site, "idle")
        flood(site.channel())
        assert not is_slowed(publisher, "idle")
        assert is_slowed(publisher)

    def test_a_fan_out_limits_if_every_consumed_queue_is_behind(self, site: Site, publisher: Channel) -> None:
        for queue in ("one", "two"):
            consume(site, queue)
            publisher.call("queue.bind", "queue.bind-ok", queue=queue, exchange="amq.fanout", routing_key="", arguments={})
        publisher.declare("unconsumed")
        publisher.call(
            "queue.bind", "queue.bind-ok", queue="unconsumed", exchange="amq.fanout", routing_key="", arguments={}
        )
        flood(publisher, "one")
        assert not is_slowed(publisher, exchange="amq.fanout")
        flood(publisher, "two")
        assert is_slowed(publisher, exchange="amq.fanout")

    def test_a_headers_exchange_limits_by_the_latest_message(self, site: Site, publisher: Channel) -> None:
        consume(site)
        bind(publisher, "q", "amq.match", kind="order")
        order: dict[str, Any] = {"headers": {"kind": "order"}}
        flood(publisher, exchange="amq.match", **order)
        assert is_slowed(publisher, exchange="amq.match", **order)
        assert not is_slowed(publisher, exchange="amq.match")

    @pytest.mark.parametrize("held", ["a consumer", "an unacked message", "a transaction"])
    def test_a_connection_that_must_be_read_is_not_limited(self, site: Site, publisher: Channel, held: str) -> None:
        consume(site)
        other = publisher.client.channel()
        other.declare("own")
        if held == "a consumer":
            other.consume("own")
        elif held == "an unacked message":
            other.publish("own")
            assert other.get("own", no_ack=False) is not None
        else:
            other.call("tx.select", "tx.select-ok")
            other.publish("own")
        another = site.channel()
        flood(publisher)
        assert not is_slowed(publisher)
        assert is_slowed(another)

    def test_a_dead_letter_cycle_does_not_limit_its_own_connection(self, site: Site, publisher: Channel) -> None:
        publisher.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "again"})
        publisher.declare("again", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
        publisher.qos(1)
        publisher.consume()
        flood(publisher)
        assert not is_slowed(publisher)

    def test_a_slowed_connection_shows_it(self, site: Site, publisher: Channel) -> None:
        consume(site)
        flood(publisher)
        assert is_slowed(publisher)
        session = publisher.client.session
        assert session.describe().state == "flow"
        assert session.ingress.reasons_shown() == [BEHIND]
        session.ingress.pause(ALARM)
        assert session.ingress.reasons_shown() == [ALARM, BEHIND]
        assert session.describe().state == "blocked"
        session.ingress.release(ALARM)
        session.ingress.slowed_at -= SLOWED_FOR
        assert session.describe().state == "running" and session.ingress.reasons_shown() == []


def open_sender(site: Site) -> Sender:
    """Open a link to the queue over 1.0."""
    sender = connect(site).begin().sender("q")
    assert sender.credit == 8
    return sender


def send(sender: Sender, count: int) -> None:
    """Send messages without letting the broker take another turn."""
    for _ in range(count):
        sender.send(message(BODY), settled=True, run=False)
    sender.client.session.data_received(sender.client.output.to_send())


def granted(sender: Sender) -> list[int | None]:
    """Return the credit in the flows that the broker has sent, without letting it take another turn."""
    client = sender.client
    client.received.extend(client.reader.receive(b"".join(client.peer.written)))
    client.peer.written.clear()
    found = [frame.link_credit for frame in client.received if isinstance(frame, Flow)]
    client.received.clear()
    return found


class TestCredit:
    def test_credit_is_withheld_while_the_queue_is_behind(self, site: Site) -> None:
        consumer = consume(site)
        sender = open_sender(site)
        flood(site.channel())
        send(sender, 6)
        assert granted(sender) == []
        session = sender.client.session
        assert session.describe().state == "flow"
        assert session.ingress.reasons_shown() == [BEHIND]
        site.run()
        assert granted(sender) == [8]
        assert session.describe().state == "running" and session.ingress.reasons_shown() == []
        assert len(consumer.deliveries()) == MESSAGES + 6

    def test_credit_that_is_left_can_be_used(self, site: Site) -> None:
        consumer = consume(site)
        sender = open_sender(site)
        flood(site.channel())
        send(sender, 6)
        send(sender, 2)
        assert granted(sender) == []
        site.run()
        assert granted(sender) == [8]
        assert len(consumer.deliveries()) == MESSAGES + 8

    def test_a_consumer_that_does_not_read_withholds_no_credit(self, site: Site) -> None:
        consumer = consume(site)
        consumer.client.peer.writable = False
        sender = open_sender(site)
        flood(site.channel())
        send(sender, 6)
        assert site.vhost.queues["q"].ready_count > 0
        assert granted(sender) == [8]

    def test_credit_is_granted_when_the_socket_of_the_consumer_fills(self, site: Site) -> None:
        consumer = consume(site)
        sender = open_sender(site)
        flood(site.channel())
        send(sender, 6)
        assert granted(sender) == []
        consumer.client.session.pause_writing()
        site.run()
        assert site.vhost.queues["q"].ready_count > 0
        assert granted(sender) == [8]

    def test_credit_is_withheld_if_a_consumer_over_1_0_waits_for_the_broker(self, site: Site) -> None:
        site.channel().declare()
        receiver = connect(site, container="receiver").begin().receiver("q", 1000)
        sender = open_sender(site)
        flood(site.channel())
        send(sender, 6)
        assert granted(sender) == []
        site.run()
        assert granted(sender) == [8]
        assert len([frame for frame in receiver.deliveries() if not frame.more]) == MESSAGES + 6

    def test_the_anonymous_terminus_follows_the_latest_message(self, site: Site) -> None:
        consume(site)
        sender = connect(site).begin().sender(None)
        flood(site.channel())
        properties = Properties(to="q")
        for _ in range(6):
            sender.send(message(BODY, properties=properties), settled=True, run=False)
        sender.client.session.data_received(sender.client.output.to_send())
        assert granted(sender) == []
        site.run()
        assert granted(sender) == [8]

    @pytest.mark.parametrize("held", ["a receiver", "a transaction"])
    def test_a_connection_that_must_be_read_gets_credit(self, site: Site, held: str) -> None:
        consume(site)
        sender = open_sender(site)
        session = sender.session
        site.channel().declare("own")
        if held == "a receiver":
            session.receiver("own")
        else:
            Controller(session).declare()
        flood(site.channel())
        granted(sender)
        send(sender, 6)
        assert granted(sender) == [8]

    def test_a_link_that_is_detached_is_forgotten(self, site: Site) -> None:
        consume(site)
        sender = open_sender(site)
        flood(site.channel())
        send(sender, 6)
        assert granted(sender) == []
        sender.client.drop()
        site.run()
        assert len(site.protocols.amqp10.withheld_credit) == 0

    def test_an_alarm_keeps_the_credit_until_it_ends(self, site: Site) -> None:
        consume(site)
        sender = open_sender(site)
        flood(site.channel())
        send(sender, 6)
        site.services.set_alarm("memory")
        site.run()
        assert granted(sender) == [0]
        site.services.set_alarm("")
        site.run()
        assert granted(sender) == [8]


def starve(site: Site, *, credit: bool = True) -> Channel:
    """Return a consumer whose next messages are being read from disk, until the broker takes another turn."""
    site.broker.page_above = 1000
    channel = site.channel()
    channel.declare(durable=True)
    for _ in range(MESSAGES):
        channel.publish("q", bytes(500), delivery_mode=2)
    channel.run()
    site.broker.page_down()
    site.run()
    assert site.vhost.queues["q"].paging.paged_memory() > 0
    consumer = site.channel()
    if not credit:
        consumer.qos(1)  # the head, which has one message
    consumer.send("basic.consume", queue="q", consumer_tag="", no_ack=credit, no_local=False, exclusive=False, arguments={})
    consumer.client.flush()
    return consumer


class TestMessagesOnDisk:
    def test_the_publisher_pauses_briefly_while_a_consumer_waits_for_them(self, site: Site, publisher: Channel) -> None:
        consumer = starve(site)
        assert is_slowed(publisher)
        assert not publisher.client.peer.reading
        assert publisher.client.session.ingress.reasons_shown() == [BEHIND]
        for _, callback in site.later:
            callback()
        assert publisher.client.peer.reading
        site.run()
        assert len(consumer.deliveries()) == MESSAGES + 1
        assert not is_slowed(publisher)
        assert publisher.client.peer.reading

    def test_a_connection_that_must_be_read_does_not_pause(self, site: Site, publisher: Channel) -> None:
        publisher.declare("own")
        publisher.consume("own")
        starve(site)
        assert not is_slowed(publisher)
        assert publisher.client.peer.reading

    def test_the_publisher_keeps_its_speed_if_the_consumer_has_no_credit(self, site: Site, publisher: Channel) -> None:
        starve(site, credit=False)
        assert site.vhost.queues["q"].ready_count > 0
        assert not is_slowed(publisher)

    def test_credit_is_withheld_while_a_consumer_waits_for_them(self, site: Site) -> None:
        site.channel().declare(durable=True)
        sender = open_sender(site)
        consumer = starve(site)
        granted(sender)
        send(sender, 6)
        assert granted(sender) == []
        site.run()
        assert granted(sender) == [8]
        assert len(consumer.deliveries()) == MESSAGES + 6

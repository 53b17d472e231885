"""Publishers are slowed down while messages wait for the broker, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocols.amqp091.connection.outgoing import QUANTUM
from leveret.protocols.ingress_throttle import ALARM, BEHIND, MAX_READ, MIN_READ, SLOWED_FOR
from tests.protocols.amqp09.support import Client as Client09
from tests.protocols.amqp10.support import make_site
from tests.protocols.support import Channel, Site

# More than a connection gets in one turn, in messages that are encoded as a whole.
BODY = bytes(QUANTUM // 4)
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


def limit(channel: Channel, key: str = "q", *, exchange: str = "", **properties: Any) -> int:
    """Publish once more, and return the bytes that the broker reads from the publisher at a time."""
    channel.publish(key, exchange=exchange, **properties)
    channel.client.flush()
    return channel.client.peer.limit


def recovered(channel: Channel) -> bool:
    """Publish, and return whether the broker reads as much as it can before long."""
    return MAX_READ in [limit(channel) for _ in range(3)]


class TestReads:
    def test_the_publisher_is_read_less_while_the_queue_is_behind(self, site: Site, publisher: Channel) -> None:
        consumer = consume(site)
        flood(site.channel())
        assert limit(publisher) == MAX_READ // 2
        assert limit(publisher) == MAX_READ // 4
        site.run()
        assert len(consumer.deliveries()) == MESSAGES + 2
        assert limit(publisher) == MAX_READ // 2
        assert limit(publisher) == MAX_READ
        assert limit(publisher) == MAX_READ

    def test_the_publisher_is_always_read(self, site: Site, publisher: Channel) -> None:
        consume(site)
        flood(publisher)
        for _ in range(20):
            assert limit(publisher) >= MIN_READ
        assert limit(publisher) == MIN_READ
        assert publisher.client.peer.reading

    def test_other_commands_end_the_limit(self, site: Site, publisher: Channel) -> None:
        consume(site)
        flood(publisher)
        assert limit(publisher) < MAX_READ
        for _ in range(2):
            publisher.declare("another")
        assert publisher.client.peer.limit == MAX_READ

    def test_a_queue_that_its_consumers_delay_does_not_limit(self, site: Site, publisher: Channel) -> None:
        consume(site, no_ack=False, prefetch=1)
        flood(publisher)
        assert site.vhost.queues["q"].ready_count == MESSAGES - 1
        assert limit(publisher) == MAX_READ

    def test_a_consumer_without_credit_on_a_busy_connection_does_not_limit(self, site: Site, publisher: Channel) -> None:
        """The connection of the consumer is at its limit for the turn, but the consumer has no credit anyway."""
        consumer = consume(site, no_ack=False, prefetch=1)
        consumer.declare("other")
        consumer.qos(0)
        consumer.consume("other", no_ack=True)
        publisher.publish("q", BODY)
        flood(publisher, "other")
        assert limit(publisher) == MAX_READ
        assert limit(publisher, "other") < MAX_READ

    @pytest.mark.parametrize("full", ["buffer", "socket"])
    def test_a_consumer_that_does_not_read_does_not_limit(self, site: Site, publisher: Channel, full: str) -> None:
        consumer = consume(site)
        if full == "buffer":
            consumer.client.session.pause_writing()
        else:
            consumer.client.peer.writable = False
        flood(publisher)
        assert site.vhost.queues["q"].ready_count > 0
        assert limit(publisher) == MAX_READ

    def test_the_limit_ends_when_the_socket_of_the_consumer_fills(self, site: Site, publisher: Channel) -> None:
        consumer = consume(site)
        flood(publisher)
        assert limit(publisher) < MAX_READ
        consumer.client.peer.writable = False
        assert recovered(publisher)

    def test_the_limit_ends_with_the_consumer(self, site: Site, publisher: Channel) -> None:
        consumer = consume(site)
        flood(publisher)
        assert limit(publisher) < MAX_READ
        consumer.client.peer.closed = True
        consumer.client.session.connection_lost()
        assert recovered(publisher)

    def test_a_queue_without_consumers_does_not_limit(self, site: Site, publisher: Channel) -> None:
        publisher.declare()
        flood(publisher)
        assert limit(publisher) == MAX_READ

    def test_a_publisher_of_another_queue_is_not_limited(self, site: Site, publisher: Channel) -> None:
        consume(site)
        consume(site, "idle")
        flood(site.channel())
        assert limit(publisher, "idle") == MAX_READ
        assert limit(publisher) < MAX_READ

    def test_a_fan_out_limits_if_every_consumed_queue_is_behind(self, site: Site, publisher: Channel) -> None:
        for queue in ("one", "two"):
            consume(site, queue)
            publisher.call("queue.bind", "queue.bind-ok", queue=queue, exchange="amq.fanout", routing_key="", arguments={})
        publisher.declare("unconsumed")
        publisher.call(
            "queue.bind", "queue.bind-ok", queue="unconsumed", exchange="amq.fanout", routing_key="", arguments={}
        )
        flood(publisher, "one")
        assert limit(publisher, exchange="amq.fanout") == MAX_READ
        flood(publisher, "two")
        assert limit(publisher, exchange="amq.fanout") < MAX_READ

    def test_a_headers_exchange_limits_by_the_latest_message(self, site: Site, publisher: Channel) -> None:
        consume(site)
        bind(publisher, "q", "amq.match", kind="order")
        order: dict[str, Any] = {"headers": {"kind": "order"}}
        flood(publisher, exchange="amq.match", **order)
        assert limit(publisher, exchange="amq.match", **order) < MAX_READ // 2
        limit(publisher, exchange="amq.match")
        assert limit(publisher, exchange="amq.match") == MAX_READ

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
        assert limit(publisher) == MAX_READ
        assert limit(another) < MAX_READ

    def test_a_dead_letter_cycle_does_not_limit_its_own_connection(self, site: Site, publisher: Channel) -> None:
        publisher.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "again"})
        publisher.declare("again", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
        publisher.qos(1)
        publisher.consume()
        flood(publisher)
        assert limit(publisher) == MAX_READ

    def test_a_slowed_connection_shows_it(self, site: Site, publisher: Channel) -> None:
        consume(site)
        flood(publisher)
        assert limit(publisher) < MAX_READ
        session = publisher.client.session
        assert session.describe().state == "flow"
        assert session.ingress.reasons_shown() == [BEHIND]
        session.ingress.pause(ALARM)
        assert session.ingress.reasons_shown() == [ALARM, BEHIND]
        assert session.describe().state == "blocked"
        session.ingress.release(ALARM)
        session.ingress.slowed_at -= SLOWED_FOR
        assert session.describe().state == "running" and session.ingress.reasons_shown() == []

"""basic.get, also of paged-out messages; large bodies; direct reply-to; detection of protocols."""

from __future__ import annotations

import pytest

from leveret.protocols.detect import NEED_MORE, TLS_HEADER, TLS_HELLO, UNKNOWN, V0_9, V0_9_1, V1_0, V1_0_SASL, detect
from leveret.security.permissions import Permission
from tests.protocols.support import Channel, Site, bytes_of, properties_of
from tests.support.queues import classic


@pytest.fixture
def site() -> Site:
    return Site()


class TestGet:
    def test_counts_the_remaining_messages(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        for number in range(3):
            channel.publish(body=b"%d" % number)
        counts = []
        while (taken := channel.get()) is not None:
            counts.append((taken.arguments["message_count"], taken.arguments["delivery_tag"]))
        assert counts == [(2, 1), (1, 2), (0, 3)]

    def test_does_not_count_expired_messages(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.publish(body=b"a")
        channel.publish(body=b"b", expiration="0")
        channel.run()
        taken = channel.get()
        assert taken is not None and taken.arguments["message_count"] == 0

    def test_redelivered(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.publish()
        taken = channel.get(no_ack=False)
        assert taken is not None and not taken.arguments["redelivered"]
        channel.reject(taken.arguments["delivery_tag"])
        taken = channel.get()
        assert taken is not None and taken.arguments["redelivered"]

    @pytest.mark.parametrize(("strict", "code"), [(False, 0), (True, 403)])
    def test_with_an_exclusive_consumer(self, strict: bool, code: int) -> None:
        """RabbitMQ allows it; strict mode does not."""
        site = Site(strict=strict)
        channel, other = site.channel(), site.channel()
        channel.declare()
        channel.consume(exclusive=True)
        other.send("basic.get", queue="q")
        other.run()
        assert other.client.refusal()[0] == code

    def test_tags_of_gets_and_deliveries_share_one_sequence(self, site: Site) -> None:
        channel = site.channel()
        channel.declare("one")
        channel.declare("two")
        for name in ("one", "two", "one", "two"):
            channel.publish(name)
        channel.qos(1)
        channel.consume("one")
        first = channel.deliveries()[0].delivery_tag
        taken = channel.get("two", no_ack=False)
        assert taken is not None
        channel.ack(first)
        assert (first, taken.arguments["delivery_tag"], channel.deliveries()[0].delivery_tag) == (1, 2, 3)


class TestPagedMessages:
    """While the broker reads from disk, only the channel of the get waits."""

    @pytest.fixture
    def deep(self, site: Site) -> Channel:
        channel = site.channel()
        channel.declare(durable=True)
        site.broker.page_above = 20_000
        for number in range(100):
            channel.publish(body=b"%03d" % number, delivery_mode=2)
        channel.run()
        for _ in range(3):
            site.broker.page_down()
            site.run()
        assert classic(site.vhost.queues["q"]).ready.backlog.paged > 50
        return channel

    def test_gets_return_everything_in_order(self, deep: Channel) -> None:
        assert deep.bodies() == [b"%03d" % number for number in range(100)]

    def test_pipelined_gets(self, deep: Channel) -> None:
        for _ in range(101):
            deep.send("basic.get", queue="q", no_ack=True)
        deep.run()
        bodies = []
        while (taken := deep.client.take("basic.get-ok", deep.number)) is not None:
            bodies.append(bytes_of(taken.body))  # type: ignore[attr-defined]
        assert bodies == [b"%03d" % number for number in range(100)]
        assert deep.client.take("basic.get-empty", deep.number) is not None

    def test_a_get_that_waits_is_answered_when_the_queue_is_purged(self, site: Site, deep: Channel) -> None:
        other = deep.client.channel()
        queue = site.vhost.queues["q"]
        while classic(queue).ready.backlog.head:
            deep.send("basic.get", queue="q", no_ack=True)
            deep.client.flush()
        deep.send("basic.get", queue="q", no_ack=True)
        deep.client.flush()
        other.send("queue.purge", queue="q")
        deep.client.flush()
        deep.run()
        assert deep.client.take("basic.get-empty", deep.number) is not None
        purged = other.client.take("queue.purge-ok", other.number)
        assert purged is not None and purged.arguments["message_count"] > 50
        deep.client.received.clear()
        deep.publish(body=b"after")
        assert deep.bodies() == [b"after"]

    def test_a_get_that_waits_is_answered_when_the_queue_is_deleted(self, site: Site, deep: Channel) -> None:
        other = deep.client.channel()
        queue = site.vhost.queues["q"]
        while classic(queue).ready.backlog.head:
            deep.send("basic.get", queue="q", no_ack=True)
            deep.client.flush()
        deep.send("basic.get", queue="q", no_ack=True)
        deep.send("basic.get", queue="q", no_ack=True)
        deep.client.flush()
        other.send("queue.delete", queue="q")
        deep.client.flush()
        deep.run()
        assert deep.client.take("basic.get-empty", deep.number) is not None
        assert deep.client.refusal()[0] == 404

    def test_a_channel_that_closes_while_its_get_waits(self, site: Site, deep: Channel) -> None:
        queue = site.vhost.queues["q"]
        while classic(queue).ready.backlog.head:
            deep.send("basic.get", queue="q", no_ack=True)
            deep.client.flush()
        left = queue.ready_count
        deep.send("basic.get", queue="q", no_ack=True)
        deep.client.flush()
        deep.client.drop()
        other = site.channel()
        assert len(other.bodies()) == left

    def test_redelivered_after_paging(self, site: Site, deep: Channel) -> None:
        deep.qos(5)
        deep.consume(tag="t")
        assert len(deep.deliveries()) == 5
        deep.call("basic.cancel", "basic.cancel-ok", consumer_tag="t")
        deep.nack(5, multiple=True)
        deep.run()
        site.broker.page_above = 1
        site.broker.page_down()
        site.run()
        flags = []
        while (taken := deep.get()) is not None:
            flags.append(taken.arguments["redelivered"])
        assert flags == [True] * 5 + [False] * 95

    def test_no_local_applies_after_paging(self, site: Site, deep: Channel) -> None:
        deep.consume(no_local=True)
        assert deep.deliveries() == []
        other = site.channel()
        other.consume()
        assert len(other.deliveries()) == 100


class TestLargeBodies:
    @pytest.mark.parametrize("size", [0, 1, 131064, 131065, 400_000, 3_000_000])
    def test_large_bodies_survive_a_round_trip(self, site: Site, size: int) -> None:
        body = (bytes(range(256)) * (size // 256 + 1))[:size]
        channel = site.channel()
        channel.declare(durable=True)
        channel.publish(body=body, delivery_mode=2, message_id="large")
        channel.run()
        taken = channel.get(no_ack=False)
        assert taken is not None and bytes_of(taken.body) == body
        assert properties_of(taken) == {"delivery_mode": 2, "message_id": "large"}
        channel.reject(1)
        channel.consume(no_ack=True)
        delivered = channel.deliveries()
        assert len(delivered) == 1 and bytes_of(delivered[0].body) == body

    def test_an_oversized_body_closes_the_channel_with_311(self) -> None:
        channel = Site(max_message_size=10_000).channel()
        other = channel.client.channel()
        channel.declare()
        channel.publish(body=bytes(10_001))
        channel.run()
        assert channel.client.refusal()[0] == 311
        assert channel.client.is_open
        other.publish(body=bytes(10_000))
        assert len(other.bodies()) == 1

    def test_a_large_body_interleaved_with_another_channel(self, site: Site) -> None:
        one = site.channel(frame_max=4096)
        two = one.client.channel()
        one.declare()
        one.publish(body=b"1" * 2_000_000)
        two.publish(body=b"2" * 2_000_000)
        one.run()
        assert sorted(body[:1] for body in one.bodies()) == [b"1", b"2"]

    def test_a_channel_closed_in_the_middle_of_a_body(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.publish(body=bytes(3_000_000))
        data = channel.client.engine.to_send()
        channel.client.session.data_received(data[: len(data) // 2])
        channel.client.drop()
        assert site.channel().bodies() == []


class TestReplyTo:
    def test_a_request_and_its_reply(self, site: Site) -> None:
        server, client = site.channel(), site.channel()
        server.declare("rpc")
        client.consume("amq.rabbitmq.reply-to", no_ack=True)
        client.publish("rpc", b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="1")
        client.run()
        request = server.get("rpc")
        assert request is not None
        address = properties_of(request)["reply_to"]
        assert address.startswith("amq.rabbitmq.reply-to.")
        server.publish(address, b"answer", correlation_id="1")
        server.run()
        answers = client.deliveries()
        assert [(item.body, properties_of(item)) for item in answers] == [(b"answer", {"correlation_id": "1"})]

    def test_direct_reply_to_without_a_consumer(self, site: Site) -> None:
        channel = site.channel()
        channel.declare("rpc")
        channel.publish("rpc", reply_to="amq.rabbitmq.reply-to")
        channel.run()
        assert channel.client.refusal()[0] == 406

    def test_a_reply_consumer_cannot_acknowledge(self, site: Site) -> None:
        channel = site.channel()
        channel.send("basic.consume", queue="amq.rabbitmq.reply-to")
        channel.run()
        assert channel.client.refusal()[0] == 406

    def test_a_reply_to_a_disconnected_client_is_returned(self, site: Site) -> None:
        server, client = site.channel(), site.channel()
        server.declare("rpc")
        client.consume("amq.rabbitmq.reply-to", no_ack=True)
        client.publish("rpc", reply_to="amq.rabbitmq.reply-to")
        client.run()
        request = server.get("rpc")
        assert request is not None
        client.client.drop()
        server.publish(properties_of(request)["reply_to"], mandatory=True)
        server.run()
        returned = server.client.take("basic.return", server.number)
        assert returned is not None and returned.arguments["reply_code"] == 312

    def test_other_properties_stay_as_they_were(self, site: Site) -> None:
        channel = site.channel()
        channel.declare("rpc")
        channel.consume("amq.rabbitmq.reply-to", no_ack=True)
        channel.publish(
            "rpc",
            content_type="text/plain",
            headers={"a": [1, {"b": None}], "t": True},
            priority=3,
            reply_to="amq.rabbitmq.reply-to",
            correlation_id="c",
            message_id="m",
            app_id="app",
        )
        taken = channel.get("rpc")
        assert taken is not None
        properties = properties_of(taken)
        properties.pop("reply_to")
        assert properties == {
            "content_type": "text/plain",
            "headers": {"a": [1, {"b": None}], "t": True},
            "priority": 3,
            "correlation_id": "c",
            "message_id": "m",
            "app_id": "app",
        }


class TestOddNames:
    def test_routing_keys_that_are_not_utf8(self, site: Site) -> None:
        """They are sent as bytes, also in the headers of dead letters."""
        channel = site.channel()
        channel.declare("dead")
        channel.declare(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="amq.topic", routing_key="#")
        channel.publish("\udcff\udcfe", exchange="amq.topic")
        taken = channel.get(no_ack=False)
        assert taken is not None and taken.arguments["routing_key"] == "\udcff\udcfe"
        channel.reject(1, requeue=False)
        channel.consume("dead", no_ack=True)
        delivered = channel.deliveries()
        assert properties_of(delivered[0])["headers"]["x-death"][0]["routing-keys"] == ["\udcff\udcfe"]

    def test_queue_names_that_are_not_utf8_are_refused(self, site: Site) -> None:
        channel = site.channel()
        channel.send("queue.declare", queue="\udcff")
        channel.run()
        assert channel.client.refusal()[0] == 406

    def test_line_ends_are_removed_from_queue_names(self, site: Site) -> None:
        channel = site.channel()
        assert channel.declare("\rline\n end\r\n") == "line end"
        assert channel.call("queue.declare", "queue.declare-ok", queue="line\n end", passive=True)["queue"] == "line end"
        assert channel.declare("\n").startswith("amq.gen-")
        channel.call("queue.delete", "queue.delete-ok", queue="line end\n")
        assert "line end" not in site.vhost.queues

    def test_line_ends_are_removed_from_exchange_names(self, site: Site) -> None:
        channel = site.channel()
        channel.call("exchange.declare", "exchange.declare-ok", exchange="line\r\nend", type="fanout")
        channel.call("exchange.declare", "exchange.declare-ok", exchange="\nlineend", type="fanout", passive=True)
        assert "lineend" in site.vhost.exchanges
        channel.call("exchange.delete", "exchange.delete-ok", exchange="lineend\r")
        assert "lineend" not in site.vhost.exchanges

    def test_permissions_apply_to_the_name_without_line_ends(self, site: Site) -> None:
        site.allow("limited", "/", Permission("^mine$", "", ""))
        channel = site.channel(user="limited")
        assert channel.declare("mi\nne") == "mine"
        channel.send("queue.declare", queue="oth\ner")
        channel.run()
        code, text = channel.client.refusal()
        assert code == 403 and "'other'" in text

    @pytest.mark.parametrize("name", ["queue", "exchange"])
    def test_strict_mode_refuses_line_ends(self, name: str) -> None:
        channel = Site(strict=True).channel()
        channel.send(f"{name}.declare", **{name: "line\nend"}, **({"type": "fanout"} if name == "exchange" else {}))
        channel.run()
        assert channel.client.refusal()[0] == 406

    def test_arguments_that_are_not_utf8(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        channel = site.channel()
        channel.declare(durable=True, arguments={"x-\udcff": "\udcfe"})
        channel.declare(durable=True, arguments={"x-\udcff": "\udcfe"})
        channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="amq.headers", arguments={"\udcff": "\udcfe"})
        assert "x-" in caplog.text and caplog.text.encode("utf-8")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", NEED_MORE),
        (b"A", NEED_MORE),
        (b"AMQP", NEED_MORE),
        (b"AMQP\0\0\x09", NEED_MORE),
        (b"AMQP\0\0\x09\x01", V0_9_1),
        (b"AMQP\0\0\x09\x01more", V0_9_1),
        (b"AMQP\x01\x01\0\x09", V0_9),
        (b"AMQP\x01\x01\0\x08", UNKNOWN),
        (b"GET ", UNKNOWN),
        (b"AMQP\0\x01\0\0", V1_0),
        (b"AMQP\x03\x01\0\0more", V1_0_SASL),
        (b"AMQP\x02\x01\0\0", TLS_HEADER),
        (b"AMQP\0\x01\0\x01", UNKNOWN),
        (b"\x16", NEED_MORE),
        (b"\x16\x02", UNKNOWN),
        (b"\x16\x03\x01", TLS_HELLO),
        (b"AMQX", UNKNOWN),
        (b"AMQP\x02\x01\0\x01", UNKNOWN),
    ],
)
def test_detection(data: bytes, found: int) -> None:
    assert detect(data) == found

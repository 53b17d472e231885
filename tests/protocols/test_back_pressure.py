"""Alarms, throttled publishers, consumers with too many unacked messages, commands ahead of replies."""

from __future__ import annotations

import pytest

from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import make_address
from leveret.protocols.amqp091.channel.backlog import MAX_BACKLOG, MAX_BACKLOG_SIZE
from leveret.protocols.amqp091.channel.channel import LOW_MEMORY_WINDOW
from leveret.protocols.services import ALARM_WORK
from leveret.protocols.vhost_session import FEW_OUTPUTS, LARGE_QUANTUM, QUANTUM
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.output_buffer import LARGE_PAYLOAD
from leveret.wire.record_batches import EXCHANGE, MAX_BYTES, encode
from tests.broker.support import HeldLog
from tests.protocols.amqp09.support import Clock
from tests.protocols.support import Channel, Site


@pytest.fixture
def site() -> Site:
    return Site()


def published(channel: Channel) -> Channel:
    channel.declare()
    channel.publish()
    channel.run()
    return channel


class TestAlarm:
    def test_a_publisher_is_blocked_by_its_next_publish(self, site: Site) -> None:
        channel = published(site.channel())
        site.services.set_alarm("memory")
        channel.run()
        assert channel.client.take("connection.blocked") is None
        assert channel.client.peer.reading
        channel.publish()
        channel.run()
        blocked = channel.client.take("connection.blocked")
        assert blocked is not None and blocked.arguments["reason"] == "memory"
        assert not channel.client.peer.reading
        site.services.set_alarm("")
        channel.run()
        assert channel.client.take("connection.unblocked") is not None
        assert channel.client.peer.reading

    def test_a_publisher_of_record_batches_is_blocked(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        site.services.set_alarm("memory")
        channel.publish("", encode([make_address("", "q")], [b"\0\0"], [b""]), exchange=EXCHANGE)
        channel.run()
        assert channel.client.take("connection.blocked") is not None
        assert not channel.client.peer.reading

    @pytest.mark.parametrize("knows", [True, False])
    def test_an_earlier_publisher_can_get_and_settle_during_the_alarm(self, site: Site, knows: bool) -> None:
        channel = site.channel(capabilities={"connection.blocked": knows})
        channel.declare()
        for number in range(6):
            channel.publish(body=b"%d" % number)
        channel.run()
        site.services.set_alarm("memory")
        channel.run()
        got = channel.get(no_ack=False)
        assert got is not None and got.body == b"0"
        channel.ack(1)
        tag = channel.consume()
        assert channel.delivered() == [b"1", b"2", b"3", b"4", b"5"]
        channel.nack(2, requeue=False)
        channel.reject(3, requeue=False)
        channel.ack(6, multiple=True)
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag=tag)
        queue = site.vhost.queues["q"]
        assert (queue.ready_count, queue.unacked) == (0, 0)
        assert channel.call("queue.purge", "queue.purge-ok", queue="q") == {"message_count": 0}
        assert channel.client.peer.reading

    def test_an_earlier_transaction_is_committed_during_the_alarm(self, site: Site) -> None:
        channel = published(site.channel())
        channel.call("tx.select", "tx.select-ok")
        channel.publish(body=b"in time")
        channel.run()
        site.services.set_alarm("memory")
        assert channel.get(no_ack=False) is not None
        channel.ack(1)
        channel.call("tx.commit", "tx.commit-ok")
        assert channel.bodies() == [b"in time"]
        channel.publish(body=b"too late")
        channel.send("tx.commit")
        channel.run()
        assert not channel.client.peer.reading
        assert channel.client.take("connection.blocked") is not None

    def test_pending_confirms_are_sent_during_the_alarm(self) -> None:
        log = HeldLog()
        site = Site(log)
        channel = site.channel()
        channel.call("confirm.select", "confirm.select-ok")
        channel.declare(durable=True)
        log.held = True
        channel.publish(delivery_mode=2)
        channel.run()
        assert channel.confirms() == []
        site.services.set_alarm("disk")
        log.release()
        channel.run()
        assert channel.confirms() == [("ack", 1, False)]
        # The publish that blocks is accepted and confirmed like any other.
        channel.publish(delivery_mode=2)
        channel.run()
        assert not channel.client.peer.reading
        log.release()
        channel.run()
        assert channel.confirms() == [("ack", 2, False)]

    def test_an_incomplete_large_body_blocks_its_connection(self, site: Site) -> None:
        channel = published(site.channel())
        site.services.set_alarm("memory")
        engine = channel.client.engine
        engine.send_content(
            channel.number, "basic.publish", {"routing_key": "q"}, encode_header(60, 200_000, {}), bytes(200_000)
        )
        channel.client.session.data_received(engine.to_send()[:150_000])
        assert not channel.client.peer.reading
        assert site.vhost.queues["q"].ready_count == 1

    def test_a_connection_that_does_not_publish_is_neither_notified_nor_paused(self, site: Site) -> None:
        channel = site.channel()
        site.services.set_alarm("memory")
        channel.run()
        assert channel.client.take("connection.blocked") is None
        assert channel.client.peer.reading
        channel.declare()
        channel.publish()
        channel.run()
        assert channel.client.take("connection.blocked") is not None
        assert not channel.client.peer.reading

    def test_a_new_connection_is_notified_when_it_publishes(self, site: Site) -> None:
        site.services.set_alarm("disk")
        channel = site.channel()
        channel.run()
        assert channel.client.take("connection.blocked") is None
        channel.publish()
        channel.run()
        assert channel.client.take("connection.blocked") is not None

    def test_a_client_without_the_capability_gets_flow(self, site: Site) -> None:
        channel = published(site.channel(capabilities={"connection.blocked": False}))
        idle = channel.client.channel()
        site.services.set_alarm("memory")
        channel.run()
        flow = channel.client.take("channel.flow", channel.number)
        assert flow is not None and flow.arguments == {"active": False}
        assert channel.client.take("channel.flow", idle.number) is None
        assert channel.client.take("connection.blocked") is None
        channel.send("channel.flow-ok", active=False)
        channel.run()
        assert channel.client.peer.reading
        channel.publish()
        channel.run()
        assert not channel.client.peer.reading
        site.services.set_alarm("")
        channel.run()
        flow = channel.client.take("channel.flow", channel.number)
        assert flow is not None and flow.arguments == {"active": True}
        assert channel.client.peer.reading

    def test_a_new_channel_of_a_client_without_the_capability_is_blocked(self, site: Site) -> None:
        channel = published(site.channel(capabilities={"connection.blocked": False}))
        site.services.set_alarm("memory")
        channel.run()
        other = channel.client.channel()
        other.publish()
        other.run()
        assert not channel.client.peer.reading or other.client.take("channel.flow", other.number) is not None

    def test_a_changed_reason_does_not_notify_again(self, site: Site) -> None:
        channel = published(site.channel())
        site.services.set_alarm("memory")
        channel.publish()
        channel.run()
        site.services.set_alarm("memory and disk")
        channel.run()
        assert not channel.client.peer.reading
        assert channel.client.take("connection.blocked") is not None
        assert channel.client.take("connection.blocked") is None
        site.services.set_alarm("")
        channel.run()
        assert channel.client.peer.reading

    def test_consumers_get_deliveries_during_the_alarm(self, site: Site) -> None:
        published(site.channel())
        consumer = site.channel()
        site.services.set_alarm("memory")
        consumer.consume()
        assert consumer.delivered() == [b"m"]

    def test_a_blocked_connection_can_be_closed(self, site: Site) -> None:
        channel = published(site.channel())
        site.services.set_alarm("memory")
        channel.publish()
        channel.run()
        assert not channel.client.peer.reading
        channel.client.session.close(320, "an operator closes it")
        site.run()
        assert channel.client.peer.reading


class TestUnackedLimit:
    def test_a_setting_limits_consumers_without_prefetch(self) -> None:
        channel = Site(unacked_per_channel=3).channel()
        channel.declare()
        for number in range(10):
            channel.publish(body=b"%d" % number)
        channel.consume()
        assert len(channel.deliveries()) == 3
        channel.ack(2, multiple=True)
        assert len(channel.deliveries()) == 2

    def test_other_consumers_of_the_channel_are_woken(self) -> None:
        channel = Site(unacked_per_channel=1).channel()
        channel.declare("one")
        channel.declare("two")
        channel.publish("one")
        channel.publish("two")
        channel.consume("one")
        channel.consume("two")
        assert len(channel.deliveries()) == 1
        channel.ack(1)
        assert len(channel.deliveries()) == 1

    def test_low_memory_limits_consumers_without_prefetch(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        for _ in range(LOW_MEMORY_WINDOW + 10):
            channel.publish()
        channel.run()
        site.broker.tight = True
        channel.consume()
        assert len(channel.deliveries()) == LOW_MEMORY_WINDOW
        site.broker.tight = False
        channel.client.session.wake()
        assert len(channel.deliveries()) == 10


class TestShareOfATurn:
    """A connection gets deliveries up to a number of bytes per turn. The client has not read them."""

    @pytest.mark.parametrize(("size", "share"), [(1000, QUANTUM), (LARGE_PAYLOAD, LARGE_QUANTUM)], ids=["small", "large"])
    def test_large_payloads_extend_it(self, site: Site, size: int, share: int) -> None:
        publisher = site.channel()
        publisher.declare()
        for _ in range(2 * LARGE_QUANTUM // size):
            publisher.publish(body=bytes(size))
        publisher.run()
        (consumer,) = self.consume(site, "q")
        assert share <= consumer.client.peer.unwritten() <= share + size + 200

    def test_large_payloads_do_not_extend_it_on_many_connections(self, site: Site) -> None:
        publisher = site.channel()
        queues = [f"q{number}" for number in range(3 * FEW_OUTPUTS)]
        for queue in queues:
            publisher.declare(queue)
            publisher.call("queue.bind", "queue.bind-ok", queue=queue, exchange="amq.fanout", routing_key="", arguments={})
        for _ in range(20):
            publisher.publish("", bytes(64 << 10), exchange="amq.fanout")
        publisher.run()
        consumers = self.consume(site, *queues)
        begun = [consumer.client.peer.unwritten() for consumer in consumers]
        assert max(begun) > QUANTUM + (65 << 10)
        assert len([size for size in begun if size > QUANTUM + (65 << 10)]) <= FEW_OUTPUTS
        site.run()
        assert {consumer.client.peer.unwritten() // (64 << 10) for consumer in consumers} == {20}

    def consume(self, site: Site, *queues: str) -> list[Channel]:
        """Consume from each queue on a connection of its own, each in its own turn, without those that follow."""
        consumers = [site.channel() for _ in queues]
        for consumer, queue in zip(consumers, queues, strict=True):
            consumer.client.deaf = True
            consumer.client.engine.send(
                consumer.number, "basic.consume", {"queue": queue, "consumer_tag": "c", "no_ack": True, "no_wait": True}
            )
            consumer.client.flush()
        return consumers


class TestCommandsBehindAPendingReply:
    def test_commands_wait_in_order(self) -> None:
        from tests.broker.support import HeldLog

        log = HeldLog()
        site = Site(log)
        channel = site.channel()
        channel.declare(durable=True)
        log.held = True
        channel.send("queue.declare", queue="new", durable=True)
        for number in range(5):
            channel.publish("new", b"%d" % number)
        channel.send("basic.get", queue="new", no_ack=True)
        channel.run()
        assert "new" in site.vhost.queues and site.vhost.queues["new"].ready_count == 0
        log.release_all()
        channel.run()
        names = [getattr(item, "name", "") for item in channel.client.received]
        assert names == ["queue.declare-ok", "basic.get-ok"]
        assert site.vhost.queues["new"].ready_count == 4

    def test_too_many_commands_pause_reading(self) -> None:
        from tests.broker.support import HeldLog

        log = HeldLog()
        site = Site(log)
        channel = site.channel()
        channel.declare(durable=True)
        log.held = True
        channel.send("queue.declare", queue="new", durable=True)
        for _ in range(MAX_BACKLOG + 1):
            channel.publish("new")
        channel.run()
        assert not channel.client.peer.reading
        log.release_all()
        channel.run()
        assert channel.client.peer.reading
        assert site.vhost.queues["new"].ready_count == MAX_BACKLOG + 1

    def test_few_record_batches_pause_reading_however_small_their_rows_are(self) -> None:
        log = HeldLog()
        site = Site(log)
        channel = site.channel()
        channel.declare()
        log.held = True
        channel.send("queue.declare", queue="new", durable=True)
        batch = encode([make_address("", "q")], [b"\0\0"], [b""])
        batches = MAX_BACKLOG_SIZE // MAX_BYTES
        for _ in range(batches):
            channel.publish("", batch, exchange=EXCHANGE)
        channel.run()
        assert channel.client.peer.reading
        channel.publish("", batch, exchange=EXCHANGE)
        channel.run()
        assert not channel.client.peer.reading
        log.release_all()
        channel.run()
        assert channel.client.peer.reading
        assert site.vhost.queues["q"].ready_count == batches + 1

    def test_reading_resumes_when_the_channel_with_queued_commands_closes(self) -> None:
        from tests.broker.support import HeldLog

        log = HeldLog()
        site = Site(log)
        clock = Clock(site)
        channel = site.channel()
        channel.declare(durable=True)
        channel.consume(arguments={"x-consumer-timeout": 1000})
        channel.publish()
        channel.run()
        log.held = True
        channel.send("queue.declare", queue="new", durable=True)
        for _ in range(MAX_BACKLOG + 1):
            channel.publish("new")
        channel.run()
        assert not channel.client.peer.reading
        clock.advance(1000)
        channel.run()
        close = channel.client.received[-1]
        assert isinstance(close, Method)
        assert close.arguments["reply_code"] == 406
        assert channel.client.peer.reading
        log.release_all()
        channel.run()
        assert site.channel().declare(durable=True) == "q"


class TestDefinitionsDuringAnAlarm:
    """The memory of definitions is bounded, too: a client that only declares is not a publisher."""

    def test_small_definitions_are_allowed_up_to_a_number(self, site: Site) -> None:
        site.channel().declare("before")
        site.services.set_alarm("memory")
        site.broker.definitions_left = 3
        channel = site.channel()
        channel.declare("before")  # already exists
        for number in range(3):
            channel.declare(f"q{number}")
        with pytest.raises(AssertionError, match=r"406.*queue .*q3.*limits\.memory_high_watermark"):
            channel.declare("q3")
        channel = site.channel()
        for name, arguments in (
            ("exchange.declare", {"exchange": "e", "type": "direct"}),
            ("queue.bind", {"queue": "q1", "exchange": "amq.direct", "routing_key": "k"}),
        ):
            with pytest.raises(AssertionError, match=r"406.*limits\.memory_high_watermark"):
                channel.call(name, name + "-ok", **arguments)
            channel = site.channel()
        channel.call("queue.delete", "queue.delete-ok", queue="q0")
        channel.declare("q3")
        site.services.set_alarm("disk")
        channel.declare("q4")

    def test_large_definitions_are_refused(self, site: Site) -> None:
        large = {"x": "y" * 4096}
        site.services.set_alarm("memory and disk")
        with pytest.raises(AssertionError, match=r"406.*4096 bytes"):
            site.channel().declare("q", arguments=large)
        channel = site.channel()
        channel.declare("q")
        bound = {"queue": "q", "exchange": "amq.headers", "routing_key": "k", "arguments": large}
        with pytest.raises(AssertionError, match=r"406.*4096 bytes"):
            channel.call("queue.bind", "queue.bind-ok", **bound)
        site.services.set_alarm("")
        channel = site.channel()
        channel.call("queue.bind", "queue.bind-ok", **bound)
        site.services.set_alarm("memory")
        channel.call("queue.bind", "queue.bind-ok", **bound)  # already exists


class RecordingSession:
    """A session that records its notifications of alarms."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def alarm(self, reason: str) -> None:
        self.reasons.append(reason)

    def channel_count(self) -> int:
        return 3


class TestManySessions:
    def add(self, site: Site) -> list[RecordingSession]:
        found = [RecordingSession() for _ in range(2000)]
        for session in found:
            site.services.sessions[session] = None  # type: ignore[index]
        return found

    def test_an_alarm_is_announced_over_several_turns(self, site: Site) -> None:
        sessions = self.add(site)
        site.services.set_alarm("memory")
        assert 0 < sum(bool(session.reasons) for session in sessions) <= STEP_WORK // (ALARM_WORK + 3)
        del site.services.sessions[sessions[-1]]  # type: ignore[arg-type]
        site.run()
        assert [session.reasons for session in sessions] == [["memory"]] * (len(sessions) - 1) + [[]]

    def test_an_alarm_that_ends_early_is_not_announced(self, site: Site) -> None:
        sessions = self.add(site)
        site.services.set_alarm("memory")
        site.services.set_alarm("")
        site.run()
        assert {tuple(session.reasons) for session in sessions} == {("memory", ""), ("",)}

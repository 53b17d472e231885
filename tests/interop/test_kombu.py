"""kombu: exchanges and queues declared from Python objects, mixins, pidbox, the compatibility layer under Celery."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import amqp
import kombu
import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.mixins import ConsumerMixin
from kombu.pidbox import Mailbox
from kombu.pools import connections, producers
from kombu.simple import SimpleQueue

from tests.interop.helpers import drain_until
from tests.support.broker import Broker
from tests.support.polling import wait_until
from tests.support.proxy import Proxy

WITHIN = 120.0


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.url().replace("amqp://", "pyamqp://")) as connection:
        yield connection


def test_direct_topic_and_fanout(connection: Connection, name: str) -> None:
    received: list[tuple[str, Any]] = []
    with connection.channel() as channel:
        exchanges = {type_: Exchange(f"{name}.{type_}", type_, auto_delete=True) for type_ in ("direct", "topic", "fanout")}
        queues = [
            Queue(f"{name}.q.{type_}", exchange, routing_key="a.*" if type_ == "topic" else "a.b", exclusive=True)
            for type_, exchange in exchanges.items()
        ]

        def on_message(body: Any, message: kombu.Message) -> None:
            received.append((message.delivery_info["exchange"], body))
            message.ack()

        with Consumer(channel, queues, callbacks=[on_message], accept=["json"]):
            producer = Producer(channel)
            for exchange in exchanges.values():
                producer.publish({"to": exchange.name}, exchange=exchange, routing_key="a.b", serializer="json")
            drain_until(connection, lambda: len(received) == 3)
    assert sorted(received) == sorted((exchange.name, {"to": exchange.name}) for exchange in exchanges.values())


def test_queue_options(connection: Connection, name: str) -> None:
    """kombu gives the arguments in seconds and under its own names."""
    with connection.channel() as channel:
        queue = Queue(name, channel=channel, expires=60, message_ttl=0.1, max_length=2, max_priority=5, durable=True)
        queue.declare()
        for number in range(3):
            Producer(channel).publish(str(number), routing_key=name, priority=number)
        wait_until(lambda: not queue.queue_declare(passive=True).message_count)
        queue.delete()


def test_get_purge_and_delete(connection: Connection, name: str) -> None:
    with connection.channel() as channel:
        queue = Queue(name, Exchange(name, auto_delete=True), name, channel=channel)
        queue.declare()
        producer = Producer(channel, queue.exchange, name)
        for number in range(4):
            producer.publish({"n": number}, compression="zlib")
        message = queue.get()
        assert message.payload == {"n": 0}
        message.reject(requeue=True)
        again = queue.get()
        assert again.payload == {"n": 0}
        assert again.delivery_info["redelivered"]
        again.ack()
        assert queue.purge() == 3
        assert queue.delete() == 0


def test_simple_queue(connection: Connection, name: str) -> None:
    queue = SimpleQueue(connection, name, queue_opts={"auto_delete": True}, exchange_opts={"auto_delete": True})
    for number in range(10):
        queue.put({"n": number})
    for number in range(10):
        message = queue.get(timeout=WITHIN)
        assert message.payload == {"n": number}
        message.ack()
    with pytest.raises(queue.Empty):
        queue.get(block=False)
    queue.close()


def test_confirmed_publishing(broker: Broker, name: str) -> None:
    connection = Connection(broker.url(), transport_options={"confirm_publish": True})
    with connection, connection.channel() as channel:
        arguments = {"x-overflow": "reject-publish"}
        queue = Queue(name, channel=channel, max_length=1, queue_arguments=arguments, auto_delete=True)
        queue.declare()
        producer = Producer(channel)
        producer.publish("1", routing_key=name)
        with pytest.raises(amqp.exceptions.MessageNacked):
            producer.publish("2", routing_key=name)
        queue.delete()


def test_pidbox_broadcast(broker: Broker, name: str) -> None:
    """Remote control over a fanout exchange with replies, as in `celery inspect`."""
    mailbox = Mailbox(name, type="fanout")
    state: list[str] = []
    with Connection(broker.url()) as nodes_connection, Connection(broker.url()) as client_connection:
        channel = nodes_connection.channel()
        consumers = []
        for host in ("one", "two"):
            node = mailbox(nodes_connection).Node(host, state=state, channel=channel)

            def ping(state: list[str], host: str = host, **_: Any) -> dict[str, str]:
                state.append(host)
                return {"ok": host}

            node.handlers["ping"] = ping
            consumers.append(node.listen(callback=None))
        client = mailbox(client_connection)

        done = threading.Event()

        def answer() -> None:
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    nodes_connection.drain_events(timeout=0.05)

        # The call publishes and waits for replies, so the nodes must run concurrently.
        thread = threading.Thread(target=answer)
        thread.start()
        replies = client.call(["one", "two"], "ping", timeout=WITHIN)
        done.set()
        thread.join()
        assert sorted(reply[host]["ok"] for reply in replies for host in reply) == ["one", "two"]
        assert sorted(state) == ["one", "two"]


def test_pools_and_autoretry(broker: Broker, name: str) -> None:
    """A producer from a pool publishes again after its connection broke."""
    with Proxy(broker) as proxy:
        connection = Connection(proxy.url())
        queue = Queue(name, durable=False, auto_delete=True)
        with producers[connection].acquire(block=True) as producer:
            producer.publish("1", routing_key=name, declare=[queue])
            assert proxy.cut() >= 1
            producer.publish(
                "2",
                routing_key=name,
                declare=[queue],
                retry=True,
                retry_policy={"max_retries": 10, "interval_start": 0.05, "interval_step": 0.05},
            )
        with connections[Connection(broker.url())].acquire(block=True) as direct, direct.channel() as channel:

            def retried() -> bool:
                message = queue(channel).get(no_ack=True)
                return message is not None and message.payload in (b"2", "2")

            wait_until(retried)
            queue(channel).delete()
        producers[connection].force_close_all()


def test_consumer_mixin_reconnects(broker: Broker, name: str) -> None:
    with Proxy(broker) as proxy:
        queue = Queue(name, auto_delete=False, durable=False)

        class Worker(ConsumerMixin):
            def __init__(self) -> None:
                self.connection = Connection(proxy.url(), heartbeat=10)
                self.received: list[Any] = []

            def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
                return [consumer(queues=[queue], callbacks=[self.on_message])]

            def on_message(self, body: Any, message: kombu.Message) -> None:
                self.received.append(body)
                message.ack()
                if body == "break":
                    proxy.cut()
                elif body == "end":
                    self.should_stop = True

        with Connection(broker.url()) as connection, connection.channel() as channel:
            queue(channel).declare()
            producer = Producer(channel)
            for text in ("start", "break"):
                producer.publish(text, routing_key=name)
            producer.publish("end", routing_key=name)
            worker = Worker()
            worker.run()
            # The ack of "break" may be lost with the connection: then it is redelivered and cuts again.
            assert worker.received[0] == "start"
            assert worker.received[-1] == "end"
            assert set(worker.received) == {"start", "break", "end"}
            queue(channel).delete()


def test_heartbeat_check(broker: Broker) -> None:
    """Heartbeats alone keep an idle connection for longer than the broker waits for a silent one: twice the interval."""
    with Connection(broker.url(), heartbeat=1) as connection:
        connection.ensure_connection(max_retries=1)
        opened = time.monotonic()

        def outlived() -> bool:
            connection.heartbeat_check(rate=2)
            return bool(connection.connection.last_heartbeat_sent > opened + 2.2)

        drain_until(connection, outlived)
        assert connection.connected

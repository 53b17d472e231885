"""The sync API over AMQP 1.0."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from leveret import sync
from leveret.client import InvalidMessage, LinkClosed, NotFound, Returned, Timeout, amqp10
from tests.support.broker import CONNECT_TIMEOUT, Broker
from tests.support.polling import wait_until
from tests.support.proxy import Proxy

Open = Callable[..., sync.Amqp10Connection]


@pytest.fixture
def dial() -> Iterator[Open]:
    """Opens connections of AMQP 1.0, and closes them at the end of the test."""
    opened: list[sync.Amqp10Connection] = []

    def open(url: str, **options: Any) -> sync.Amqp10Connection:
        options.setdefault("connect_timeout", CONNECT_TIMEOUT)
        opened.append(sync.connect(url, protocol="1.0", **options))
        return opened[-1]

    yield open
    for connection in opened:
        connection.close()


@pytest.fixture
def queue(server: Broker, name: str) -> str:
    with sync.connect(server.url(), connect_timeout=CONNECT_TIMEOUT) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    return name


def at(server: Broker, name: str) -> str:
    return f"/queues/{name}" if server.kind == "leveret" else f"/amq/queue/{name}"


def test_calls_of_both_protocols(dial: Open, server: Broker, queue: str) -> None:
    connection = dial(server.url())
    with connection.session() as session:
        session.publish("1", queue, persistent=True, headers={"a": "b"})
        message = session.get(queue)
        assert message is not None and message.text() == "1"
        message.nack()
        with session.publisher(routing_key=queue) as publisher:
            for number in range(2, 1000):
                publisher.publish(f"{number}")
        with session.consume(queue) as consumer:
            for number in range(1, 1000):
                message = consumer.next(60)
                assert message.text() == f"{number}"
                message.ack()
            with pytest.raises(Timeout):
                consumer.next(0.05)
        assert session.get(queue) is None


def test_senders_and_receivers(dial: Open, leveret_only: Broker, queue: str) -> None:
    connection = dial(leveret_only.url())
    with connection.sender(f"/queues/{queue}") as sender, connection.receiver(f"/queues/{queue}") as receiver:
        sender.send(amqp10.Value({"a": 1}), subject="s")
        delivery = receiver.next(60)
        assert delivery.content == amqp10.Value({"a": 1}) and delivery.message.subject == "s"
        delivery.release()
        delivery = next(receiver)
        delivery.modify(annotations={"x-opt-a": "b"})
        delivery = next(receiver)
        assert delivery.annotations["x-opt-a"] == "b" and delivery.delivery_count == 1
        delivery.reject()
        for number in range(500):
            sender.publish(f"{number}")
        sender.flush()
        for number in range(500):
            delivery = receiver.next(60)
            assert delivery.text() == f"{number}"
            delivery.accept()
    with pytest.raises(LinkClosed):
        sender.send("x")
    with pytest.raises(NotFound):
        connection.sender(f"/queues/{queue}.none")
    with pytest.raises(InvalidMessage):
        connection.receiver("x", durable=True)


def test_declaring_and_transactions(dial: Open, leveret_only: Broker, name: str) -> None:
    connection = dial(leveret_only.url())
    with connection.session() as session:
        queue = session.declare_queue(name)
        queue.bind("amq.topic", f"{name}.#")
        with connection.sender(f"/exchanges/amq.topic/{name}.x") as sender:
            with connection.transaction() as tx:
                sender.send("1", transaction=tx)
                assert session.get(queue) is None
            with pytest.raises(ZeroDivisionError), connection.transaction() as tx:
                sender.send("2", transaction=tx)
                raise ZeroDivisionError
        message = session.get(queue)
        assert message is not None and message.text() == "1"
        message.ack()
        assert session.get(queue) is None
        queue.unbind("amq.topic", f"{name}.#")
        with pytest.raises(Returned):
            session.publish("x", f"{name}.x", "amq.topic", mandatory=True)
        assert queue.delete() == 0
    with connection.session(transactional=True) as session:
        with pytest.raises(NotFound):
            session.declare_queue(name, passive=True)
        session.declare_queue(name)
        with session.transaction():
            session.publish("3", name)
        assert session.get(name) is not None


def test_threads_share_a_sender_and_a_receiver(dial: Open, server: Broker, queue: str) -> None:
    connection = dial(server.url())
    sender = connection.sender(at(server, queue))
    receiver = connection.receiver(at(server, queue), prefetch=20)
    taken: set[str] = set()
    lock = threading.Lock()

    def send(thread: int) -> None:
        for number in range(100):
            sender.send(f"{thread}.{number}")

    def take(thread: int) -> None:
        for _ in range(100):
            delivery = receiver.next(60)
            with lock:
                taken.add(delivery.text())
            delivery.accept()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(call, thread) for thread in range(4) for call in (send, take)]:
            done.result(90)
    assert len(taken) == 400


def test_requests(dial: Open, leveret_only: Broker, queue: str) -> None:
    connection = dial(leveret_only.url())
    stop = threading.Event()

    def answer() -> None:
        with connection.session() as session, session.consume(queue) as consumer:
            while not stop.is_set():
                try:
                    message = consumer.next(0.1)
                except Timeout:
                    continue
                message.respond(b"re " + message.body)
                message.ack()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with connection.session() as session:
            assert [session.request(f"{number}", queue).text() for number in range(10)] == [
                f"re {number}" for number in range(10)
            ]
    finally:
        stop.set()
        thread.join(60)


def test_reconnect(dial: Open, server: Broker, queue: str) -> None:
    with Proxy(server) as proxy:
        connection = dial(proxy.url(), reconnect_delay=0.01)
        sender = connection.sender(at(server, queue))
        receiver = connection.receiver(at(server, queue))
        for round in range(5):
            sender.send(f"{round}")
            while True:
                delivery = receiver.next(60)
                delivery.accept()
                if delivery.text() == f"{round}":
                    break
            proxy.cut()


def test_heartbeats_while_idle(dial: Open, server: Broker, queue: str) -> None:
    """No thread is in a call for longer than the broker's idle timeout."""
    with Proxy(server) as proxy:
        connection = dial(proxy.url(), heartbeat=1)
        session = connection.session()
        before = proxy.to_server
        wait_until(lambda: proxy.to_server >= before + 16)
        session.publish("x", queue)
        assert connection.driver.core.generation == 1

"""The sync API over a network that fails."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from leveret.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    Error,
    InvalidUrl,
    Timeout,
    TransactionLost,
    VhostRefused,
)
from leveret.client.events import Closed, Connected, Disconnected, Event, Reconnecting, Recovered
from tests.client.sync.conftest import Open
from tests.support.broker import CONNECT_TIMEOUT, Broker
from tests.support.polling import DEADLINE, wait_until
from tests.support.proxy import Proxy


def test_connection_failures(server: Broker, dial: Open) -> None:
    with pytest.raises(AuthenticationFailed, match="guest"):
        dial(server.url(), password="wrong")
    with pytest.raises(VhostRefused, match="nowhere"):
        dial(server.url(), vhost="nowhere")
    with pytest.raises(ConnectionFailed, match="cannot connect to 127"):
        dial("amqp://127.0.0.1:1")
    with pytest.raises(InvalidUrl, match="heartbeat"):
        dial("amqp://127.0.0.1?heartbeet=1")
    assert dial(["amqp://127.0.0.1:1", server.url()]).is_open


def test_silent_server(server: Broker, dial: Open) -> None:
    with Proxy(server) as proxy:
        proxy.flowing.clear()
        with pytest.raises(ConnectionFailed, match="connect_timeout"):
            dial(proxy.url(), connect_timeout=0.3)


def test_everything_is_restored(proxy: Proxy, dial: Open, name: str) -> None:
    events: list[Event] = []
    connection = dial(proxy.url(), reconnect_delay=0.01, on_event=events.append)
    channel = connection.channel()
    exchange = channel.declare_exchange(f"{name}.x", "topic", auto_delete=True)
    named = channel.declare_queue(name, exclusive=True)
    unnamed = channel.declare_queue(exclusive=True)
    named.bind(exchange, "a")
    unnamed.bind(exchange, "b")
    consumer = unnamed.consume(prefetch=3).start()
    before = unnamed.name
    proxy.cut()
    wait_until(lambda: any(isinstance(event, Connected) and not event.first for event in events))
    assert unnamed.name != before
    for number in range(5):
        exchange.publish(str(number), "b", mandatory=True)
    exchange.publish("to a", "a", mandatory=True)
    message = named.get()
    assert message is not None and message.body == b"to a"
    # Three at a time, as before.
    messages = [consumer.next(timeout=60) for _ in range(3)]
    for _ in range(2):
        channel.declare_queue(unnamed.name, passive=True)
    with pytest.raises(Timeout):
        consumer.next(timeout=0.01)
    messages[-1].ack(multiple=True)
    assert [consumer.next(timeout=60).body for _ in range(2)] == [b"3", b"4"]
    connection.close()
    kinds = [type(event) for event in events]
    assert kinds[:2] == [Connected, Disconnected]
    assert kinds[2:].count(Reconnecting) >= 1
    assert [event for event in events if isinstance(event, Recovered)] == [Recovered(1, 1, 0)]
    assert kinds[-1] is Closed


def test_pending_calls_fail_at_once(proxy: Proxy, dial: Open, name: str) -> None:
    connection = dial(proxy.url(), reconnect_delay=0.01)
    channels = [connection.channel() for _ in range(5)]
    proxy.flowing.clear()
    with ThreadPoolExecutor(5) as threads:
        waiting = [threads.submit(channel.get, name) for channel in channels]
        wait_until(lambda: all(len(channel._core._calls) == 1 for channel in channels))
        proxy.cut()
        for call in waiting:
            with pytest.raises(ConnectionLost):
                call.result(timeout=60)
        proxy.flowing.set()


def test_settling_messages_of_a_lost_connection(proxy: Proxy, dial: Open, name: str) -> None:
    events: list[Event] = []
    connection = dial(proxy.url(), reconnect_delay=0.01, on_event=events.append)
    channel = connection.channel()
    queue = channel.declare_queue(name)
    channel.publish("x", name)
    consumer = queue.consume().start()
    held = consumer.next(timeout=60)
    proxy.cut()
    wait_until(lambda: any(isinstance(event, Connected) and not event.first for event in events))
    held.ack()
    again = consumer.next(timeout=60)
    assert (again.body, again.redelivered) == (b"x", True)
    again.ack()
    consumer.cancel()
    assert queue.delete() == 0


def test_lost_transaction(proxy: Proxy, dial: Open, name: str) -> None:
    events: list[Event] = []
    connection = dial(proxy.url(), reconnect_delay=0.01, on_event=events.append)
    channel = connection.channel(transactional=True)
    channel.declare_queue(name, exclusive=True)
    channel.publish("x", name)
    proxy.cut()
    wait_until(lambda: any(isinstance(event, Connected) and not event.first for event in events))
    with pytest.raises(TransactionLost):
        channel.tx_commit()
    with channel.transaction():
        channel.publish("y", name)
    message = channel.get(name)
    assert message is not None and message.body == b"y"


def test_reconnect_disabled(proxy: Proxy, dial: Open, name: str) -> None:
    connection = dial(proxy.url(), reconnect=False)
    channel = connection.channel()
    consumer = channel.declare_queue(name, exclusive=True).consume().start()
    proxy.cut()
    with pytest.raises(ConnectionLost):
        consumer.next(timeout=60)
    with pytest.raises(ConnectionLost):
        connection.wait_closed(60)
    with pytest.raises(ConnectionLost):
        channel.publish("x", name)


def test_reconnect_attempts(server: Broker, dial: Open) -> None:
    events: list[Event] = []
    with Proxy(server) as proxy:
        connection = dial(proxy.url(), reconnect_delay=0.01, reconnect_attempts=3, on_event=events.append)
    with pytest.raises(ConnectionFailed):
        connection.wait_closed(60)
    assert [event.attempt for event in events if isinstance(event, Reconnecting)] == [1, 2, 3]


def test_half_open_connection_is_detected_by_heartbeats(proxy: Proxy, dial: Open, name: str) -> None:
    events: list[Event] = []
    connection = dial(proxy.url(), heartbeat=1, reconnect_delay=0.01, on_event=events.append)
    channel = connection.channel()
    channel.declare_queue(name, exclusive=True)
    pairs = proxy.half_open()
    channel.publish("x", name)
    lost = wait_until(lambda: next((event for event in events if isinstance(event, Disconnected)), None))
    assert "no data from the server" in str(lost.error)
    for pair in pairs:
        pair.cut()


@pytest.mark.parametrize("windowed", [False, True])
def test_cuts_lose_no_confirmed_messages(proxy: Proxy, dial: Open, name: str, windowed: bool) -> None:
    """Publishers and a consumer whose connections are cut at random, even inside frames."""
    publishing, consuming = (dial(proxy.url(), reconnect_delay=0.01, reconnect_max_delay=0.05) for _ in range(2))
    setup = dial(proxy.broker.url()).channel()
    setup.declare_queue(name)
    confirmed: list[str] = []
    acked: Counter[str] = Counter()
    stopping = threading.Event()
    deadline = math.inf

    # Calls that wait for a reply fail when the connection is cut, so declare everything before.
    channels = [publishing.channel() for _ in range(3)]
    consumer = consuming.channel().consume(name, prefetch=20).start()

    def publish(number: int) -> None:
        channel = channels[number]
        step = 0
        while not stopping.is_set():
            if not windowed:
                channel.publish(f"{number}.{step}", name)
                confirmed.append(f"{number}.{step}")
                step += 1
                continue
            batch = [f"{number}.{step + ahead}" for ahead in range(100)]
            with channel.publisher(routing_key=name, window=30) as publisher:
                for body in batch:
                    publisher.publish(body)
            confirmed.extend(batch)
            step += 100

    def consume() -> None:
        while True:
            try:
                message = consumer.next(timeout=0.05)
            except Timeout:
                # The server may need a moment to requeue the messages of a connection that was cut.
                if not any(thread.is_alive() for thread in publishers) and (
                    set(confirmed) <= acked.keys() or time.monotonic() > deadline
                ):
                    return
                continue
            acked[message.text()] += 1
            message.ack()

    publishers = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
    consuming_thread = threading.Thread(target=consume)
    for thread in (*publishers, consuming_thread):
        thread.start()
    chance = random.Random(1)
    for _ in range(25):
        before = len(confirmed)
        wait_until(lambda before=before: len(confirmed) > before)  # type: ignore[misc]
        time.sleep(chance.random() * 0.02)
        proxy.cut()
    stopping.set()
    for thread in publishers:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    deadline = time.monotonic() + DEADLINE
    consuming_thread.join(DEADLINE + CONNECT_TIMEOUT)
    assert not consuming_thread.is_alive()
    left = setup.delete_queue(name)
    assert (set(confirmed) - acked.keys(), left) == (set(), 0)


def test_publisher_waits_while_the_socket_is_full(proxy: Proxy, dial: Open, name: str) -> None:
    """The memory of a publisher is bounded while nothing is sent, and all messages arrive in the end."""
    connection = dial(proxy.url(), heartbeat=0)
    channel = connection.channel(confirms=False)
    channel.declare_queue(name, exclusive=True)
    proxy.flowing.clear()
    done = threading.Event()

    def publish() -> None:
        for _ in range(100):
            channel.publish(b"x" * 1_000_000, name)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    assert not done.wait(1)
    assert connection.driver.core.engine.pending < 4_000_000
    proxy.flowing.set()
    thread.join(60)
    assert done.is_set()
    with connection.channel() as other:
        wait_until(lambda: other.declare_queue(name, passive=True, exclusive=True).message_count == 100)


def test_client_error_ends_the_connection(connect: Open) -> None:
    """A reconnect would repeat the client's error, so the connection stays closed."""
    connection = connect()
    connection.channel()
    with connection.driver.lock:
        # channel.open on an open channel.
        connection.core.engine._pieces.append(b"\x01\x00\x01\x00\x00\x00\x05\x00\x14\x00\x0a\x00\xce")
        connection.core.engine.pending += 13
        connection.driver._write()
    with pytest.raises(Error) as caught:
        connection.wait_closed(60)
    assert caught.value.reply_code == 504

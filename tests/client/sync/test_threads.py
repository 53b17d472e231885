"""One connection shared by many threads, and heartbeats while the program is busy."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from leveret.client._sync.consumer import Consumer
from leveret.client.errors import ConnectionClosed, Error, NotFound, Timeout
from leveret.client.message import Message
from tests.client.sync.conftest import Open
from tests.support.polling import wait_until


def test_threads_share_a_channel(connect: Open, name: str) -> None:
    channel = connect().channel()
    channel.declare_queue(name, exclusive=True)

    def work(number: int) -> None:
        for step in range(50):
            channel.publish(f"{number}.{step}", name)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(work, range(16)))
    with channel.consume(name, no_ack=True) as consumer:
        bodies = [consumer.next(timeout=60).text() for _ in range(800)]
    for number in range(16):
        assert [body for body in bodies if body.startswith(f"{number}.")] == [f"{number}.{step}" for step in range(50)]


def test_threads_share_a_publisher_and_a_consumer(connect: Open, name: str) -> None:
    channel = connect().channel()
    channel.declare_queue(name, exclusive=True)
    taken: list[Message] = []
    lock = threading.Lock()
    consumer = channel.consume(name, prefetch=50).start()

    def consume() -> None:
        while True:
            try:
                message = consumer.next(timeout=60)
            except (Timeout, StopIteration):
                return
            message.ack()
            with lock:
                taken.append(message)
                if len(taken) == 4000:
                    # The other threads wait; they learn of the end.
                    threading.Thread(target=consumer.cancel).start()

    with ThreadPoolExecutor(8) as threads:
        consuming = [threads.submit(consume) for _ in range(4)]
        with channel.publisher(routing_key=name, window=20) as publisher:

            def publish(number: int) -> None:
                for _ in range(1000):
                    publisher.publish(str(number))

            list(threads.map(publish, range(4)))
        for future in consuming:
            future.result(timeout=60)
    assert Counter(message.body for message in taken) == {b"0": 1000, b"1": 1000, b"2": 1000, b"3": 1000}
    assert channel.get(name) is None


def test_requests_of_many_threads(connect: Open, name: str) -> None:
    connection = connect()
    answering, asking = connection.channel(), connection.channel()
    requests = answering.declare_queue(name, exclusive=True).consume().start()

    def answer() -> None:
        for request in requests:
            request.respond(request.body.upper())
            request.ack()

    thread = threading.Thread(target=answer)
    thread.start()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: asking.request(f"question {number}", name).body, range(200)))
    assert answers == [f"QUESTION {number}".encode() for number in range(200)]
    requests.cancel()
    thread.join(60)
    assert not thread.is_alive()


def test_close_ends_every_wait(connect: Open, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    consumers = [channel.declare_queue(exclusive=True).consume().start() for _ in range(5)]
    ended: list[Error] = []

    def consume(number: int) -> None:
        try:
            consumers[number].next()
        except Error as error:
            ended.append(error)

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    connection.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [type(error) for error in ended] == [ConnectionClosed] * 5


def test_interrupt_leaves_the_connection_usable(connect: Open, name: str) -> None:
    """An exception in a waiting thread, such as Ctrl-C, ends only that wait."""
    connection = connect()
    channel = connection.channel()
    queue = channel.declare_queue(name, exclusive=True)

    class Interrupt(BaseException):
        pass

    def raised(number: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, raised)
    try:
        for _ in range(20):
            consumer = queue.consume().start()
            with pytest.raises(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                consumer.next()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    channel.publish("x", name)
    with connection.channel() as other:
        assert other.declare_queue(name, passive=True, exclusive=True).consumer_count == 20


def test_heartbeats_while_the_program_computes(connect: Open, name: str) -> None:
    """The server gives a client up after two silent intervals.

    This one is busy for longer twice, in one call that keeps the interpreter and one that sleeps.
    """
    connection = connect(heartbeat=1, reconnect=False)
    channel = connection.channel()
    channel.declare_queue(name, exclusive=True)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        sum(range(10000))
    channel.publish("x", name)
    time.sleep(2.5)
    message = channel.get(name)
    assert message is not None and message.body == b"x"


def test_acks_are_sent_without_another_call(connect: Open, name: str) -> None:
    """Acks before a long computation reach the server, as its count of ready messages shows."""
    connection, other = connect(), connect()
    channel, watching = connection.channel(), other.channel()
    queue = channel.declare_queue(name)
    for number in range(20):
        channel.publish(str(number), name)
    consumer = queue.consume(prefetch=10).start()
    messages = [consumer.next(timeout=60) for _ in range(10)]
    assert watching.declare_queue(name, passive=True).message_count == 10
    for message in messages:
        message.ack()
    wait_until(lambda: not watching.declare_queue(name, passive=True).message_count)
    watching.delete_queue(name)


def test_concurrent_starts_of_a_consumer(connect: Open, name: str) -> None:
    channel = connect().channel()
    channel.declare_queue(name, exclusive=True)
    for _ in range(20):
        consumer = channel.consume(name)
        together = threading.Barrier(6)

        def take(consumer: Consumer = consumer, together: threading.Barrier = together) -> bytes:
            together.wait(60)
            return consumer.next(timeout=60).body

        with ThreadPoolExecutor(6) as threads:
            taken = [threads.submit(take) for _ in range(6)]
            for number in range(6):
                channel.publish(str(number), name)
            assert sorted(future.result(60) for future in taken) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert channel.declare_queue(name, passive=True).consumer_count == 1
        consumer.cancel()


def test_failed_start_of_a_shared_consumer(connect: Open, name: str) -> None:
    consumer = connect().channel().consume(name)

    def take(_: int) -> type[Error]:
        with pytest.raises(NotFound) as raised:
            consumer.next(timeout=60)
        return raised.type

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(take, range(4))) == [NotFound] * 4

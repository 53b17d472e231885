"""Exceptions of signal handlers, at any point: the connection survives or reconnects, and nothing hangs."""

from __future__ import annotations

import _thread
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from leveret import sync
from leveret.client.errors import Error
from leveret.client.events import Event, Recovered
from tests.client.sync.conftest import Open
from tests.support.polling import wait_until


class Interrupt(BaseException):
    pass


@contextmanager
def interrupts() -> Iterator[Callable[[float], None]]:
    """Return a function that sets the time until the next signal, 0 for none."""
    if sys.gettrace() is not None:
        pytest.skip("an exception within the trace function of Coverage.py leaves its lock held")

    def raised(number: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, raised)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_interrupt_inside_the_engine(connect: Open, name: str) -> None:
    """The state of the engine is unknown, so the connection reconnects."""
    recovered = threading.Event()

    def seen(event: Event) -> None:
        if isinstance(event, Recovered):
            recovered.set()

    connection = connect(reconnect_delay=0.01, on_event=seen)
    channel = connection.channel()
    channel.declare_queue(name, exclusive=True)
    receive = connection.driver.core.receive

    def once(data: bytes) -> None:
        if threading.current_thread() is not threading.main_thread():
            # The connection's own thread reads now and then, but signal handlers run in the main thread only.
            receive(data)
            return
        connection.driver.core.receive = receive  # type: ignore[method-assign]
        raise Interrupt

    connection.driver.core.receive = once  # type: ignore[method-assign]
    with pytest.raises(Interrupt):
        while True:
            channel.publish("x", name)
    channel.publish("y", name)
    # The connection's own thread calls the callbacks, after the publish was confirmed.
    assert recovered.wait(30)


@pytest.mark.parametrize("step", ["_unlocked", "_received"])
def test_interrupt_between_a_read_and_the_engine(connect: Open, name: str, step: str) -> None:
    """The connection reconnects, because the data that was read may be lost."""
    lost: list[Event] = []
    connection = connect(reconnect_delay=0.01, on_event=lost.append, timeout=30)
    channel = connection.channel()
    channel.declare_queue(name, exclusive=True)
    driver = connection.driver
    function = getattr(driver, step)

    def once(*arguments: object) -> object:
        if threading.current_thread() is not threading.main_thread():
            return function(*arguments)
        setattr(driver, step, function)
        if step == "_unlocked":
            # The data is read, but does not get any further.
            function(*arguments)
        raise Interrupt

    setattr(driver, step, once)
    with pytest.raises(Interrupt):
        while True:
            channel.publish("x", name)
    channel.publish("y", name)
    wait_until(lambda: any(isinstance(event, Recovered) for event in lost), "a new connection")


def test_interrupt_before_a_thread_sleeps(connect: Open, name: str) -> None:
    """The next leader is a thread that sleeps, not the one that was interrupted."""
    connection = connect()
    channel = connection.channel()
    driver = connection.driver

    class Sleepers(deque[_thread.LockType]):
        def append(self, sleeper: _thread.LockType) -> None:
            super().append(sleeper)
            if threading.current_thread() is threading.main_thread():
                raise Interrupt

    driver._sleepers = Sleepers()
    driver._has_leader = True
    with pytest.raises(Interrupt):
        channel.publish("x", name)
    driver._has_leader = False
    assert not driver._sleepers
    channel.publish("y", name)


def test_engine_bug_ends_no_thread(connect: Open, name: str) -> None:
    events: list[Event] = []
    connection = connect(reconnect_delay=0.01, on_event=events.append)
    channel = connection.channel()
    receive = connection.driver.core.receive

    def once(data: bytes) -> None:
        connection.driver.core.receive = receive  # type: ignore[method-assign]
        raise ZeroDivisionError("a mistake")

    connection.driver.core.receive = once  # type: ignore[method-assign]
    with pytest.raises(Error) as caught:
        channel.declare_queue(name, exclusive=True)
    assert "a mistake" in str(caught.value) and isinstance(caught.value.__cause__, ZeroDivisionError)
    channel.declare_queue(name, exclusive=True)
    channel.publish("x", name)
    assert connection.driver._thread.is_alive()


@pytest.mark.slow
def test_interrupts_at_any_point(connect: Open, name: str) -> None:
    """The main thread publishes and consumes, interrupted at random points, while other threads share the connection.

    Confirmed messages are kept, nothing hangs, and the other threads notice at most a reconnect.
    """
    connection = connect(reconnect_delay=0.001, reconnect_max_delay=0.01)
    channel = connection.channel()
    channel.declare_queue(name)
    stopping = threading.Event()
    faults: list[BaseException] = []

    def beside() -> None:
        own = connection.channel()
        while not stopping.is_set():
            try:
                own.publish("beside", timeout=60)
            except Error as error:
                if isinstance(error, TimeoutError):
                    faults.append(error)
                    return

    threads = [threading.Thread(target=beside) for _ in range(4)]
    for thread in threads:
        thread.start()
    chance = random.Random(1)
    confirmed: list[str] = []
    taken: set[str] = set()
    deadline = time.monotonic() + 12
    step = 0

    def work(consumer: sync.Consumer) -> None:
        nonlocal step
        while True:
            for _ in range(10):
                step += 1
                body = str(step)
                channel.publish(body, name, timeout=60)
                confirmed.append(body)
            message = consumer.next(timeout=60)
            taken.add(message.text())
            message.ack()

    with interrupts() as interrupt:
        while time.monotonic() < deadline:
            consumer = channel.consume(name, prefetch=10)
            try:
                consumer.start()
                interrupt(chance.random() * 0.03)
                work(consumer)
            except Interrupt:
                pass
            except TimeoutError as error:
                faults.append(error)
                break
            except Error:
                pass
            finally:
                interrupt(0)
                for _ in range(20):
                    try:
                        consumer.cancel()
                        break
                    except Error:
                        pass
    stopping.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not faults
    connection.close()
    with connect() as other, other.channel() as last:
        while (message := last.get(name, no_ack=True)) is not None:
            taken.add(message.text())
        last.delete_queue(name)
    assert set(confirmed) - taken == set()

"""The watchdog over the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial

import pytest

from leveret.server.watchdog import Watchdog
from tests.protocols.support import Site


class Clock:
    """A clock that counts how often it is read."""

    def __init__(self) -> None:
        self.time = 100.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_slow_turn_is_counted_and_reported(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(0.1, clock, clock)
    watchdog.watch(lambda: "connection 7 (queue.purge)")
    with caplog.at_level(logging.WARNING, "leveret.server"):
        watchdog.select(0)
        clock.time += 0.09
        watchdog.select(0)
        assert watchdog.slow == 0 and not caplog.records
        clock.time += 0.25
        watchdog.select(0)
    watchdog.close()
    assert watchdog.slow == 1 and watchdog.longest == pytest.approx(0.25)
    assert "took 250 ms" in caplog.text and "server.slow_turn" in caplog.text
    assert "connection 7 (queue.purge)" in caplog.text


def test_a_turn_costs_two_reads_of_the_clock(clock: Clock) -> None:
    watchdog = Watchdog(0.1, clock, clock)
    watchdog.select(0)
    before = clock.reads
    for _ in range(10):
        watchdog.select(0)
    watchdog.close()
    assert clock.reads - before == 20


def test_it_serves_an_event_loop() -> None:
    watchdog = Watchdog(0.1)
    watchdog.watch(lambda: "unknown")
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watchdog)) as runner:
        runner.run(asyncio.sleep(0.001))
    assert watchdog.longest > 0


def test_a_turn_is_described_by_clients_and_operations() -> None:
    site = Site()
    channel = site.channel()
    site.services.call_soon = site.posted.append
    channel.send("queue.purge", queue="nowhere", no_wait=False)
    channel.client.flush()
    assert site.services.describe_turn() == f"connection 1, {channel.client.peer.name} (queue.purge)"


def test_an_idle_callback_runs_once_when_nothing_is_ready() -> None:
    watchdog = Watchdog(0.1)
    called: list[str] = []
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watchdog)) as runner:
        loop = runner.get_loop()

        async def run() -> None:
            watchdog.when_idle(lambda: called.append("idle"))
            loop.call_soon(called.append, "ready")
            await asyncio.sleep(0)
            assert called == ["ready"]
            while len(called) < 2:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)

        runner.run(run())
    assert called == ["ready", "idle"]


@pytest.mark.parametrize("busy", [False, True])
def test_callbacks_of_other_threads(busy: bool) -> None:
    """They run on the loop in order, whether it waits or not."""
    watchdog = Watchdog(0.1)
    called: list[int] = []
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watchdog)) as runner:
        loop = runner.get_loop()

        async def run() -> None:
            done = asyncio.Event()
            if not watchdog.take_posts(loop):
                pytest.skip("no eventfd")
            main = threading.get_ident()

            def call(number: int) -> None:
                assert threading.get_ident() == main
                called.append(number)
                if number == 999:
                    done.set()

            def post() -> None:
                for number in range(1000):
                    watchdog.post(partial(call, number))
                    if number % 100 == 0:
                        time.sleep(0.001)

            thread = threading.Thread(target=post)
            thread.start()
            while busy and not done.is_set():
                await asyncio.sleep(0)
            await asyncio.wait_for(done.wait(), 30)
            thread.join()

        runner.run(run())
    assert called == list(range(1000))

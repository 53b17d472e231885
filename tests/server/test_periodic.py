"""Periodic tasks continue after any exception, and restart when their timer is lost."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker.failures import REPORT_INTERVAL, Failures
from leveret.server.periodic import OVERDUE, Tasks


class Loop:
    """A loop whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.count = 0

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_later(self, wait: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.count += 1
        handle = asyncio.TimerHandle(self.now + wait, callback, (), self)  # type: ignore[arg-type]
        heapq.heappush(self.timers, (self.now + wait, self.count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A call from an asyncio handle."""

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.timers and self.timers[0][0] <= until:
            self.now, _, handle = heapq.heappop(self.timers)
            if not handle.cancelled():
                handle._callback()  # type: ignore[attr-defined]
        self.now = until


class Work:
    """An action that raises a given exception."""

    def __init__(self, wait: float) -> None:
        self.wait = wait
        self.calls = 0
        self.error: Exception | None = None

    def __call__(self) -> float:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.wait


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def tasks(loop: Loop) -> Any:
    return Tasks(loop)  # type: ignore[arg-type]


def test_tasks_continue_after_exceptions(loop: Loop, tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    work = Work(0.25)
    tasks.start("the work", work, 1.0)
    assert work.calls == 1
    work.error = OSError(24, "Too many open files")
    loop.run(120.1)
    assert work.calls == 1 + 1 + 119
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "the work failed and will be retried: OSError: [Errno 24] Too many open files",
        "the work failed and will be retried (60 times since the last entry): OSError: [Errno 24] Too many open files",
    ]
    work.error, work.calls = None, 0
    loop.run(2.0)
    assert work.calls == 8


def test_a_task_without_timer_is_restarted_by_another(loop: Loop, tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    lost, other = Work(0.25), Work(0.25)
    tasks.start("the watch", lost, 0.25)
    tasks.start("the clock", other, 0.25)
    tasks._tasks[0].cancel()
    loop.run(OVERDUE)
    assert lost.calls == 1
    loop.run(1.0)
    assert lost.calls > 1
    assert "seconds overdue: restarting it" in caplog.text and "the watch is" in caplog.text


def test_nothing_is_called_after_the_stop(loop: Loop, tasks: Tasks) -> None:
    work = Work(0.25)
    tasks.start("the work", work, 0.25)
    tasks.stop()
    loop.run(10.0)
    assert work.calls == 1


def test_failures_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    failures = Failures(logging.getLogger("leveret.test"), "it", lambda: now[0])
    for _ in range(3):
        failures.report(ValueError("no"))
    assert len(caplog.records) == 1 and caplog.records[0].exc_info is not None
    now[0] += REPORT_INTERVAL
    failures.report(ValueError("no"))
    assert len(caplog.records) == 2 and failures.count == 4

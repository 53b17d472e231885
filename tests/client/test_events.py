"""Events that a slow application has not read yet."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from leveret.client._async.driver import EventQueue as AsyncQueue
from leveret.client._sync.driver import Driver
from leveret.client._sync.driver import EventQueue as SyncQueue
from leveret.client.events import Blocked, Closed, Connected, Event, Unblocked
from leveret.client.parameters import Parameters

CONNECTED = Connected("h", 1, 1, True)
FLOOD: list[Event] = [event for number in range(1000) for event in (Blocked(str(number)), Unblocked())]
# The events of a server, and those that remain.
SENT = [CONNECTED, *FLOOD, Blocked("last"), Closed(None), *FLOOD]
LEFT = [CONNECTED, Blocked("last"), Closed(None), Unblocked()]


@pytest.mark.parametrize("kind", [AsyncQueue, SyncQueue])
def test_the_last_state_of_blocked_publishers_remains_of_a_flood(kind: type[AsyncQueue] | type[SyncQueue]) -> None:
    queue = kind()
    for event in SENT:
        queue.put_nowait(event)
    assert [queue.get_nowait() for _ in range(queue.qsize())] == LEFT


def test_a_callback_that_waits_gets_the_last_state() -> None:
    driver = Driver([Parameters()])
    seen: deque[Event] = deque()
    entered, go_on = threading.Event(), threading.Event()

    def callback(event: Event) -> None:
        seen.append(event)
        entered.set()
        assert go_on.wait(60)

    driver.callbacks.append(callback)
    driver.emit(CONNECTED)
    thread = threading.Thread(target=driver._run_callbacks)
    thread.start()
    assert entered.wait(60)
    for event in SENT[1:]:
        driver.emit(event)
    go_on.set()
    thread.join()
    assert list(seen) == LEFT

"""Waits that Ctrl-C ends, wherever it finds the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from leveret.cli.interrupts import Interrupts, interrupts


def press() -> None:
    signal.raise_signal(signal.SIGINT)


class Pressed:
    def __del__(self) -> None:
        press()


@pytest.fixture
def waits() -> Iterator[Interrupts]:
    with interrupts() as waits:
        yield waits


def test_ctrl_c_in_a_destructor_is_not_lost(waits: Interrupts) -> None:
    Pressed()
    with pytest.raises(KeyboardInterrupt):
        waits.wait(60.0)
    assert not waits.wait(0.0)


def test_ctrl_c_ends_a_wait_that_has_begun(waits: Interrupts) -> None:
    timer = threading.Timer(0.1, press)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        waits.wait(None)
    timer.join()


def test_ctrl_c_leaves_a_function_that_blocks(waits: Interrupts) -> None:
    blocked, released = threading.Event(), threading.Event()

    def block() -> None:
        press()
        released.wait()
        blocked.set()

    with pytest.raises(KeyboardInterrupt):
        waits.run(block)
    released.set()
    assert blocked.wait(60.0)


def test_a_function_that_ends_or_fails(waits: Interrupts) -> None:
    found: list[int] = []
    waits.run(lambda: found.append(1))
    assert found == [1]
    with pytest.raises(ZeroDivisionError):
        waits.run(lambda: found.append(1 // 0))
    with pytest.raises(SystemExit):
        waits.run(lambda: exit())
    # Their ends do not end later waits.
    assert not waits.wait(0.0)


def test_ctrl_c_is_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts():
        press()
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1

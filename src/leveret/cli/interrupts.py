"""Waiting that Ctrl-C always ends."""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager


class Interrupts:
    """Waits that raise `KeyboardInterrupt` after Ctrl-C, also if it was pressed before.

    Python's own handler raises the exception wherever the main thread is, and ignores it if that is a destructor, so that
    Ctrl-C is lost. Here the signal is a byte in a socket, which the next wait finds. What may block runs in a thread.

    Args:
        signals: The socket.
    """

    def __init__(self, signals: socket.socket) -> None:
        self._signals = signals

    def wait(self, seconds: float | None, *descriptors: int) -> bool:
        """Wait until a descriptor has input, or for the time. Returns whether one has input.

        Args:
            seconds: The time; None is unlimited.
            descriptors: The descriptors.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        signals = self._signals.fileno()
        ready = select.select([signals, *descriptors], [], [], seconds)[0]
        if signals in ready:
            self._signals.recv(1)
            raise KeyboardInterrupt
        return bool(ready)

    def run(self, function: Callable[[], None]) -> None:
        """Run a function in a thread, and wait for its end. Raises what it raises.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed. The thread continues, but does not keep the process alive.
        """
        ended, end = socket.socketpair()
        outcome: Future[None] = Future()

        def work() -> None:
            with end:
                try:
                    function()
                except BaseException as error:
                    outcome.set_exception(error)
                else:
                    outcome.set_result(None)

        with ended:
            threading.Thread(target=work, daemon=True).start()
            self.wait(None, ended.fileno())
        outcome.result()


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Have Ctrl-C end waits, and nothing else. For the main thread."""
    signals, written = socket.socketpair()
    with signals, written:
        written.setblocking(False)
        # First, so that no signal comes when there is neither a handler that raises nor the socket.
        descriptor = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        try:
            handler = signal.signal(signal.SIGINT, lambda *_: None)
            try:
                yield Interrupts(signals)
            finally:
                signal.signal(signal.SIGINT, handler)
        finally:
            signal.set_wakeup_fd(descriptor)

"""A process that forks others, each as a copy of itself: they need not import anything, and so start at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import selectors
import signal
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from leveret.node.forked import ForkedProcess, fork

# Bytes of a request, which the system takes as one packet.
MAX_REQUEST: Final = 160 << 10
_FIRST_DESCRIPTOR: Final = 3
# The id of a process, whether it has ended, and its exit code.
_ANSWER: Final = struct.Struct("=q?q")

# Runs in a new process, with the request and the descriptor that it carried. Returns the exit code.
Serve = Callable[[bytes, int], int]


class NurseryProcess:
    """A process of a nursery, with the methods that `ChildProcess` uses.

    Args:
        started: Called with its id.
    """

    def __init__(self, started: Callable[[int], None]) -> None:
        self.started = started
        self.pid = 0
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        """Wait until the process has ended. Returns its exit code, or the negative number of the signal that ended it."""
        return await asyncio.shield(self.code)

    def kill(self) -> None:
        """Kill the process."""
        if self.pid and not self.code.done():
            os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """The nursery, which ends with this process. There must not be an event loop or a thread yet.

    Args:
        serve: Runs in each new process.

    Attributes:
        is_alive: Whether it can start processes.
    """

    def __init__(self, serve: Serve) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: ForkedProcess = fork(partial(_run, theirs.fileno(), serve))
        theirs.close()
        self.is_alive = True
        self._born: list[NurseryProcess] = []
        self._running: dict[int, NurseryProcess] = {}
        self._is_read = False

    def start(self, request: bytes, carried: socket.socket, started: Callable[[int], None]) -> NurseryProcess | None:
        """Start a process, on the event loop.

        Args:
            request: What the process is to do.
            carried: A socket for the process. It stays open here.
            started: Called with the id of the process.

        Returns:
            The process; None if the nursery cannot start it.
        """
        if not self._is_read:
            self._is_read = True
            self._socket.setblocking(False)
            asyncio.get_running_loop().add_reader(self._socket, self._read)
        if len(request) > MAX_REQUEST or not self.is_alive:
            return None
        try:
            socket.send_fds(self._socket, [request], [carried.fileno()])
        except OSError:
            return None
        process = NurseryProcess(started)
        self._born.append(process)
        return process

    def _read(self) -> None:
        try:
            answer = self._socket.recv(_ANSWER.size)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if not answer:
            self._end()
            return
        pid, has_ended, code = _ANSWER.unpack(answer)
        if has_ended:
            self._running.pop(pid).code.set_result(code)
        else:
            process = self._running[pid] = self._born.pop(0)
            process.pid = pid
            process.started(pid)

    def _end(self) -> None:
        """Handle the end of the nursery: its processes are not watched any more, so they end, too."""
        self.is_alive = False
        asyncio.get_running_loop().remove_reader(self._socket)
        for process in (*self._born, *self._running.values()):
            process.kill()
            if not process.code.done():
                process.code.set_result(-signal.SIGKILL)
        self._born.clear()
        self._running.clear()

    def close(self) -> None:
        """End the nursery, whose processes must have ended."""
        self._socket.close()
        self.is_alive = False


def _run(descriptor: int, serve: Serve) -> int:
    """Fork processes for the owner of the nursery until it ends."""
    # The process has the descriptors of the owner, too, which must be the only one to have them.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(_FIRST_DESCRIPTOR, descriptor)
    os.closerange(descriptor + 1, limit)
    # Signals for the whole process group are for the owner.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as owner, selectors.DefaultSelector() as selector:
        selector.register(owner, selectors.EVENT_READ)
        # The owner may be killed before it has read all answers.
        with contextlib.suppress(ConnectionError):
            while True:
                for key, _ in selector.select():
                    process: ForkedProcess | None = key.data
                    if process is not None:
                        selector.unregister(process)
                        process.reap()
                        assert process.returncode is not None
                        owner.send(_ANSWER.pack(process.pid, True, process.returncode))
                        continue
                    request, descriptors, _, _ = socket.recv_fds(owner, MAX_REQUEST, 1)
                    if not request:
                        return 0
                    process = fork(partial(_serve, serve, request, descriptors[0], descriptor))
                    os.close(descriptors[0])
                    selector.register(process, selectors.EVENT_READ, process)
                    owner.send(_ANSWER.pack(process.pid, False, 0))
    return 0


def _serve(serve: Serve, request: bytes, descriptor: int, owner: int) -> int:
    os.close(owner)  # the nursery's end must end with it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return serve(request, descriptor)

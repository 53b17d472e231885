"""A process that was forked from this one, for `ChildProcess`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Final

# Whether the end of a forked process can be noticed by the event loop.
CAN_FORK: Final = hasattr(os, "pidfd_open")


def fork(serve: Callable[[], int]) -> ForkedProcess:
    """Fork a process that calls `serve` and exits with its result.

    It has the imported modules, which saves their time and memory. This process must not have threads or an event loop.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Collections in the new process would otherwise write to, and thus copy, the memory of all objects.
    gc.freeze()
    pid = os.fork()
    if pid:
        gc.unfreeze()
        return ForkedProcess(pid)
    code = 1
    try:
        code = serve()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class ForkedProcess:
    """A forked process, with the methods of `asyncio.subprocess.Process` that `ChildProcess` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)

    async def wait(self) -> int:
        """Wait until the process has ended. Returns its exit code, or the negative number of the signal that ended it."""
        loop = asyncio.get_running_loop()
        while self.returncode is None:
            ended = asyncio.Event()
            loop.add_reader(self._descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(self._descriptor)
            self.reap()
        return self.returncode

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process has ended."""
        return self._descriptor

    def reap(self) -> None:
        """Note the exit code of the process if it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid and self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._descriptor)

    def kill(self) -> None:
        """Kill the process."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

"""A child process of `leveret serve`: its start, and its restart when it ends unexpectedly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from leveret._isolation import python_command
from leveret.node.forked import ForkedProcess
from leveret.node.nursery import NurseryProcess

log = logging.getLogger("leveret.serve")

# Seconds before a restart: first, at most, and the time after which a process counts as stable.
_MIN_DELAY: Final = 0.5
_MAX_DELAY: Final = 30.0
_STABLE: Final = 60.0
# In /proc/PID/stat, behind the name of the program.
_USER_TIME: Final = 11
_SYSTEM_TIME: Final = 12
# Seconds for the process to end, before it is killed.
STOP_TIMEOUT: Final = 4.0


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger. False if there is none, or if that is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in ("T", "t")


def processor_time(pid: int) -> float | None:
    """Return the seconds of processor time that a process has used; None if there is none, or if that is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / os.sysconf("SC_CLK_TCK")


class ChildProcess:
    """A process that runs a module. It gets its settings on standard input, whose end stops it.

    Args:
        name: The name of the process in the log.
        module: The module to run.
        started: Called with the id of each started process.
        ended: Called with the reason when a process has ended unexpectedly, or cannot be started.
        stop_timeout: Seconds for a process to end, before it is killed.
    """

    def __init__(
        self,
        name: str,
        module: str,
        *,
        started: Callable[[int], None] | None = None,
        ended: Callable[[str], None] | None = None,
        stop_timeout: float = STOP_TIMEOUT,
    ) -> None:
        self._name = name
        self._module = module
        self._started = started
        self._ended = ended
        self._stop_timeout = stop_timeout
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | ForkedProcess | NurseryProcess | None = None

    def start(
        self,
        settings: Callable[[], msgspec.Struct],
        descriptors: Callable[[], Sequence[int]] = tuple,
        forked: ForkedProcess | NurseryProcess | None = None,
        *,
        restart: bool = True,
    ) -> None:
        """Start the process unless it runs, without waiting for it.

        Args:
            settings: Returns the settings of the process; called again for each restart.
            descriptors: Returns the file descriptors that the process inherits; called after `settings`.
            forked: The first process, if it runs already.
            restart: Whether to start it again when it ends unexpectedly.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_running(settings, descriptors, forked, restart))

    @property
    def is_running(self) -> bool:
        """Whether it runs, or is about to be started again."""
        return self._task is not None and not self._task.done()

    def kill(self) -> None:
        """Kill the process if it runs. Its end is handled as any unexpected one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """End the process."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _keep_running(
        self,
        settings: Callable[[], msgspec.Struct],
        descriptors: Callable[[], Sequence[int]],
        forked: ForkedProcess | NurseryProcess | None,
        restart: bool,
    ) -> None:
        delay = _MIN_DELAY
        while True:
            began = time.monotonic()
            try:
                code = await (self._run(settings, descriptors) if forked is None else self._wait(forked))
                outcome = f"ended with code {code}"
            except OSError as error:  # such as too few descriptors or processes
                outcome = f"cannot be started: {error.strerror}"
            forked = None
            if time.monotonic() - began > _STABLE:
                delay = _MIN_DELAY
            if self._ended is not None:
                self._ended(outcome)
            if not restart:
                return
            log.error("the %s %s; restarting it in %g seconds", self._name, outcome, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_DELAY)

    async def _run(self, settings: Callable[[], msgspec.Struct], descriptors: Callable[[], Sequence[int]]) -> int:
        """Run the process and return its exit code. A cancelled run ends it."""
        line = msgspec.json.encode(settings()) + b"\n"
        process = await asyncio.create_subprocess_exec(
            *python_command(self._module), stdin=asyncio.subprocess.PIPE, pass_fds=descriptors()
        )
        assert process.stdin is not None
        self._process = process
        if self._started is not None:
            self._started(process.pid)
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(line)
                await process.stdin.drain()
            return await process.wait()
        finally:
            process.stdin.close()
            await self._end(process)

    async def _wait(self, forked: ForkedProcess | NurseryProcess) -> int:
        """Wait for a process that runs already and return its exit code. A cancelled wait ends it."""
        self._process = forked
        try:
            return await forked.wait()
        finally:
            await self._end(forked)

    async def _end(self, process: asyncio.subprocess.Process | ForkedProcess | NurseryProcess) -> None:
        """Wait until the process has ended; kill it after a while."""
        self._process = None
        try:
            async with asyncio.timeout(self._stop_timeout):
                await process.wait()
        except TimeoutError:
            log.error("the %s did not end within %g seconds: killing it", self._name, self._stop_timeout)
            process.kill()
            await process.wait()

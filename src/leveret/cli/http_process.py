"""The HTTP process of `leveret serve`: its start, and its restart when it ends unexpectedly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

import msgspec

from leveret._isolation import python_command
from leveret.node.http_endpoint import HttpEndpoint

log = logging.getLogger("leveret.serve")

_MODULE: Final = "leveret.cli.http_main"
# Seconds before a restart: first, at most, and the time after which a process counts as stable.
_MIN_DELAY: Final = 0.5
_MAX_DELAY: Final = 30.0
_STABLE: Final = 60.0
# Seconds for the process to end, before it is killed.
_STOP_TIMEOUT: Final = 4.0


class HttpProcess:
    """The process that serves the HTTP API of a broker on the sockets of an endpoint, which are open."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self.endpoint = endpoint
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the process unless it runs, without waiting for it."""
        if self.endpoint.descriptors() and self._task is None:
            self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        """End the process and close the sockets."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self.endpoint.close()

    async def _keep_running(self) -> None:
        delay = _MIN_DELAY
        while True:
            began = time.monotonic()
            code = await self._run()
            if time.monotonic() - began > _STABLE:
                delay = _MIN_DELAY
            log.error("the HTTP process ended with code %d; restarting it in %g seconds", code, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_DELAY)

    async def _run(self) -> int:
        """Run the process and return its exit code. A cancelled run ends it."""
        process = await asyncio.create_subprocess_exec(
            *python_command(_MODULE),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=self.endpoint.descriptors(),
        )
        assert process.stdin is not None
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(msgspec.json.encode(self.endpoint.settings()) + b"\n")
                await process.stdin.drain()
            return await process.wait()
        finally:
            process.stdin.close()
            if process.returncode is None:
                await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_STOP_TIMEOUT):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()

"""The management of an embedded broker: its control socket, and a thread with its HTTP API."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Final

from leveret.config import Config
from leveret.management.admin import Admin
from leveret.management.control_socket import ControlServer
from leveret.management.recent_log import LogRecords, RecentLog
from leveret.management.socket_path import CONTROL_SOCKET
from leveret.node.errors import StartFailed
from leveret.node.http_endpoint import HttpEndpoint
from leveret.storage.registry import MEMORY

_THREAD: Final = "leveret-http"


class NodeManagement:
    """The management of one broker, across the times that its store is opened."""

    def __init__(self, config: Config) -> None:
        # A broker in memory has no directory of its own.
        self._temporary = tempfile.TemporaryDirectory() if config.storage.engine == MEMORY else None
        self._directory = config.server.data_path if self._temporary is None else Path(self._temporary.name)
        self._endpoint = HttpEndpoint(config, self._directory)
        self._control: ControlServer | None = None
        self._thread: _HttpThread | None = None
        # The records of Leveret that the program's level lets pass.
        self._log = RecentLog()
        logging.getLogger("leveret").addHandler(self._log)

    @property
    def listeners(self) -> list[str]:
        """The addresses of the HTTP API, as URLs."""
        return self._endpoint.listeners

    async def serve(self, admin: Admin) -> None:
        """Serve the operations of an open store. Raises `StartFailed`."""
        admin.managed.log = self._log.records
        path = self._directory / CONTROL_SOCKET
        control = ControlServer(admin, path)
        try:
            await control.start()
        except OSError as error:
            raise StartFailed(f"cannot create control socket {path}: {error}") from None
        self._control = control
        if self._thread is None:
            self._endpoint.listen()
            self._thread = _HttpThread(self._endpoint)
            self._thread.start()

    async def suspend(self) -> None:
        """Serve no operations until the store is open again."""
        control, self._control = self._control, None
        if control is not None:
            await control.stop()

    async def stop(self) -> None:
        """End the thread and remove what belongs to it."""
        if self._thread is not None:
            await self._thread.stop()
        self._endpoint.close()
        logging.getLogger("leveret").removeHandler(self._log)
        await self.suspend()
        if self._temporary is not None:
            self._temporary.cleanup()


class _HttpThread:
    """A thread with an event loop of its own that serves the HTTP API on the open sockets of an endpoint.

    It shares the interpreter with the broker and the program, so that long answers delay both.
    """

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self.endpoint = endpoint
        # The thread ends when the other end of this pipe is closed.
        ended, self._running = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(ended,), name=_THREAD, daemon=True)

    def start(self) -> None:
        """Start the thread, without waiting for it."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread and close the sockets."""
        os.close(self._running)
        await asyncio.to_thread(self._thread.join)
        self.endpoint.close()

    def _run(self, ended: int) -> None:
        from leveret.management.http.server import serve

        with os.fdopen(ended, "rb", buffering=0) as parent:
            asyncio.run(serve(self.endpoint.settings(), parent, LogRecords()))

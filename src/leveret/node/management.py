"""The management of an embedded broker: its control socket, and a thread with its HTTP API."""

from __future__ import annotations

import tempfile
from pathlib import Path

from leveret.config import Config
from leveret.management.admin import Admin
from leveret.management.control_socket import ControlServer
from leveret.management.socket_path import CONTROL_SOCKET
from leveret.node.errors import StartFailed
from leveret.node.http_endpoint import HttpEndpoint
from leveret.node.http_thread import HttpThread
from leveret.storage.registry import MEMORY


class NodeManagement:
    """The management of one broker, across the times that its store is opened."""

    def __init__(self, config: Config) -> None:
        # A broker in memory has no directory of its own.
        self._temporary = tempfile.TemporaryDirectory() if config.storage.engine == MEMORY else None
        self._directory = config.server.data_path if self._temporary is None else Path(self._temporary.name)
        self._endpoint = HttpEndpoint(config, self._directory)
        self._control: ControlServer | None = None
        self._thread: HttpThread | None = None

    @property
    def listeners(self) -> list[str]:
        """The addresses of the HTTP API, as URLs."""
        return self._endpoint.listeners

    async def serve(self, admin: Admin) -> None:
        """Serve the operations of an open store. Raises `StartFailed`."""
        path = self._directory / CONTROL_SOCKET
        control = ControlServer(admin, path)
        try:
            await control.start()
        except OSError as error:
            raise StartFailed(f"cannot create control socket {path}: {error}") from None
        self._control = control
        if self._thread is None:
            self._endpoint.listen()
            self._thread = HttpThread(self._endpoint)
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
        await self.suspend()
        if self._temporary is not None:
            self._temporary.cleanup()

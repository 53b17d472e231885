"""The HTTP process of `leveret serve`."""

from __future__ import annotations

from typing import Final

from leveret.node.child_process import ChildProcess
from leveret.node.http_endpoint import HttpEndpoint

_MODULE: Final = "leveret.cli.http_main"


class HttpProcess:
    """The process that serves the HTTP API of a broker on the sockets of an endpoint, which are open."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self.endpoint = endpoint
        self._process = ChildProcess("HTTP process", _MODULE)

    def start(self) -> None:
        """Start the process unless it runs, without waiting for it."""
        if self.endpoint.descriptors():
            self._process.start(self.endpoint.settings, self.endpoint.descriptors)

    async def stop(self) -> None:
        """End the process and close the sockets."""
        await self._process.stop()
        self.endpoint.close()

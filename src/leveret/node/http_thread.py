"""The HTTP API of an embedded broker, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Final

from leveret.node.http_endpoint import HttpEndpoint

_NAME: Final = "leveret-http"


class HttpThread:
    """The thread that serves the HTTP API of a broker on the sockets of an endpoint, which are open.

    It shares the interpreter with the broker and the program, so that long answers delay both.
    """

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self.endpoint = endpoint
        # The thread ends when the other end of this pipe is closed.
        ended, self._running = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(ended,), name=_NAME, daemon=True)

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
            asyncio.run(serve(self.endpoint.settings(), parent))

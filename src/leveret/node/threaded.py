"""A broker in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TypeVar

from leveret.node.running import Node

Result = TypeVar("Result")


class Threaded:
    """A node in a thread. The constructor raises the errors of `Node.start`.

    The thread does not keep the process alive; the broker stops when the process exits.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ready: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="leveret-broker", daemon=True)
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)

    def run(self, coroutine: Coroutine[object, None, Result]) -> Result:
        """Run a coroutine on the broker's loop and return its result. Raises `RuntimeError` if the broker is stopped."""
        assert self._loop is not None
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise RuntimeError("the broker is not running") from None
        return future.result()

    def stop(self) -> None:
        """Stop the broker and wait for its thread."""
        atexit.unregister(self.stop)
        self._stopping = True
        loop, end = self._loop, self._end
        if loop is not None and end is not None:
            try:
                loop.call_soon_threadsafe(end.set)
            except RuntimeError:
                pass  # the loop is closed
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            # After the startup, no caller waits for the error.
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self._end.set()
        await self._node.start()
        self._ready.set_result(None)
        try:
            await self._end.wait()
        finally:
            await self._node.stop()

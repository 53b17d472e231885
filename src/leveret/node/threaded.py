"""A broker in a thread of its own, with an event loop of its own."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from leveret.node.running import Node

Result = TypeVar("Result")


class Threaded:
    """Starts the node; raises what `Node.start` raises.

    The thread does not keep the process alive: a broker that nobody has stopped is stopped when the process ends.
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

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run something on the broker's loop and wait for it. RuntimeError when the broker does not run any more."""
        assert self._loop is not None
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise RuntimeError("the broker does not run") from None
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
                pass  # it has ended
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            # What comes after the start has no one else to be told to.
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

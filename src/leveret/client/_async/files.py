"""A consumer of files, async API."""

from __future__ import annotations

from typing import cast

from leveret.client._async.consumer import Consumer
from leveret.client.files import FileMessage


class FileConsumer(Consumer):
    """An iterator over the files of a queue; otherwise as `Consumer`."""

    async def start(self) -> FileConsumer:
        """Start consuming, unless already started."""
        await super().start()
        return self

    async def __aenter__(self) -> FileConsumer:
        return await self.start()

    def __aiter__(self) -> FileConsumer:
        return self

    async def __anext__(self) -> FileMessage:
        return cast(FileMessage, await super().__anext__())

    async def next(self, timeout: float | None = None) -> FileMessage:
        """Return the next file. Raises `Timeout` if none arrives in time, and StopAsyncIteration at the end."""
        return cast(FileMessage, await super().next(timeout))

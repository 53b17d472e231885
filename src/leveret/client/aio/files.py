"""A consumer of files, aio."""

from __future__ import annotations

from typing import cast

from leveret.client.aio.consumer import Consumer
from leveret.client.files import FileMessage


class FileConsumer(Consumer):
    """As `Consumer`, of files."""

    async def start(self) -> FileConsumer:
        """Begin to consume, once."""
        await super().start()
        return self

    async def __aenter__(self) -> FileConsumer:
        return await self.start()

    def __aiter__(self) -> FileConsumer:
        return self

    async def __anext__(self) -> FileMessage:
        return cast(FileMessage, await super().__anext__())

    async def next(self, timeout: float | None = None) -> FileMessage:
        """The next file. Raises `Timeout` when none comes within so many seconds, and StopAsyncIteration at the end."""
        return cast(FileMessage, await super().next(timeout))

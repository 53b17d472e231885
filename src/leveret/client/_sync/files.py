"""A consumer of files, sync API."""

from __future__ import annotations

from typing import cast

from leveret.client._sync.consumer import Consumer
from leveret.client.files import FileMessage


class FileConsumer(Consumer):
    """An iterator over the files of a queue; otherwise as `Consumer`."""

    def start(self) -> FileConsumer:
        """Start to consume, unless already started."""
        super().start()
        return self

    def __enter__(self) -> FileConsumer:
        return self.start()

    def __iter__(self) -> FileConsumer:
        return self

    def __next__(self) -> FileMessage:
        return cast(FileMessage, super().__next__())

    def next(self, timeout: float | None = None) -> FileMessage:
        """Return the next file. Raises `Timeout` if none arrives in time, and StopIteration at the end."""
        return cast(FileMessage, super().next(timeout))

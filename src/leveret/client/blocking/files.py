"""A consumer of files, blocking."""

from __future__ import annotations

from typing import cast

from leveret.client.blocking.consumer import Consumer
from leveret.client.files import FileMessage


class FileConsumer(Consumer):
    """As `Consumer`, of files."""

    def start(self) -> FileConsumer:
        """Begin to consume, once."""
        super().start()
        return self

    def __enter__(self) -> FileConsumer:
        return self.start()

    def __iter__(self) -> FileConsumer:
        return self

    def __next__(self) -> FileMessage:
        return cast(FileMessage, super().__next__())

    def next(self, timeout: float | None = None) -> FileMessage:
        """The next file. Raises `Timeout` when none comes within so many seconds, and StopIteration at the end."""
        return cast(FileMessage, super().next(timeout))

"""Received AMQP 0-9 contents of class file and class message, which may be large."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING

from leveret.client.engine.amqp09.outgoing import filename_of
from leveret.client.message import Message

if TYPE_CHECKING:
    from leveret.client.engine.amqp091.channel import ChannelCore
    from leveret.wire.amqp0.commands import Deliver


class FileContent(Message):
    """A received file. Its content is not in memory, except that of a small file without a directory.

    Attributes:
        file: The content, opened for reading at its beginning. With a directory, settling the message closes it.
        path: Path of the content; None if the consumer has no directory. The file stays there after an ack and is removed
            after a reject.
        identifier: Identifier, which a redelivery keeps.
        kind: Content class: "file" or "message".
    """

    __slots__ = ("file", "identifier", "kind", "path")

    def __init__(self, channel: ChannelCore, command: Deliver, settled: bool = False) -> None:
        super().__init__(channel, command, settled)
        self.file: IO[bytes]
        self.path: Path | None = None
        self.identifier = ""
        self.kind = "file"

    @property
    def filename(self) -> str:
        """File name from the sender, or "". Do not trust it as a path."""
        return filename_of(self.properties)

    @property
    def body(self) -> bytes:
        """The whole content, read into memory."""
        self.file.seek(0)
        return self.file.read()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the content as `path`. Moves a file in the consumer's directory, and copies any other."""
        if self.path is not None:
            shutil.move(self.path, path)
            self.path = Path(path)
            return
        self.file.seek(0)
        with open(path, "wb") as target:
            shutil.copyfileobj(self.file, target, 1 << 20)

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge the file; with `multiple`, also all earlier ones of the channel (`file.ack`)."""
        super().ack(multiple)
        self._close_file()

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        """Reject the file. Unlike `reject`, requeues it by default."""
        super().nack(requeue, multiple)
        self.drop()

    def reject(self, requeue: bool = False) -> None:
        """Reject the file: requeue it for other channels, or drop or dead-letter it (`file.reject`)."""
        super().reject(requeue)
        self.drop()

    def drop(self) -> None:
        """Close and remove the content."""
        self.file.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self.path is not None:
            self.file.close()


class FileMessage(FileContent):
    """A file received over the async API."""

    __slots__ = ()

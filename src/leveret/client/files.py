"""Files of AMQP 0-9 as they are received (class file), and messages of class message, which may be as large."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING

from leveret.client.core.amqp09.outgoing import filename_of
from leveret.client.message import Message

if TYPE_CHECKING:
    from leveret.client.core.channel import ChannelCore
    from leveret.wire.amqp0.commands import Deliver


class FileContent(Message):
    """A file that was received. Its octets are not in memory, but for small ones without a directory.

    file        open for reading, at its beginning; with a directory it is closed when the message is settled
    path        where it is, None where the consumer has no directory. It stays there when it is acknowledged, and is
                removed when it is rejected
    identifier  stays the same when it is delivered again
    """

    __slots__ = ("file", "identifier", "kind", "path")

    def __init__(self, channel: ChannelCore, command: Deliver, settled: bool = False) -> None:
        super().__init__(channel, command, settled)
        self.file: IO[bytes]
        self.path: Path | None = None
        self.identifier = ""
        # Its content class.
        self.kind = "file"

    @property
    def filename(self) -> str:
        """What its sender calls it, "" where it does not: not to be trusted as a path."""
        return filename_of(self.properties)

    @property
    def body(self) -> bytes:
        """All of it, read into memory."""
        self.file.seek(0)
        return self.file.read()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Have it under that path: moved there where it is in the consumer's directory, copied otherwise."""
        if self.path is not None:
            shutil.move(self.path, path)
            self.path = Path(path)
            return
        self.file.seek(0)
        with open(path, "wb") as target:
            shutil.copyfileobj(self.file, target, 1 << 20)

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge it; with `multiple`, everything before it on its channel too (`file.ack`)."""
        super().ack(multiple)
        self._close_file()

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        """`reject`, which goes back to the queue unless it says otherwise."""
        super().nack(requeue, multiple)
        self.drop()

    def reject(self, requeue: bool = False) -> None:
        """Give it back to the queue, for other channels, or drop or dead-letter it (`file.reject`)."""
        super().reject(requeue)
        self.drop()

    def drop(self) -> None:
        """Nobody wants the file."""
        self.file.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self.path is not None:
            self.file.close()


class FileMessage(FileContent):
    """A file that was received by asyncio's face."""

    __slots__ = ()

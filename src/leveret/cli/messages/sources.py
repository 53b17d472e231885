"""Sources of messages to publish: arguments, files, standard input."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from leveret.cli.messages.descriptors import read_some
from leveret.cli.messages.record import Draft, parse

FORMATS: Final = ("lines", "json", "raw")
# Bytes per message. Larger input is most likely a mistake.
MAX_MESSAGE_BYTES: Final = 1 << 30

Drafts = AsyncIterator[list[Draft]]


class BadInput(Exception):
    """Invalid input. The text includes its position."""


class Source:
    """Source of messages.

    Args:
        form: One of `FORMATS`.
        bodies: Messages from the command line; JSON objects if `form` is "json".
        files: Files to read after the bodies; "-" is standard input.
        before_waiting: Awaited before the source waits for input.
    """

    def __init__(
        self, form: str, bodies: Sequence[str], files: Sequence[Path], before_waiting: Callable[[], Awaitable[object]]
    ) -> None:
        self._form = form
        self._bodies = bodies
        self._files = files
        self._before_waiting = before_waiting
        self._size = self._sizes()
        self._read = 0

    @property
    def done(self) -> float | None:
        """The share of the input that has been read, from 0 to 1; None if the size is unknown."""
        return self._read / self._size if self._size else None

    def _sizes(self) -> int | None:
        total = 0
        for path in self._files:
            try:
                found = os.fstat(0) if str(path) == "-" else path.stat()
            except OSError:
                return None
            if not stat.S_ISREG(found.st_mode):
                return None
            total += found.st_size
        return total

    async def drafts(self) -> Drafts:
        """Yield messages in batches, as they become available. Raises `BadInput` after the messages that precede it."""
        for number, body in enumerate(self._bodies, 1):
            data = os.fsencode(body)
            yield [self._parse(data, f"body {number}") if self._form == "json" else Draft(data)]
        for path in self._files:
            name = "standard input" if str(path) == "-" else str(path)
            try:
                fd = 0 if str(path) == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise BadInput(f"{path}: {error.strerror}") from None
            try:
                async for drafts in self._drafts_of(fd, name):
                    yield drafts
            finally:
                if fd:
                    os.close(fd)

    async def _drafts_of(self, fd: int, name: str) -> Drafts:
        if self._form == "raw":
            pieces = [piece async for piece in self._pieces(fd, name)]
            yield [Draft(b"".join(pieces))]
            return
        first = 1
        async for lines in self._lines(fd, name):
            if self._form == "lines":
                yield [Draft(line) for line in lines]
            else:
                drafts = []
                for number, line in enumerate(lines, first):
                    if not line or line.isspace():
                        continue
                    try:
                        drafts.append(self._parse(line, f"{name}, line {number}"))
                    except BadInput:
                        yield drafts
                        raise
                yield drafts
            first += len(lines)

    @staticmethod
    def _parse(line: bytes, position: str) -> Draft:
        try:
            return parse(line)
        except ValueError as error:
            raise BadInput(f"{position}: {error}") from None

    async def _pieces(self, fd: int, name: str) -> AsyncIterator[bytes]:
        total = 0
        try:
            while data := await read_some(fd, self._before_waiting):
                self._read += len(data)
                total += len(data)
                if self._form == "raw":
                    self._check(total, name)
                yield data
        except OSError as error:
            raise BadInput(f"{name}: {error.strerror}") from None

    async def _lines(self, fd: int, name: str) -> AsyncIterator[list[bytes]]:
        """Yield lines without their line ends, in batches."""
        begun: list[bytes] = []
        size = 0
        async for data in self._pieces(fd, name):
            lines = data.split(b"\n")
            rest = lines.pop()
            if lines:
                lines[0] = b"".join((*begun, lines[0]))
                begun, size = [], 0
                yield lines
            if rest:
                begun.append(rest)
                size += len(rest)
                self._check(size, name)
        if begun:
            yield [b"".join(begun)]

    @staticmethod
    def _check(size: int, name: str) -> None:
        if size > MAX_MESSAGE_BYTES:
            raise BadInput(f"{name}: a message is larger than {MAX_MESSAGE_BYTES >> 30} GiB")

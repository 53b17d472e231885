"""Outputs for received messages: standard output, or one file per message."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from leveret.cli.messages.descriptors import Writer
from leveret.cli.messages.record import dump
from leveret.cli.output import text

if TYPE_CHECKING:
    from leveret.client.message import Message


class Output(Protocol):
    """Interface of an output.

    Attributes:
        written: The number of messages that the last `write` completed, even if it was cancelled or failed.
        is_terminal: Whether it is a terminal.
    """

    written: int
    is_terminal: bool

    async def write(self, messages: Sequence[Message]) -> None: ...

    def on_closed(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the reader closes the output."""


def _line(message: Message) -> bytes:
    return message.body + b"\n"


def _raw(message: Message) -> bytes:
    return message.body


_FORMATS: Final = {"lines": _line, "json": dump, "raw": _raw}


def _printable(line: bytes) -> bytes:
    """Escape control characters, so that a body cannot control the terminal."""
    return text(line[:-1].decode("utf-8", "backslashreplace")).encode() + b"\n"


class Stream:
    """Standard output."""

    def __init__(self, form: str) -> None:
        encode = _FORMATS[form]
        self._encode: Callable[[Message], bytes] = encode
        self.is_terminal = os.isatty(1)
        if form != "raw" and self.is_terminal:
            self._encode = lambda message: _printable(encode(message))
        self._writer = Writer(1)
        self.written = 0

    async def write(self, messages: Sequence[Message]) -> None:
        self.written = 0
        items = [self._encode(message) for message in messages]
        ends = list(accumulate(map(len, items)))
        try:
            await self._writer.write(b"".join(items), lambda at: _end(ends, at))
        finally:
            self.written = bisect_right(ends, self._writer.written)

    def on_closed(self, callback: Callable[[], object]) -> None:
        self._writer.on_closed(callback)


def _end(ends: list[int], at: int) -> int:
    """Return the end of the partially written item, or `at` if there is none."""
    if at in (0, ends[-1]) or ends[bisect_left(ends, at)] == at:
        return at
    return ends[bisect_right(ends, at)]


class Directory:
    """Directory with one file per body: 00000001, 00000002 and so on, continuing after existing files."""

    is_terminal = False

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._last = max((int(name) for name in os.listdir(path) if name.isascii() and name.isdigit()), default=0)
        self.written = 0

    async def write(self, messages: Sequence[Message]) -> None:
        self.written = 0
        for message in messages:
            self._last += 1
            path = self._path / f"{self._last:08}"
            try:
                with open(path, "xb") as file:
                    file.write(message.body)
            except FileExistsError:
                raise
            except OSError:
                path.unlink(missing_ok=True)
                raise
            self.written += 1
            # Yield for heartbeats and signals between files.
            await asyncio.sleep(0)

    def on_closed(self, callback: Callable[[], object]) -> None:
        """Do nothing: a directory is never closed."""

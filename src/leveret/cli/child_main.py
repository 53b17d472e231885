"""The start of a child process of `leveret serve`."""

from __future__ import annotations

import os
import signal
import sys
from typing import BinaryIO, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

# The scheduler prefers the broker's process.
_NICE = 5


def begin(settings: type[T]) -> tuple[T, BinaryIO]:
    """Return the settings, the first line of standard input, and the rest of it, which ends when the broker does."""
    read, parent = read_settings(settings)
    os.nice(_NICE)
    return read, parent


def read_settings(settings: type[T]) -> tuple[T, BinaryIO]:
    """Return the same as `begin`, for a process that is as important as the one that has started it."""
    # A signal for the whole process group, such as Ctrl-C in a terminal, is for the broker, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.fdopen(sys.stdin.fileno(), "rb", buffering=0)
    return msgspec.json.decode(_first_line(parent.fileno()), type=settings), parent


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(descriptor, 1)
        if not read:
            break
        line += read
    return line

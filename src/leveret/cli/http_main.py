"""Entry point of the HTTP process that `leveret serve` starts. Its first line of standard input has the settings."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import msgspec

from leveret.cli.logs import set_up_logging
from leveret.management.http.settings import HttpSettings

# The scheduler prefers the broker's process.
_NICE = 5


def main() -> None:
    """Serve the HTTP API until standard input ends."""
    # A signal for the whole process group, such as Ctrl-C in a terminal, is for the broker, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.fdopen(sys.stdin.fileno(), "rb", buffering=0)
    settings = msgspec.json.decode(_first_line(parent.fileno()), type=HttpSettings)
    set_up_logging(settings.log_level, settings.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    os.nice(_NICE)
    from leveret.management.http.server import serve

    asyncio.run(serve(settings, parent))


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(descriptor, 1)
        if not read:
            break
        line += read
    return line

"""The broker's process, as seen by its child processes."""

from __future__ import annotations

import asyncio
from typing import BinaryIO


async def wait_for_end(parent: BinaryIO) -> None:
    """Return when the broker's process closes its end of `parent`, or ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), parent)
    while await reader.read(4096):
        pass

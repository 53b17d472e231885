"""Streams to control sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, TypeAlias

from leveret.management.socket_path import short_path

# Bytes that are read at a time, and that the other side may be ahead of the reader.
CHUNK: Final = 64 << 10

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_control(path: Path) -> Streams:
    """Connect to a control socket. Raises `OSError`."""
    with short_path(path) as name:
        return await asyncio.open_unix_connection(name, limit=CHUNK)

"""Bodies that are processed while they are received."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from leveret.management.http.request import BrokenUpload
from leveret.management.http.uploads import chunks


def receive_all(parts: Iterable[bytes], limit: int, total: float = 60.0) -> tuple[bytes, BrokenUpload | None]:
    """Return what was received of a body whose end never arrives, and why no more."""
    waiting = iter(parts)
    received = bytearray()

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.001)
        content = next(waiting, None)
        if content is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": content, "more_body": True}

    async def run() -> BrokenUpload | None:
        try:
            async for content in chunks(receive, limit, total):
                received.extend(content)
        except BrokenUpload as error:
            return error
        return None

    error = asyncio.run(run())
    return bytes(received), error


def test_a_body_that_drips_ends() -> None:
    received, error = receive_all((b"x" for _ in iter(int, 1)), 1 << 30, total=0.05)
    assert error is not None and error.status == 408 and "does not arrive in time" in str(error)
    assert received


def test_a_body_that_is_too_large_ends() -> None:
    received, error = receive_all([b"x" * 60] * 3, 100)
    assert error is not None and error.status == 400 and "management.max_body_size" in str(error)
    assert received == b"x" * 60


def test_a_client_that_leaves_ends_a_body() -> None:
    received, error = receive_all([b"x", b"y"], 100)
    assert error is not None and error.status == 400 and "closed the connection" in str(error)
    assert received == b"xy"


@pytest.mark.parametrize("content", [b"", b"abc"])
def test_a_body_in_one_part_is_complete(content: bytes) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content}

    async def read() -> list[bytes]:
        return [part async for part in chunks(receive, 3)]

    assert asyncio.run(read()) == [content]

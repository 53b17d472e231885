"""Sources of files and message bodies to send."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from leveret.client.engine.common.encoding import encode_body
from leveret.client.errors import InvalidMessage

Source = str | bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]
_SEEKABLE: Final = ("read", "seek", "tell")


@contextmanager
def file_of(source: Source) -> Iterator[IO[bytes]]:
    """Yield a source as a binary file. Closes files that it opened.

    Raises:
        InvalidMessage: The source is neither a path, nor bytes, nor a seekable file.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        with io.BytesIO(source) as buffer:
            yield buffer
    elif isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            yield file
    elif all(hasattr(source, name) for name in _SEEKABLE):
        yield source
    else:
        raise InvalidMessage(f"expected a path, bytes or a seekable file, not {type(source).__name__}")


@contextmanager
def body_of(source: Source) -> Iterator[IO[bytes]]:
    """Yield a source as a binary file. A str is the body itself, not a path; otherwise as `file_of`."""
    if not (
        isinstance(source, (str, bytes, bytearray, memoryview, os.PathLike))
        or all(hasattr(source, name) for name in _SEEKABLE)
    ):
        raise InvalidMessage(f"expected text, bytes, a path or a seekable file, not {type(source).__name__}")
    with file_of(encode_body(source) if isinstance(source, str) else source) as file:
        yield file


def read_exactly(file: IO[bytes], n_bytes: int, size: int) -> bytes:
    """Read `n_bytes` bytes of a source of `size` bytes. Raises `InvalidMessage` if the source was truncated."""
    data = file.read(n_bytes)
    if len(data) < n_bytes:
        raise InvalidMessage(f"the file was truncated while it was sent; expected {size} bytes")
    return data

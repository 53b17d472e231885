"""What files and bodies of messages are read from."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from leveret.client.core.encoding import encode_body
from leveret.client.errors import InvalidMessage

Source = str | bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]
_SEEKABLE: Final = ("read", "seek", "tell")


@contextmanager
def file_of(source: Source) -> Iterator[IO[bytes]]:
    """The file that a path or octets are, or that it is; what is opened here is closed at the end. `InvalidMessage` for
    what is no file."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        with io.BytesIO(source) as buffer:
            yield buffer
    elif isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            yield file
    elif all(hasattr(source, name) for name in _SEEKABLE):
        yield source
    else:
        raise InvalidMessage(f"a path, octets or a file that can be sought expected, not {type(source).__name__}")


@contextmanager
def body_of(source: Source) -> Iterator[IO[bytes]]:
    """As `file_of`, where a text is the body and not a path."""
    if not (isinstance(source, (str, bytes, bytearray, memoryview, os.PathLike))
            or all(hasattr(source, name) for name in _SEEKABLE)):
        raise InvalidMessage(f"text, octets, a path or a file that can be sought expected, not {type(source).__name__}")
    with file_of(encode_body(source) if isinstance(source, str) else source) as file:
        yield file


def read_exactly(file: IO[bytes], wanted: int, size: int) -> bytes:
    """So many octets of a source of `size`. Raises `InvalidMessage` where it is shorter by now."""
    data = file.read(wanted)
    if len(data) < wanted:
        raise InvalidMessage(f"the file has become shorter while it was sent: {size} octets expected")
    return data
